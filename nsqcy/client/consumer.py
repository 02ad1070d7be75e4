"""What a consumer decides, sans I/O.

Owns the set of its connections: which nsqds there are, when to connect again, when lookupds are
asked, what becomes of a message before and after its handler, and the end. RDY and backoff are
flow.py's. Knows no socket and no thread: a face (aio, blocking) is its Net, moves the bytes, keeps
the time and runs the handlers.
"""

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

from nsqcy._client import Message
from nsqcy.client.connection import Connection, State
from nsqcy.client.errors import AlreadyAnswered, Error, NsqdError, Requeue
from nsqcy.client.flow import Flow
from nsqcy.client.options import (
    Address,
    Addresses,
    consumer_options,
    lookupd_addresses,
    nsqd_addresses,
)
from nsqcy.names import is_valid_name, quote

FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0  # seconds until a lost nsqd is tried again
ASK_SOON = 0.2  # seconds after a connection was lost until lookupds are asked
FINISHED, REQUEUED = 0, 1  # as _client.pxd has them

log = logging.getLogger("nsqcy.client")


class Net(Protocol):
    """What a face does for its consumer."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def connect(self, connection: Connection) -> None:
        """Begin to connect; connected() or lost() will tell."""

    def disconnect(self, connection: Connection) -> None:
        """Send what waits and close the socket; lost() is not called."""

    def look_up(self) -> None:
        """Begin to ask lookupds; found() will tell."""

    def deliver(self, messages: list[Message]) -> None:
        """Hand these to whoever consumes."""

    def stopped(self) -> None:
        """Nothing more will happen."""


class Nsqd:
    """An nsqd the consumer wants a connection to."""

    __slots__ = ("connection", "failures", "fixed", "listed", "retry_at")

    def __init__(self, *, fixed: bool) -> None:
        self.fixed = fixed
        self.listed = not fixed  # in the last answers of lookupds
        self.connection: Connection | None = None
        self.failures = 0  # since it last worked
        self.retry_at = -math.inf


class ConsumerCore:
    """The consumer of one channel; `lock` is held by whoever calls from another thread."""

    def __init__(
        self,
        net: Net,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        name: str | None = None,
        keywords: Mapping[str, Any],
        lock: AbstractContextManager[Any] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        for what, each in (("topic", topic), ("channel", channel)):
            if not is_valid_name(each):
                raise ValueError(f"{quote(each)} is no name of a {what}")
        self.topic = topic
        self.channel = channel
        self.name = name or f"{topic}:{channel}"
        options = consumer_options(keywords)
        self.options, flow_settings, self.lookup_options, self.connection_options = options
        self.random = rng or random.Random()
        self.flow = Flow(flow_settings, self.random)
        self.lock = lock or nullcontext()
        self.lookupd_http_addresses = lookupd_addresses(lookupd_http_addresses)
        self.nsqds = {each: Nsqd(fixed=True) for each in nsqd_addresses(nsqd_tcp_addresses)}
        if not self.nsqds and not self.lookupd_http_addresses:
            raise ValueError("a consumer needs nsqd_tcp_addresses or lookupd_http_addresses")
        self.running = False
        self.closing = False
        self.on_error: Callable[[Error], object] | None = None
        self.on_exception: Callable[[Message, BaseException], object] | None = None
        self.on_giving_up: Callable[[Message], object] | None = None
        self.on_heartbeat: Callable[[Connection], object] | None = None
        self.on_ready: Callable[[Connection], object] | None = None
        self._net = net
        self._ask_at = math.inf
        self._asking = False
        self._asked = 0  # rounds begun
        self._give_up_at = math.inf  # when a graceful end is cut short

    # -- what its face calls

    def start(self, now: float) -> None:
        """Connect, and ask lookupds."""
        self.running = True
        if self.lookupd_http_addresses:
            self._ask_at = now
        self.tick(now)

    @property
    def due(self) -> float:
        """When tick() is next wanted."""
        due = math.inf
        if not self.running:
            return due
        for nsqd in self.nsqds.values():
            if nsqd.connection is not None:
                due = min(due, nsqd.connection.due)
            elif not self.closing:
                due = min(due, nsqd.retry_at)
        if self.closing:
            return min(due, self._give_up_at)
        return min(due, self.flow.due, math.inf if self._asking else self._ask_at)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if not self.running:
            return
        for nsqd in list(self.nsqds.values()):
            if nsqd.connection is not None:
                self._check(nsqd.connection, now)
        if now >= self._give_up_at:
            self._end(now)
            return
        if self.closing:
            return
        self.flow.tick(now)
        if now >= self._ask_at and not self._asking:
            self._ask(now)
        for address, nsqd in list(self.nsqds.items()):
            if nsqd.connection is None and now >= nsqd.retry_at:
                self._connect(address, nsqd)

    def connected(self, connection: Connection, now: float) -> None:
        """A socket is there."""
        connection.begin(now)

    def received(self, connection: Connection, data: bytes, now: float) -> None:
        """Bytes have come."""
        try:
            connection.feed(data, now)
        except Error as error:
            self._net.disconnect(connection)
            self.lost(connection, error, now)

    def lost(self, connection: Connection, error: Error, now: float) -> None:
        """A connection could not be made, or is no more."""
        if connection.state is State.CLOSED:
            return
        was_there = connection.state is not State.CONNECTING
        connection.close()
        nsqd = self.nsqds[connection.address]
        nsqd.connection = None
        if self.closing:
            self._end_if_drained(now)
            return
        self.flow.remove(connection, now)
        error = connection.failure or error
        log.warning("[%s] %s", self.name, connection.blames(error))
        self._tell(self.on_error, error)
        wait = min(FIRST_RETRY * 2**nsqd.failures, LONGEST_RETRY)
        nsqd.failures = min(nsqd.failures + 1, 10)
        nsqd.retry_at = now + wait * self.random.uniform(0.5, 1.0)
        if was_there and self.lookupd_http_addresses:
            self._ask_at = min(self._ask_at, now + ASK_SOON)
        self._forget(connection.address, nsqd)

    def found(self, addresses: Iterable[Address], errors: Iterable[str], now: float) -> None:
        """What lookupds have answered; one that did not hides nothing the others know."""
        self._asking = False
        silent = False
        for text in errors:
            silent = True
            log.warning("[%s] lookupd: %s", self.name, text)
        if self.closing or not self.running:
            return
        listed = dict.fromkeys(addresses)
        for address, nsqd in list(self.nsqds.items()):
            nsqd.listed = address in listed or (nsqd.listed and silent)
            self._forget(address, nsqd)
        for address in listed:
            if address not in self.nsqds:
                self.nsqds[address] = Nsqd(fixed=False)
        self.tick(now)

    def add_nsqd(self, address: Address, now: float) -> None:
        """Connect to one more, from now on."""
        self.nsqds.setdefault(address, Nsqd(fixed=True)).fixed = True
        if self.running:
            self.tick(now)

    def ask_now(self, now: float) -> None:
        """Ask lookupds out of turn."""
        if self.lookupd_http_addresses:
            self._ask_at = now
            self.tick(now)

    def stop(self, now: float, *, graceful: bool = True) -> None:
        """End: nsqds deliver nothing more, and what is in flight may still be answered, for
        close_timeout seconds; or at once."""
        if not self.running:
            return
        if not graceful:
            self._end(now)
        elif not self.closing:
            self.closing = True
            self._give_up_at = now + self.options.close_timeout
            for connection in self.connections:
                if connection.state is State.READY:
                    connection.stop()
                else:
                    self._net.disconnect(connection)
                    self.lost(connection, Error("closed"), now)
            self._end_if_drained(now)

    @property
    def connections(self) -> list[Connection]:
        """Those that are there or being made."""
        return [each.connection for each in self.nsqds.values() if each.connection is not None]

    # -- messages

    @property
    def calm(self) -> bool:
        """Whether a message may be finished without a word to anybody."""
        return self.flow.calm and not self.closing

    def result(self, outcome: int) -> None:
        """A message is about to be answered."""
        now = self._net.now()
        with self.lock:
            if self.closing:
                return
            if outcome == FINISHED:
                self.flow.success(now)
            elif outcome == REQUEUED:
                self.flow.neutral(now)
            else:
                self.flow.failure(now)

    def delay_of(self, attempts: int) -> int:
        """Milliseconds until a failed message comes again."""
        return self.options.delay_of(attempts)

    def answered(self, now: float) -> None:
        """Messages may have been answered: a connection that ends may be done."""
        if self.closing:
            self._end_if_drained(now)

    def handled(self, message: Message, result: object) -> None:
        """A handler has returned."""
        if message.is_async():
            return
        with suppress(AlreadyAnswered):  # by the handler, or whoever it gave the message to
            if result is False:
                message.requeue(backoff=self.options.backoff_on_requeue)
            else:
                message.finish()

    def raised(self, message: Message, error: BaseException) -> None:
        """A handler has failed."""
        if isinstance(error, Requeue):
            backoff = self.options.backoff_on_requeue if error.backoff is None else error.backoff
            with suppress(AlreadyAnswered):
                message.requeue(error.delay, backoff=backoff)
            return
        log.error(
            "[%s] the handler of message %s failed",
            self.name,
            message.id.decode("ascii", "backslashreplace"),
            exc_info=error,
        )
        self._tell(self.on_exception, message, error)
        with suppress(AlreadyAnswered):
            message.requeue()

    # -- what connections say

    def ready(self, connection: Connection, now: float) -> None:
        if connection.max_ready < self.flow.max_in_flight:
            log.warning(
                "[%s] %s allows RDY %d at most, max_in_flight is %d",
                self.name,
                connection.address,
                connection.max_ready,
                self.flow.max_in_flight,
            )
        connection.codec.flow = self
        connection.subscribe(self.topic, self.channel, now)
        self.flow.add(connection, now)
        self._tell(self.on_ready, connection)

    def messages(self, connection: Connection, messages: list[Message], now: float) -> None:
        most = self.options.max_tries
        if most and any(message.attempts > most for message in messages):
            for message in messages:
                if message.attempts > most:
                    self._give_up(message)
            messages = [message for message in messages if message.attempts <= most]
        if messages:
            self._net.deliver(messages)

    def accepted(self, connection: Connection, count: int, now: float) -> None:
        """Of SUB: only now it is known to work."""
        self.nsqds[connection.address].failures = 0

    def response(self, connection: Connection, data: bytes, now: float) -> None:
        self.answered(now)

    def refused(self, connection: Connection, error: NsqdError, now: float) -> None:
        if not error.fatal:  # of others lost() will tell
            log.warning("[%s] %s", self.name, connection.blames(error))
            self._tell(self.on_error, error)

    def heartbeat(self, connection: Connection) -> None:
        self._tell(self.on_heartbeat, connection)

    # -- the rest

    def _check(self, connection: Connection, now: float) -> None:
        try:
            connection.check(now)
        except Error as error:
            self._net.disconnect(connection)
            self.lost(connection, error, now)

    def _connect(self, address: Address, nsqd: Nsqd) -> None:
        nsqd.connection = Connection(address, self.connection_options, self)
        self._net.connect(nsqd.connection)

    def _forget(self, address: Address, nsqd: Nsqd) -> None:
        """Nobody names this nsqd any more and it is not connected."""
        if not (nsqd.fixed or nsqd.listed or nsqd.connection):
            self.nsqds.pop(address, None)

    def _ask(self, now: float) -> None:
        options = self.lookup_options
        wait = options.lookupd_poll_interval
        if self._asked == 0:  # consumers that start together do not ask together for ever
            wait += self.random.random() * options.lookupd_poll_jitter * wait
        self._asked += 1
        self._ask_at = now + wait
        self._asking = True
        self._net.look_up()

    def _give_up(self, message: Message) -> None:
        log.warning(
            "[%s] msg %s attempted %d times, giving up",
            self.name,
            message.id.decode("ascii", "backslashreplace"),
            message.attempts,
        )
        self._tell(self.on_giving_up, message)
        with suppress(AlreadyAnswered):
            message.finish()

    def _end_if_drained(self, now: float) -> None:
        for connection in self.connections:
            if connection.drained and connection.in_flight == 0:
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
        self._ask_at = self._give_up_at = math.inf
        for connection in self.connections:
            self._net.disconnect(connection)
            connection.close()
        self.nsqds.clear()
        self._net.stopped()

    def _tell(self, hook: Callable[..., object] | None, *about: object) -> None:
        """What a hook does wrong is its own affair."""
        if hook is None:
            return
        try:
            hook(*about)
        except Exception:
            log.exception("[%s] a callback failed", self.name)
