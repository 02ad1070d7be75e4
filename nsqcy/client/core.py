"""The common part of consumers and producers, sans I/O: their nsqds.

Owns the list of nsqds, both fixed and reported by nsqlookupds; a connection to each nsqd; and the
times to reconnect and to query nsqlookupds. Uses no sockets or threads, which are left to its Net
(aio, blocking). consumer.py and producer.py handle the effects of a lost connection on messages and
publishes.
"""

import math
import random
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from nsqcy.client.connection import Connection, Owner
from nsqcy.client.errors import Closed, ConnectionFailed, Error
from nsqcy.client.forks import closed_by_fork
from nsqcy.client.options import (
    Address,
    Addresses,
    ConnectionOptions,
    LookupOptions,
    lookupd_addresses,
    nsqd_addresses,
)
from nsqcy.client.user_code import call, log

PATIENCE = 1.0  # seconds until a graceful end logs its pending work
STEADY = 5.0  # seconds after which a connection counts as working
MAX_LINES = 5  # maximum consecutive lines about one nsqd; after that, one per second


class Net(Protocol):
    """A core's calls to its Net."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def connect(self, connection: Connection) -> None:
        """Begin to connect; connected() or lost() follows."""

    def disconnect(self, connection: Connection) -> None:
        """Send pending output and close the socket; lost() is not called."""

    def look_up(self) -> None:
        """Begin to query nsqlookupds; found() follows."""

    def stopped(self) -> None:
        """Handle the end of the core: nothing more will happen."""


class Lines:
    """Limits the log lines about one subject: a server could otherwise cause any number of them."""

    def __init__(self) -> None:
        self._left = float(MAX_LINES)
        self._since = -math.inf  # time at which `_left` was computed
        self._omitted = 0

    def next(self, text: str, now: float) -> str | None:
        """Return the line for this text, or None if there have been too many."""
        self._left = min(float(MAX_LINES), self._left + now - self._since)
        self._since = now
        if self._left < 1.0:
            self._omitted += 1
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return f"{text} (similar warnings omitted: {omitted})" if omitted else text


class Nsqd:
    """An nsqd that needs a connection."""

    __slots__ = (
        "connection",
        "failures",
        "fixed",
        "lines",
        "listed",
        "lost_in",
        "proved",
        "retry_at",
        "works_at",
    )

    def __init__(self, *, fixed: bool) -> None:
        self.fixed = fixed
        self.proved = False  # whether the nsqd had authenticated when it was last listed
        self.listed = not fixed  # in the latest responses from nsqlookupds
        self.connection: Connection | None = None
        self.failures = 0  # failures since a connection last worked
        self.works_at = math.inf  # time from which its connection counts as working
        self.retry_at = -math.inf  # infinite until a later round of queries lists the nsqd again
        self.lost_in = 0  # rounds of queries begun when the connection was lost
        self.lines = Lines()


N = TypeVar("N", bound=Nsqd)


class Core(Owner, Generic[N]):
    """The nsqds of a consumer or producer. Only the thread of its Net calls its methods."""

    kind: str
    nsqd: type[N]

    def __init__(
        self,
        net: Net,
        nsqd_tcp_addresses: Addresses,
        lookupd_http_addresses: Addresses,
        *,
        name: str,
        lookup_options: LookupOptions,
        connection_options: ConnectionOptions,
        rng: random.Random | None,
    ) -> None:
        self.name = name
        self.lookup_options = lookup_options
        self.connection_options = connection_options
        self.lookupd_http_addresses = lookupd_addresses(lookupd_http_addresses)
        fixed = self._places(nsqd_addresses(nsqd_tcp_addresses))
        self.nsqds = {each: self.nsqd(fixed=True) for each in fixed}
        if not self.nsqds and not self.can_ask:
            raise ValueError(f"a {self.kind} needs nsqd_tcp_addresses or lookupd_http_addresses")
        self.random = rng or random.Random()
        self.running = False
        self.closing = False
        self.is_forked = False  # copied into a child process
        self.failure: BaseException | None = None  # internal error that has ended the client
        self.on_error: Callable[[Error], object] | None = None
        self._net = net
        self._ask_at = math.inf
        self._asking = False
        self._asked = 0  # rounds begun
        self._in_vain = 0  # consecutive queries that found no nsqd
        self._losses = 0  # failures that led to a query since a connection was last useful
        self._lookup_lines = Lines()
        self._give_up_at = math.inf  # time at which a graceful end is aborted
        self._explain_at = math.inf  # time at which a graceful end logs its pending work

    # -- called by the public interface

    def start(self, now: float) -> None:
        """Connect, and query nsqlookupds."""
        self.running = True
        if self.can_ask:
            self._ask_at = now
        self.tick(now)

    @property
    def due(self) -> float:
        """Return the time of the next tick()."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Do everything that is due."""
        raise NotImplementedError

    def connected(self, connection: Connection, now: float) -> None:
        """Handle a connected socket."""
        connection.begin(now)

    def received(self, connection: Connection, data: bytes, now: float) -> None:
        """Handle received bytes."""
        try:
            connection.feed(data, now)
        except Error as error:
            self._net.disconnect(connection)
            self.lost(connection, error, now)
        except MemoryError:  # frees the memory of the connection
            self._net.disconnect(connection)
            failure = ConnectionFailed(f"{connection.address}: not enough memory for its data")
            self.lost(connection, failure, now)

    def lost(self, connection: Connection, error: Error, now: float) -> None:
        """Handle a connection that failed or was lost."""
        raise NotImplementedError

    def found(self, addresses: Iterable[Address], errors: Iterable[str], now: float) -> None:
        """Handle the nsqlookupds' responses. A failed query does not hide the other responses."""
        self._asking = False
        silent = False
        for text in errors:
            silent = True
            self._warn(self._lookup_lines, f"lookupd: {text}", now)
        if not self._connects:
            return
        listed: dict[Address, bool] = {}
        for address in addresses:
            listed[address] = listed.get(address, False) or address.proved
        for address, nsqd in list(self.nsqds.items()):
            nsqd.listed = address in listed or (nsqd.listed and silent)
            self._forget(address, nsqd)
        for address, proved in listed.items():
            if address not in self.nsqds:
                self.nsqds[address] = self.nsqd(fixed=False)
            self.nsqds[address].proved = proved
        self.tick(now)

    def add_nsqd(self, address: Address, now: float) -> None:
        """Also connect to this nsqd from now on."""
        for each in self._places([address]):
            self.nsqds.setdefault(each, self.nsqd(fixed=True)).fixed = True
        if self.running:
            self.tick(now)

    def ask_now(self, now: float) -> None:
        """Query nsqlookupds now."""
        if self.can_ask:
            self._ask_at = now
            self.tick(now)

    def answered(self, now: float) -> None:
        """Handle the notification that all pending bytes have been sent."""
        raise NotImplementedError

    def stop(self, now: float, *, graceful: bool = True) -> None:
        """End immediately, or once pending work has been answered."""
        raise NotImplementedError

    def fail(self, error: BaseException, now: float) -> None:
        """End because of an internal error of the client, which callers receive from now on."""
        if self.failure is not None:
            return
        self.failure = error
        log.error("[%s] the client has failed", self.name, exc_info=error)
        try:
            self.stop(now, graceful=False)
        except BaseException as another:
            log.error("[%s] failed to end the client", self.name, exc_info=another)
        self.running, self.closing = False, True
        self.tell(self.on_error, self.closed_error)

    def abandon(self) -> None:
        """End in a forked child process: the connections belong to the parent."""
        self.running, self.closing, self.is_forked = False, True, True

    @property
    def closed_error(self) -> Closed:
        """Return the error of a call after the end."""
        if self.is_forked:
            return closed_by_fork(self.kind)
        if self.failure is not None:
            closed = Closed(f"the {self.kind} has failed: {self.failure!r}")
            closed.__cause__ = self.failure
            return closed
        return Closed(f"the {self.kind} has been closed")

    @property
    def connections(self) -> list[Connection]:
        """Connections that are open or being established. Any thread may read them."""
        nsqds = list(self.nsqds.values())
        return [each.connection for each in nsqds if each.connection is not None]

    # -- for consumers and producers

    def _places(self, addresses: Iterable[Address]) -> Iterable[Address]:
        """Return the addresses of the connections to these nsqds."""
        return addresses

    @property
    def can_ask(self) -> bool:
        """Whether look_up() can find nsqds."""
        return bool(self.lookupd_http_addresses)

    @property
    def _connects(self) -> bool:
        """Whether nsqds are still needed."""
        return self.running

    def _next(self) -> float:
        """Return the due time of the next action."""
        due = min(self._give_up_at, self._explain_at)
        connects = self._connects
        if connects and not self._asking:
            due = min(due, self._ask_at)
        for nsqd in self.nsqds.values():
            if nsqd.connection is not None:
                due = min(due, nsqd.connection.due)
            elif connects:
                due = min(due, nsqd.retry_at)
        return due

    def _check(self, now: float) -> None:
        """Close connections to silent nsqds."""
        for connection in self.connections:
            try:
                connection.check(now)
            except Error as error:
                self._net.disconnect(connection)
                self.lost(connection, error, now)

    def _reach_out(self, now: float) -> None:
        """Query nsqlookupds and connect, if due."""
        if now >= self._ask_at and not self._asking:
            self._ask(now)
        for address, nsqd in list(self.nsqds.items()):
            if nsqd.connection is None and now >= nsqd.retry_at:
                nsqd.connection = Connection(
                    address, self.connection_options, self, trusted=nsqd.fixed or nsqd.proved
                )
                nsqd.connection.peer = nsqd
                self._net.connect(nsqd.connection)

    def _ask(self, now: float) -> None:
        wait = self.lookup_options.lookupd_poll_interval
        if self._asked == 0:  # programs that start together must not keep querying in lockstep
            wait += self.random.random() * self.lookup_options.lookupd_poll_jitter * wait
        self._asked += 1
        self._ask_at = now + wait
        self._asking = True
        self._net.look_up()

    def _end_within(self, timeout: float, now: float) -> None:
        """Begin a graceful end."""
        self._give_up_at = now + timeout
        self._explain_at = now + PATIENCE

    def _explain(self, now: float) -> None:
        """Log the pending work of a graceful end, once."""
        self._explain_at = math.inf
        log.warning(
            "[%s] close() waits at most %.3g s more for %s",
            self.name,
            self._give_up_at - now,
            self._unfinished,
        )

    @property
    def _unfinished(self) -> str:
        """Return the pending work of a graceful end, as text."""
        raise NotImplementedError

    def _warn(self, lines: Lines, text: str, now: float) -> None:
        """Log a warning, unless there have been too many."""
        if (line := lines.next(text, now)) is not None:
            log.warning("[%s] %s", self.name, line)

    def _judge(self, nsqd: N, now: float) -> None:
        """Record whether an ending connection was useful. Reconnecting to a server that merely
        accepts connections, or also sends heartbeats, requires a pause."""
        if now >= nsqd.works_at:
            nsqd.failures = self._losses = 0
        nsqd.works_at = math.inf

    def _ask_again(self, now: float, soon: float) -> None:
        """Query nsqlookupds in `soon` seconds, because a connection was lost; later if the listed
        nsqds do not work."""
        wait = soon + (2.0 ** min(self._losses - 1, 10) if self._losses else 0.0)
        if now + wait < self._ask_at:  # an nsqd that exits ends a connection for each topic
            self._losses += 1
            self._ask_at = now + wait

    def _retry(self, nsqd: N, now: float, wait: float) -> None:
        """Reconnect after about this many seconds."""
        nsqd.failures += 1
        nsqd.retry_at = now + wait * self.random.uniform(0.5, 1.0)

    def _disconnect_all(self) -> None:
        for connection in self.connections:
            self._net.disconnect(connection)
            connection.close()

    def _forget(self, address: Address, nsqd: N) -> None:
        """Forget an nsqd that is neither listed nor connected."""
        if not (nsqd.fixed or nsqd.listed or nsqd.connection):
            self.nsqds.pop(address, None)

    def tell(self, hook: Callable[..., object] | None, *about: object) -> object:
        """Call a hook and return its result. Logs its exceptions."""
        return None if hook is None else call(self.name, hook, *about)
