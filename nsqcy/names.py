"""Topic and channel names, `host:port`, and quoting of untrusted text.

Owns the rule that both kinds of name follow. Errors and log lines show client text as Go's %q does,
so that none of its bytes can be mistaken for something else.
"""

import re
from collections.abc import Iterable

MAX_NAME_LENGTH = 64
MAX_PRINTED = 1000  # maximum characters of another program's text
EPHEMERAL = "#ephemeral"
EVENTS_TOPIC = "_nsqcy.events"  # optional topic of message events

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
_NAMES = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?(?:\n[.a-zA-Z0-9_-]+(?:#ephemeral)?)*")
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def host_port(host: str, port: int) -> str:
    """Return `host:port` as Go's JoinHostPort does: with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_valid_name(name: str | bytes) -> bool:
    """Return whether a name is valid for a topic or a channel."""
    if isinstance(name, str):
        name = name.encode("utf-8", "surrogatepass")
    # fullmatch, because `$` would accept a final line feed.
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def valid_names(names: Iterable[str]) -> list[str]:
    """Return the valid ones of these names."""
    found = list(names)
    if len(found) < 2:
        return list(filter(is_valid_name, found))
    # One match for all names takes a fraction of the time.
    joined = "\n".join(found)
    is_split_by_names_only = joined.count("\n") == len(found) - 1
    if (
        is_split_by_names_only
        and max(map(len, found)) <= MAX_NAME_LENGTH
        and _NAMES.fullmatch(joined)
    ):
        return found
    return list(filter(is_valid_name, found))


def is_ephemeral(name: str | bytes) -> bool:
    """Return whether a valid name is ephemeral."""
    if isinstance(name, bytes):
        return name.endswith(b"#ephemeral")
    return name.endswith(EPHEMERAL)


def quote(text: str | bytes) -> str:
    """Quote text as Go's %q does. A str may contain invalid UTF-8 as surrogate escapes.

    isprintable() accepts the same characters as Go: letters, marks, numbers, punctuation, symbols
    and the ASCII space.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_quote_character, text)) + '"'


def _quote_character(character: str) -> str:
    if escape := _ESCAPES.get(character):
        return escape
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of invalid UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str | bytes) -> str:
    """Return text of another program for a log line or an error, without quotes. Control
    characters are escaped as in quote(), and a long text is truncated; other text is unchanged."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_PRINTED + 1].decode("utf-8", "surrogateescape")
    if len(text) > MAX_PRINTED:
        text = f"{text[:MAX_PRINTED]}..."
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _quote_character(each) for each in text)


def one_line(text: str) -> str:
    """Replace control characters, which could break the line: the text may come from any node."""
    return "".join(each if each.isprintable() else " " for each in text)
