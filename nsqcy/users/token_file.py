"""--auth-token-file: the token with which a program authenticates to daemons.

Commands, which people start by hand, also read it from the environment.
"""

import os
import re
from collections.abc import Mapping

from nsqcy.config import configuration_file
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
    "send the token to every nsqd that an nsqlookupd lists, even if the nsqd has not authenticated"
    " to the nsqlookupd",
    guard=True,
)
_TOKEN = re.compile(r"[!-~]{1,4096}")


VARIABLE = "NSQCY_AUTH_TOKEN"
FILE_VARIABLE = "NSQCY_AUTH_TOKEN_FILE"
SETTINGS = f"--auth-token-file or {VARIABLE}"
"""The settings for a command's token, as shown in its errors."""


def of_command(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the token of a command: from this file, from the file named in the environment, or
    from the environment itself; empty if there is none. Raises ConfigError."""
    path = path or environment.get(FILE_VARIABLE, "").strip()
    if path:
        return read(path)
    token = environment.get(VARIABLE, "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(VARIABLE, None, "no valid token in this variable", "exactly one word")
    return token


def read(path: str) -> str:
    """Return the token; empty if there is no path. Raises ConfigError, which does not show the
    token."""
    if not path:
        return ""
    token = configuration_file.read_text(path).strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(path, None, "no valid token in this file", "exactly one word")
    return token
