"""Static files: the built-in ones, or those in a directory.

Built-in files have a version in their path, so that browsers can cache them forever. Scripts import
each other by relative paths, so their imports also contain the version.
"""

import mimetypes
from functools import cache
from hashlib import blake2b
from importlib import resources
from pathlib import Path

_BROUGHT = resources.files("nsqcy.nsqadmin") / "static"
_TEXT = ("text/", "application/javascript", "application/json")
_VERSION_BYTES = 6


class Assets:
    """Static files. With `folder`, files are read from that directory on each request and have no
    version."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder) if folder else None
        self.version = "" if folder else _version()

    def find(self, name: str) -> tuple[bytes, str] | None:
        """Return a file's body and content type."""
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


@cache
def _version() -> str:
    """Return a hash over all files."""
    found = blake2b(digest_size=_VERSION_BYTES)
    for name, body in sorted(_brought().items()):
        found.update(f"{name} {len(body)} ".encode() + body)
    return found.hexdigest()


def content_type(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
