"""A running nsqadmin: one process, one hub, and threads for those who wait for others.

Owns the listening socket and the signals. What requests mean is the affair of their routes.
"""

import faulthandler
import gc
import signal
from collections.abc import Callable

import gevent
from gevent.event import AsyncResult

from nsqcy import NSQ_VERSION, __version__
from nsqcy.acceptor import Acceptor
from nsqcy.cluster.web_client import SECOND, Terms, WebClient
from nsqcy.listeners import Listener
from nsqcy.log import Log
from nsqcy.nsqadmin import api, pages
from nsqcy.nsqadmin.options import AdminOptions
from nsqcy.nsqadmin.surroundings import Surroundings
from nsqcy.process import spawn
from nsqcy.process.handoff import Accepted
from nsqcy.process.service import Notifier
from nsqcy.process.watchdog import Watchdog
from nsqcy.web.http import HttpServer

CLEAN, FAILED = 0, 1

# Objects between two looks for circles. A page of statistics has a hundred thousand, none of them
# in a circle, and takes a third longer if they are looked at again and again.
OBJECTS_MOST = 200_000


class Daemon:
    """`run` lives until the end and gives the exit code.

    `reread` reads the configuration again and gives the log level; None if it is wrong now.
    """

    def __init__(
        self,
        options: AdminOptions,
        listener: Listener,
        log: Log,
        reread: Callable[[], int | None],
        notifier: Notifier,
    ) -> None:
        self.log = log
        self._options = options
        self._listener = listener
        self._reread = reread
        self._notifier = notifier
        self._watchdog = Watchdog(notifier, lambda _: [])
        proxy = [api.PROXY] if options.proxy_graphite else []
        routes = [*pages.ROUTES, *api.ROUTES, *proxy]
        surroundings = Surroundings(options, WebClient(terms(options)), log, routes)
        self._http = HttpServer(gevent.get_hub().loop, surroundings)
        self._acceptor = Acceptor([listener], log, self._failed)
        self._code: AsyncResult = AsyncResult()

    def run(self) -> int:
        gc.freeze()
        gc.set_threshold(OBJECTS_MOST)
        self._watch_signals()
        listener = self._listener
        self.log.info(f"{listener.title}: listening on {listener.text}")
        self._acceptor.add(0, self)
        self._watchdog.serve(f"serving {listener.title} {listener.text}")
        code: int = self._code.get()
        self._watchdog.stop()
        self._notifier.stopping("closing")
        self._acceptor.close()
        self._http.close()
        return code

    # The acceptor's only target

    def lagging(self) -> bool:
        return False

    def load(self) -> int:
        return 0

    def send(self, item: Accepted) -> bool:
        self._http.adopt(item.sock, item.peer)
        return True

    # Signals and the end

    def _watch_signals(self) -> None:
        loop = gevent.get_hub().loop
        actions: dict[int, Callable[[], object]] = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._reread_settings,
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
        self.log.fatal(reason)
        self._code.set(FAILED)

    def _reread_settings(self) -> None:
        level = self._reread()
        if level is not None:
            self.log.level = level
            self._options.change("log_level", level)


def terms(options: AdminOptions) -> Terms:
    """How nsqds and nsqlookupds are asked."""
    return Terms(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        root_ca_file=options.http_client_tls_root_ca_file,
        cert_file=options.http_client_tls_cert,
        key_file=options.http_client_tls_key,
        verify=not options.http_client_tls_insecure_skip_verify,
        user_agent=f"nsqadmin/{NSQ_VERSION} nsqcy/{__version__}",
    )
