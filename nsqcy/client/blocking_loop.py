"""Drives a core of the blocking client, in its own thread or greenlet.

Owns sockets, timers and wake-ups. The core makes the decisions, and only the loop calls it: other
threads post complete requests (mailbox.pyx), so an exception that interrupts them leaves nothing
half done. The loop never waits for them. Callbacks run at the end of a turn.

    any thread                                      the loop
    message.finish() -> codec -> Bell ------------> dirty drivers: take() and send()
    Consumer, Producer -> Mailbox ----------------> requests: core
                                                    select, recv(): core
    future.result() <------------------------------ later
"""

import atexit
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

from nsqcy.client.codec import Message
from nsqcy.client.common_interface import INFINITE, asked, reason
from nsqcy.client.connection import Connection
from nsqcy.client.core import Core, Lines
from nsqcy.client.errors import ConnectionFailed, Error, NoConnection
from nsqcy.client.forks import close_in_child, forget
from nsqcy.client.mailbox import Bell, Event, Mailbox
from nsqcy.client.options import Answer
from nsqcy.client.threads_or_greenlets import Runtime
from nsqcy.client.user_code import call, log
from nsqcy.errors import LayerError

MAX_RECEIVED = 1 << 18  # maximum bytes received from a socket per call
MAX_PIECES = 8  # maximum chunks of output sent before other connections get their turn

AT_EXIT = 1.0  # seconds that all unclosed consumers and producers may delay the program's exit
NO_THREAD = "cannot start a thread"
NEXT_THREAD = 1.0  # seconds between attempts to start a thread
PROGRAM_ENDS = (KeyboardInterrupt, SystemExit)


class Driver:
    """Sends and receives the bytes of one connection. Any thread may call `wake`, which makes the
    loop send pending output; only the loop calls the other methods."""

    def __init__(self, loop: "Loop", connection: Connection) -> None:
        self.connection = connection
        self.closing = False
        # Time limit for connecting, or for sending the remaining bytes.
        self.deadline = loop.now() + connection.options.timeout
        self._loop = loop
        self._socket: socket.socket | None = None
        self._unsent: bytes | memoryview = b""
        self._writing = False  # whether the selector reports when more can be sent
        self.wake = Bell(loop.mailbox, self)
        connection.driver = self
        connection.codec.wake = self.wake
        connection.codec.mailbox = loop.mailbox

    def close(self) -> None:
        """Send pending output, and close."""
        if self.closing:
            return
        pieces: list[bytes | memoryview] = [self._unsent]
        with suppress(LayerError):
            while data := self.connection.take():
                pieces.append(data)
        self._unsent = b"".join(pieces)
        self.closing = True
        self.deadline = self._loop.now() + self.connection.options.timeout
        self.wake.is_rung = False
        self.wake()

    def connected(self, connected: socket.socket) -> None:
        """Handle a connected socket; the connection may have been established too late."""
        if self.closing:
            connected.close()
            return
        self.deadline = INFINITE
        self._socket = connected
        self._loop.register(connected, EVENT_READ, self)
        self._loop.tell_connected(self.connection)

    def happened(self, events: int) -> None:
        """Handle an event from the selector."""
        if events & EVENT_READ and not self.closing:
            self._receive()
        if events & EVENT_WRITE:
            self.flush()

    def flush(self) -> None:
        """Send pending output, as far as possible."""
        self.wake.is_rung = False
        for _ in range(MAX_PIECES):
            if self._socket is None or not self._collect():
                break
            self._send(self._socket)
            if self._unsent:
                return
            if not self.connection.codec.pending:
                break
        else:
            self.wake()
        if self.closing and not self._unsent:
            self._release()

    def expire(self) -> None:
        """Handle the deadline: give up connecting or sending."""
        if self.closing:
            self._release()
        else:
            timeout = self.connection.options.timeout
            self.fail(f"not connected within {timeout:g} s")

    def fail(self, why: str) -> None:
        """Handle a connection that failed or was lost."""
        if self.closing:
            return
        self._end(ConnectionFailed(f"{self.connection.address}: {why}"))

    def _end(self, error: Error) -> None:
        self.closing = True
        self._unsent = b""
        self._release()
        self._loop.tell_lost(self.connection, error)

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(MAX_RECEIVED)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.fail(f"lost: {error}")
            return
        if data:
            self._loop.tell_received(self.connection, data)
        else:
            self.fail("nsqd closed the connection")

    def _collect(self) -> bool:
        """Return whether there is something to send."""
        if self._unsent or self.closing:
            return bool(self._unsent)
        try:
            self._unsent = self._loop.take(self.connection)
        except LayerError as error:
            self._end(error)
        return bool(self._unsent)

    def _send(self, connected: socket.socket) -> None:
        try:
            sent = connected.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._unsent = b""
            if not self.closing:
                self._receive()  # nsqd's last error explains why it closed the connection
            self.fail(f"lost: {error}")
            return
        # A view: copying the rest of a large message would take longer than sending it.
        self._unsent = memoryview(self._unsent)[sent:]
        if bool(self._unsent) != self._writing:
            self._writing = bool(self._unsent)
            events = EVENT_READ | EVENT_WRITE if self._writing else EVENT_READ
            self._loop.selector.modify(connected, events, self)

    def abort(self) -> None:
        """Close immediately: there is no time to send anything."""
        self.closing = True
        self._release()

    def abandon(self) -> None:
        """Close this process's copy of the parent's socket."""
        if self._socket is not None:
            os.close(self._socket.detach())

    def _release(self) -> None:
        self.deadline = INFINITE
        self._loop.drivers.discard(self)
        if self._socket is not None:
            self._loop.selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


class Loop:
    """Drives `core` as its Net.

    `on_messages` is called with messages for the program, `on_hopeless` with a message to give up
    on, `on_begin` once the core has started, and `on_end` once nothing more will happen.
    """

    core: Core[Any]

    def __init__(
        self, runtime: Runtime, on_messages: Callable[[list[Message]], object] | None = None
    ) -> None:
        self.runtime = runtime
        self.mailbox = Mailbox()
        self.ended = Event(runtime.gate)
        self.drivers: set[Driver] = set()
        self.later: deque[tuple[Callable[..., object], Any]] = deque()  # notifications for users
        self.on_begin: Callable[[], object] | None = None
        self.on_end: Callable[[], object] | None = None
        self.on_hopeless: Callable[[Message], object] | None = None
        self.after_turn: Callable[[], object] | None = None
        self.at_exit: Callable[[], object] | None = None  # if the loop is running at program exit
        self.now = time.monotonic
        self._on_messages = on_messages
        self._ask: Callable[[], Answer] | None = None
        self._began = Event(runtime.gate)
        self._stopped = False
        self._name = ""
        # Threads that could not start, with the time of the next attempt.
        self._unstarted: deque[tuple[float, Any]] = deque()
        self._lines = Lines()
        self._who: object = None  # the thread or greenlet that runs the loop

    # -- for the Consumer or Producer

    def start(self, name: str, ask: Callable[[], Answer] | None) -> None:
        """Start, and wait until the core has started; `ask` queries the nsqlookupds. May be
        called again, even after an interruption."""
        self._name = name
        self._ask = ask
        if not self._began.is_set():
            wakes = _Wakes(self.runtime)
            try:
                self.runtime.spawn(f"nsqcy {name}", self._run, wakes)
            except RuntimeError as error:  # the next call retries
                wakes.close()
                raise NoConnection(f"{NO_THREAD}: {error}") from error
        if self.runtime.can_wait():
            self._began.wait()

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Make the loop call a function soon; return False if it has ended. May be called from a
        signal handler, and before the start."""
        return self.mailbox.post(function, *args)

    def do(self, function: Callable[..., object], *args: object) -> None:
        """Make the loop call a function that also receives the time, and wait for the call, unless
        the loop runs callbacks."""
        if self.has_begun and self.runtime.can_wait():
            self.mailbox.do(self.runtime.gate(), self._do, function, *args)
        else:
            self.call(self._do, function, *args)

    def _do(self, function: Callable[..., object], *args: object) -> None:
        function(*args, self.now())

    def told_later(self, hook: Callable[..., object] | None) -> Callable[..., object] | None:
        """Return a hook that is called at the end of the loop's turn; its exceptions are logged."""
        if hook is None:
            return None
        return lambda *about: self.later.append((call, (self._name, hook, *about)))

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs on the loop's thread or greenlet."""
        return self._who is not None and self.runtime.current() == self._who

    @property
    def may_be_awaited(self) -> bool:
        """Return whether the caller may wait for the loop's end, which must not depend on the
        caller."""
        return self.has_begun and not self.is_current and self.runtime.can_wait()

    @property
    def has_begun(self) -> bool:
        return self._began.is_set()

    # -- Net

    def connect(self, connection: Connection) -> None:
        driver = Driver(self, connection)
        self.drivers.add(driver)
        try:
            self.runtime.spawn(f"nsqcy connect {connection.address}", self._connect, driver)
        except RuntimeError as error:
            self.call(driver.fail, f"{NO_THREAD}: {error}")

    def disconnect(self, connection: Connection) -> None:
        connection.driver.close()

    def look_up(self) -> None:
        try:
            self.runtime.spawn(f"nsqcy lookup {self._name}", self._look_up)
        except RuntimeError as error:
            self.call(self._tell_found, [], [f"{NO_THREAD}: {error}"])

    def spawn(self, name: str, work: Callable[..., object], *args: object) -> None:
        """Run a function in another thread. If no thread can be started, retry until one can."""
        if self._stopped:
            return
        try:
            self.runtime.spawn(name, work, *args)
        except RuntimeError as error:
            now = self.now()
            if (line := self._lines.next(f"{NO_THREAD}: {error}", now)) is not None:
                log.warning("[%s] %s", self._name, line)
            self._unstarted.append((now + NEXT_THREAD, (name, work, *args)))

    def deliver(self, messages: list[Message]) -> None:
        assert self._on_messages is not None
        self._on_messages(messages)

    def give_up(self, message: Message) -> None:
        assert self.on_hopeless is not None
        self.on_hopeless(message)

    def stopped(self) -> None:
        self._stopped = True

    # -- alongside the loop

    def _connect(self, driver: Driver) -> None:
        address, options = driver.connection.address, driver.connection.options
        try:
            connected = self.runtime.connect(
                address.host, address.port, options.timeout, options.local
            )
        except TimeoutError:
            self.call(driver.expire)
        except BaseException as error:
            self.call(driver.fail, reason(error))
        else:
            if not self.call(driver.connected, connected):
                connected.close()

    def _look_up(self) -> None:
        assert self._ask is not None
        try:
            found = self.runtime.call(partial(asked, self._ask))
        except BaseException as error:  # of gevent's threads
            found = [], [reason(error)]
        self.call(self._tell_found, *found)

    # -- the loop

    def _run(self, wakes: "_Wakes") -> None:
        if not self.mailbox.open(wakes.fileno):  # another start() came first
            wakes.close()
            return
        self._who = self.runtime.current()
        self._wakes, self.selector = wakes, wakes.selector
        _running.add(self)
        close_in_child(self)
        try:
            self.core.running = True  # when start() returns
            self._began.set()
            self.core.start(self.now())
            if self.on_begin is not None:
                self.on_begin()
            while not self._stopped or self.drivers:
                self._turn()
        except BaseException as error:
            self.core.fail(error, self.now())
            if isinstance(error, PROGRAM_ENDS):  # gevent raises the error in the program
                raise
        finally:
            self._end()

    def _turn(self) -> None:
        wait = self._wait()
        if self.later or not self.mailbox.sleep():
            wait = 0.0
        events = self.selector.select(wait)
        self.mailbox.awake()
        for key, happened in events:
            if key.data is not None:
                key.data.happened(happened)
            else:
                self._wakes.drain()
        self._do_calls()
        self._tick()
        for driver in self.mailbox.take_dirty():
            driver.flush()
        self._tell_later()
        if self.after_turn is not None:
            self.after_turn()

    def _do_calls(self) -> None:
        for _ in range(len(self.mailbox)):  # later requests wait for the next turn
            if request := self.mailbox.take():
                function, args = request
                function(*args)

    def _tell_later(self) -> None:
        if not self.later:
            return
        self.mailbox.begin_callbacks()
        while self.later:
            tell, about = self.later.popleft()
            tell(*about)  # never raises
        self.mailbox.end_callbacks()

    def _wait(self) -> float | None:
        """Return the seconds until the next action is due."""
        due = INFINITE if self._stopped else self.core.due
        for driver in self.drivers:
            due = min(due, driver.deadline)
        for at, _ in self._unstarted:
            due = min(due, at)
        return None if due == INFINITE else max(0.0, due - self.now())

    def _tick(self) -> None:
        now = self.now()
        if not self._stopped and now >= self.core.due:
            self.core.tick(now)
        for driver in [each for each in self.drivers if now >= each.deadline]:
            driver.expire()
        if self._unstarted and now >= self._unstarted[0][0]:
            _, work = self._unstarted.popleft()
            self.spawn(*work)

    def _end(self) -> None:
        """End the core, and release all waiters, even after a failure."""
        with suppress(Exception):
            self.core.stop(self.now(), graceful=False)
        self._stopped = True
        self._unstarted.clear()
        for driver in list(self.drivers):
            driver.abort()
        _running.discard(self)
        forget(self)
        self.mailbox.close()
        try:
            while len(self.mailbox):
                with suppress(Exception):  # the other requests still have waiters
                    self._do_calls()
            self._tell_later()
        finally:
            self._began.set()
            self.ended.set()
            if self.on_end is not None:
                self.on_end()
            self._wakes.close()

    def abandon(self) -> None:
        """Clean up in a forked child process, which does not have the loop's thread: the
        connections belong to the parent."""
        _running.discard(self)
        self.mailbox.close()
        self.core.abandon()
        self.ended.set()
        if self.on_end is not None:
            self.on_end()
        for driver in self.drivers:
            driver.abandon()

    # -- for drivers

    def register(self, connected: socket.socket, events: int, driver: Driver) -> None:
        self.selector.register(connected, events, driver)

    def take(self, connection: Connection) -> bytes:
        data = connection.take()
        self.core.answered(self.now())
        return data

    def tell_connected(self, connection: Connection) -> None:
        self.core.connected(connection, self.now())

    def tell_received(self, connection: Connection, data: bytes) -> None:
        self.core.received(connection, data, self.now())

    def tell_lost(self, connection: Connection, error: Error) -> None:
        self.core.lost(connection, error, self.now())

    def _tell_found(self, addresses: Any, errors: Any) -> None:
        self.core.found(addresses, errors, self.now())


class _Wakes:
    """A selector, and the sockets that wake a loop."""

    def __init__(self, runtime: Runtime) -> None:
        self.selector = runtime.selector()
        self._sends, self._receives = socket.socketpair()
        self._sends.setblocking(False)
        self._receives.setblocking(False)
        self.fileno = self._sends.fileno()
        self.selector.register(self._receives, EVENT_READ)

    def drain(self) -> None:
        with suppress(BlockingIOError):
            self._receives.recv(4096)

    def close(self) -> None:
        self._sends.close()
        self._receives.close()
        self.selector.close()


_running: set[Loop] = set()


@atexit.register
def _end_all() -> None:
    """End all loops at exit, within AT_EXIT seconds in total. Their threads do not keep the program
    running, so unsent data would be lost."""
    deadline = time.monotonic() + AT_EXIT
    loops = list(_running)
    for loop in loops:
        if loop.at_exit is not None:
            loop.at_exit()
    for loop in loops:
        if loop.may_be_awaited:
            loop.ended.wait(max(0.0, deadline - time.monotonic()))
