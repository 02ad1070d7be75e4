"""Options as `/config` shows them and takes them. Knows neither HTTP nor who else has to know.

An option goes by its key in NSQ's configuration file. What may be changed while a daemon runs is
what its table marks so.
"""

import json
from typing import Any

from nsqcy.config.options import STRING, OptionTable, parse_level
from nsqcy.options.option import Option, Value


def find(table: OptionTable, key: str) -> Option | None:
    """The option of this key; None for one that is unknown, or only for the command line."""
    return table.by_toml_key.get(key)


def is_text(option: Option) -> bool:
    """Whether its value is shown as it is; all others are JSON."""
    return option.kind is STRING


def read(option: Option, body: bytes) -> Value:
    """The new value of an option that may change; ValueError when `body` holds none."""
    return _addresses(body) if option.kind.many else parse_level(body.decode())


def _addresses(body: bytes) -> tuple[str, ...]:
    """A JSON array of texts, or null. Duplicates stay: what was set is what is shown."""
    try:
        value: Any = json.loads(body.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("not an array of strings")
    for each in value:
        each.encode()  # half a surrogate pair is no text
    return tuple(each.strip() for each in value)
