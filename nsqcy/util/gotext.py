"""Formats times and JSON byte for byte as Go's standard library does.

Durations are in nsqcy/config/durations.py. Independent of nsqd.
"""

import json
import re
import time
from typing import Any


def rfc3339(seconds: int) -> str:
    """Format local time with its zone; UTC is `Z`."""
    moment = time.localtime(seconds)
    offset = moment.tm_gmtoff // 60
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    return time.strftime("%Y-%m-%dT%H:%M:%S", moment) + (zone if offset else "Z")


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_HTML = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_SHORT_ESCAPE = re.compile(r"\\[\\bf]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_bytes(value: Any) -> bytes:
    """Encode as compact JSON, with the escapes of Go's `encoding/json`. Keeps the key order."""
    # The characters replaced below occur only inside strings.
    text = _encoder.encode(_whole_floats(value)).translate(_HTML)
    if "\\" in text:
        text = _SHORT_ESCAPE.sub(_long_escape, text)
    return utf8(text)


def utf8(text: str) -> bytes:
    """Encode a string; replace bytes that were not valid UTF-8, kept as surrogates until here."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def json_in_pieces(value: Any, depth: int = 2) -> bytes:
    """Encode like `json_bytes`, but containers down to this depth element by element: no other
    thread runs while the interpreter encodes a value."""
    if depth and isinstance(value, dict):
        members = [
            json_bytes(key) + b":" + json_in_pieces(item, depth - 1) for key, item in value.items()
        ]
        return b"{" + b",".join(members) + b"}"
    if depth and isinstance(value, list | tuple):
        return b"[" + b",".join([json_in_pieces(item, depth - 1) for item in value]) + b"]"
    return json_bytes(value)


def json_string(text: str) -> str:
    """Encode a string as `json_bytes` does, with quotes."""
    return f'"{text}"' if _PLAIN(text) else json_bytes(text).decode()


# Most strings are short printable ASCII without anything to escape.
_PLAIN = re.compile(r"[ !#-%'-;=?-\[\]-~]*").fullmatch


def _long_escape(match: re.Match[str]) -> str:
    return {r"\b": r"\u0008", r"\f": r"\u000c"}.get(match[0], match[0])


def _whole_floats(value: Any) -> Any:
    """Return the value with whole floats as ints: `1`, not `1.0`."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _whole_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_floats(item) for item in value]
    return value
