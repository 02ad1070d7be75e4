"""A producer's decisions, sans I/O.

Owns the choice of an nsqd for each publish, the matching of responses to publishes, and retries.
core.py owns the nsqds, one or a pool. Uses no sockets or threads, which are left to its Net (aio,
blocking).

A publish whose connection is lost may have been executed. With several nsqds, it is retried on
another nsqd, so a message may be published twice but is not lost. With a single nsqd, it fails, and
the caller decides. Publishes that follow a publish that nsqd rejects, or that nsqd has not answered
when it announces its exit, are not executed, so they are retried on any connection. A publish above
its topic's limits is not sent, because nsqd would close the connection: before a publish above the
usual limits, the producer queries the limits of the topic. Later publishes to this topic on the
same connection wait for the answer, so that they do not overtake the large one.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from nsqcy.client.arguments import check_arguments
from nsqcy.client.codec import Message, Publish
from nsqcy.client.connection import Connection, State
from nsqcy.client.core import STEADY, Core, Net
from nsqcy.client.core import Nsqd as AnyNsqd
from nsqcy.client.errors import (
    Closed,
    ConnectionFailed,
    Error,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
)
from nsqcy.client.keys import ranked
from nsqcy.client.limits import DEFERRED
from nsqcy.client.options import Address, Addresses, producer_options
from nsqcy.client.times import Milliseconds, milliseconds
from nsqcy.errors import LayerError
from nsqcy.names import is_valid_name, quote

# Errors after which a different nsqd may accept the message: this nsqd is exiting, or its disk is
# full.
WORTH_ANOTHER = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
MAX_DEFERRED = 0x7FFFFFFFFFFF  # milliseconds
MAX_HEADS = 1000  # maximum topics with cached command lines
# The maximum pause before a reconnect while publishes are waiting, in units of reconnect_interval.
IMPATIENT_PAUSE = 4
NOTHING = -1.0  # below the size of any body
CLOSED_UNANSWERED = "the producer was closed before nsqd answered"


class Nsqd(AnyNsqd):
    """An nsqd to publish to.

    `harmless`: a PUB or MPUB whose body has at most this many bytes is sent without a question.
    While a question is open, every publish is checked, because it may be for the question's topic
    """

    __slots__ = ("error", "harmless", "pending", "questions")

    def __init__(self, *, fixed: bool) -> None:
        super().__init__(fixed=fixed)
        self.pending: deque[Publish] = deque()  # sent and not yet answered, in order
        self.questions: dict[str, _Question] = {}  # questions in `pending`, by topic
        self.harmless = NOTHING
        self.error: Error | None = None  # error from the last connection attempt

    def publishes(self) -> Iterator[Publish]:
        """Yield the publishes that are waiting for an answer, in order."""
        for publish in self.pending:
            if isinstance(publish, _Question):
                yield from publish.publishes
            else:
                yield publish

    def ask_before(self, publish: Publish) -> "_Question":
        """Add and return the question for the limits of a publish's topic."""
        question = self.questions[publish.topic] = _Question(publish, self)
        self.pending.append(question)
        self.harmless = NOTHING
        return question

    def clear(self) -> None:
        """Discard the publishes and questions."""
        self.pending.clear()
        self.questions.clear()
        self.harmless = NOTHING


class _Question(Publish):
    """Placeholder in `nsqd.pending` for publishes that are waiting for the limits of their topic:
    one above the usual limits, and those after it."""

    __slots__ = ("_nsqd", "asker", "publishes")

    def __init__(self, asker: Publish, nsqd: Nsqd) -> None:
        super().__init__(asker.topic, b"", b"", None)
        self.asker = asker
        self.publishes: deque[Publish] = deque()
        self._nsqd = nsqd

    def done(self, error: Error | None) -> None:
        """Handle an OK. An OK does not answer the question, so the publishes are treated like those
        on a lost connection."""
        self._nsqd.pending.appendleft(self)
        raise ProtocolError("nsqd answered LIMITS with OK")


class _GivenUp(Publish):
    """Placeholder for a publish that has timed out; its response may still arrive."""

    __slots__ = ()

    def is_awaited(self) -> bool:
        return False


class Heads(dict[str, bytes]):
    """Command lines for publishes, by topic. Each line is checked and created on first use. Raises
    ValueError for an invalid topic name."""

    def __init__(self, verb: bytes) -> None:
        super().__init__()
        self._verb = verb

    def __missing__(self, topic: str) -> bytes:
        head = b"%b %b\n" % (self._verb, topic_bytes(topic))
        if len(self) >= MAX_HEADS:
            self.clear()
        self[topic] = head
        return head


def topic_bytes(topic: str) -> bytes:
    """Return the command line. Raises ValueError for an invalid topic name."""
    if not isinstance(topic, str) or not is_valid_name(topic):
        raise ValueError(f"{quote(str(topic))} is not a valid topic name")
    return topic.encode()


def dpub_head(topic: str, defer: Milliseconds) -> bytes:
    """Return the command line of a DPUB with a delay of `defer` milliseconds, or a timedelta."""
    defer = milliseconds(defer)
    if abs(defer) > MAX_DEFERRED:
        raise ValueError(f"a message cannot be deferred by {defer} ms")
    return b"DPUB %b %d\n" % (topic_bytes(topic), defer)


class ProducerCore(Core[Nsqd]):
    """A producer for any topic."""

    kind = "producer"
    nsqd = Nsqd

    def __init__(
        self,
        net: Net,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        name: str | None = None,
        keywords: Mapping[str, Any],
        rng: random.Random | None = None,
    ) -> None:
        check_arguments(name=name)
        self.options, lookup_options, connection_options = producer_options(keywords)
        super().__init__(
            net,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name or "producer",
            lookup_options=lookup_options,
            connection_options=connection_options,
            rng=rng,
        )
        self.pending_bytes = 0  # total size of unanswered publishes
        self.retried = 0  # number of retries
        self.waiting: deque[Publish] = deque()  # publishes without a connection
        self.on_retry: Callable[[Publish, Error], object] | None = None
        self._open: deque[Nsqd] = deque()  # nsqds that can be published to; the first is next
        self._lookup_error: Error | None = None
        self._failures = 0  # failed connection attempts since all nsqds were last tried
        self._next_deadline = math.inf

    # -- called by the public interface

    @property
    def due(self) -> float:
        """Return the time of the next tick()."""
        return min(self._next(), self._next_deadline) if self.running else math.inf

    def tick(self, now: float) -> None:
        """Do everything that is due."""
        if not self.running:
            return
        self._check(now)
        if now >= self._next_deadline:
            self._expire(now)
        if now >= self._give_up_at:
            self._end()
        elif now >= self._explain_at:
            self._explain(now)
        if self.running:
            self._reach_out(now)

    def lost(self, connection: Connection, error: Error, now: float) -> None:
        if connection.state is State.CLOSED:
            return
        was_ready = connection.state is State.READY
        connection.close()
        nsqd = self.nsqds[connection.address]
        nsqd.connection = None
        error = connection.failure or error
        if isinstance(error, LayerError):  # a program must not depend on the connection's layers
            error = ConnectionFailed(connection.blames(error))
        if not was_ready:
            nsqd.error = error
            self._failures += 1
        if nsqd in self._open:
            self._open.remove(nsqd)
        self._judge(nsqd, now)
        self._warn(nsqd.lines, connection.blames(error), now)
        self.tell(self.on_error, error)
        # Reconnect now if the connection worked before: nsqd may have closed only this one.
        worked = was_ready and not nsqd.failures
        self._retry(nsqd, now, 0 if worked else self._pause(nsqd.failures))
        if worked and self.lookupd_http_addresses:
            self._ask_again(now, 0.0)
        lost = list(nsqd.publishes())
        unsent = set(chain.from_iterable(each.publishes for each in nsqd.questions.values()))
        nsqd.clear()
        self._forget(connection.address, nsqd)
        retried = self.retried
        failure = connection.failure
        for publish in lost:
            if connection.left or publish in unsent:
                is_blameless = connection.left or failure is not None
                self._not_executed(publish, NoConnection(str(error)), blameless=is_blameless)
            elif failure is None:
                self._failed(publish, ConnectionFailed(str(error)), elsewhere=True)
            else:  # nsqd executed nothing after the publish that it refused
                blameless = failure.code not in WORTH_ANOTHER
                self._not_executed(publish, NoConnection(str(error)), blameless=blameless)
        if lost:
            count = self.retried - retried
            text = f"connection lost, pending publishes: {len(lost)}, retried: {count}"
            self._warn(nsqd.lines, text, now)
        if not was_ready:
            self._move_waiting(nsqd)
            self._fail_waiting()
        self._end_if_done()

    def found(self, addresses: Iterable[Address], errors: Iterable[str], now: float) -> None:
        texts = list(errors)
        self._lookup_error = NoConnection(f"lookupd: {texts[0]}") if texts else None
        super().found(addresses, texts, now)
        if self.nsqds:
            self._in_vain = 0
        elif self.running:
            self._ask_at = min(self._ask_at, now + self._pause(self._in_vain))
            self._in_vain += 1
        self._fail_waiting()

    def publish(self, publish: Publish) -> None:
        """Send a publish, or keep it until it can be sent. Raises Closed."""
        if self.closing or not self.running:
            raise self.closed_error
        self.pending_bytes += len(publish.body)
        if publish.deadline < self._next_deadline:
            self._next_deadline = publish.deadline
        if self._open and publish.route is None:
            self._send(publish)
        elif publish.route is not None and (nsqd := self._chosen(publish.route)) is not None:
            self._send(publish, nsqd)
        else:
            self._keep(publish, self._net.now())

    def withdraw(self, publish: Publish, now: float) -> None:
        """Handle the interruption of a publish's caller. If the publish has not been sent yet, drop
        it. Otherwise, its response is still matched, but nothing waits for it."""
        questions = (each for nsqd in self.nsqds.values() for each in nsqd.questions.values())
        for unsent in (self.waiting, *(each.publishes for each in questions)):
            if publish in unsent:
                unsent.remove(publish)
                self.pending_bytes -= len(publish.body)
        self._end_if_done()

    def _keep(self, publish: Publish, now: float) -> None:
        self.waiting.append(publish)
        for nsqd in self.nsqds.values():  # a caller is waiting, so connect soon
            nsqd.retry_at = min(nsqd.retry_at, now + self._short_pause(nsqd.failures))
        if not (self.nsqds or self._asking):
            self._ask_at = min(self._ask_at, now + self._short_pause(self._in_vain))
        self.tick(now)

    def _short_pause(self, failures: int) -> float:
        """Return the maximum pause for a caller that has just arrived."""
        return 0.0 if failures < 2 else self.options.reconnect_interval

    def _pause(self, failures: int) -> float:
        """Return the seconds before a reconnect or a query. They grow, but callers must not wait
        for long until their publishes fail."""
        longest = self.options.max_reconnect_interval
        if self.waiting:
            longest = min(longest, IMPATIENT_PAUSE * self.options.reconnect_interval)
        grown: float = self.options.reconnect_interval * 2 ** min(failures, 10)
        return min(grown, longest)

    @property
    def is_connected(self) -> bool:
        """Return whether any nsqd can be published to now."""
        return bool(self._open)

    @property
    def has_unsent(self) -> bool:
        """Return whether a publish is waiting for a connection, or for the limits of its topic."""
        return bool(self.waiting) or any(nsqd.questions for nsqd in self.nsqds.values())

    @property
    def is_full(self) -> bool:
        """Return whether publishers should wait."""
        return self.pending_bytes >= self.options.max_pending

    def stop(self, now: float, *, graceful: bool = True) -> None:
        """End once pending publishes have been answered, or after close_timeout."""
        if not self.running:
            return
        self.closing = True
        if not graceful:
            self._end()
            return
        self._end_within(self.options.close_timeout, now)
        self._end_if_done()

    def answered(self, now: float) -> None:
        """Do nothing: a producer does not wait until its bytes have been sent."""

    # -- notifications from connections

    def ready(self, connection: Connection, now: float) -> None:
        nsqd = self.nsqds[connection.address]
        nsqd.error = None
        nsqd.works_at = now + STEADY
        nsqd.harmless = connection.limits.harmless
        self._failures = 0
        self._open.append(nsqd)
        waiting, self.waiting = self.waiting, deque()
        for publish in waiting:
            self._place(publish)
        self._end_if_done()

    def messages(self, connection: Connection, messages: list[Message], now: float) -> None:
        raise ProtocolError(f"{connection.address} sent messages to a producer")

    def accepted(self, connection: Connection, count: int, now: float) -> None:
        nsqd: Nsqd = connection.peer
        pending = nsqd.pending
        if pending:
            nsqd.works_at = -math.inf
        for _ in range(count):
            if not pending:
                if self.running:
                    raise ProtocolError(f"{connection.address} sent OK without a pending publish")
                return  # the callback for the last response has closed the producer
            publish = pending.popleft()
            self.pending_bytes -= len(publish.body)
            publish.done(None)
        if self.closing:
            self._end_if_done()

    def response(self, connection: Connection, data: bytes, now: float) -> None:
        """Handle the limits of a topic."""
        nsqd: Nsqd = connection.peer
        question = nsqd.pending[0] if nsqd.pending else None
        if not isinstance(question, _Question):
            raise ProtocolError(f"{connection.address} answered {data[:80]!r}")
        limits = connection.learn_limits(question.topic, data)
        nsqd.pending.popleft()
        del nsqd.questions[question.topic]
        if not nsqd.questions:
            nsqd.harmless = connection.limits.harmless
        above: list[tuple[Publish, Error]] = []  # answer last: callbacks may publish
        for publish in question.publishes:
            if not publish.is_awaited():
                self.pending_bytes -= len(publish.body)
            elif (refusal := limits.refusal(publish)) is not None:
                above.append((publish, refusal))
            else:
                nsqd.pending.append(publish)
                connection.codec.publish(publish.head, publish.body)
        for publish, error in above:
            self._done(publish, error)
        if self.closing:
            self._end_if_done()

    def refused(self, connection: Connection, error: NsqdError, now: float) -> None:
        """Handle a failure of the oldest publish; the publishes sent after it are not executed."""
        if not error.fatal:  # nsqd sends this error to consumers
            self._warn(connection.peer.lines, connection.blames(error), now)
            return
        nsqd: Nsqd = connection.peer
        elsewhere = error.code in WORTH_ANOTHER
        if nsqd in self._open:
            self._open.remove(nsqd)
        # Skip, for longer each time, an nsqd that accepts nothing while others accept publishes.
        if elsewhere and self._open:
            self._judge(nsqd, now)
            nsqd.failures += 1
        elif nsqd.pending:
            nsqd.works_at = -math.inf
        if nsqd.pending:
            publish = nsqd.pending[0]
            if not isinstance(publish, _Question):
                nsqd.pending.popleft()
                self._failed(publish, error, elsewhere=elsewhere)
            elif publish.asker in publish.publishes:
                publish.publishes.remove(publish.asker)
                self._failed(publish.asker, error, elsewhere=elsewhere)

    def heartbeat(self, connection: Connection) -> None:
        """Do nothing: heartbeats alone do not show that the nsqd works."""

    # -- the rest

    def _place(self, publish: Publish) -> None:
        """Send a publish now, or when an nsqd is ready, unless its caller has been cancelled. A
        callback may have ended the producer."""
        if not publish.is_awaited():
            self.pending_bytes -= len(publish.body)
        elif self._open and publish.route is None:
            self._send(publish)
        elif publish.route is not None and (nsqd := self._chosen(publish.route)) is not None:
            self._send(publish, nsqd)
        elif self.running:
            self.waiting.append(publish)
        else:
            self._done(publish, self._unanswered)

    def _send(self, publish: Publish, nsqd: Nsqd | None = None) -> None:
        """Send a publish to this nsqd, or to the next one in turn."""
        if nsqd is None:
            nsqd = self._open[0]
            if len(self._open) > 1:
                self._open.rotate(-1)
        connection = nsqd.connection
        assert connection is not None
        if len(publish.body) > nsqd.harmless or publish.head[0] == DEFERRED:
            topic = publish.topic
            question = nsqd.questions.get(topic)
            if question is None and connection.limits_of(topic).refusal(publish) is not None:
                question = nsqd.ask_before(publish)  # a policy may have raised the limit
                connection.ask_limits(topic)
            if question is not None:
                question.publishes.append(publish)
                return
        nsqd.pending.append(publish)
        connection.codec.publish(publish.head, publish.body)

    def _chosen(self, route: bytes) -> Nsqd | None:
        """Return the nsqd that a route chooses: the first of its order, or one after it if those
        before have failed. None: wait for a connection."""
        for address in ranked(route, self.nsqds):
            nsqd = self.nsqds[address]
            if nsqd in self._open:
                return nsqd
            if self.options.strict_key or not (nsqd.failures or nsqd.error):
                return None
        return None

    def _move_waiting(self, failed: Nsqd) -> None:
        """Handle a failed connection attempt: send the publishes that waited for this nsqd to the
        next one or, with strict_key, fail those that have waited for too many attempts."""
        waiting, self.waiting = self.waiting, deque()
        for publish in waiting:
            route = publish.route
            if route is not None and self.options.strict_key and len(self.nsqds) > 1:
                first = next(iter(ranked(route, self.nsqds)))
                publish.tries += self.nsqds[first] is failed
                if publish.tries > self.options.retries:
                    error = failed.error or NoConnection(f"no connection to {first}")
                    self._done(publish, _of_unreachable(publish, error))
                    continue
            self._place(publish)

    def _failed(self, publish: Publish, error: Error, *, elsewhere: bool) -> None:
        """Handle a failed attempt: retry on another nsqd if there is one, or fail the publish."""
        publish.tries += 1
        stays = publish.route is not None and self.options.strict_key
        can = elsewhere and len(self.nsqds) > 1 and not stays
        can = can and publish.tries <= self.options.retries
        self._retry_if(can, publish, error)

    def _not_executed(self, publish: Publish, error: NoConnection, *, blameless: bool) -> None:
        """Retry a publish that nsqd has not executed, on any nsqd.

        blameless: another publish or nsqd's exit caused the failure, so it does not count as an
        attempt
        """
        publish.tries += not blameless
        self._retry_if(publish.tries <= self.options.retries, publish, error)

    def _retry_if(self, can: bool, publish: Publish, error: Error) -> None:
        if not can or not self.running or isinstance(publish, _GivenUp):
            self._done(publish, error)
            return
        if not isinstance(error, NoConnection):
            publish.error = error  # this attempt may have been executed
        self.retried += 1
        self.tell(self.on_retry, publish, error)
        self._place(publish)

    def _fail_waiting(self) -> None:
        """Fail waiting publishes if all nsqds have been tried and none is connected."""
        if self._open or self._asking or not self.waiting:
            return
        if self.connections and self._failures < len(self.nsqds):
            return
        self._failures = 0
        errors = [each.error for each in self.nsqds.values() if each.error is not None]
        error = errors[0] if errors else self._lookup_error
        error = error or NoConnection("no nsqd is registered with the lookupds")
        hopeless = errors and all(isinstance(each, (ProtocolError, NsqdError)) for each in errors)
        waiting, self.waiting = self.waiting, deque()
        failed: list[tuple[Publish, Error]] = []
        for publish in waiting:
            publish.tries += 1
            if hopeless or publish.tries > self.options.retries:
                failed.append((publish, _of_unreachable(publish, error)))
            else:
                self.waiting.append(publish)
        for publish, reason in failed:
            self._done(publish, reason)

    def _done(self, publish: Publish, error: Error) -> None:
        self.pending_bytes -= len(publish.body)
        publish.done(_honest(publish, error))

    def _expire(self, now: float) -> None:
        """Fail publishes that have timed out. A sent publish keeps its position, because its
        response may still arrive."""
        late: list[tuple[Publish, Error]] = []
        for publish in self._take_late(self.waiting, now):
            known = (each.error for each in self.nsqds.values() if each.error is not None)
            error = next(known, self._lookup_error)
            why = f": {error}" if error else ""
            error = NoConnection(f"no nsqd became available in time{why}")
            late.append((publish, _honest(publish, error)))
        for address, nsqd in self.nsqds.items():
            timeout = f"no OK from {address} in time"
            for question in nsqd.questions.values():
                for publish in self._take_late(question.publishes, now):
                    late.append((publish, PublishTimeout(timeout)))
            for at, publish in enumerate(list(nsqd.pending)):
                if publish.deadline <= now:
                    late.append((publish, PublishTimeout(timeout)))
                    given_up = _GivenUp(publish.topic, publish.head, publish.body, None)
                    nsqd.pending[at] = given_up
        left = [each.deadline for nsqd in self.nsqds.values() for each in nsqd.publishes()]
        left += [each.deadline for each in self.waiting]
        self._next_deadline = min(left, default=math.inf)
        for publish, error in late:
            publish.done(error)
        self._end_if_done()

    def _take_late(self, unsent: deque[Publish], now: float) -> list[Publish]:
        """Remove the publishes that have timed out, and return them."""
        late = [each for each in unsent if each.deadline <= now]
        if late:
            in_time = [each for each in unsent if each.deadline > now]
            unsent.clear()
            unsent.extend(in_time)
        self.pending_bytes -= sum(len(each.body) for each in late)
        return late

    @property
    def _unfinished(self) -> str:
        parts = [
            f"{address} (unanswered publishes: {count})"
            for address, nsqd in self.nsqds.items()
            if (count := len(list(nsqd.publishes())))
        ]
        if self.waiting:
            parts.append(f"a connection (waiting publishes: {len(self.waiting)})")
        return ", ".join(parts)

    def _end_if_done(self) -> None:
        if self.closing and not self._is_awaited:
            self._end()

    @property
    def _is_awaited(self) -> bool:
        """Return whether a caller is still waiting for a publish. A response after its timeout, or
        after its caller was interrupted, does not keep the producer open."""
        sent = (publish for nsqd in self.nsqds.values() for publish in nsqd.publishes())
        return any(publish.is_awaited() for publish in chain(self.waiting, sent))

    def _end(self) -> None:
        if not self.running:
            return
        self.running = False
        self._ask_at = self._give_up_at = self._explain_at = self._next_deadline = math.inf
        left = list(self.waiting)
        for nsqd in self.nsqds.values():
            left += nsqd.publishes()
            nsqd.clear()
        try:
            self._disconnect_all()
        finally:
            self.nsqds.clear()
            self.waiting.clear()
            self._open.clear()
            for publish in left:
                self._done(publish, self._unanswered)
            self._net.stopped()

    @property
    def _unanswered(self) -> Closed:
        """Return the error of a publish that the end of the producer has interrupted."""
        return Closed(CLOSED_UNANSWERED) if self.failure is None else self.closed_error


def _of_unreachable(publish: Publish, error: Error) -> Error:
    """Return the error of a publish that no nsqd accepts, because all connections have
    failed."""
    if publish.error is not None or type(error) is ConnectionFailed:
        return NoConnection(str(error))
    return error


def _honest(publish: Publish, error: Error) -> Error:
    """Return the error for the caller: NoConnection means that nothing was published, so it does
    not apply to a publish that an nsqd may have executed before."""
    if publish.error is None:
        return error
    text = f"an earlier attempt may have published the message: {publish.error}"
    if isinstance(error, NoConnection):
        return ConnectionFailed(f"{error}; {text}")
    if isinstance(error, NsqdError):
        error.add_note(text)
    return error
