"""State files: small JSON files with a checksum, and the previous version of each.

`NAME` is the newest version and `previous/NAME` the one before it. A reader uses the newest
intact version. A damaged version is renamed to `NAME.damaged` before anything replaces it. All
calls block; do not call them on a hub. Independent of the files' content.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from nsqcy.base.core import crc32c
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.util import files

PREVIOUS = "previous"
"""Directory of the previous versions, next to the files."""
_CHECKSUMS = ".checksums"
_DAMAGED = ".damaged"
_CHECKSUM = re.compile(rb',\s*"checksum":\s*"([0-9a-f]{8})"\s*\}\s*\Z')

Value = TypeVar("Value")


class Fault(NamedTuple):
    """Reason why a version is not used."""

    path: str
    error: str
    is_missing: bool = False
    is_unreadable: bool = False

    @property
    def text(self) -> str:
        if self.is_missing:
            return f"{self.path} is missing"
        verb = "cannot be read" if self.is_unreadable else "is damaged"
        return f"{self.path} {verb}: {self.error}"


class Found(NamedTuple, Generic[Value]):
    """The newest intact version, or None; `path` is its file. `faults` are the damaged
    newer versions; empty for a file that does not exist in any version."""

    value: Value | None
    path: str
    faults: tuple[Fault, ...]
    is_foreign: bool = False
    """Whether another program has written the version."""


def signed(content: bytes) -> bytes:
    """Return a JSON object, which must not be empty, with its checksum as the last key."""
    text = content.rstrip()
    head, end = text[:-1].rstrip(), content[len(text) :]
    return b'%s,"checksum":"%08x"}%s' % (head, crc32c(head), end)


def check(content: bytes) -> None:
    """Raise ValueError if the content has a checksum that does not match it.

    Content without a checksum was written by NSQ, by an earlier version or by hand.
    """
    found = _CHECKSUM.search(content)
    if found is not None and int(found[1], 16) != crc32c(content[: found.start()]):
        raise ValueError('its checksum does not match (after an edit by hand, remove "checksum")')


def parse_object(content: bytes) -> dict[str, Any]:
    """Return a version's keys and values, without its checksum. Raises ValueError."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    found.pop("checksum", None)
    return found


def report(found: Found[Value], lines: Lines) -> None:
    """Log why the newest version is not used, and the version used instead."""
    use = (
        f"nsqd uses {found.path}, the previous version"
        if found.path
        else "there is no other version"
    )
    for fault in found.faults:
        events.state_file_damaged(
            lines, fault.text, use, path=fault.path, error=fault.error, used=found.path
        )


class StateFile:
    """A file in a directory. Its methods raise OSError only if their docstring mentions it."""

    def __init__(self, directory: str, name: str, *, is_shared: bool = False) -> None:
        """
        is_shared: other programs write the file as well, and its content must not have a checksum.
            The checksums of its last two versions are in a separate file. Content with a
            different checksum counts, unless the file's time shows that no program has written it.
        """
        self._directory = directory or "."
        self._name = name
        self._is_shared = is_shared
        self._previous_directory = os.path.join(directory, PREVIOUS)
        self.path = os.path.join(directory, name)
        self.previous = os.path.join(self._previous_directory, name)

    def write(self, content: bytes) -> None:
        """Replace the file; the previous version remains. After a crash, there is either the old or
        the new file. Raises OSError."""
        files.replace(self._directory, self._name, content, self._written)

    def look(self, parse: Callable[[bytes], Value]) -> Found[Value]:
        """Return the newest intact version, without changing any file.

        parse: returns the value of a version, or raises ValueError if it is damaged
        """
        faults: list[Fault] = []
        for path in (self.path, self.previous):
            try:
                content, is_foreign = self._read(path)
                return Found(parse(content), path, tuple(faults), is_foreign)
            except (FileNotFoundError, NotADirectoryError):
                faults.append(Fault(path, "missing", is_missing=True))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                faults.append(Fault(path, reason, is_unreadable=True))
            except ValueError as error:
                faults.append(Fault(path, str(error)))
        newest, previous = faults
        if not previous.is_missing:
            return Found(None, "", (newest, previous))
        return Found(None, "", () if newest.is_missing else (newest,))

    def set_aside(self, path: str) -> str:
        """Rename a damaged version to an unused name; return that name. Raises OSError."""
        aside = self.path + _DAMAGED
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = f"{self.path}{_DAMAGED}-{number}"
        os.rename(path, aside)
        return aside

    def _read_known(self, path: str) -> tuple[bytes, bool]:
        """Return a version, and whether its separate checksum matches: parsing a large file would
        take much longer. Raises as `_read` does."""
        content, is_foreign = self._read(path)
        return content, self._is_shared and not is_foreign and bool(self._checksums())

    def _read(self, path: str) -> tuple[bytes, bool]:
        """Return a version, and whether another program has written it. Raises OSError, and
        ValueError if its checksum does not match."""
        with open(path, "rb") as file:
            content = file.read()
            changed = os.fstat(file.fileno()).st_mtime_ns
        if not self._is_shared:
            check(content)
            return content, False
        known = self._checksums()
        is_foreign = bool(known) and f"{crc32c(content):08x}" not in known
        if is_foreign and changed in known.values():
            raise ValueError("its checksum does not match")
        return content, is_foreign

    def _written(self) -> None:
        """Keep the present version, before the next one replaces it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._previous_directory, 0o700)
        self._keep_previous()
        if self._is_shared:
            with contextlib.suppress(OSError):
                self._save_checksums()

    def _keep_previous(self) -> None:
        """Make the present version the previous one if it is intact; otherwise rename it as
        damaged."""
        try:
            content, is_known = self._read_known(self.path)
            if not is_known:
                json.loads(content)
        except (FileNotFoundError, IsADirectoryError):
            return
        except (OSError, ValueError, RecursionError):
            self.set_aside(self.path)
            return
        # Use a link, so that a file with the name exists at any time. On file systems without
        # links, no previous version is kept.
        link = self.previous + ".tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        with contextlib.suppress(OSError):
            os.link(self.path, link)
            os.rename(link, self.previous)

    # -- checksums of a shared file

    def _checksums(self) -> dict[str, int]:
        """Return the checksums of the last two versions that this program has written, each with
        the time of the file. Without these checksums, any content counts."""
        try:
            with open(self.previous + _CHECKSUMS, "rb") as file:
                found = json.loads(file.read())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save_checksums(self) -> None:
        """Add the version that is about to be renamed. Nothing is synced, because the file
        also counts without the checksums."""
        with open(self.path + ".tmp", "rb") as file:
            checksum = f"{crc32c(file.read()):08x}"
            changed = os.fstat(file.fileno()).st_mtime_ns
        earlier = {key: value for key, value in self._checksums().items() if key != checksum}
        last = dict(list(earlier.items())[-1:])
        temporary = f"{self.previous}{_CHECKSUMS}.tmp"
        with open(temporary, "w", encoding="ascii") as file:
            json.dump(last | {checksum: changed}, file)
        os.rename(temporary, self.previous + _CHECKSUMS)
