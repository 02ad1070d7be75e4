"""Message bodies in readable form: formatted JSON, text, or hex.

Pure. Bodies are arbitrary bytes from producers. The result is plain text that callers must escape;
its size is limited to a few times the input size.
"""

import json
import re
import unicodedata
from codecs import getincrementaldecoder
from typing import NamedTuple

JSON, TEXT, HEX = "JSON", "text", "hex"
MAX_HEX = 16 << 10  # maximum bytes shown in hex, at five characters each
_GROWTH = 4  # maximum growth of formatted JSON, as a factor
_INDENT = "  "

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Characters that are invisible or affect the text around them.
_UNSEEN = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))  # Cn: not assigned


class Shown(NamedTuple):
    kind: str
    text: str
    left_out: int = 0  # number of bytes of the body that are not shown


def body_text(body: bytes, *, cut: bool, as_hex: bool = False) -> Shown:
    """Format a body as JSON, text or hex, according to its content. cut: the body is truncated,
    possibly within a character."""
    text = None if as_hex else _decoded(body, cut)
    if text is None or _CONTROL.search(text):
        return Shown(HEX, hex_dump(body[:MAX_HEX]), max(0, len(body) - MAX_HEX))
    laid_out = None if cut else lay_out(text)
    if laid_out is not None:
        return Shown(JSON, visible(laid_out))
    return Shown(TEXT, visible(text))


def _decoded(body: bytes, cut: bool) -> str | None:
    try:
        return getincrementaldecoder("utf-8")().decode(body, final=not cut)
    except UnicodeDecodeError:
        return None


def visible(text: str) -> str:
    """Replace invisible and direction-changing characters with their code points."""
    if text.isascii() and "\r" not in text:
        return text
    return "".join(
        f"\\u{ord(each):04x}" if each not in "\n\t" and _is_unseen(each) else each for each in text
    )


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def lay_out(text: str) -> str | None:
    """Format a JSON object or array with one value per line. Numbers keep their digits and keys
    their order. Return None if the text is neither an object nor an array, or would grow too
    much."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    maximum = _GROWTH * len(text) + 1024
    pieces: list[str] = []
    size = depth = 0
    before = ""
    for token in _TOKEN.findall(text):
        piece = token
        if token in "}]":
            depth -= 1
            if before not in ("{", "["):
                piece = f"\n{_INDENT * depth}{token}"
        elif before in ("{", "[", ","):
            piece = f"\n{_INDENT * depth}{token}"
        elif before == ":":
            piece = f" {token}"
        if token in "{[":
            depth += 1
        size += len(piece)
        if size > maximum:
            return None
        pieces.append(piece)
        before = token
    return "".join(pieces)


def hex_dump(body: bytes) -> str:
    """Return lines like `00000000  68 65 6c 6c 6f                                   |hello|`."""
    return "\n".join(
        f"{at:08x}  {_in_hex(body[at : at + 16]):<49}|{_in_ascii(body[at : at + 16])}|"
        for at in range(0, len(body), 16)
    )


def _in_hex(line: bytes) -> str:
    return f"{line[:8].hex(' ')}  {line[8:].hex(' ')}"


def _in_ascii(line: bytes) -> str:
    return "".join(chr(each) if 32 <= each < 127 else "." for each in line)
