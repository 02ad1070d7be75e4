"""Names of NSQ topics and channels for the queues and exchanges of AMQP.

AMQP allows any name of up to 255 bytes; NSQ allows 64 letters, digits, dots, hyphens and
underscores. A name that NSQ allows is unchanged. In any other name, each disallowed character
becomes an underscore, and a hash of the original name keeps names distinct.
"""

import re
from hashlib import blake2b

from nsqcy.names import EPHEMERAL, MAX_NAME_LENGTH, is_ephemeral, is_valid_name

_DISALLOWED = re.compile(r"[^.a-zA-Z0-9_-]")
_HASH_BYTES = 6


def nsq_name(name: str, *, ephemeral: bool = False) -> str:
    """Return a valid topic or channel name; different names give different results."""
    suffix = EPHEMERAL if ephemeral else ""
    if not is_ephemeral(name) and is_valid_name(name + suffix):
        return name + suffix
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).hexdigest()
    room = MAX_NAME_LENGTH - len(suffix) - len(digest) - 1
    return f"{_DISALLOWED.sub('_', name)[:room]}-{digest}{suffix}"
