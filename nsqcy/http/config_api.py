"""Reading and changing options with `/config`. Independent of HTTP and other processes.

Options are named by their keys in NSQ's configuration file. The option table marks the options that
can change while the daemon runs.
"""

import json
from typing import Any

from nsqcy.config.options import STRING, OptionTable, parse_level
from nsqcy.options.option import Option, Value


def find(table: OptionTable, key: str) -> Option | None:
    """Return the option with this key; None if the key is unknown, or the option can only be set on
    the command line."""
    return table.by_toml_key.get(key)


def is_text(option: Option) -> bool:
    """Return whether the option's value is shown as plain text; all other values are JSON."""
    return option.kind is STRING


def read(option: Option, body: bytes) -> Value:
    """Parse the new value of an option; raises ValueError if `body` is invalid."""
    return _addresses(body) if option.kind.many else parse_level(body.decode())


def _addresses(body: bytes) -> tuple[str, ...]:
    """Parse a JSON array of strings, or null. Keeps duplicates, so that they are shown as set."""
    try:
        value: Any = json.loads(body.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("not an array of strings")
    for each in value:
        each.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
    return tuple(each.strip() for each in value)
