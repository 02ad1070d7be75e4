"""A small write that shows whether the data path is writable while nothing else is written.

Each worker has one probe. It runs once when nsqd starts, and then whenever it is called: once a
second while writes fail. Independent of topics; the I/O threads do the work.
"""

import os
from collections.abc import Callable

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.storage.core import IoThread
from nsqcy.storage.write_failures import advice

FILE = "disk-probe"
_CONTENT = bytes(4096)


class WriteProbe:
    """Writes and removes `disk-probe.NUMBER` in a directory."""

    def __init__(
        self,
        io: IoThread,
        directory: str,
        number: int,
        looked: Callable[[str | None], object],
        log: Lines,
    ) -> None:
        """looked: called with the result of each probe: None, or the error"""
        self._io = io
        self._path = os.path.join(directory, f"{FILE}.{number}")
        self._looked = looked
        self._log = log
        self._is_looking = False
        self._is_doubtful = False
        self._has_failed = False
        self._error = 0

    def look(self) -> None:
        """Begin a probe, unless one is in progress."""
        if self._is_looking:
            return
        self._is_looking = True
        self._is_doubtful = False
        self._error = 0
        handle = self._io.open(self._path, replace=True)
        handle.write(_CONTENT, 0, self._note)
        handle.do("fsync", 0, self._synced, "background")

    def doubt(self) -> None:
        """Handle the failure of another write. A probe in progress may have begun before this
        failure, and would hide it: if that probe succeeds, the next one decides."""
        self._is_doubtful = True

    def _note(self, error: int) -> None:
        self._error = self._error or error

    def _synced(self, error: int) -> None:
        self._note(error)
        self._io.on_path_now("unlink", self._path, self._removed)

    def _removed(self, _: int) -> None:
        self._is_looking = False
        if self._is_doubtful and not self._error:
            return self.look()
        if self._error:
            self._report_failure()
        elif self._has_failed:
            self._has_failed = False
            path = os.path.dirname(self._path)
            events.disk_writable(self._log, path=path)
        self._looked(self._reason() if self._error else None)

    def _report_failure(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            text = os.strerror(self._error).lower()
            events.disk_unwritable(self._log, advice(self._error), path=self._path, error=text)

    def _reason(self) -> str:
        return f"write {self._path}: {os.strerror(self._error).lower()}"
