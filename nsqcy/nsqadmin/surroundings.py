"""What handlers have around them: the options, whom to ask, and the threads they run in."""

import time
from collections.abc import Sequence

import gevent
from gevent.threadpool import ThreadPool

from nsqcy.cluster.web_client import WebClient
from nsqcy.config.options import Option, Value
from nsqcy.errors import HttpError
from nsqcy.http import router
from nsqcy.http.parser import Head, Reply
from nsqcy.http.router import Handler, Later, Request, Result, Route, Router
from nsqcy.logging.logger import Log
from nsqcy.nsqadmin import access
from nsqcy.nsqadmin.assets import Assets
from nsqcy.nsqadmin.compression import compressed
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.gathering import Gathering, Rows
from nsqcy.nsqadmin.graphite import Graphite
from nsqcy.nsqadmin.history import History
from nsqcy.nsqadmin.login_gate import for_users
from nsqcy.nsqadmin.logins import Logins
from nsqcy.nsqadmin.notify import Notifier
from nsqcy.nsqadmin.options import AdminOptions
from nsqcy.nsqadmin.plots import FRAME, Plots
from nsqcy.nsqadmin.shapes import Shapes

THREADS_MOST = 32  # requests that wait for others at the same time
IDLE_THREAD = 10.0  # seconds after which a thread without work ends
BODY_MOST = 1 << 20  # bytes


class Surroundings(router.Api):
    """A handler that is not inline may ask others: it runs in a thread, and nobody waits for it."""

    reads_headers = True
    log: Log

    def __init__(
        self,
        options: AdminOptions,
        web: WebClient,
        others: WebClient,
        log: Log,
        routes: Sequence[Route],
        history: History | None = None,
        logins: Logins | None = None,
    ) -> None:
        super().__init__(options, log)
        self.options = options
        self.logins = logins
        if logins is not None:
            routes = [for_users(route) for route in routes]
        self.router = Router(routes, options.base)
        self.assets = Assets(options.dev_static_dir)
        self.graphite = Graphite(options.graphite_url, options.statsd_interval, others)
        self.notifier = Notifier(options.notification_http_endpoint, others, log, self.user_of)
        self._history = history
        self._web = web
        self._threads = ThreadPool(
            THREADS_MOST, hub=gevent.get_hub(), idle_task_timeout=IDLE_THREAD
        )

    def call(self, route: Route, request: Request) -> Reply | Later:
        if route.inline:
            return self._call(route, request)
        reply: Reply | Later = self._threads.apply(self._call, (route, request))
        return reply

    def _call(self, route: Route, request: Request) -> Reply | Later:
        reply = super().call(route, request)
        return compressed(request.head, reply) if isinstance(reply, Reply) else reply

    # For the handlers

    def gathering(self) -> Gathering:
        return Gathering(self.options, self._web, self.log)

    def shapes(self, rows: Rows) -> Shapes:
        return Shapes(rows.nodes, time.time())

    def frame(self, request: Request) -> Frame:
        head = request.head
        user = self.user_of(head) if self.logins else ""
        return Frame(self.options.base, self.may_act(head), user, self.assets.version)

    def user_of(self, head: Head) -> str:
        """The name of who sends this; empty if nobody says."""
        if self.logins is None:
            return access.basic_user(head)
        user = self.logins.user(head)
        return user.name if user else ""

    def plots(self, request: Request) -> Plots:
        chosen = (request.head.params or {}).get("range", FRAME)
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


def body_limit(api: Surroundings, head: Head) -> int:
    return BODY_MOST


def segments(request: Request, count: int) -> list[str]:
    """The last segments of the path, which its route has as variables."""
    return [readable(each) for each in request.head.path.rsplit("/", count)[1:]]


def readable(text: str) -> str:
    """Text of a URL or a form that can be sent on: bytes that are not UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def refusal(api: Surroundings, request: Request) -> str:
    """Why somebody may not see messages nor where a channel is, in words; empty for who may act.
    What people have published is not for everybody who may see how much it is."""
    if api.may_act(request.head):
        return ""
    if api.logins is not None:
        name = api.user_of(request.head)
        return f"Not for {name}, who has the role view: only users with the role operate see this."
    return "Only for those who may act: --admin-user names them."


def guarded(handler: Handler) -> Handler:
    """For those only who may act."""

    def handle(api: Surroundings, request: Request) -> Result:
        head = request.head
        if not api.may_act(head) or access.is_of_another_site(head):
            raise HttpError(403, "FORBIDDEN")
        return handler(api, request)

    return handle
