"""JSON as NSQ's daemon reads and writes it.

An object is read into named fields: keys in any case, null as if absent, the last of several that
are equal, unknown ones ignored; anything else that is not what it should be is a ValueError, which
never shows what was read.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

Reader = Callable[[Any], Any]
Fields = Mapping[str, tuple[Reader, Any]]  # name: how to read it, what it is if absent

# What Go's encoder escapes although JSON does not ask for it.
_ESCAPED = {ord(each): f"\\u{ord(each):04x}" for each in "&<>\u2028\u2029"}


def decode(body: bytes, fields: Fields) -> dict[str, Any]:
    """Every field of the object that `body` is, read or at its default."""
    try:
        value = _DECODER.decode(body.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not JSON") from None
    found: dict[str, Any] = structure(fields)(EMPTY if value is None else value)
    return found


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value).translate(_ESCAPED).encode()


# -- readers


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    # A lone surrogate, escaped in JSON, has no place in UTF-8.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _integer(bits: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
            raise ValueError("not an integer of that size")
        return value

    return read


def number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise ValueError("not a number of that size")
    return found


int64 = _integer(63)
int32 = _integer(31)


def array(reader: Reader, empty: Any) -> Reader:
    """A reader of lists; an element that is null is read as `empty`."""

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("not an array")
        return [reader(empty if each is None else each) for each in value]

    return read


def structure(fields: Fields) -> Reader:
    """A reader of objects."""

    # A page of statistics has tens of thousands of objects.
    defaults = {name: default for name, (_, default) in fields.items()}
    readers = {name: reader for name, (reader, _) in fields.items()}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, _Pairs):
            raise ValueError("not an object")
        values = defaults.copy()
        for key, each in value:
            name = key if key in readers else key.lower()
            if each is not None and name in readers:
                values[name] = readers[name](each)
        return values

    return read


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, so that neither order nor repeats are lost."""


EMPTY = _Pairs()


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


# Made once: an IDENTIFY of each of thousands of clients may come in one turn.
_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
