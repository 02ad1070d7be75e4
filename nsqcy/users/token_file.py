"""The file of a token that a program shows to daemons: --auth-token-file."""

import re

from nsqcy.config import files
from nsqcy.config.options import STRING
from nsqcy.errors import ConfigError
from nsqcy.options.option import Option

OPTION = Option(
    "auth-token-file",
    STRING,
    "",
    "file with the token for nsqds and nsqlookupds that have an --auth-file",
)
_TOKEN = re.compile(r"[!-~]{1,4096}")


def read(path: str) -> str:
    """The token; none without a path. Raises ConfigError, which does not show it."""
    if not path:
        return ""
    token = files.read_text(path).strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(path, None, "no valid token in this file", "exactly one word")
    return token
