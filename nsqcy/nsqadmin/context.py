"""The application context that all handlers share.

Owns the options, the clients for other daemons and the handler threads, and renders pages to
replies. Independent of particular routes.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from nsqcy.cluster.stats import ChannelStats, Names
from nsqcy.cluster.web_client import WebClient
from nsqcy.errors import HttpError
from nsqcy.http import router
from nsqcy.http.parser import HTML, Head, Reply
from nsqcy.http.router import Handler, Later, Request, Result, Route
from nsqcy.logging.logger import Log
from nsqcy.nsqadmin.assets import Assets
from nsqcy.nsqadmin.audit import Audit
from nsqcy.nsqadmin.auth import access
from nsqcy.nsqadmin.auth.access import for_users
from nsqcy.nsqadmin.auth.logins import Logins
from nsqcy.nsqadmin.auth.provider import LoginProvider
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import Sighting
from nsqcy.nsqadmin.cluster.dead_letters import DeadLetterOrigins
from nsqcy.nsqadmin.cluster.health import NodeHealth, of_nodes
from nsqcy.nsqadmin.cluster.nodes import Clients, Node, NodeStats
from nsqcy.nsqadmin.cluster.outages import Outages
from nsqcy.nsqadmin.cluster.rate_meter import RateMeter, with_rates
from nsqcy.nsqadmin.cluster.view import ClusterView, Done, quiet_view
from nsqcy.nsqadmin.compression import compressed
from nsqcy.nsqadmin.graphite import Graphite
from nsqcy.nsqadmin.history.store import History, Subject
from nsqcy.nsqadmin.html.error_texts import explained
from nsqcy.nsqadmin.html.layout import Layout, View, not_found, render
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.notifications import Notifier
from nsqcy.nsqadmin.options import AdminOptions
from nsqcy.nsqadmin.page_router import PageRouter
from nsqcy.nsqadmin.requests import segments
from nsqcy.options.option import Option, Value
from nsqcy.util import garbage
from nsqcy.util.gotext import json_in_pieces

MAX_THREADS = 32  # maximum concurrent requests that wait for other daemons
IDLE_THREAD = 10.0  # seconds after which an idle thread ends
MAX_BODY = 1 << 20  # bytes


class AppContext(router.Api):
    """Context of nsqadmin's handlers. Handlers run in threads unless they are inline, so they may
    block while querying other daemons."""

    reads_headers = True
    log: Log

    def __init__(
        self,
        options: AdminOptions,
        web: WebClient,
        others: WebClient,
        log: Log,
        routes: Sequence[Route],
        missing: Route,
        outages: Outages,
        history: History | None = None,
        logins: Logins | None = None,
        sighting: Sighting | None = None,
        provider: LoginProvider | None = None,
    ) -> None:
        super().__init__(options, log)
        self.options = options
        self.logins = logins
        self.knows_users = logins is not None
        self.provider = provider
        if logins is not None:
            routes, missing = [for_users(route) for route in routes], for_users(missing)
        self.router = PageRouter(routes, options.base, missing)
        self.assets = Assets(options.dev_static_dir)
        self.graphite = Graphite(options.graphite_url, options.statsd_interval, others)
        self.notifier = Notifier(options.notification_http_endpoint, others, log, self.user_of)
        self.audit = Audit(log, self._actor, time.time_ns)
        self._history = history
        self.sighting = sighting or Sighting()
        self._meter = RateMeter()
        self._web = web
        self._origins = DeadLetterOrigins(
            lambda: quiet_view(options, web).origins(), time.monotonic
        )
        self._outages = outages
        self._running = 0  # requests in threads
        self._threads = ThreadPool(MAX_THREADS, hub=gevent.get_hub(), idle_task_timeout=IDLE_THREAD)

    def call(self, route: Route, request: Request) -> Reply | Later:
        if route.inline:
            return self._call(route, request)
        self._running += 1
        try:
            reply: Reply | Later = self._threads.apply(self._call, (route, request))
        finally:
            self._running -= 1
            if not self._running:
                garbage.collect_if_due()  # while no page is being rendered
        return reply

    def encoded(self, result: Any) -> bytes:
        return json_in_pieces(result)

    def _call(self, route: Route, request: Request) -> Reply | Later:
        reply = super().call(route, request)
        return compressed(request.head, reply) if isinstance(reply, Reply) else reply

    # For handlers

    def cluster(self) -> ClusterView:
        return ClusterView(self.options, self._web, self.log, self._outages)

    def copies(self, cluster: ClusterView, nodes: Iterable[Node]) -> list[NodeAnswer]:
        """Return the groups of copies of these nsqds."""
        answers = cluster.copies(nodes)
        self.sighting.note(answers)
        return answers

    def health(self, cluster: ClusterView, nodes: Iterable[Node]) -> dict[str, NodeHealth]:
        """Return the health of these nsqds, by node."""
        return of_nodes(cluster.health(nodes), self._meter, time.time())

    def all_copies(self, cluster: ClusterView) -> list[NodeAnswer]:
        """Return the groups of copies of all nsqds. Raises HttpError if none answers."""
        answers, are_all = cluster.all_copies()
        self.sighting.note(answers, of_all=are_all)
        return answers

    def origins(self, topic: str) -> Sequence[Names]:
        """Return the channels that send their dead letters to this topic."""
        return self._origins.of(topic)

    def with_rates(self, stats: ChannelStats) -> ChannelStats:
        """Return a channel whose consumers have finish rates."""
        return with_rates(stats, self._meter, time.time())

    def clients(self, rows: NodeStats) -> Clients:
        return Clients(rows.nodes, time.time())

    def layout(self, request: Request) -> Layout:
        head = request.head
        user = self.user_of(head) if self.logins else ""
        return Layout(
            self.options.base,
            self.may_act(head),
            user,
            self.assets.version,
            self.sighting.is_used,
        )

    def user_of(self, head: Head) -> str:
        """Return the name of the requesting user; empty if unknown."""
        if self.logins is None:
            return access.basic_user(head)
        user = self.logins.user(head)
        return user.name if user else ""

    def _actor(self, request: Request) -> str:
        """Return the name of the acting user, even if only the ACL header contains it."""
        return self.user_of(request.head) or request.head.header(self.options.acl_http_header)

    def plots(self, request: Request) -> Plots:
        chosen = (request.head.params or {}).get("range", "")
        now = time.monotonic()
        return Plots(self._history, now, time.time() - now, chosen)

    def may_act(self, head: Head) -> bool:
        if self.logins is not None:
            user = self.logins.user(head)
            return user is not None and user.may_operate
        return access.may_act(head, self.options.acl_http_header, self.options.admin_user)

    def change_option(self, option: Option, value: Value) -> None:
        self.options.change(option.name, value)
        if option.name == "log_level":
            self.log.level = self.options.log_level


def body_limit(app: AppContext, head: Head) -> int:
    return MAX_BODY


def refusal(app: AppContext, request: Request) -> str:
    """Return why the user may not see messages or a channel's position; empty if permitted. The
    right to see statistics does not imply the right to read messages."""
    if app.may_act(request.head):
        return ""
    if app.logins is not None:
        name = app.user_of(request.head)
        return f"{name} has the view role. Only users with the operate role may see this."
    return "Only users named by --admin-user may see this."


def guarded(handler: Handler) -> Handler:
    """Restrict a handler to users who may act."""

    def handle(app: AppContext, request: Request) -> Result:
        head = request.head
        if not app.may_act(head) or access.is_of_another_site(head):
            raise HttpError(403, "FORBIDDEN")
        return handler(app, request)

    return handle


# Other sites must not frame nsqadmin's pages, receive their forms, or run scripts in them.
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


NOTHING = Subject()


@dataclass(frozen=True)
class Page:
    """A page. `draw` fetches the data for the view, and raises HttpError on failure."""

    title: str
    path: str
    draw: Callable[[ClusterView], View]
    about: Subject = NOTHING
    is_live: bool = False  # whether a script keeps the page up to date
    refresh: int = 0  # seconds until a browser without scripts reloads the page
    refusal: str = ""  # why this user may not see the page; shown instead of the content


def show(
    app: AppContext, request: Request, page: Page, *, warning: str = "", error: str = ""
) -> Reply:
    """Render a page's current state, with the errors of a preceding action."""
    if page.refusal:
        refused = render(app.layout(request), page.title, error=page.refusal)
        return Reply(403, refused, HTML, nsq=False, headers=HEADERS)
    cluster = app.cluster()
    status, errors = 200, [error]
    try:
        view = page.draw(cluster)
    except HttpError as problem:
        status, view = problem.status, not_found(problem.message, page.about)
        errors.append(problem.message)
    warnings = [each for each in (warning, cluster.warning("\n")) if each]
    html = render(
        app.layout(request),
        page.title,
        view,
        warning=explained("\n".join(warnings)),
        error=explained("\n".join(dict.fromkeys(filter(None, errors)))),
        is_live=page.is_live,
        is_current=status < 500,
        refresh=page.refresh,
    )
    return Reply(status, html, HTML, nsq=False, headers=HEADERS)


def submit(
    app: AppContext, request: Request, action: Callable[[], Done], page: Page, then: Page
) -> Reply:
    """Run a form's action and redirect to the page `then`. On failure, show the form's page with
    the error."""
    try:
        warning = action().cluster.warning("\n")
    except HttpError as problem:
        return show(app, request, page, error=problem.message)
    if warning:
        return show(app, request, then, warning=warning)
    return Reply(303, nsq=False, headers=[("Location", then.path)])


# Routes of pages


def page_route(path: str, make: Callable[..., Page]) -> Route:
    """Return a page's route. `make` gets the context, the request and the names in the path."""
    count = path.count(":")

    def handle(app: AppContext, request: Request) -> Reply:
        names = segments(request, count) if count else []
        return show(app, request, make(app, request, *names))

    return Route("GET", path, handle, plain=True)


def form_route(path: str, handler: Handler) -> Route:
    return Route("POST", path, guarded(handler), body=body_limit, plain=True)
