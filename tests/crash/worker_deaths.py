"""A daemon under mixed load whose workers are killed: one or more at a time, and also replacements
that have not restored everything yet.

Owns the clients' part of the load and the kills. Knows nothing about where nsqd keeps messages.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from crash.clients import HttpPublisher, Subscriber, TcpPublisher, text_of
from crash.history import Died, Event, Finished, Received, Requeued
from crash.trial import TOPICS, Trial
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, MESSAGE, UNKNOWN_ID, Conn, Frame, Message, sized
from support.nsqd_process import Nsqd

SIZES = [20] * 20 + [200] * 50 + [3_000] * 15 + [20_000] * 8 + [100_000, 300_000, 1_000_000]
TINY = "tiny"  # a topic whose bodies have one byte
CONFIRMED_AT_ONCE = 10
RECONNECTS = 0.002  # probability after a delivery
MAX_BOOT = 0.5  # seconds after which a replacement is killed, at the latest
MAX_READ = 0.03  # the same, since it has mapped the memory
NOT_IN_FLIGHT = b" failed ID not in flight"


class MixedPublisher(TcpPublisher):
    """Publishes bodies of up to 1 MB, and at times opens another connection."""

    def body(self) -> bytes:
        self.count += 1
        size = self.random.choice(SIZES)
        return f"{self.name} {self.count} {size} ".encode().ljust(size, b".")

    def talk(self) -> None:
        super().talk()
        if self.random.random() < 0.005:
            self.hang_up()


class MixedHttpPublisher(HttpPublisher):
    body = MixedPublisher.body


class MixedSubscriber(Subscriber):
    """Finishes, requeues, defers, touches or abandons messages, and at times opens another
    connection.

    `faults` lists what no death explains: attempts that decrease, an id that changes, and a message
    that returns although its FIN was executed.
    """

    def __init__(
        self, daemon: Nsqd, log: Callable[[Event], None], topic: str, channel: str, seed: str
    ) -> None:
        super().__init__(daemon, log, topic, channel, seed)
        self.seen: dict[str, Message] = {}  # without its body
        self.executed: dict[str, float] = {}  # when the FIN of a message was known to be executed
        self.faults: list[str] = []
        self.wanted = self.probed = 0

    def talk(self) -> None:
        """Answer a probe: from then on, nothing comes from a process that was dead before it."""
        wanted = self.wanted
        if self.conn is None:
            self.probed = wanted
        elif self.probe < wanted:
            self.probe = wanted
            self.ask(self.conn, lambda: self.answer_probe(wanted))
        super().talk()

    def answer_probe(self, number: int) -> None:
        self.probed = number

    def subscribe(self, conn: Conn) -> None:
        self.unconfirmed: list[bytes] = []
        self.asking: list[Callable[[], None]] = []  # what follows the answers to come
        self.leaving = False
        self.probe = self.wanted
        super().subscribe(conn)

    def ask(self, conn: Conn, then: Callable[[], None]) -> None:
        """Call `then` when nsqd has executed all earlier commands."""
        self.asking.append(then)
        conn.fin(UNKNOWN_ID)

    def hear(self, conn: Conn, frame: Frame) -> None:
        if frame.kind == ERROR and frame.data.startswith(b"E_TOUCH_FAILED"):
            return
        if frame.kind == ERROR and UNKNOWN_ID + NOT_IN_FLIGHT in frame.data:
            self.asking.pop(0)()
            return
        super().hear(conn, frame)
        if frame.kind != MESSAGE or self.leaving:
            return
        self.leaving = self.patient and self.random.random() < RECONNECTS
        if self.leaving or len(self.unconfirmed) >= CONFIRMED_AT_ONCE:
            idents, self.unconfirmed = self.unconfirmed, []
            self.ask(conn, lambda: self.confirm(idents))
        if self.leaving:
            # A socket that is closed with unread input resets the connection: nsqd would lose
            # commands.
            self.ask(conn, self.hang_up)

    def confirm(self, idents: list[bytes]) -> None:
        """Record that these messages were finished, except for those whose FIN was refused."""
        now = time.monotonic()
        for ident in idents:
            if ident in self.said:
                self.executed[self.said[ident][0]] = now

    def take(self, conn: Conn, message: Message) -> None:
        now = time.monotonic()
        text = text_of(message.body)
        self.log(Received(now, self.topic, self.channel, text))
        self.progress += 1
        self.check(text, message, now)
        if self.leaving:
            return
        choice = self.random.random()
        if choice < 0.7 or message.attempts > 3 or not self.patient:
            self.finish(conn, text, message)
        elif choice < 0.75:
            conn.touch(message)
            self.finish(conn, text, message)
        elif choice < 0.93:
            self.requeue_or_defer(conn, text, message, now)
        # Otherwise it times out.

    def finish(self, conn: Conn, text: str, message: Message) -> None:
        self.say(Finished(time.monotonic(), self.topic, self.channel, text), message.id)
        self.unconfirmed.append(message.id)
        conn.fin(message)

    def requeue_or_defer(self, conn: Conn, text: str, message: Message, now: float) -> None:
        if self.random.random() < 0.5:
            self.say(Requeued(now, self.topic, self.channel, text), message.id)
            conn.req(message)
            return
        self.to_defer.append(message)
        if len(self.to_defer) == 1:
            self.asked = now
            self.ask(conn, lambda: self.defer(conn))

    def defer(self, conn: Conn) -> None:
        if not self.leaving:
            super().defer(conn)

    def check(self, text: str, message: Message, now: float) -> None:
        was = self.seen.get(text)
        self.seen[text] = Message(message.timestamp, message.attempts, message.id, b"")
        if text in self.executed:
            self.fault(text, f"returns at {now:.3f} after its FIN, by {self.executed[text]:.3f}")
        if was is None:
            return
        if message.attempts < was.attempts:
            self.fault(text, f"attempts {was.attempts}, then {message.attempts}")
        if (message.id, message.timestamp) != (was.id, was.timestamp):
            self.fault(text, "another id or time")

    def fault(self, text: str, what: str) -> None:
        self.faults.append(f"{self.topic}/{self.channel} {text!r}: {what}")


class TinyPublisher:
    """Publishes bodies of one byte and counts the answers: ids tell these messages apart."""

    def __init__(self, daemon: Nsqd) -> None:
        self.daemon = daemon
        self.sent = self.answered = 0
        self.conn: Conn | None = None

    def step(self) -> None:
        try:
            if self.conn is None:
                self.conn = Conn(self.daemon.address)
            self.sent += 1
            self.conn.send(b"PUB ", TINY.encode(), b"\n", sized(b"x"))
            self.conn.expect_ok()
            self.answered += 1
            time.sleep(0.005)
        except Exception:
            if self.conn is not None:
                self.conn.close()
            self.conn = None
            time.sleep(0.02)


def children(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()


def has_mapped_memory(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "/memfd:nsqd-memory" in Path(f"/proc/{pid}/maps").read_text()
    return False


class WorkerDeaths(Trial):
    """Load on a daemon whose workers are killed."""

    publisher_kinds = (MixedPublisher, MixedHttpPublisher)
    subscriber_kind = MixedSubscriber

    def __init__(self, daemon: Nsqd, workers: int, seed: int) -> None:
        super().__init__(daemon, workers, seed)
        self.kills = 0
        self.daemon.web.create(TINY, "c")
        self.tiny = TinyPublisher(daemon)

    def replaced(self, index: int, dead: int) -> int | None:
        """Return the process that replaces a worker."""
        return next(
            (pid for at, pid in self.indexes().items() if at == index and pid != dead), None
        )

    def indexes(self) -> dict[int, int]:
        """Return the process ids of the workers that have a name yet, by index."""
        found = {}
        for pid in children(self.daemon.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = psutil.Process(pid).name()
                if name.startswith("nsqd-worker-"):
                    found[int(name.rsplit("-", 1)[1])] = pid
        return found

    def strike(self) -> None:
        """Kill one or more workers, and sometimes a replacement that is still restoring."""
        count = len(self.pids)
        number = self.random.choice([1] * 3 + [count])
        self.kill_workers(
            self.random.sample(range(count), number), again=self.random.random() < 0.4
        )

    def kill_workers(self, victims: list[int], *, again: bool = False) -> None:
        """again: whether the first replacement is killed as well, while it boots or restores."""
        before = eventually(lambda: len(self.indexes()) == len(self.pids) and self.indexes())
        known = self.now()
        with self.death(frozenset(t for t in TOPICS if self.owner[t] in victims)):
            for victim in victims:
                self.kill(before[victim])
            if again:
                self.kill_a_replacement(known)
        for victim in victims:
            eventually(lambda victim=victim: self.replaced(victim, before[victim]))  # type: ignore
        # Until every worker serves, a publish to its topics is not answered.
        eventually(lambda: self.daemon.web.get("/ping").body == b"OK")

    @contextlib.contextmanager
    def death(
        self,
        topics: frozenset[str] = frozenset(TOPICS),
        cut_off: list[Subscriber] | None = None,
        saved: bool = False,
    ) -> Iterator[None]:
        """Record a death once the consumers have read everything that the dead processes sent."""
        began = time.monotonic()
        yield
        readers = [each for each in self.subscribers if isinstance(each, MixedSubscriber)]
        for each in readers:
            each.wanted += 1
        eventually(lambda: all(each.probed == each.wanted for each in readers))
        self.events.append(Died(time.monotonic(), began, topics, saved))

    def kill_a_replacement(self, known: set[int]) -> None:
        """Kill the next new worker at a random moment of its boot, or of its restore."""
        pid = eventually(lambda: children(self.daemon.process.pid) - known, interval=0.001).pop()
        if self.random.random() < 0.5:
            time.sleep(self.random.uniform(0, MAX_BOOT))
        else:
            eventually(lambda: has_mapped_memory(pid) or pid not in self.now(), interval=0.001)
            time.sleep(self.random.uniform(0, MAX_READ))
        self.kill(pid)

    def now(self) -> set[int]:
        return children(self.daemon.process.pid)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
