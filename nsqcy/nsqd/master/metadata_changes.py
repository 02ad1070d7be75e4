"""nsqd.dat.changes: the changes to topics and channels since a large nsqd.dat was written.

A client that waits for the change of one of 100,000 topics then waits for one line instead of all
names. Owns the format of the file (docs/DISKFORMAT.md, "State files"). All calls block; do not call
them on a hub, except `encode`.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nsqcy.formats import CHANGES
from nsqcy.nsqd.known_topics import Change, to_json
from nsqcy.storage import state_file
from nsqcy.storage.state_file import PREVIOUS, Fault
from nsqcy.util import files
from nsqcy.util.slices import Slices

FILE = "nsqd.dat.changes"
SLICE = 100
"""Changes to encode in one turn of the hub: less than 1 ms of work."""
_CHECKSUM = b',"checksum":'


def encode(changes: Iterable[Change], give_way: Callable[[], object]) -> bytes:
    """Return the lines of changes. `give_way` is called between slices of the work."""
    slices = Slices(give_way, SLICE)
    lines = bytearray()
    for change in changes:
        slices.step()
        lines += _line(change)
    return bytes(lines)


def _line(change: Change) -> bytes:
    topic, channel, paused = change
    state: dict[str, Any] = {"deleted": True} if paused is None else {"paused": paused}
    name = {"channel": channel} if channel else {}
    return state_file.signed(to_json({"topic": topic, **name, **state})) + b"\n"


class ChangeLog:
    """The file of an nsqd that is running. Its methods raise OSError."""

    def __init__(self, data_path: str) -> None:
        self._directory = data_path or "."
        self._path = os.path.join(self._directory, FILE)
        self._previous = os.path.join(self._directory, PREVIOUS, FILE)
        self._fd = -1
        self.is_usable = False
        """Whether changes may be appended: none is missing since nsqd.dat was written."""

    def append(self, lines: bytes, follows: int, before: int) -> None:
        """Append changes; return when they are on disk.

        follows, before: checksums of nsqd.dat and of its previous version
        """
        is_new = self._fd < 0
        try:
            if is_new:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                lines = _head(follows, before) + lines
            while lines:
                lines = lines[os.write(self._fd, lines) :]
            os.fdatasync(self._fd)
            if is_new:
                files.sync_directory(self._directory)
        except OSError:
            self.is_usable = False  # later lines would follow an incomplete one
            raise

    def restart(self) -> None:
        """Begin again: nsqd.dat contains all changes. The changes since its previous version are
        kept with that version."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            os.rename(self._path, self._previous)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._previous)
        self.is_usable = True


def _head(follows: int, before: int) -> bytes:
    head = {"version": CHANGES.number, "follows": f"{follows:08x}", "before": f"{before:08x}"}
    return state_file.signed(to_json(head)) + b"\n"


def read(data_path: str, checksum: int, *, is_previous: bool) -> tuple[list[Change], list[Fault]]:
    """Return the changes to a version of nsqd.dat with this checksum, and the damage.

    is_previous: whether it is the previous version, because the newest one is damaged or missing
    """
    directory = Path(data_path or ".")
    changes: list[Change] = []
    faults: list[Fault] = []
    wanted = f"{checksum:08x}"
    if is_previous:
        _read(directory / PREVIOUS / FILE, {("follows", wanted)}, changes, faults)
        _read(directory / FILE, {("follows", wanted), ("before", wanted)}, changes, faults)
    else:
        _read(directory / FILE, {("follows", wanted)}, changes, faults)
    return changes, faults


def _read(
    path: Path, wanted: set[tuple[str, str]], changes: list[Change], faults: list[Fault]
) -> None:
    try:
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        faults.append(Fault(str(path), os.strerror(error.errno or 0).lower(), is_unreadable=True))
        return
    lines.pop()  # the last line ends in a line feed, or nsqd has not answered its change
    damaged = 0
    for number, line in enumerate(lines):
        try:
            found = _parse(line)
            if number == 0:
                CHANGES.check(found["version"], str(path))
                if not wanted & found.items():
                    return
            else:
                changes.append(_change(found))
        except (ValueError, KeyError, TypeError):
            damaged += 1
            if number == 0:
                break
    if damaged:
        faults.append(Fault(str(path), f"{damaged} of {len(lines)} lines cannot be read"))


def _parse(line: bytes) -> dict[str, Any]:
    """Return the keys and values of a line. Raises ValueError."""
    content = line.rpartition(_CHECKSUM)[0] + b"}"
    if line != state_file.signed(content):
        raise ValueError("its checksum does not match")
    return state_file.parse_object(content)


def _change(found: dict[str, Any]) -> Change:
    paused = None if found.get("deleted") else bool(found["paused"])
    return Change(str(found["topic"]), str(found.get("channel", "")), paused)
