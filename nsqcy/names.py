"""Names of topics and channels, and how text from outside is shown.

Owns the one rule both kinds of name follow, and quoting: what a client sent appears in errors and
in the log the way Go's %q shows it, so that no byte of it can pass for something else.
"""

import re

MAX_NAME_LENGTH = 64
EPHEMERAL = "#ephemeral"
EVENTS_TOPIC = "_nsqcy.events"  # what happens to messages in channels, if that is wanted

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
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


def is_valid_name(name: str | bytes) -> bool:
    """Whether a topic or a channel may be called this."""
    if isinstance(name, str):
        name = name.encode("utf-8", "surrogatepass")
    # fullmatch and not `$`, which would let a final line feed through.
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str | bytes) -> bool:
    """Whether a valid name belongs to something that lives only while it is used."""
    if isinstance(name, bytes):
        return name.endswith(b"#ephemeral")
    return name.endswith(EPHEMERAL)


def quote(text: str | bytes) -> str:
    """`text` as Go's %q writes it. A str may carry bytes that are not UTF-8 as surrogate escapes.

    What isprintable() accepts is what Go prints: letters, marks, numbers, punctuation, symbols and
    the ASCII space.
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
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
