"""Files for browsers: those that nsqadmin brings, or a folder of somebody's own."""

import mimetypes
from functools import cache
from importlib import resources
from pathlib import Path

_BROUGHT = resources.files("nsqcy.nsqadmin") / "static"
_TEXT = ("text/", "application/javascript", "application/json")


class Assets:
    """With `folder` the files there, as they are at the moment."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder) if folder else None

    def find(self, name: str) -> tuple[bytes, str] | None:
        """A file, and its content type."""
        body = self._read(name) if self._folder else _brought().get(name)
        return None if body is None else (body, content_type(name))

    def _read(self, name: str) -> bytes | None:
        assert self._folder is not None
        try:
            if name not in {each.name for each in self._folder.iterdir()}:
                return None
            return (self._folder / name).read_bytes()
        except OSError:
            return None


@cache
def _brought() -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in _BROUGHT.iterdir() if each.is_file()}


def content_type(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
