"""Auth server queries, made outside the hub.

`Servers` makes a blocking query in the calling thread. `Authorizer` is the interface to it on a
hub: sessions request an authorization and receive it later. Error texts are written here, because
other libraries' texts may contain the URL and therefore the client's secret.
"""

import random
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import gevent
from gevent.threadpool import ThreadPool
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from nsqcy.cluster.web_client import Answer, Terms, WebClient, https_instead, reason
from nsqcy.errors import RequestError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.auth import authorizations
from nsqcy.nsqd.auth.authorizations import MAX_ANSWER, AuthFailure, Authorization
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.protocol.core import Session
from nsqcy.util import gojson

MAX_QUERIES = 32  # maximum concurrent queries per worker
IDLE_THREAD = 10.0  # seconds after which an idle thread ends
_STRAY = re.compile("[\ud800-\udfff]")  # non-UTF-8 bytes, as surrogate escapes


@dataclass(frozen=True)
class Question:
    """Facts about a client that an auth server receives."""

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str

    def parameters(self) -> dict[str, str | bytes]:
        """Return the values by name, sorted."""
        return {
            "common_name": self.common_name,
            "remote_ip": self.remote_ip,
            "secret": self.secret,
            "tls": "true" if self.tls else "false",
        }

    def query(self) -> str:
        return urlencode(self.parameters())

    def body(self) -> bytes:
        """Encode as Go does: each value in an array, and U+FFFD for each byte that is not valid
        UTF-8."""
        texts = {
            name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            for name, value in self.parameters().items()
        }
        return gojson.encode({name: [_STRAY.sub("\ufffd", text)] for name, text in texts.items()})


class Servers:
    """The configured auth servers."""

    def __init__(self, options: NsqdOptions) -> None:
        self._urls = [_url(address) for address in options.auth_http_address]
        self._post = options.auth_http_request_method == "post"
        self._web = WebClient(Terms.of(options))

    def query(self, question: Question) -> Authorization:
        """Return the first successful response, starting with a random server. If all servers fail,
        raise AuthFailure with each server's error."""
        first = random.randrange(len(self._urls))
        failures = []
        for url in self._urls[first:] + self._urls[:first]:
            try:
                return authorizations.parse(self._ask(url, question))
            except (AuthFailure, RequestError) as failure:
                failures.append(f"{_shown(url)}: {failure}")
            except (OSError, HTTPError, HTTPException, ValueError) as error:
                failures.append(f"{_shown(url)}: {reason(error)}")
        raise AuthFailure("; ".join(failures))

    def _ask(self, url: Url, question: Question) -> bytes:
        answer = self._request(url, question)
        if answer.status == 403 and url.scheme == "http":
            answer = self._request(https_instead(url, answer.body), question)
        if answer.status != 200:
            raise AuthFailure(f"status {answer.status}")
        return answer.body

    def _request(self, url: Url, question: Question) -> Answer:
        """Make one request, and return the response and the part of its body that was read."""
        headers = {}
        target, body = url.request_uri, None
        if self._post:
            headers["Content-Type"] = "application/json"
            body = question.body()
        else:
            target += f"?{question.query()}"
        method = "POST" if self._post else "GET"
        return self._web.request(url, method, target, headers, body, maximum=MAX_ANSWER)


def _url(address: str) -> Url:
    try:
        return parse_url(address if "://" in address else f"http://{address}/auth")
    except LocationParseError:
        return Url()  # a URL without a host


def _shown(url: Url) -> str:
    """Return an address for the log, without any passwords or tokens."""
    if not url.host:
        return "an --auth-http-address"
    return url._replace(auth=None, query=None, fragment=None).url


# -- on the hub


class Authorizer:
    """Queries auth servers on behalf of sessions. The number of concurrent queries is limited, and
    a query delays only its own session."""

    def __init__(self, options: NsqdOptions, enter: Callable[[], object], log: Lines) -> None:
        """enter: called before each call to a session, outside a turn."""
        self._servers = Servers(options)
        self._enter = enter
        self._log = log
        self._asked: deque[Session] = deque()
        self._running = 0
        self._known: WeakValueDictionary[bytes, Authorization] = WeakValueDictionary()
        hub = gevent.get_hub()
        self._pool = ThreadPool(MAX_QUERIES, hub=hub, idle_task_timeout=IDLE_THREAD)
        # Sessions call ask() at the end of a turn, where nothing may be spawned.
        self._wake = hub.loop.async_()
        self._wake.start(self._start)

    def ask(self, session: Session) -> None:
        """Query the client's permissions. Calls the session's authorized() or auth_failed()
        later."""
        self._asked.append(session)
        self._wake.send()

    def of_certificate(self, names: Iterable[str]) -> None:
        """Return None, because a query requires a secret."""

    def restore(self, source: bytes) -> Authorization:
        """Return the authorization of a client that a different worker has authorized."""
        return self._shared(authorizations.parse(source))

    def _shared(self, authorization: Authorization) -> Authorization:
        """Share equal authorizations and their cached decisions: clients of one service receive the
        same object."""
        return self._known.setdefault(authorization.source, authorization)

    def _start(self) -> None:
        for _ in range(min(len(self._asked), MAX_QUERIES - self._running)):
            self._running += 1
            gevent.spawn(self._run)

    def _run(self) -> None:
        try:
            while self._asked:
                session = self._asked.popleft()
                if not session.closed:
                    self._tell(session, self._pool.apply(self._attempt, (_question(session),)))
        finally:
            self._running -= 1

    def _attempt(self, question: Question) -> Authorization | str:
        """Return the authorization or the error text. Runs in a thread, and does not raise, because
        the hub would print the arguments."""
        try:
            return self._servers.query(question)
        except AuthFailure as failure:
            return str(failure)
        except Exception as error:
            return reason(error)

    def _tell(self, session: Session, answer: Authorization | str) -> None:
        self._enter()
        if session.closed:
            return
        if isinstance(answer, str):
            events.auth_refused(self._log, client=session.remote_address, error=answer)
            session.auth_failed()
        else:
            session.authorized(self._shared(answer))


def _question(session: Session) -> Question:
    tls, common_name = session.tls_facts()
    return Question(
        secret=session.secret or b"",
        remote_ip=session.remote_address.rpartition(":")[0].strip("[]"),
        tls=tls,
        common_name=common_name,
    )
