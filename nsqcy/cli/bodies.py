"""Message bodies in the output of commands: as JSON values, and as previews of one line. Pure."""

from base64 import b64encode
from typing import Any

from nsqcy.names import one_line

PREVIEW = 60  # characters


def as_json(body: bytes) -> dict[str, Any]:
    """Return a body as text if it is UTF-8, otherwise in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def preview(body: bytes, width: int = PREVIEW) -> str:
    """Return the beginning of a body as one line."""
    text = one_line(body[: 4 * width].decode("utf-8", "replace"))
    return text if len(text) <= width else f"{text[: width - 1]}…"
