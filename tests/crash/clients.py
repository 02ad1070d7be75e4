"""Publishers and a consumer that record each attempt, each answer and each receipt.

The outcome of a publish that a lost connection leaves unanswered is unknown. The clients
reconnect and continue with new messages.
"""

import http.client
import random
import re
import time
from collections.abc import Callable

from crash.history import (
    Answered,
    Attempted,
    Event,
    Finished,
    Received,
    Refused,
    Requeued,
)
from loadtest.many_clients import publish
from nsqcy.testing.wire_client import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    RESPONSE,
    UNKNOWN_ID,
    Conn,
    Frame,
    Hangup,
    Message,
    Silence,
    batch,
    sized,
)
from support.nsqd_process import Nsqd

SIZES = [20, 100, 100, 100, 100, 100, 500, 3_000, 20_000]
DELAYS_MS = [30, 200, 700, 1500]
PACE = 0.004
MAX_PAUSE = 0.05
REFUSAL = re.compile(rb"E_(?:FIN|REQ)_FAILED (?:FIN|REQ) (\S{16}) failed ID not in flight")
BODY = re.compile(rb"(\S+ \d+ (\d+) )\.*")


def text_of(body: bytes) -> str:
    """Return the text that identifies a message. A damaged body results in a different text."""
    found = BODY.fullmatch(body)
    if found is None or len(body) != max(int(found[2]), len(found[1])):
        return repr(body)
    return found[1].decode()


class _Client:
    """Client that reconnects whenever its connection has ended."""

    def __init__(self, daemon: Nsqd, log: Callable[[Event], None], seed: str) -> None:
        self.daemon = daemon
        self.log = log
        self.random = random.Random(seed)
        self.name = seed
        self.progress = 0

    def step(self) -> None:
        try:
            self.talk()
        except (Hangup, Silence, OSError, http.client.HTTPException):
            self.hang_up()
            time.sleep(self.random.uniform(0, MAX_PAUSE))

    def talk(self) -> None:
        raise NotImplementedError

    def hang_up(self) -> None:
        raise NotImplementedError


class _Publisher(_Client):
    def __init__(self, daemon: Nsqd, log: Callable[[Event], None], topic: str, seed: str) -> None:
        super().__init__(daemon, log, seed)
        self.topic = topic
        self.count = 0
        # The daemon reads its clock once per turn. If it receives a command after an answer, the
        # command runs in a turn that began after the answered command was sent.
        self.sent = 0.0

    def body(self) -> bytes:
        self.count += 1
        size = self.random.choice(SIZES)
        return f"{self.name} {self.count} {size} ".encode().ljust(size, b".")

    def attempt(self, bodies: list[bytes], delay_ms: int = 0) -> None:
        due = self.sent + delay_ms / 1000 if delay_ms else 0.0
        self.sent = now = time.monotonic()
        for body in bodies:
            self.log(Attempted(now, self.topic, text_of(body), due))

    def answer(self, bodies: list[bytes], accepted: bool) -> None:
        now = time.monotonic()
        for body in bodies:
            self.log(Answered(now, self.topic, text_of(body), accepted))
        self.progress += accepted


class TcpPublisher(_Publisher):
    """Sends PUB (sometimes pipelined), MPUB and DPUB."""

    conn: Conn | None = None

    def talk(self) -> None:
        if self.conn is None:
            self.conn = Conn(self.daemon.address)
            self.pub(self.conn)
        self.random.choice([self.pub, self.pub, self.mpub, self.dpub])(self.conn)
        time.sleep(PACE)

    def pub(self, conn: Conn) -> None:
        bodies = [self.body() for _ in range(self.random.randint(1, 4))]
        self.attempt(bodies)
        conn.send(*(publish(self.topic, body) for body in bodies))
        for body in bodies:
            self.await_answer(conn, [body])

    def mpub(self, conn: Conn) -> None:
        bodies = [self.body() for _ in range(self.random.randint(1, 15))]
        self.attempt(bodies)
        conn.send(b"MPUB ", self.topic.encode(), b"\n", batch(bodies))
        self.await_answer(conn, bodies)

    def dpub(self, conn: Conn) -> None:
        body, delay_ms = self.body(), self.random.choice(DELAYS_MS)
        self.attempt([body], delay_ms)
        conn.send(f"DPUB {self.topic} {delay_ms}\n".encode(), sized(body))
        self.await_answer(conn, [body])

    def await_answer(self, conn: Conn, bodies: list[bytes]) -> None:
        frame = conn.frame()
        assert frame.kind == ERROR or frame == (RESPONSE, b"OK"), frame
        self.answer(bodies, frame.kind == RESPONSE)
        if frame.kind == ERROR:
            self.hang_up()
            raise Hangup(False, frame.data)

    def hang_up(self) -> None:
        if self.conn is not None:
            self.conn.close()
        self.conn = None


class HttpPublisher(_Publisher):
    """Sends /pub (sometimes deferred) and /mpub."""

    link: http.client.HTTPConnection | None = None

    def talk(self) -> None:
        if self.link is None:
            self.link = http.client.HTTPConnection("127.0.0.1", self.daemon.http_port, timeout=10)
            self.post(self.link, "/pub", [self.body()])
        kind = self.random.randrange(4)
        if kind == 0:
            self.post(self.link, "/mpub", [self.body() for _ in range(5)])
        else:
            delay = self.random.choice(DELAYS_MS) if kind == 1 else 0
            self.post(self.link, "/pub", [self.body()], delay)
        time.sleep(PACE)

    def post(
        self, link: http.client.HTTPConnection, path: str, bodies: list[bytes], delay_ms: int = 0
    ) -> None:
        self.attempt(bodies, delay_ms)
        query = f"?topic={self.topic}" + (f"&defer={delay_ms}" if delay_ms else "")
        link.request("POST", path + query, b"\n".join(bodies))
        answer = link.getresponse()
        answer.read()
        # The outcome for the message is unknown after a server error.
        if answer.status < 500:
            self.answer(bodies, answer.status == 200)

    def hang_up(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link = None


class Subscriber(_Client):
    """Finishes most messages, and requeues some of them at their first deliveries."""

    conn: Conn | None = None
    opened = 0.0
    patient = True  # whether it requeues messages

    def __init__(
        self, daemon: Nsqd, log: Callable[[Event], None], topic: str, channel: str, seed: str
    ) -> None:
        super().__init__(daemon, log, seed)
        self.topic, self.channel = topic, channel

    def talk(self) -> None:
        if self.conn is None:
            # Message and time of each FIN or REQ, by id.
            self.said: dict[bytes, tuple[str, float]] = {}
            self.to_defer: list[Message] = []
            self.asked = 0.0
            self.opened = time.monotonic()
            self.conn = Conn(self.daemon.address, pong=False)
            self.subscribe(self.conn)
        try:
            self.hear(self.conn, self.conn.frame(timeout=0.2))
        except Silence:
            pass

    @property
    def port(self) -> int:
        """Return the local port of the connection; 0 if there is none."""
        try:
            return self.conn.socket.getsockname()[1] if self.conn is not None else 0
        except OSError:
            return 0

    def subscribe(self, conn: Conn) -> None:
        conn.command("SUB", self.topic, self.channel)
        frame = conn.frame()
        if frame != (RESPONSE, b"OK"):
            raise Hangup(False, frame.data)
        conn.rdy(30)

    def hear(self, conn: Conn, frame: Frame) -> None:
        if frame.kind == MESSAGE:
            self.take(conn, Message.parse(frame.data))
        elif frame == (RESPONSE, HEARTBEAT):
            conn.nop()
        elif (refusal := REFUSAL.fullmatch(frame.data)) is None:
            raise Hangup(False, frame.data)
        elif refusal[1] == UNKNOWN_ID:
            self.defer(conn)
        else:
            message, sent = self.said.pop(refusal[1])
            now = time.monotonic()
            self.log(Refused(now, self.topic, self.channel, message, sent))

    def take(self, conn: Conn, message: Message) -> None:
        now = time.monotonic()
        text = text_of(message.body)
        self.log(Received(now, self.topic, self.channel, text))
        self.progress += 1
        choice = self.random.random()
        if choice < 0.8 or message.attempts > 3 or not self.patient:
            self.say(Finished(now, self.topic, self.channel, text), message.id)
            conn.fin(message)
        elif choice < 0.9:
            self.say(Requeued(now, self.topic, self.channel, text), message.id)
            conn.req(message)
        else:
            self.to_defer.append(message)
            if len(self.to_defer) == 1:
                # nsqd answers this command in a turn that began after the command was sent.
                # Commands sent after the answer are executed in that turn or later.
                self.asked = now
                conn.fin(UNKNOWN_ID)

    def defer(self, conn: Conn) -> None:
        now = time.monotonic()
        for message in self.to_defer:
            delay_ms = self.random.choice(DELAYS_MS)
            text = text_of(message.body)
            due = self.asked + delay_ms / 1000
            self.say(Requeued(now, self.topic, self.channel, text, due), message.id)
            conn.req(message, delay_ms)
        self.to_defer.clear()

    def say(self, order: Finished | Requeued, ident: bytes) -> None:
        """Record a FIN or REQ before it is sent, so its effects come later."""
        self.log(order)
        self.said[ident] = (order.message, order.at)

    def hang_up(self) -> None:
        if self.conn is not None:
            self.conn.close()
        self.conn = None
