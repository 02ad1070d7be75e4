"""A worker's streams, by node and group: it opens some as an owner, and accepts others as a holder.

Owns the listener, and decides which processes may connect. Passes incoming messages to the state
machine.
"""

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from gevent import socket, ssl

from nsqcy.copies.feed import REPLACED
from nsqcy.copies.messages import FromHolder, FromOwner, Refuse
from nsqcy.copies.roles_and_takeover import Worker
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.run_sink import RunSink
from nsqcy.nsqd.copies.streams import Later, Listener, Stream, connect
from nsqcy.nsqd.copies.wire import Decoder, Greeting

if TYPE_CHECKING:
    from OpenSSL import SSL

FAILURE_INTERVAL = 60.0  # seconds between two log lines about a stream that cannot be opened
NOT_READY = "not ready"
READY_LIMIT = 2.0  # seconds for which a new stream waits until this process is ready
READY_INTERVAL = 0.02  # seconds between checks
LEAVE_PAUSE = 0.02  # seconds to wait while streams send their last messages

Key = tuple[str, str]
"""A node and a group."""

Event = Callable[[Worker, float], object]
"""An event for the state machine: a function that is called with the worker and the time."""


class FailureLog:
    """Logs failed attempts to connect: the first one, each new reason, and then one line per
    FAILURE_INTERVAL."""

    def __init__(self, log: Lines, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._failing: dict[Key, _Failing] = {}

    def failed(self, key: Key, error: str) -> None:
        node, group_id = key
        now, known = self._clock(), self._failing.get(key)
        if known is None:
            known = self._failing[key] = _Failing(now)
        known.attempts += 1
        if known.error == error and now - known.logged < FAILURE_INTERVAL:
            return
        since = f" (attempt {known.attempts}, for {now - known.began:.0f} s)"
        repeated = since if known.attempts > 1 else ""
        known.error, known.logged = error, now
        self._log.info(f"COPIES: no stream to {node} for {group_id}: {error}{repeated}")

    def succeeded(self, key: Key) -> None:
        node, group_id = key
        if (known := self._failing.pop(key, None)) is not None:
            self._log.info(
                f"COPIES: stream to {node} for {group_id} opened after {known.attempts} failed"
                " attempts"
            )

    def ended(self, key: Key) -> None:
        """Forget a stream that is no longer needed."""
        self._failing.pop(key, None)


class _Failing:
    """A stream that cannot be opened."""

    def __init__(self, now: float) -> None:
        self.began = self.logged = now
        self.error = ""
        self.attempts = 0


class Terms(Protocol):
    """The options that connections use."""

    @property
    def cluster(self) -> str: ...
    @property
    def listen(self) -> tuple[str, int]: ...
    @property
    def token(self) -> str: ...
    @property
    def server_tls(self) -> "SSL.Context | None": ...
    @property
    def client_tls(self) -> ssl.SSLContext | None: ...


class Connections:
    """All streams of a worker."""

    def __init__(
        self,
        terms: Terms,
        node: str,
        address_of: Callable[[str], str],
        obstacle: Callable[[], str],
        happened: Callable[[Event], None],
        from_holder: Callable[[str, str, Any], object],
        from_owner: Callable[[str, str, Any], object],
        log: Lines,
        later: Later,
        listener_fd: int = -1,
    ) -> None:
        """
        node: name of this node
        address_of: returns a node's address; raises ConnectionError if it is unknown
        obstacle: returns why no stream can be accepted now, or ""
        happened: passes an event to the state machine
        from_holder, from_owner: pass a message to the state machine, with its node and group
        listener_fd: the listening socket of the process that this one takes over from; -1: none
        """
        self._terms = terms
        self._node = node
        self._address_of = address_of
        self._obstacle = obstacle
        self._happened = happened
        self._from_holder = from_holder
        self._from_owner = from_owner
        self._log = log
        self._later = later
        self._failures = FailureLog(log)
        self._opening: dict[Key, gevent.Greenlet[Any, Any]] = {}
        self._opened: dict[Key, Stream] = {}
        self._accepted: dict[Key, Stream] = {}
        self._listener = Listener(
            terms.listen,
            terms.server_tls,
            self._refusal,
            self._stream_accepted,
            log,
            listener_fd,
        )
        self._is_replaced = False

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def listener_fd(self) -> int:
        return self._listener.fileno()

    def stop(self) -> None:
        """Close everything."""
        self._listener.close()
        for streams in (self._opened, self._accepted):
            for stream in list(streams.values()):
                stream.close()
            streams.clear()

    def leave(self) -> None:
        """Announce this process's exit to the owners that feed copies here."""
        self._refuse_all("leaving")

    def leave_to_successor(self) -> None:
        """End the streams of the owners that feed copies here, until another process takes the
        place of this one. The owners count it as responding for a while."""
        self._is_replaced = True
        self._refuse_all(REPLACED)
        for node, group_id in list(self._accepted):
            self.hang_up(node, group_id)
            self._happened(partial(_end_feed, node=node, group_id=group_id))

    def stay(self) -> None:
        """Accept streams again: no other process takes the place of this one."""
        self._is_replaced = False

    def _refuse_all(self, reason: str) -> None:
        for stream in list(self._accepted.values()):
            stream.send(Refuse(reason))
        gevent.sleep(LEAVE_PAUSE)

    # -- as an owner

    def open(self, node: str, group_id: str) -> None:
        """Begin to connect to a holder."""
        key = (node, group_id)
        self._opening[key] = gevent.spawn(self._connect, key)

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        stream = self._opened.get((node, group_id))
        if stream is not None:
            stream.send(message)

    def close(self, node: str, group_id: str) -> None:
        """Close a stream, or stop connecting, without an event."""
        self._opening.pop((node, group_id), None)
        self._failures.ended((node, group_id))
        stream = self._opened.pop((node, group_id), None)
        if stream is not None:
            stream.close()

    def _connect(self, key: Key) -> None:
        node, group_id = key
        terms = self._terms
        try:
            host, _, port = self._address_of(node).rpartition(":")
            greeting = Greeting(terms.cluster, self._node, node, group_id, terms.token)
            sock, decoder = connect((host.strip("[]"), int(port)), greeting, terms.client_tls)
        except (OSError, ValueError) as error:
            if self._opening.pop(key, None) is not None:
                self._failures.failed(key, str(error))
                self._happened(lambda worker, now: worker.disconnected(node, group_id, now))
            return
        if self._opening.pop(key, None) is None:
            sock.close()
            return
        stream = Stream(
            sock,
            decoder,
            partial(self._from_holder, node, group_id),
            lambda reason: self._stream_lost(key, reason),
            self._later,
        )
        self._opened[key] = stream
        self._failures.succeeded(key)
        self._happened(lambda worker, now: worker.opened(node, group_id, now))
        stream.run()

    def _stream_lost(self, key: Key, reason: str) -> None:
        self._log.info(f"COPIES: stream to {key[0]} for {key[1]} ended: {reason}")
        if self._opened.pop(key, None) is not None:
            self._happened(lambda worker, now: worker.disconnected(*key, now))

    # -- as a holder

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        stream = self._accepted.get((node, group_id))
        if stream is not None:
            stream.send(message)

    def pass_runs(self, node: str, group_id: str, sink: RunSink) -> None:
        """Pass an owner's runs of records to a sink from now on."""
        stream = self._accepted.get((node, group_id))
        if stream is not None:
            stream.sink = sink

    def hang_up(self, node: str, group_id: str) -> None:
        """Close a stream without an event."""
        stream = self._accepted.pop((node, group_id), None)
        if stream is not None:
            stream.close()

    def _refusal(self, greeting: Greeting) -> str:
        if greeting.cluster != self._terms.cluster:
            return f"this nsqd belongs to cluster {self._terms.cluster}"
        if greeting.holder != self._node:
            return f"the node at this address is {self._node}"
        if not secrets.compare_digest(greeting.token.encode(), self._terms.token.encode()):
            return "wrong token"
        if self._is_replaced:
            return "its process is being replaced"
        # Soon after its start, this process is not ready, and the owner would try again later.
        with gevent.Timeout(READY_LIMIT, False):
            while self._obstacle() == NOT_READY:
                gevent.sleep(READY_INTERVAL)
        return self._obstacle()

    def _stream_accepted(self, greeting: Greeting, sock: socket.socket, decoder: Decoder) -> None:
        key = (greeting.node, greeting.group)
        self.hang_up(*key)
        stream = Stream(
            sock,
            decoder,
            partial(self._from_owner, *key),
            lambda reason: self._hung_up(key, stream, reason),
            self._later,
        )
        self._accepted[key] = stream
        stream.run()

    def _hung_up(self, key: Key, stream: Stream, reason: str) -> None:
        self._log.info(f"COPIES: stream from {key[0]} for {key[1]} ended: {reason}")
        if self._accepted.get(key) is stream:
            del self._accepted[key]
            self._happened(lambda worker, now: worker.hung_up(*key))


def _end_feed(worker: Worker, _: float, *, node: str, group_id: str) -> None:
    worker.hung_up(node, group_id)
