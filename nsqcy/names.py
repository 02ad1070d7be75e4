"""Names of topics and channels: which are legal, which are ephemeral.  Knows no protocol."""

import re
from functools import lru_cache

MAX_LENGTH = 64
EPHEMERAL = "#ephemeral"

_LEGAL = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


@lru_cache(4096)
def is_valid(name: str) -> bool:
    """True for 1 to 64 bytes of `[.a-zA-Z0-9_-]`, a final `#ephemeral` included."""
    return len(name) <= MAX_LENGTH and _LEGAL.fullmatch(name) is not None
