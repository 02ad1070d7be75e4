"""Configuration files: reads a file's text, and chooses between nsqcy's INI and NSQ's TOML.

Independent of particular options; checks only that a value has the right kind. config/loader.py
owns the precedence of the sources.
"""

import re

from nsqcy.config.file_settings import FileSettings
from nsqcy.config.ini_file import read_ini
from nsqcy.config.options import OptionTable
from nsqcy.config.toml_file import read_toml
from nsqcy.errors import ConfigError

DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")

# A file is INI if it starts with an nsqcy header. TOML names contain no blanks, and NSQ ignores
# TOML tables.
_INI_START = r"\[\s*(?:(" + "|".join(DAEMONS) + r")\s*\]|(?:topic|channel)\s)"


def read_file(table: OptionTable, path: str) -> FileSettings:
    """Read a file's settings in either format; raise StartError with all errors in the file."""
    text = read_text(path)
    if _first_header(text):
        return read_ini(table, path, text)
    return read_toml(table, path, text)


def read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise ConfigError(path, None, f"open {path}: {reason}") from None
    except ValueError:
        raise ConfigError(path, None, "a path cannot contain a zero byte") from None
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, line, "not UTF-8") from None


def daemon_of(text: str) -> str:
    """Return the daemon that a file configures: the first daemon that an INI file names, or nsqd
    for TOML."""
    header = _first_header(text)
    return (header and header[1]) or "nsqd"


def _first_header(text: str) -> re.Match[str] | None:
    for line in text.split("\n"):
        line = line.strip()
        if line and not line.startswith("#"):
            return re.match(_INI_START, line)
    return None
