"""A running nsqadmin: one process, one event loop, and threads for handlers that wait for other
daemons.

Assembles the routes and passes each request to its handler.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import gevent

from nsqcy import NSQ_VERSION, __version__
from nsqcy.cluster.discovery import trust_in
from nsqcy.cluster.web_client import SECOND, Terms
from nsqcy.daemon import single_process
from nsqcy.http.request_counts import Requests
from nsqcy.http.server import HttpServer
from nsqcy.logging.logger import Log
from nsqcy.net.listeners import Listener
from nsqcy.nsqadmin import metrics
from nsqcy.nsqadmin.api import actions, queries, service
from nsqcy.nsqadmin.auth.logins import Logins
from nsqcy.nsqadmin.auth.provider import LoginProvider
from nsqcy.nsqadmin.cluster.copies import Sighting
from nsqcy.nsqadmin.cluster.outages import Outages
from nsqcy.nsqadmin.cluster.shared_client import SharedClient
from nsqcy.nsqadmin.context import AppContext
from nsqcy.nsqadmin.history.sampler import Sampler
from nsqcy.nsqadmin.history.store import History
from nsqcy.nsqadmin.html import templates
from nsqcy.nsqadmin.metrics import CountedClient, Outcomes
from nsqcy.nsqadmin.options import AdminOptions
from nsqcy.nsqadmin.pages import (
    audit,
    channels,
    connections,
    copies,
    keys,
    login,
    messages,
    missing,
    nodes,
    oidc,
    overview,
    topics,
)
from nsqcy.process.systemd import Notifier
from nsqcy.users import token_file
from nsqcy.util import garbage

# Number of new objects before the interpreter collects garbage on its own, even while pages are
# rendered. A page has hundreds of thousands of objects, none of them in a cycle; a collection would
# visit them all and stop everything else. The application context collects garbage between pages.
GC_THRESHOLD = 2_000_000

# Seconds for which a thread may run while others wait, including the event loop. The interpreter's
# default is 5 ms, and the loop waits for each system call that a request needs.
SWITCH_INTERVAL = 0.0005


class Daemon(single_process.Daemon):
    def __init__(
        self,
        options: AdminOptions,
        listener: Listener,
        log: Log,
        reread: Callable[[], int | None],
        notifier: Notifier,
        logins: Logins | None = None,
        provider: LoginProvider | None = None,
    ) -> None:
        proxy = [service.PROXY] if options.proxy_graphite else []
        api = [*service.ROUTES, *queries.ROUTES, *actions.ROUTES]
        routes = [
            *overview.ROUTES,
            *topics.ROUTES,
            *channels.ROUTES,
            *connections.ROUTES,
            *nodes.ROUTES,
            *copies.ROUTES,
            *audit.ROUTES,
            *messages.ROUTES,
            *keys.ROUTES,
            *api,
            *proxy,
        ]
        self._logins = logins
        if logins is not None:
            routes += login.ROUTES
        if provider is not None:
            routes += oidc.ROUTES
        asking, outcomes = terms(options), Outcomes()
        # Send the token to nsqds and nsqlookupds only.
        others = CountedClient(replace(asking, token=""), outcomes)
        web, history = SharedClient(asking, outcomes), make_history(options)
        requests = Requests()
        routes.append(metrics.route(outcomes, logins, requests, self._count_connections))
        sighting, outages = Sighting(), Outages(log)
        self._sampler = Sampler(options, web, history, log, sighting, outages) if history else None
        context = AppContext(
            options,
            web,
            others,
            log,
            routes,
            missing.ROUTE,
            outages,
            history,
            logins,
            sighting,
            provider,
        )
        http = HttpServer(gevent.get_hub().loop, context)
        super().__init__([listener], http, log, reread, notifier, requests)
        self._options = options

    def run(self) -> int:
        templates.environment()
        sys.setswitchinterval(SWITCH_INTERVAL)
        if self._sampler:
            self._sampler.start()
        with garbage.bounded(GC_THRESHOLD):
            return super().run()

    def _count_connections(self) -> dict[str, int]:
        return {"http": self._http.connections}

    def reread_settings(self) -> None:
        super().reread_settings()
        if self._logins is not None:
            self._logins.reload()

    def change_level(self, level: int) -> None:
        super().change_level(level)
        self._options.change("log_level", level)


def make_history(options: AdminOptions) -> History | None:
    """Return the history; None if it is disabled."""
    if not options.history_interval:
        return None
    return History(options.history_interval / SECOND, options.history_length / SECOND)


def terms(options: AdminOptions) -> Terms:
    """Return the HTTP client settings for requests to nsqds and nsqlookupds."""
    return Terms(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        root_ca_file=options.http_client_tls_root_ca_file,
        cert_file=options.http_client_tls_cert,
        key_file=options.http_client_tls_key,
        verify=not options.http_client_tls_insecure_skip_verify,
        user_agent=f"nsqadmin/{NSQ_VERSION} nsqcy/{__version__}",
        token=token_file.read(options.auth_token_file),
        trust=trust_in(
            lambda: (*options.lookupd_http_address, *options.nsqd_http_address),
            all_listed=options.trust_lookupd,
        ),
    )
