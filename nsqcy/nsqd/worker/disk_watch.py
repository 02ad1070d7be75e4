"""A worker's handling of publishes and of an exit while the disk hangs.

Storage detects the hang (storage.hung_disk). New publishes that must be written are refused. The
outcome of publishes that are already waiting stays unknown: their connections are closed after a
time limit.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

import gevent

from nsqcy.broker.core import Shard
from nsqcy.logging import events
from nsqcy.logging.types import FatalLines, Lines
from nsqcy.process import arbiter
from nsqcy.storage.hung_disk import SECOND, HungDisk

PERIOD = 1.0  # seconds
NAG = 5 * SECOND  # time between two lines about the operation that delays an exit


class Io(Protocol):
    def under_way(self) -> list[tuple[str, int, str, str]]: ...


class DiskWatch:
    """Checks the I/O threads once a second while the worker runs."""

    def __init__(
        self, shard: Shard, io: Io, limit: int, enter: Callable[[], None], log: Lines
    ) -> None:
        """
        limit: time that a publish waits for a hung disk, in ns
        enter: called before topics are touched, to begin a turn
        """
        self.hung = HungDisk(log)
        self._shard = shard
        self._io = io
        self._limit = limit
        self._enter = enter
        self._log = log
        self._waiting: dict[str, tuple[int, int]] = {}
        """By topic: the record that its oldest publish waits for, and the start of the wait."""
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        self._greenlet.kill(block=False)

    def look(self, now: int) -> None:
        """Compare the disk's operations with the operations at the last call. now: monotonic clock,
        ns."""
        hangs = self.hung.look(now, self._io.under_way())
        if not hangs and self._shard.hung is None:
            return
        self._enter()
        self._shard.set_hung(self.hung.reason)
        if hangs:
            self._disconnect(now)
        else:
            self._waiting.clear()

    @property
    def seconds(self) -> int:
        """Return how long the disk has been hanging."""
        return self.hung.age // SECOND

    def _run(self) -> None:
        while True:
            gevent.sleep(PERIOD)
            self.look(time.monotonic_ns())

    def _disconnect(self, now: int) -> None:
        """Close the connections of publishers that have waited for longer than the limit."""
        waiting = {}
        for topic in self._shard.topics.values():
            pending = topic.oldest_pending
            if not pending:
                continue
            before, since = self._waiting.get(topic.name, (0, 0))
            # The operation that blocks the publish may be older than the publish.
            waiting[topic.name] = (pending, since if before == pending else now)
            if now - waiting[topic.name][1] >= self._limit:
                topic.leave_unanswered()
                events.publishers_disconnected(self._log, topic=topic.name)
        self._waiting = waiting


class ExitWatch:
    """Logs the operation that delays an exit, and ends the process if the disk does not respond.

    This is a thread, because saving blocks the hub. The thread reads the counts while the hub is
    waiting.
    """

    def __init__(
        self,
        worker: int,
        io: Io,
        hung: HungDisk,
        limit: int,
        unsaved: Callable[[], dict[str, int]],
        report: Callable[[dict[str, int]], object],
        log: FatalLines,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """
        limit: time that an exit waits for one operation, in ns
        unsaved: returns the messages that are not on disk; report: reports them before the process
        ends"""
        self._worker = worker
        self._io = io
        self._hung = hung
        self._limit = limit
        self._unsaved = unsaved
        self._report = report
        self._log = log
        self._end = end
        self._said = 0
        self._done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._done.set()

    def look(self, now: int) -> None:
        """now: monotonic clock, ns."""
        self._hung.look(now, self._io.under_way())
        waits = self._hung.waits
        if waits is not None and (not self._said or now >= self._said + NAG):
            self._said = now
            events.exit_waits(
                self._log,
                self._worker,
                operation=waits.verb,
                path=waits.path,
                seconds=waits.seconds,
            )
        if self._hung.age >= self._limit:
            self._give_up()

    def _give_up(self) -> None:
        waits = self._hung.waits
        if waits is not None:
            events.exit_gives_up(
                self._log,
                self._worker,
                operation=waits.verb,
                path=waits.path,
                seconds=waits.seconds,
            )
        self._report(self._unsaved())
        self._end(arbiter.NOT_SAVED)

    def _run(self) -> None:
        self.look(time.monotonic_ns())
        while not self._done.wait(PERIOD):
            self.look(time.monotonic_ns())
