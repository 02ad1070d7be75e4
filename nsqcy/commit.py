"""The commit that this code was built from, which distinguishes builds of one version.

`setup.py` writes it into archives and wheels. In a checkout, it is read from git's own files.
"""

import functools
from pathlib import Path

_PACKAGE = Path(__file__).parent
_LENGTH = 8


@functools.cache
def commit() -> str:
    """Return the first digits of the commit, or `unknown`.

    The first call decides: daemons call it when they start, and a checkout may change later.
    """
    for read in (_of_the_build, _of_the_checkout):
        try:
            return read()[:_LENGTH]
        except (OSError, LookupError, UnicodeDecodeError):
            continue
    return "unknown"


def _of_the_build() -> str:
    return (_PACKAGE / "commit.txt").read_text("ascii").strip()


def _of_the_checkout() -> str:
    folder = _PACKAGE.parent / ".git"
    head = (folder / "HEAD").read_text("ascii").strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    try:
        return (folder / name).read_text("ascii").strip()
    except FileNotFoundError:
        lines = (folder / "packed-refs").read_text("utf-8").splitlines()
        return {line.partition(" ")[2]: line for line in lines}[name]
