"""A consumer's decisions, sans I/O.

Owns a message's outcome before and after its handler, the effects of a lost connection, and
shutdown. core.py owns the nsqds; flow.py owns RDY and backoff. Uses no sockets or threads: its Net
(aio, blocking) moves the bytes, measures time and runs the handlers.
"""

import inspect
import math
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from nsqcy.client.arguments import check_arguments, check_names
from nsqcy.client.codec import Message
from nsqcy.client.connection import Connection, State
from nsqcy.client.core import STEADY, Core, Nsqd
from nsqcy.client.core import Net as AnyNet
from nsqcy.client.errors import AlreadyAnswered, DeadLetter, Error, NsqdError, Requeue, Verdict
from nsqcy.client.flow import Flow
from nsqcy.client.flow_across_topics import SharedFlow
from nsqcy.client.options import (
    Address,
    Addresses,
    as_strings,
    consumer_options,
    lookupd_addresses,
)
from nsqcy.client.topics import Given, Pattern, Topics
from nsqcy.client.user_code import log, pass_on
from nsqcy.names import printable

FIRST_RETRY, MAX_RETRY = 1.0, 60.0  # seconds until reconnecting to a lost nsqd
ASK_SOON = 0.2  # seconds between a lost connection and an nsqlookupd query
FIRST_LOOK = 1.0  # seconds until the next query for an unknown topic; doubled each time
FINISHED, REQUEUED = 0, 1  # values as in client/codec.pyx
KEPT_TRIES = 5  # default of max_tries if on_giving_up keeps the messages
NOT_AWAITED = "the handler returned an awaitable: only nsqcy.client.aio awaits it"


class Net(AnyNet, Protocol):
    """A consumer's calls to its Net."""

    def deliver(self, messages: list[Message]) -> None:
        """Deliver these messages to the program."""

    def give_up(self, message: Message) -> None:
        """Call on_giving_up with the message; given_up() or raised() receives the outcome."""


class ConsumerCore(Core[Nsqd]):
    """The consumer of one channel."""

    kind = "consumer"
    nsqd = Nsqd
    _net: Net

    def __init__(
        self,
        net: Net,
        topic: Given,
        channel: str,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        topics_pattern: Pattern | None = None,
        nsqd_http_addresses: Addresses = (),
        name: str | None = None,
        keywords: Mapping[str, Any],
        rng: random.Random | None = None,
    ) -> None:
        self.topics = Topics(topic, topics_pattern)
        check_names(channel=channel)
        check_arguments(name=name)
        self.channel = channel
        self.nsqd_http_addresses = self._paired(nsqd_tcp_addresses, nsqd_http_addresses)
        options = consumer_options(keywords)
        self.options, flow_settings, lookup_options, connection_options = options
        super().__init__(
            net,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name or f"{self.topics}:{channel}",
            lookup_options=lookup_options,
            connection_options=connection_options,
            rng=rng,
        )
        flow = SharedFlow if self.topics.are_several else Flow
        self.flow = flow(flow_settings, self.random)
        self._stopped_at = math.inf
        self.keeps_dead_letters = False  # on_giving_up publishes them
        # the program's dead letters, until on_giving_up returns
        self.rejected: dict[Message, str] = {}
        self.on_exception: Callable[[Message, BaseException], object] | None = None
        self.on_giving_up: Callable[[Message], object] | None = None
        self.on_heartbeat: Callable[[Connection], object] | None = None
        self.on_ready: Callable[[Connection], object] | None = None

    # -- called by the public interface

    @property
    def due(self) -> float:
        """Return the time of the next tick()."""
        if not self.running:
            return math.inf
        due = self._next()
        if not self.closing:
            return min(due, self.flow.due)
        return min((due, *map(self._may_end_at, self.connections)))

    def tick(self, now: float) -> None:
        """Do everything that is due."""
        if not self.running:
            return
        self._check(now)
        if now >= self._give_up_at:
            log.warning(
                "[%s] closed after %g s; messages in flight: %d; nsqd redelivers them after their "
                "timeout",
                self.name,
                self.options.close_timeout,
                sum(connection.in_flight for connection in self.connections),
            )
            self._end(now)
        elif self.closing:
            self._end_if_drained(now)
            if self.running and now >= self._explain_at:
                self._explain(now)
        else:
            self.flow.tick(now)
            self._reach_out(now)

    def lost(self, connection: Connection, error: Error, now: float) -> None:
        if connection.state is State.CLOSED:
            return
        was_there = connection.state is not State.CONNECTING
        connection.close()
        nsqd = self.nsqds[connection.address]
        nsqd.connection = None
        if self.closing:
            self._end_if_drained(now)
            return
        self._judge(nsqd, now)
        self.flow.remove(connection, now)
        error = connection.failure or error
        self._warn(nsqd.lines, connection.blames(error), now)
        self._report(connection, error)
        if was_there and self.topics.pattern is not None:
            # The topic may have been deleted: subscribing would create it again.
            nsqd.retry_at = math.inf
            nsqd.lost_in = self._asked
        else:
            self._retry_later(nsqd, now)
        if was_there and self.can_ask:
            self._ask_again(now, ASK_SOON)
        self._forget(connection.address, nsqd)

    def found(self, addresses: Iterable[Address], errors: Iterable[str], now: float) -> None:
        answered = self._asked  # super() may begin the next round
        super().found(addresses, errors, now)
        for nsqd in self.nsqds.values():
            if nsqd.retry_at == math.inf and nsqd.lost_in < answered:
                self._retry_later(nsqd, now)  # the topic still exists
        found = {address.topic for address, nsqd in self.nsqds.items() if nsqd.listed}
        if found and found.issuperset(self.topics.keys):
            self._in_vain = 0
            return
        # A new topic's first messages should not wait for the next poll.
        wait = FIRST_LOOK * 2 ** min(self._in_vain, 10) * self.random.uniform(0.5, 1.0)
        self._in_vain += 1
        self._ask_at = min(self._ask_at, now + wait)

    def stop(self, now: float, *, graceful: bool = True) -> None:
        """Stop: nsqds deliver no more messages, and messages in flight may still be answered for
        close_timeout seconds. If `graceful` is false, end immediately."""
        if not self.running:
            return
        if not graceful:
            self._end(now)
        elif not self.closing:
            self.closing = True
            self._stopped_at = now
            self._end_within(self.options.close_timeout, now)
            for connection in self.connections:
                if connection.state is State.READY:
                    connection.stop()
                else:
                    self._net.disconnect(connection)
                    self.lost(connection, Error("closed"), now)
            self._end_if_drained(now)

    # -- messages

    @property
    def calm(self) -> bool:
        """Return whether a message may be finished without notifying the flow control."""
        return self.flow.calm and not self.closing

    def result(self, outcome: int) -> None:
        """Handle a message that is about to be answered."""
        if self.closing:
            return
        now = self._net.now()
        if outcome == FINISHED:
            self.flow.success(now)
        elif outcome == REQUEUED:
            self.flow.neutral(now)
        else:
            self.flow.failure(now)

    @property
    def max_tries(self) -> int:
        """Return the maximum number of deliveries; 0 for no limit. By default, a message without a
        dead-letter topic or on_giving_up is retried forever."""
        if self.options.max_tries is not None:
            return self.options.max_tries
        return KEPT_TRIES if self.on_giving_up else 0

    def delay_of(self, attempts: int) -> int:
        """Return the delay before a failed message is redelivered, in milliseconds."""
        return self.options.delay_of(attempts)

    def answered(self, now: float) -> None:
        """End a closing consumer's connections whose messages have been answered."""
        if self.closing:
            self._end_if_drained(now)

    def handled(self, message: Message, result: object) -> None:
        """Handle the result of a handler that has returned."""
        if result is not None and result is not True and inspect.isawaitable(result):
            self.raised(message, TypeError(NOT_AWAITED))
            return
        if message.is_async():
            return
        with suppress(AlreadyAnswered):  # answered by the handler or by other code
            if result is False:
                message.requeue(backoff=self.options.backoff_on_requeue)
            else:
                message.finish()

    def given_up(self, message: Message, result: object = None) -> None:
        """Finish a message, because on_giving_up is not set or has returned."""
        if inspect.isawaitable(result):
            self.raised(message, TypeError(NOT_AWAITED))
            return
        self.rejected.pop(message, None)
        if message.is_async() and not self.keeps_dead_letters:
            return
        with suppress(AlreadyAnswered):
            message.finish()

    def keep(self, message: Message, reason: str) -> None:
        """Begin to store a message that the program has made a dead letter."""
        if not message.has_responded():
            self.rejected[message] = reason
            self._net.give_up(message)

    def raised(self, message: Message, error: BaseException) -> None:
        """Handle the failure of a handler or of on_giving_up."""
        was_answered = message.has_responded()
        self.report(message, error)
        self.log_failure(message, error, was_answered=was_answered)
        self.take_back(message, error)
        pass_on(error)

    def report(self, message: Message, error: BaseException) -> object:
        """Call on_exception with a failure, and return its result; log_failure() follows."""
        if isinstance(error, Verdict):
            return None
        return self.tell(self.on_exception, message, error)

    def log_failure(self, message: Message, error: BaseException, *, was_answered: bool) -> None:
        """Log a failure. If on_exception has answered the message (`was_answered` was false
        before), the program is aware of the failure."""
        failure = error.failure if isinstance(error, Verdict) else error
        label = self._label(message)
        if isinstance(error, DeadLetter):
            log.warning("[%s] message %s is a dead letter: %s", self.name, label, error.reason)
        if failure is None:
            return
        if message.has_responded() and not was_answered:
            text = str(failure) or type(failure).__name__
            log.info("[%s] on_exception answered message %s: %s", self.name, label, text)
            return
        log.error(
            "[%s] handling message %s failed (attempt %d)",
            self.name,
            label,
            message.attempts,
            exc_info=failure,
        )

    def take_back(self, message: Message, error: BaseException) -> None:
        """Requeue a message after a failure, or reject it, unless it has been answered."""
        self.rejected.pop(message, None)
        with suppress(AlreadyAnswered):
            if isinstance(error, Requeue):
                backoff = error.backoff
                if backoff is None:
                    backoff = self.options.backoff_on_requeue
                message.requeue(error.delay, backoff=backoff)
            elif isinstance(error, DeadLetter):
                self._reject(message, error.reason)
            else:
                message.requeue()

    def _label(self, message: Message) -> str:
        """Return the message's number and, with several topics, its topic."""
        number = printable(message.id)
        return f"{number} of {message.topic}" if self.topics.are_several else number

    def _reject(self, message: Message, reason: str) -> None:
        try:
            message.dead_letter(reason)
        except AlreadyAnswered:
            raise
        except Error as error:  # this nsqd cannot
            log.error("[%s] message %s is requeued: %s", self.name, self._label(message), error)
            self.tell(self.on_error, error)
            message.requeue()

    # -- notifications from connections

    def ready(self, connection: Connection, now: float) -> None:
        if connection.max_ready < self.flow.max_in_flight:
            log.warning(
                "[%s] %s allows at most RDY %d, but max_in_flight is %d",
                self.name,
                connection.address,
                connection.max_ready,
                self.flow.max_in_flight,
            )
        connection.peer.works_at = now + STEADY
        connection.codec.flow = self
        connection.subscribe(self.topics.only or connection.address.topic, self.channel, now)
        self.flow.add(connection, now)
        self.tell(self.on_ready, connection)

    def messages(self, connection: Connection, messages: list[Message], now: float) -> None:
        connection.peer.works_at = -math.inf
        maximum = self.max_tries
        if maximum and any(message.attempts > maximum for message in messages):
            for message in messages:
                if message.attempts > maximum:
                    self._give_up(message)
            messages = [message for message in messages if message.attempts <= maximum]
        if messages:
            self._net.deliver(messages)

    def accepted(self, connection: Connection, count: int, now: float) -> None:
        """Do nothing: the response to SUB needs no action."""

    def response(self, connection: Connection, data: bytes, now: float) -> None:
        self.answered(now)

    def refused(self, connection: Connection, error: NsqdError, now: float) -> None:
        if not error.fatal:  # lost() reports other errors
            self._warn(connection.peer.lines, connection.blames(error), now)
            self._report(connection, error)

    def heartbeat(self, connection: Connection) -> None:
        self.tell(self.on_heartbeat, connection)

    # -- the rest

    def _places(self, addresses: Iterable[Address]) -> Iterable[Address]:
        return [each.of_topic(topic) for topic in self.topics.keys for each in addresses]

    @property
    def can_ask(self) -> bool:
        return bool(self.lookupd_http_addresses or self.nsqd_http_addresses)

    def _paired(self, tcp: Addresses, http: Addresses) -> dict[Address, str]:
        """Return the HTTP addresses by nsqd, for the nsqds in which the pattern finds its
        topics."""
        nsqds, given = as_strings(tcp), as_strings(http)
        if self.topics.pattern is None:
            if given:
                raise ValueError("nsqd_http_addresses requires topics_pattern")
            return {}
        if len(nsqds) != len(given):
            raise ValueError(
                "topics_pattern requires nsqd_http_addresses to find the topics: the HTTP "
                "address of each of nsqd_tcp_addresses, in the same order"
            )
        lookupd_addresses(given)  # raises
        return dict(zip(map(Address.parse, nsqds), given, strict=True))

    def _retry_later(self, nsqd: Nsqd, now: float) -> None:
        self._retry(nsqd, now, min(FIRST_RETRY * 2 ** min(nsqd.failures, 10), MAX_RETRY))

    def _report(self, connection: Connection, error: Error) -> None:
        """Pass an error to on_error. nsqd's own errors do not name a connection."""
        if connection.address.topic and isinstance(error, NsqdError):
            error.add_note(f"from {connection.address}")
        self.tell(self.on_error, error)

    @property
    def _connects(self) -> bool:
        return self.running and not self.closing

    def _give_up(self, message: Message) -> None:
        log.warning(
            "[%s] msg %s attempted %d times, giving up",
            self.name,
            self._label(message),
            message.attempts,
        )
        if self.on_giving_up is None:
            self.given_up(message)
        else:
            self._net.give_up(message)

    @property
    def _unfinished(self) -> str:
        parts = [
            f"{each.address} (unanswered messages: {each.in_flight})"
            if each.drained
            else f"{each.address} (no response to CLS)"
            for each in self.connections
        ]
        return ", ".join(parts)

    def _may_end_at(self, connection: Connection) -> float:
        """Return the time until which to wait for a closing connection: by then, its messages have
        timed out, or nsqd seems to hang and will not confirm CLS."""
        if connection.drained:
            return connection.superseded_at
        return max(self._stopped_at, connection.last_received) + connection.options.timeout

    def _end_if_drained(self, now: float) -> None:
        for connection in self.connections:
            if now >= self._may_end_at(connection):
                connection.drained = True
            answered = connection.in_flight == 0 or now >= connection.superseded_at
            if connection.drained and answered:
                self._net.disconnect(connection)
                connection.close()
                self.nsqds[connection.address].connection = None
        if not self.connections:
            self._end(now)

    def _end(self, now: float) -> None:
        if not self.running:
            return
        self.running = False
        self.closing = True
        self._ask_at = self._give_up_at = self._explain_at = math.inf
        try:
            self._disconnect_all()
        finally:
            self.nsqds.clear()
            self._net.stopped()
