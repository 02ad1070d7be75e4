"""JSON as NSQ's daemons read and write it.

Reads an object into named fields:

- Keys match in any case; if a key is repeated, the last one counts. Unknown keys are ignored.
- null counts as absent.
- Invalid JSON and values of the wrong type raise ValueError, whose text never contains the input.
"""

import json
import math
from collections.abc import Callable, Mapping
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]
from operator import itemgetter
from typing import Any

Reader = Callable[[Any], Any]
Fields = Mapping[str, tuple[Reader, Any]]  # name: reader, default

LARGE = 1 << 16  # bytes; while a larger value of any form is decoded, other threads run

# Go escapes these, although JSON does not require it.
_ESCAPED = {ord(each): f"\\u{ord(each):04x}" for each in "&<>\u2028\u2029"}


def decode(body: bytes, fields: Fields) -> dict[str, Any]:
    """Return every field of a JSON object, as read or at its default. Raises ValueError."""
    return _decode(_DECODER, body, fields)


def decode_large(body: bytes, fields: Fields) -> dict[str, Any]:
    """Decode like decode(), but in half the time, for bodies with tens of thousands of objects.

    Reads the elements of the object's arrays one by one: no other thread runs while the interpreter
    scans a text. If a key is repeated in the same case, only the last one counts, even if it is
    null.
    """
    text = body.decode("utf-8", "replace")
    try:
        begin = _token(text, 0)
        if text[begin : begin + 1] == "{":
            return _read_members(text, begin + 1, fields)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (StopIteration, json.JSONDecodeError):
        raise ValueError("not JSON") from None
    return _decode(_LARGE_DECODER, body, fields)


def decode_any(body: bytes) -> Any:
    """Return a JSON value of any form, which can be encoded again: without NaN, infinite numbers
    and lone surrogates. Raises ValueError."""
    decoder = _STRICT_DECODER if len(body) <= LARGE else _PATIENT_DECODER
    try:
        value = decoder.decode(body.decode())
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not JSON") from None
    return value


def _token(text: str, at: int) -> int:
    """Return where the next token begins."""
    found = WHITESPACE.match(text, at)
    assert found is not None
    return int(found.end())


def _expect(text: str, at: int, characters: str) -> str:
    """Return the character at this position. Raises ValueError if it is not one of these."""
    found = text[at : at + 1]
    if not found or found not in characters:
        raise ValueError("not JSON")
    return found


def _read_members(text: str, at: int, fields: Fields) -> dict[str, Any]:
    """Read the members of an object, which must extend to the end of the text."""
    values = {name: default for name, (_, default) in fields.items()}
    keys: dict[str, str] = {}  # keys of the members with the values
    at = _token(text, at)
    following = _expect(text, at, '"}')
    if following == "}":
        at = _token(text, at + 1)
    while following != "}":
        _expect(text, at, '"')
        key, at = scanstring(text, at + 1, True)
        at = _token(text, at)
        _expect(text, at, ":")
        at = _token(text, at + 1)
        name = key if key in fields else key.lower()
        reader, default = fields.get(name, (None, None))
        if isinstance(reader, _Array) and text[at : at + 1] == "[":
            values[name], at = _read_elements(text, at + 1, reader)
            keys[name] = key
        else:
            found, at = _scan_large(text, at)
            if reader is None:
                pass
            elif found is not None:
                values[name] = reader(found)
                keys[name] = key
            elif keys.get(name) == key:
                values[name] = default
        at = _token(text, at)
        following = _expect(text, at, ",}")
        at = _token(text, at + 1)
    if at != len(text):
        raise ValueError("not JSON")
    return values


def _read_elements(text: str, at: int, array: "_Array") -> tuple[list[Any], int]:
    """Return the elements of an array, and its end."""
    values: list[Any] = []
    at = _token(text, at)
    following = text[at : at + 1]
    while following != "]":
        found, at = _scan_large(text, at)
        values.append(array.element(found))
        at = _token(text, at)
        following = _expect(text, at, ",]")
        if following == ",":
            at = _token(text, at + 1)
    return values, at + 1


def _decode(decoder: json.JSONDecoder, body: bytes, fields: Fields) -> dict[str, Any]:
    try:
        value = decoder.decode(body.decode("utf-8", "replace"))
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
    # UTF-8 cannot encode a lone surrogate, which JSON can escape.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def flags(value: Any) -> dict[str, bool]:
    """Read an object with any keys, whose values are booleans."""
    pairs = value.items() if isinstance(value, dict) else value
    if not isinstance(value, dict | tuple):
        raise ValueError("not an object")
    return {text(key): flag(each) for key, each in pairs}


def _integer(bits: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
            raise ValueError("not an integer in range")
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
        raise ValueError("number out of range")
    return found


int64 = _integer(63)
int32 = _integer(31)

_KINDS: Mapping[Reader, type] = {int64: int, flag: bool}
_INT64 = 1 << 63
_MAX_KEYS = 64  # maximum number of key sets in the cache


def array(reader: Reader, empty: Any) -> Reader:
    """Return a reader of lists. A null element is read as `empty`."""
    return _Array(reader, empty)


class _Array:
    def __init__(self, reader: Reader, empty: Any) -> None:
        self._reader = reader
        self._empty = empty

    def __call__(self, value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError("not an array")
        reader, empty = self._reader, self._empty
        return [reader(empty if each is None else each) for each in value]

    def element(self, value: Any) -> Any:
        """Read one element."""
        return self._reader(self._empty if value is None else value)


def structure(fields: Fields) -> Reader:
    """Return a reader of objects."""

    defaults = {name: default for name, (_, default) in fields.items()}
    readers = {name: reader for name, (reader, _) in fields.items()}

    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            value = value.items()
        elif not isinstance(value, tuple):
            raise ValueError("not an object")
        values = defaults.copy()
        for key, each in value:
            name = key if key in readers else key.lower()
            if each is not None and name in readers:
                values[name] = readers[name](each)
        return values

    return read


def alike(fields: Fields) -> Reader:
    """Return a fast reader for many similar objects.

    It reads like structure(), but returns only the values, in the order of the fields. The integer
    and flag fields must come first.

    An object with previously seen keys is not read field by field: one comparison checks the types
    of all its numbers.
    """
    exact = structure(fields)
    pick = itemgetter(*fields)
    defaults = {name: default for name, (_, default) in fields.items()}
    kinds = tuple(_KINDS[reader] for reader, _ in fields.values() if reader in _KINDS)
    others = list(fields.values())[len(kinds) :]
    assert not any(reader in _KINDS for reader, _ in others)
    # readers by key set, with every key in its usual case
    lacking: dict[tuple[str, ...], bool] = {}

    def read(value: Any) -> tuple[Any, ...]:
        keys = tuple(value) if type(value) is dict else None
        lacks = lacking.get(keys) if keys is not None else None
        if lacks is None:
            if keys is not None and not any(_is_varied(key, defaults) for key in keys):
                if len(lacking) >= _MAX_KEYS:
                    lacking.clear()
                lacking[keys] = not defaults.keys() <= value.keys()
            return tuple(exact(value).values())
        found: tuple[Any, ...] = pick(defaults | value if lacks else value)
        numbers = found[: len(kinds)]
        is_usual = tuple(map(type, numbers)) == kinds
        if not is_usual or max(numbers) >= _INT64 or min(numbers) < -_INT64:
            return tuple(exact(value).values())
        rest = zip(found[len(kinds) :], others, strict=True)
        return numbers + tuple(
            [default if each is None else reader(each) for each, (reader, default) in rest]
        )

    return read


def _is_varied(key: str, names: Mapping[str, Any]) -> bool:
    """Return whether a key matches one of the names, but in a different case."""
    return key not in names and key.lower() in names


EMPTY: tuple[tuple[str, Any], ...] = ()
"""An object without keys. An object is read as a tuple of pairs, which preserves their order and
repeated keys; no other JSON value is read as a tuple."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _let_others_run(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value. The interpreter may switch threads at this call, but not during a scan."""
    return value


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError("number out of range")
    return found


# Created once, because thousands of clients may send IDENTIFY in one turn.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_refuse_constant)
_LARGE_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_scan_large: Callable[[str, int], tuple[Any, int]] = _LARGE_DECODER.scan_once  # type: ignore[attr-defined]
_STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_PATIENT_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_hook=_let_others_run
)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
