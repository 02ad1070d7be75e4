"""Single-process daemon: it listens, serves HTTP and handles signals until it stops.

Owns the listening sockets and the signal handlers; `http` serves the connections. Not for nsqd,
which is a tree of processes.
"""

import faulthandler
import signal
from collections.abc import Callable
from functools import partial

import gevent
from gevent.event import AsyncResult

from nsqcy.http.request_counts import CountedConnection, Requests
from nsqcy.http.server import HttpServer
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.net.listeners import Listener
from nsqcy.process import spawn
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.handoff import Accepted
from nsqcy.process.systemd import Notifier
from nsqcy.process.watchdog import Watchdog

CLEAN, FAILED = 0, 1
WIND_DOWN_LIMIT = 2.0  # maximum seconds for which an exiting daemon still answers requests


class Daemon:
    """Daemon that serves until a signal or a failure; `run` returns its exit code.

    Counts HTTP requests. `reread` reloads the configuration and returns the log level, or None if
    the configuration is invalid.
    """

    def __init__(
        self,
        listeners: list[Listener],
        http: HttpServer,
        log: Log,
        reread: Callable[[], int | None],
        notifier: Notifier,
        requests: Requests,
    ) -> None:
        self.log = log
        self._listeners = listeners
        self._http = http
        self._connect = partial(CountedConnection, requests)
        self._reread = reread
        self._notifier = notifier
        self._watchdog = Watchdog(notifier, lambda _: [])
        self._acceptor = Acceptor(listeners, log, self._failed)
        self._code: AsyncResult = AsyncResult()

    def run(self) -> int:
        self._watch_signals()
        for listener in self._listeners:
            events.listening(self.log, listener=listener.title, address=listener.text)
        self._acceptor.add(0, self)
        where = ", ".join(f"{each.title} {each.text}" for each in self._listeners)
        self._watchdog.serve(f"serving {where}")
        code: int = self._code.get()
        self._watchdog.stop()
        self._notifier.stopping("closing")
        self._acceptor.close()
        self._http.wind_down(WIND_DOWN_LIMIT)
        self._http.close()
        return code

    # The acceptor's only target

    def full(self) -> bool:
        return False

    def lagging(self) -> bool:
        return False

    def load(self) -> int:
        return 0

    def send(self, item: Accepted) -> bool:
        self._http.adopt(item.sock, item.peer, self._connect)
        return True

    # Signals and shutdown

    def _watch_signals(self) -> None:
        loop = gevent.get_hub().loop
        actions: dict[int, Callable[[], object]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self.reread_settings,
        }
        self._watchers = []
        for signum, action in actions.items():
            watcher = loop.signal(signum)
            watcher.start(action)
            self._watchers.append(watcher)
        faulthandler.enable()
        faulthandler.register(signal.SIGQUIT, all_threads=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)

    def _stop(self) -> None:
        if not self._code.ready():
            self._code.set(CLEAN)

    def _failed(self, reason: str) -> None:
        events.failed(self.log, reason)
        self._code.set(FAILED)

    def reread_settings(self) -> None:
        level = self._reread()
        if level is not None:
            self.change_level(level)

    def change_level(self, level: int) -> None:
        self.log.level = level
