"""Discovery of a new topic's channels: nsqlookupds know about them from other nsqds.

Queries every nsqlookupd with a known HTTP address, in threads; a topic waits no longer than the
timeout of one request. An nsqlookupd that does not answer delays only its own queries. This module
only returns the channel names.
"""

import json
import time
from typing import TYPE_CHECKING
from urllib.parse import quote
from weakref import WeakKeyDictionary

import gevent
from gevent.lock import Semaphore
from gevent.threadpool import ThreadPool

from nsqcy.errors import RequestError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import is_ephemeral, is_valid_name
from nsqcy.nsqd.lookup.protocol import Info
from nsqcy.nsqd.lookup.registration import Lookup, Peer

if TYPE_CHECKING:
    from nsqcy.cluster.web_client import Settings

QUERIES_LIMIT = 8  # maximum concurrent queries to one nsqlookupd
THREADS_LIMIT = 256
SETTLE_LIMIT = 3.0  # maximum seconds until a new nsqlookupd has reported its HTTP address
MAX_WAIT = 50.0  # seconds, for a request without a time limit; workers wait at most 60 s
IDLE_THREAD = 10.0
MAX_ANSWER = 5 << 20
SECOND = 1_000_000_000


class ChannelDiscovery:
    """Finds the channels of new topics."""

    def __init__(self, lookup: Lookup, settings: "Settings", log: Lines) -> None:
        self._lookup = lookup
        self._log = log
        self._settings = settings
        whole = settings.http_client_request_timeout / SECOND
        self._limit = min(whole, MAX_WAIT) if whole > 0 else MAX_WAIT
        self._pool: ThreadPool | None = None
        self._slots: WeakKeyDictionary[Peer, Semaphore] = WeakKeyDictionary()

    def prepare(self) -> None:
        """Import slow modules now, so that the import does not delay requests later."""
        from nsqcy.cluster import web_client  # noqa: F401

    def channels(self, topic: str) -> list[str]:
        """Return the names of the channels to create, sorted. Blocks."""
        if not self._lookup.addresses:
            return []
        self._await_settled()
        infos = {peer: peer.info for peer in self._lookup.peers if _has_http(peer.info)}
        if not infos:
            events.channels_unknown(self._log, topic=topic)
            return []
        # Query an nsqlookupd only once, even if it has two addresses.
        urls = {_url(info, topic): peer for peer, info in infos.items() if info is not None}
        deadline = time.monotonic() + self._limit
        asked = [gevent.spawn(self._query, peer, url, deadline) for url, peer in urls.items()]
        gevent.joinall(asked, timeout=self._limit)
        gevent.killall([each for each in asked if not each.ready()])
        answers = [each.value for each in asked if isinstance(each.value, list)]
        self._complain(topic, [(url, each.value) for url, each in zip(urls, asked, strict=True)])
        return sorted({name for names in answers for name in names if not is_ephemeral(name)})

    def _await_settled(self) -> None:
        """Wait briefly for nsqlookupds that were added recently."""
        waiting = [each.settled for each in self._lookup.addresses]
        gevent.wait(waiting, timeout=SETTLE_LIMIT)
        waiting = [each.settled for each in self._lookup.peers]
        gevent.wait(waiting, timeout=SETTLE_LIMIT)

    def _complain(self, topic: str, outcomes: list[tuple[str, object]]) -> None:
        failed = [
            f"{url}: {value if isinstance(value, str) else 'timed out'}"
            for url, value in outcomes
            if not isinstance(value, list)
        ]
        if not failed:
            return
        text = "; ".join(failed)
        if len(failed) == len(outcomes):
            text = f"failed to query any nsqlookupd: {text}"
        self._log.warn(
            f"failed to query nsqlookupd for channels to pre-create for topic {topic} - {text}"
        )

    def _query(self, peer: Peer, url: str, deadline: float) -> list[str] | str:
        """Return one nsqlookupd's channels, or the error."""
        slots = self._slots.setdefault(peer, Semaphore(QUERIES_LIMIT))
        slots.acquire()
        self._log.info(f"CI: querying nsqlookupd {url}")
        if self._pool is None:
            hub = gevent.get_hub()
            self._pool = ThreadPool(THREADS_LIMIT, hub=hub, idle_task_timeout=IDLE_THREAD)
        query = self._pool.spawn(_attempt, self._settings, url, deadline)
        # The thread may outlive this greenlet; the slot stays in use until the thread ends.
        query.rawlink(lambda _: slots.release())
        answer: list[str] | str = query.get()
        return answer


def _has_http(info: Info | None) -> bool:
    return info is not None and bool(info.broadcast_address)


def _url(info: Info, topic: str) -> str:
    host = info.broadcast_address
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{info.http_port}/channels?topic={quote(topic, safe='')}"


def _attempt(settings: "Settings", url: str, deadline: float) -> list[str] | str:
    """Runs in a thread: return the response or the error."""
    from dataclasses import replace

    from urllib3.util import parse_url

    from nsqcy.cluster import web_client  # imports urllib3, which is only needed with nsqlookupds

    left = deadline - time.monotonic()
    if left <= 0:
        return web_client.TIMED_OUT
    try:
        terms = replace(web_client.Terms.of(settings), request_timeout=left)
        web = web_client.WebClient(terms)
        answer = web.ask(parse_url(url), maximum=MAX_ANSWER)
        return _read(answer.body) if answer.status == 200 else f"status {answer.status}"
    except RequestError as failure:
        return str(failure)
    except Exception as error:
        return web_client.reason(error)


def _read(body: bytes) -> list[str] | str:
    try:
        channels = json.loads(body)["channels"] or []
    except (ValueError, TypeError, KeyError, RecursionError):
        return "invalid response"
    return [name for name in channels if isinstance(name, str) and is_valid_name(name)]
