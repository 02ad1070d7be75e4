"""An exception, or a signal handler that calls close(), at every point in the blocking client.

Ctrl-C, a signal handler or a time limit may raise an exception between any two instructions of a
caller's thread. A trace function does so at one point of a run: a line, or an instruction. The
tests repeat each call until every point has been interrupted. No change may be half done
afterwards: each publish gets its own answer, no message is lost, close() ends.
"""

import asyncio
import ctypes
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import nsqcy
from nsqcy.client import Consumer, Message, NsqdError, Producer, aio, finish
from nsqcy.testing.http_requests import eventually
from support.fake_nsqd import MockNsqd, Peer, delivery

LIMIT = 30.0  # maximum seconds for any step
NEVER = 10_000.0  # seconds: longer than any test
PACKAGE = str(Path(nsqcy.__file__).parent)


class Interrupted(Exception):
    """Raised by the trace function."""


def interrupt() -> None:
    raise Interrupted


def run(
    work: Callable[[], object], at: int, act: Callable[[], object] = interrupt, event: str = "line"
) -> int:
    """Call `work`, and call `act` at this point in the client. Return the number of points
    passed."""
    seen = 0

    def trace(frame: FrameType, happened: str, _: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if happened == event:
            seen += 1
            if seen == at:
                sys.settrace(None)
                act()
                return None
        return trace

    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    return seen


def at_every_place(
    prepare: Callable[[], Callable[[], object]], check: Callable[[], object], **options: Any
) -> Iterator[int]:
    """Run the function that `prepare` returns with an interrupt at each of its points in turn, and
    a check after each."""
    place = 0
    while True:
        place += 1
        seen = run(prepare(), place, **options)
        check()
        if seen < place:
            assert place > 1
            return
        yield place


def ends(work: Callable[[], object]) -> None:
    """Assert that a call returns."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()


class Deliveries:
    """Script of an nsqd that refuses the bodies that request it, each with its own error. It
    delivers each message only after the previous one was answered."""

    def __init__(self) -> None:
        self.delivered = self.answered = self.ready = 0
        self._subscriber: Any = None

    def __call__(self, peer: Peer, line: str, body: bytes) -> bool:
        verb, _, rest = line.partition(" ")
        if verb == "PUB" and body.startswith(b"refuse"):
            peer.error(f"E_BAD_MESSAGE {body.decode()}")
            return True
        if verb == "RDY":
            self.ready = int(rest)
        elif verb in ("FIN", "REQ", "DEAD_LETTER"):
            self.answered += 1
        elif verb in ("SUB", "CLS"):
            self.ready, self.answered = 0, self.delivered
            self._subscriber = peer
        if self.ready and self.answered == self.delivered:
            self.delivered += 1
            peer.send(delivery(b"x", b"%016x" % self.delivered))
        return False

    def redeliver(self) -> None:
        """Deliver the last message again, as nsqd does after its timeout."""
        with self._subscriber as peer:
            peer.send(delivery(b"x", b"%016x" % self.delivered, attempts=2))


@pytest.fixture
def deliveries() -> Deliveries:
    return Deliveries()


@pytest.fixture
def nsqd(deliveries: Deliveries) -> Iterator[MockNsqd]:
    with MockNsqd(script=deliveries, settings={"dead_letters": True}) as nsqd:
        yield nsqd


class Made:
    """Consumers and producers of a test."""

    def __init__(self, nsqd: MockNsqd) -> None:
        self._nsqd = nsqd
        self.all: list[Any] = []

    def producer(self, **options: Any) -> Producer:
        defaults: Any = {"close_timeout": NEVER, "reconnect_interval": 0.01, "retries": 100}
        name = f"p{len(self.all)}"
        made = Producer(self._nsqd.address, name=name, **defaults | options)
        self.all.append(made)
        return made

    def consumer(self, **options: Any) -> Consumer:
        defaults: Any = {"close_timeout": NEVER, "name": f"c{len(self.all)}"}
        made = Consumer("t", "c", self._nsqd.address, **defaults | options)
        self.all.append(made)
        return made

    def have_ended(self) -> None:
        """Assert that close() ends, and that it leaves no thread."""
        for each in self.all:
            ends(each.close)
        names = {f"nsqcy {each.core.name}" for each in self.all}
        eventually(lambda: not any(each.name in names for each in threading.enumerate()))
        self.all.clear()


@pytest.fixture
def made(nsqd: MockNsqd) -> Iterator[Made]:
    made = Made(nsqd)
    yield made
    for each in made.all:
        each.close(graceful=False, wait=False)


# -- at every point


def refused(producer: Producer) -> None:
    with suppress(NsqdError):
        producer.publish("t", b"refuse this")


def in_two_steps(producer: Producer) -> None:
    producer.publish_nowait("t", b"x")
    producer.publish("t", b"x")  # waits for room if there is only room for one


PUBLISHES: dict[str, Callable[[Producer], object]] = {
    "publish": lambda producer: producer.publish("t", b"x"),
    "refused": refused,
    "timeout": lambda producer: producer.publish("t", b"x", timeout=NEVER),
    "deferred": lambda producer: producer.dpub("t", 1, b"x"),
    "several": lambda producer: producer.multipublish("t", [b"x", b"y"]),
    "all": lambda producer: producer.publish_all("t", [b"x", b"y"], batch_messages=1),
    "nowait": lambda producer: producer.publish_nowait("t", b"x").result(),
    "room": in_two_steps,
    "state": lambda producer: (repr(producer), producer.is_connected, producer.is_full),
}


def answers_fit(producer: Producer) -> None:
    assert producer.publish("t", b"good") == b"OK"
    with pytest.raises(NsqdError, match="E_BAD_MESSAGE refuse mine"):
        producer.publish("t", b"refuse mine")
    assert producer.publish("t", b"good again") == b"OK"


@pytest.mark.parametrize(
    ("call", "event"),
    [*((each, "line") for each in PUBLISHES), ("publish", "opcode"), ("nowait", "opcode")],
)
def test_an_interrupted_publish_shifts_no_answers(
    made: Made, call: str, event: str, record_property: Callable[[str, object], None]
) -> None:
    producer = made.producer(max_pending=1 if call == "room" else 1 << 20)
    producer.publish("t", b"first")
    places = at_every_place(
        lambda: partial(PUBLISHES[call], producer), lambda: answers_fit(producer), event=event
    )
    record_property("places", sum(1 for _ in places))
    made.have_ended()


def with_block(made: Made) -> Callable[[], object]:
    producer = made.producer()

    def live() -> None:
        with suppress(nsqcy.Closed), producer:  # closed by the signal handler
            producer.publish("t", b"x")

    return live


def with_codec(made: Made) -> Callable[[], object]:
    producer = made.producer(codec="json")

    def live() -> None:
        with suppress(nsqcy.Closed):
            producer.publish("t", {"x": 1})
        producer.close()

    return live


def consumer_block(made: Made) -> Callable[[], object]:
    consumer = made.consumer()

    def live() -> None:
        with consumer:
            for message in consumer:
                message.finish()
                break

    return live


def run_and_close(made: Made) -> Callable[[], object]:
    def handle(message: Message) -> None:
        consumer.close()

    consumer = made.consumer(message_handler=handle)
    return consumer.run


LIVES: dict[str, Callable[[Made], Callable[[], object]]] = {
    "producer": with_block,
    "codec": with_codec,
    "consumer": consumer_block,
    "run": run_and_close,
}


@pytest.mark.parametrize("event", ["line", "opcode"])
@pytest.mark.parametrize("life", LIVES)
def test_close_ends_after_an_interrupt(
    made: Made, life: str, event: str, record_property: Callable[[str, object], None]
) -> None:
    """The interrupt arrives while a client is started, used or closed. Creating a client does not
    start anything."""
    places = at_every_place(lambda: LIVES[life](made), made.have_ended, event=event)
    record_property("places", sum(1 for _ in places))


class Taking:
    """A program that consumes messages. It remembers those that it has not answered."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.taken: list[Message] = []

    def get(self) -> None:
        message = self.consumer.get(LIMIT)
        assert message
        self.taken.append(message)

    def iterate(self) -> None:
        for message in self.consumer:
            self.taken.append(message)
            break

    def batches(self) -> None:
        for batch in self.consumer.batches(2, within=NEVER, timeout=NEVER):
            self.taken += batch
            break

    def finish(self) -> None:
        self.get()
        self.taken[-1].finish()

    def finish_many(self) -> None:
        self.get()
        finish(self.taken)

    def requeue(self) -> None:
        self.get()
        self.taken[-1].touch()
        self.taken[-1].requeue(0)

    def dead_letter(self) -> None:
        self.get()
        self.taken[-1].dead_letter("no reason")

    def pause(self) -> None:
        self.consumer.pause()
        self.consumer.resume()

    def control(self) -> None:
        self.consumer.set_max_in_flight(1)
        self.consumer.connect_to_nsqd("127.0.0.1", 1)
        self.consumer.query_lookupd()

    def state(self) -> None:
        assert repr(self.consumer)
        assert self.consumer.connections

    def has_news(self) -> bool:
        """Return whether the program has a message, or the next one arrives soon."""
        if not self.taken:
            message = self.consumer.get(1.0)
            self.taken += [message] if message else []
        return bool(self.taken)

    def goes_on(self) -> None:
        """Answer the unanswered messages, and assert that the next one arrives."""
        for message in self.taken:
            if not message.has_responded():
                message.finish()
        self.taken.clear()
        self.consumer.resume()
        following = self.consumer.get(LIMIT)
        assert following
        following.finish()


CALLS = [
    "get",
    "iterate",
    "batches",
    "finish",
    "finish_many",
    "requeue",
    "dead_letter",
    "pause",
    "control",
    "state",
]


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_consumer_loses_no_message(
    made: Made,
    deliveries: Deliveries,
    call: str,
    record_property: Callable[[str, object], None],
) -> None:
    """nsqd sends the next message once the previous one has been answered."""
    taking = Taking(made.consumer())
    taking.goes_on()
    places = at_every_place(lambda: getattr(taking, call), taking.goes_on)
    record_property("places", sum(1 for _ in places))
    made.have_ended()


# -- signal handlers that close


@pytest.mark.parametrize("life", LIVES)
def test_a_signal_handler_closes_anywhere(made: Made, life: str) -> None:
    """The signal may arrive in the middle of close() itself."""

    def handle() -> None:
        for each in made.all:
            each.close()

    for _ in at_every_place(lambda: LIVES[life](made), made.have_ended, act=handle):
        pass


def once(happened: Callable[[], object]) -> None:
    """Send a signal to the main thread once this event has occurred."""

    def send() -> None:
        eventually(happened)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    threading.Thread(target=send, daemon=True).start()


@pytest.fixture
def handler() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Set the handler of SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)

    def set_handler(handle: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handle() and None)

    yield set_handler
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_closes_during_get(
    made: Made, handler: Callable[[Callable[[], object]], None], nsqd: MockNsqd
) -> None:
    consumer = made.consumer(max_in_flight=1)
    assert consumer.get(LIMIT)  # the program does not answer the message
    handler(consumer.close)
    once(lambda: consumer._inside)
    assert consumer.get() is None
    consumer.close(graceful=False)


# -- an nsqd that hangs


def hang(peer: Peer, line: str, body: bytes) -> bool:
    return line.partition(" ")[0] in ("PUB", "CLS")


@pytest.fixture
def hanging() -> Iterator[Made]:
    """An nsqd that answers neither publishes nor CLS."""
    with MockNsqd(script=hang) as nsqd:
        made = Made(nsqd)
        yield made
        for each in made.all:
            each.close(graceful=False, wait=False)


def test_close_does_not_wait_for_an_interrupted_publish(
    hanging: Made, handler: Callable[[Callable[[], object]], None]
) -> None:
    producer = hanging.producer()
    handler(interrupt)
    once(lambda: producer._loop.mailbox.size or producer.core.pending_bytes)
    with pytest.raises(Interrupted):
        producer.publish("t", b"x")
    hanging.have_ended()


def test_an_interrupt_ends_a_close_that_waits_for_its_publish(
    hanging: Made, handler: Callable[[Callable[[], object]], None]
) -> None:
    producer = hanging.producer()
    closing = threading.Thread(target=producer.close, daemon=True)
    handler(interrupt)

    def close_then_interrupt() -> bool:
        if producer.core.pending_bytes and not closing.ident:
            closing.start()
        return producer.core.closing

    once(close_then_interrupt)
    with pytest.raises(Interrupted):
        producer.publish("t", b"x")
    closing.join(LIMIT)
    assert not closing.is_alive()


def test_an_interrupted_publish_is_not_sent_later(
    made: Made, handler: Callable[[Callable[[], object]], None]
) -> None:
    """The publish waits for a connection when it is interrupted."""
    producer = Producer("127.0.0.1:1", retries=1000, close_timeout=NEVER)
    handler(interrupt)
    once(lambda: producer.core.waiting)
    with pytest.raises(Interrupted):
        producer.publish("t", b"x")
    eventually(lambda: not producer.core.waiting)
    assert producer.core.pending_bytes == 0
    ends(producer.close)


def test_close_does_not_wait_for_an_nsqd_that_hangs(hanging: Made) -> None:
    """No message is in flight."""
    consumer = hanging.consumer(timeout=0.1)
    consumer.start()
    eventually(lambda: consumer.connections and consumer.total_ready_count)
    hanging.have_ended()


# -- asyncio: a cancelled task


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(happened: Callable[[], object]) -> None:
    while not happened():
        await asyncio.sleep(0.001)


def test_a_cancelled_batch_goes_back(nsqd: MockNsqd) -> None:
    """nsqd sends no second message for the interrupted caller, and the next caller gets the first
    message."""

    async def program() -> None:
        async with aio.Consumer("t", "c", nsqd.address) as consumer:
            batches = consumer.batches(2, within=NEVER)
            # Two messages may be in flight, so a batch of one is not complete.
            consumer.set_max_in_flight(10)
            waits = asyncio.create_task(anext(batches))
            await until(lambda: consumer.total_in_flight and consumer._waiters)
            await cancelled(waits)
            message = await consumer.get(LIMIT)
            assert message is not None
            message.finish()

    asyncio.run(asyncio.wait_for(program(), LIMIT))


def test_close_does_not_wait_for_a_cancelled_publish() -> None:
    async def program(address: str) -> None:
        producer = aio.Producer(address, close_timeout=NEVER)
        publish = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: producer.core.pending_bytes)
        await cancelled(publish)
        await producer.close()

    with MockNsqd(script=hang) as nsqd:
        asyncio.run(asyncio.wait_for(program(nsqd.address), LIMIT))


# -- at random moments

INTERRUPTS = 10_000


class Alarms:
    """Interrupts the main thread at random moments, by signals or from another thread."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._random = random.Random(kind)
        self.count = 0  # number of interrupts raised
        self.is_on = False
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._kind == "signals":
            signal.signal(signal.SIGALRM, self._raise)
        else:
            threading.Thread(target=self._send, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def during(self, work: Callable[[], object]) -> None:
        """Call `work`, which may be interrupted at any moment."""
        try:
            self.is_on = True
            if self._kind == "signals":
                signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-6, 4e-4))
            work()
        except Interrupted:
            self.count += 1
        finally:
            self.is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, *_: object) -> None:
        if self.is_on:
            self.is_on = False
            raise Interrupted

    def _send(self) -> None:
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        while not self._ended.wait(self._random.uniform(1e-5, 1e-3)):
            if self.is_on:
                self.is_on = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Interrupted))


def publish_or_take(made: Made, alarms: Alarms, deliveries: Deliveries) -> int:
    """Publish and consume until enough interrupts have occurred, and check every answer in between.

    Return the number of messages unknown to the program, because the interrupt arrived between the
    return of a call and the next statement.
    """
    producer, taking = made.producer(), Taking(made.consumer())
    unknown = 0
    calls = [
        *(PUBLISHES[each] for each in ("publish", "several", "nowait", "all", "refused")),
        lambda _: taking.iterate(),
        lambda _: taking.finish(),
        lambda _: taking.requeue(),
    ]
    choose = random.Random(0).choice
    while alarms.count < INTERRUPTS:
        alarms.during(partial(choose(calls), producer))
        answers_fit(producer)
        if not taking.has_news():
            unknown += 1
            deliveries.redeliver()
        taking.goes_on()
    taking.consumer.close(graceful=False)
    return unknown


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["signals", "asynchronous"])
def test_interrupts_at_random_moments(
    made: Made, deliveries: Deliveries, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Every answer belongs to its own publish, every message arrives, and close() ends."""
    with Alarms(kind) as alarms:
        unknown = publish_or_take(made, alarms, deliveries)
        made.have_ended()
    record_property("unknown", unknown)
    assert alarms.count >= INTERRUPTS
    assert unknown < INTERRUPTS / 100
