"""--auth-token-file: the token with which a program authenticates to daemons."""

import re

from nsqcy.config import files
from nsqcy.config.options import BOOL, STRING
from nsqcy.errors import ConfigError
from nsqcy.options.option import Option

OPTION = Option(
    "auth-token-file",
    STRING,
    "",
    "file with the token for nsqds and nsqlookupds that use an --auth-file",
)
TRUST = Option(
    "trust-lookupd",
    BOOL,
    False,
    "send the token to every nsqd that an nsqlookupd lists, even if it has not proved itself",
    guard=True,
)
_TOKEN = re.compile(r"[!-~]{1,4096}")


def read(path: str) -> str:
    """Return the token; empty if there is no path. Raises ConfigError, which does not show the
    token."""
    if not path:
        return ""
    token = files.read_text(path).strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(path, None, "no valid token in this file", "exactly one word")
    return token
