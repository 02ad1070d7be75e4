"""HTTP of nsqlookupd and nsqadmin: requests of any form, and upstreams with any answer. No handler
fails, and every page is readable HTML.

The first byte of an input selects nsqlookupd, nsqadmin, or nsqadmin with a users file. The bytes
after three zero bytes are the answer of nsqds and nsqlookupds to nsqadmin.
"""

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from fuzz.targets.answers import ALL, TOPIC
from nsqcy.cluster.parallel import Outcome
from nsqcy.cluster.web_client import Answer, Terms, WebClient
from nsqcy.config.loader import Settings
from nsqcy.errors import HttpError, RequestError
from nsqcy.http.parser import HTML, Body, Head, HeadCache, HttpProtocol, Malformed, Reply
from nsqcy.http.request_counts import Requests
from nsqcy.http.router import IGNORED, Request, Route
from nsqcy.nsqadmin.api import actions, queries, service
from nsqcy.nsqadmin.auth.logins import Logins
from nsqcy.nsqadmin.cluster import view
from nsqcy.nsqadmin.cluster.outages import Outages
from nsqcy.nsqadmin.context import AppContext
from nsqcy.nsqadmin.options import NSQADMIN, resolve
from nsqcy.nsqadmin.pages import copies, login, messages, missing, nodes, topics
from nsqcy.nsqlookupd.api import Api
from nsqcy.nsqlookupd.registry import Moment, Peer, Registry
from nsqcy.users.hashes import hash_token
from support.strict_html import read as read_markup
from support.worker_core import Log

COVERS = ["http/parser.py", "http/router.py", "nsqlookupd/api.py", "nsqadmin/actions.py"]
COVERS += [f"nsqadmin/api/{name}.py" for name in ("actions", "queries", "service")]
COVERS += [
    f"nsqadmin/pages/{name}.py" for name in ("copies", "login", "messages", "nodes", "topics")
]
COVERS += ["nsqadmin/requests.py", "nsqadmin/auth/access.py", "nsqadmin/auth/logins.py"]
COVERS += [f"nsqadmin/cluster/{name}.py" for name in ("answers", "copies")]
DATE = b"Fri, 20 Nov 2026 11:18:30 GMT"
NOW = Moment(5, 5)
LIMITS: Any = SimpleNamespace(
    debug_remote=False, max_input_bytes=1 << 20, http_idle_timeout=600 * 10**9
)
SPLIT = b"\0\0\0"
TOKEN = "token"
ROUTES = [*topics.ROUTES, *nodes.ROUTES, *messages.ROUTES, *copies.ROUTES]
ROUTES += [*service.ROUTES, *queries.ROUTES, *actions.ROUTES]
FORMS = [b"action=pause", b"action=delete&node=a:2", b"action=seek&to=first", b"action=redrive"]
FORMS += [b"action=set&rate=5&durability=os", b"action=cancel&id=0123456789abcdef", b"limit=9"]
FORMS += [b"action=delete-message&id=0123456789abcdef&node=a:2", b"action=redrive-message&id=x"]
FORMS += [b"user=a&password=token&next=/nodes", b"user=&password=%ff"]
FORMS += [b'{"action":"create"}', b'{"topic":"t","channel":"c"}', b'{"rate":5}', b'{"to":"2026"}']
QUERIES = [b"?sort=-depth&ask=delete", b"?format=hex&state=queued&count=5", b"?topic=t&channel=c"]
QUERIES += [b"?state=queued&node=a:2&start=5.0&id=0123456789abcdef"]
QUERIES += [b"?node=a:2&range=1h&ask=tombstone&topic=t", b"?inactive=true", b"?topic=%ff%00&x=%"]
HEADERS = [b"Origin: http://h", b"Sec-Fetch-Site: cross-site", b"Accept-Encoding: gzip", b"Host: h"]
HEADERS += [
    b"Authorization: Bearer token",
    b"Authorization: Basic YTp0b2tlbg==",
    b"Origin: http://[",
]
HEADERS += [b"Cookie: nsqadmin_session=x; a=b", b"X-Forwarded-For: 1.2.3.4", b"Accept: text/html"]
HEADERS += [b"Content-Type: application/json", b"X-Scheme: https", b"X-Forwarded-Proto: https,http"]
WORDS = [*FORMS, *QUERIES, *(each + b"\r\n" for each in HEADERS), SPLIT, b"\r\n\r\n"]
WORDS += [b"\\r\\nSet-Cookie: a=b", b"\\u001b[2J", b"\\u0000"]
WORDS += [b"Content-Length: ", b"GET ", b"POST ", b"PUT ", b"DELETE ", b" HTTP/1.1\r\n"]
TARGETS = [b"/nodes", b"/topics", b"/debug", b"/lookup?topic=t", b"/channels?topic=t", b"/info"]
TARGETS += [
    b"/topic/tombstone?topic=t&node=a:2",
    b"/topic/delete?topic=t",
    b"/topic/create?topic=n",
]
TARGETS += [b"/channel/create?topic=t&channel=e", b"/channel/delete?topic=t&channel=c"]
MESSAGE = {
    "id": "0123456789abcdef",
    "seq": 5,
    "timestamp": 5,
    "attempts": 1,
    "size": 2,
    "body": "aGk=",
}
MESSAGE |= {"cut": False, "headers": {"a": "b"}, "start": "5.0", "due": 5, "deadline": None}
MESSAGE |= {"consumer": {"client_id": "i", "remote_address": "a:1"}}
SAID = {
    "messages": [MESSAGE],
    "next": "6.0",
    "at": 5,
    "fanout_seq": 9,
    "draining": True,
    "left": None,
}
GROUP = {
    "group": "g",
    "role": "owner",
    "owner": "n.0",
    "members": ["n.0", "m.0"],
    "epoch": 2,
    "copies": 3,
    "min_copies": 2,
    "durability": "os",
    "closed": False,
    "topics": ["t", "u"],
    "responding": 1,
    "accepts": False,
    "joining": "o.0",
    "bytes": 5,
    "whole": True,
}
WORKER = {"node": "n.0", "etcd": True, "ready": False, "sessions": ["n.0"]}
SAID |= {"workers": [WORKER | {"groups": [GROUP, GROUP | {"group": "h", "role": "holder"}]}]}
SAID |= {
    "config": {"rate": {"value": 5, "from": "default"}},
    "channels": {"c": 5},
    "topics": [TOPIC],
}


def request(method: bytes, path: bytes, body: bytes = b"", headers: Sequence[bytes] = ()) -> bytes:
    lines = [
        method + b" " + path + b" HTTP/1.1",
        b"Host: h",
        *headers,
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join([*lines, b"", body])


def seeds() -> list[bytes]:
    found = [b"\0" + request(method, target) for target in TARGETS for method in (b"GET", b"POST")]
    answers = json.dumps({**ALL, **SAID}).encode()
    download = b"?state=queued&node=a:2&start=5.0&id=0123456789abcdef"
    paths = {route.path.encode() for route in ROUTES}
    paths |= {b"/login", b"/logout"}
    for number, path in enumerate(sorted(paths)):
        path = path.replace(b":topic", b"t").replace(b":channel", b"c").replace(b":node", b"a:2")
        form, query = FORMS[number % len(FORMS)], QUERIES[number % len(QUERIES)]
        if path.startswith(b"/download"):
            found += [b"\1" + request(b"GET", path + download) + SPLIT + answers]
        for kind in (b"\1", b"\2"):
            header = HEADERS[(number + kind[0]) % len(HEADERS)]
            get = request(b"GET", path + query, headers=[header])
            post = request(b"POST", path, form, [b"Authorization: Bearer token"])
            found += [kind + get + post + SPLIT + answers]
    return found


def fresh(chance: random.Random) -> bytes:
    header = chance.choice(HEADERS) + b"\r\n"
    method = chance.choice([b"GET", b"POST", b"PUT", b"DELETE"])
    path = chance.choice([route.path.encode() for route in ROUTES]) + chance.choice(QUERIES)
    path = path.replace(b":topic", b"t").replace(b":channel", b"c").replace(b":node", b"a:2")
    whole = request(method, path, chance.choice(FORMS), [chance.choice(HEADERS)])
    return chance.choice([header, whole, chance.choice(FORMS)])


def sound(data: bytes) -> bytes:
    """Reduce an announced body length to the number of bytes that are left."""
    said, split, answers = data.partition(SPLIT)
    at = said.rfind(b"Content-Length: ")
    head = said[: at + 16]
    number, end, body = said[at + 16 :].partition(b"\r\n\r\n")
    if at < 0 or not end or not number.isdigit() or int(number) <= len(body):
        return data
    return head + b"%d" % len(body) + end + body + split + answers


class Web(WebClient):
    """Gives the same answer to every request."""

    def __init__(self) -> None:
        super().__init__(Terms())
        self.body = b""

    def ask(self, url: Any, *_: Any, maximum: int, **__: Any) -> Answer:
        if len(self.body) > maximum:
            raise RequestError("too much")
        return Answer(200, {}, self.body)


def at_once(keys: Sequence[Any], ask: Callable[[Any], Any], limit: float) -> Outcome[Any, Any]:
    """Replacement of ask_all() without threads."""
    found: Outcome[Any, Any] = Outcome()
    for key in dict.fromkeys(keys):
        try:
            found.values[key] = ask(key)
        except RequestError as error:
            found.errors[key] = error
    return found


view.ask_all = at_once


class Admin(AppContext):
    """nsqadmin whose handlers run immediately."""

    def call(self, route: Route, request: Request) -> Any:
        return self._call(route, request)


class Daemon(NamedTuple):
    api: Any
    log: Log
    web: Web


def lookupd() -> Daemon:
    registry, log = Registry(10**9, 10**9), Log()
    peer = Peer(
        "r:1", NOW, broadcast_address="a", tcp_port=1, http_port=2, hostname="h", version="1"
    )
    registry.identify(peer)
    registry.register(peer, "t", "c")
    made = Api(registry, lambda: NOW, LIMITS, log, Requests(), lambda: {"http": 1, "tcp": 1})
    return Daemon(made, log, Web())


def users() -> str:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(f"[user a]\nrole = operate\ntoken = {hash_token(TOKEN)}\n")
    return file.name


def admin(logins: bool) -> Daemon:
    options = resolve(Settings(NSQADMIN, {"nsqd_http_address": ("a:2", "b:2")}))
    web, log = Web(), Log()
    kept = Logins(USERS, 3600, log, time.monotonic) if logins else None
    routes = [*ROUTES, *(login.ROUTES if logins else [])]
    made = Admin(
        options,
        web,  # type: ignore[arg-type]
        web,  # type: ignore[arg-type]
        log,  # type: ignore[arg-type]
        routes,
        missing.ROUTE,
        Outages(log),
        logins=kept,
    )
    return Daemon(made, log, web)


USERS = users()
ADMINS = [admin(False), admin(True)]
os.unlink(USERS)


def one(data: bytes) -> None:
    kind = data[0] % 3 if data else 0
    daemon = ADMINS[kind - 1] if kind else lookupd()
    said, _, daemon.web.body = data[1:].partition(SPLIT)
    daemon.log.lines.clear()
    protocol = HttpProtocol(HeadCache(keep_headers=True))
    protocol.feed(said)
    protocol.feed_eof()
    head: Head | None = None
    while not protocol.closing and (event := protocol.next_event()) is not None:
        if isinstance(event, Head):
            head = event
            reply = _begin(daemon.api, protocol, head)
        elif isinstance(event, Body) and head is not None:
            route = daemon.api.router.resolve(head)
            reply = daemon.api.call(route, Request(head, event, "127.0.0.1:5"))
        else:
            assert not isinstance(event, Malformed) or event.render().startswith(b"HTTP/1.1 ")
            break
        if reply is not None:
            _check(reply, protocol, daemon)


def _begin(api: Any, protocol: HttpProtocol, head: Head) -> Reply | None:
    """Return the reply to a head, or None if the body must be read first."""
    route = api.router.resolve(head)
    if isinstance(route, Reply):
        return route
    if route.path.startswith("/debug/pprof"):
        return Reply(200)  # a profile takes time
    if route.body is None:
        reply: Reply = api.call(route, Request(head, Body(b""), "127.0.0.1:5"))
        return reply
    try:
        limit = route.body(api, head)
    except HttpError as error:
        error_reply: Reply = route.error(error)
        return error_reply
    if limit == IGNORED:
        protocol.ignore_body()
    else:
        protocol.read_body(limit)
    return None


def _check(reply: Reply, protocol: HttpProtocol, daemon: Daemon) -> None:
    assert not any("panic" in line for line in daemon.log.lines), daemon.log.lines
    answer = b"".join(protocol.answer(reply, DATE))
    assert answer.startswith(b"HTTP/1.")
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert all(line.isprintable() for line in head.decode("latin-1").split("\r\n"))
    if reply.content_type == HTML and reply.status == 200 and not _is_packed(reply):
        read_markup(bytes(reply.body).decode())


def _is_packed(reply: Reply) -> bool:
    return any(name == "Content-Encoding" for name, _ in reply.headers)
