"""Exceptions in the program's code, and threads that cannot start, do not end the client. An
internal error ends it, and is raised in its callers."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

import nsqcy.client.aio
from nsqcy.client import Consumer, Producer, blocking_loop
from nsqcy.client.errors import Closed, NoConnection
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face, Kept
from support.fake_lookup_http import LookupPages
from support.fake_nsqd import Link, MockNsqd

pytestmark = pytest.mark.usefixtures("soon")


class Odd(BaseException):
    """A BaseException that is not built into Python."""


KINDS = (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, Odd)
every_kind = pytest.mark.parametrize("kind", KINDS)


class Bomb:
    """A function that raises at its first call."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.calls = 0

    def __call__(self, *about: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self.kind
        return True


def subscriber(nsqd: MockNsqd, after: int) -> Link:
    """Return the first connection from index `after` on that requests messages, once it exists."""

    def ready() -> list[Link]:
        return [each for each in nsqd.links[after:] if each.said("RDY")]

    eventually(ready)
    return ready()[0]


# -- logging


class Filter(logging.Filter):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.filter = Bomb(kind)  # type: ignore[assignment]


class Handler(logging.Handler):
    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.emit = Bomb(kind)  # type: ignore[method-assign,assignment]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("nsqcy.client")
    filters, handlers = list(logger.filters), list(logger.handlers)
    yield logger
    logger.filters[:] = filters
    logger.handlers[:] = handlers


@every_kind
@pytest.mark.parametrize("part", ["filter", "handler"])
def test_logging_fails_when_a_connection_is_lost(
    face: Face,
    mock: Callable[..., MockNsqd],
    logger: logging.Logger,
    kind: type[BaseException],
    part: str,
) -> None:
    nsqd = mock()
    kept = Kept()
    face.consumer("t", "c", nsqd.address, message_handler=kept)
    producer = face.producer(nsqd.address, reconnect_interval=0.01)
    nsqd.subscriber()
    assert face.call(producer.publish, "t", b"1") == b"OK"
    bomb: Any = Filter(kind) if part == "filter" else Handler(kind)
    if part == "filter":
        logger.addFilter(bomb)
    else:
        logger.addHandler(bomb)
    links = list(nsqd.links)
    for link in links:
        link.close()
    eventually(lambda: len(nsqd.links) >= len(links) + 2)
    assert face.call(producer.publish, "t", b"2") == b"OK"
    with (link := subscriber(nsqd, len(links))):
        link.deliver(b"m")
    eventually(lambda: kept.bodies == [b"m"])
    assert (bomb.filter if part == "filter" else bomb.emit).calls > 0


# -- callbacks


def callbacks_of(nsqd: MockNsqd, name: str) -> None:
    """Trigger this callback of a consumer."""
    link = nsqd.subscriber()
    if name == "on_error":
        link.close()
    elif name == "on_heartbeat":
        with link:
            link.beat()
    elif name == "on_giving_up":
        with link:
            link.deliver(b"given up", attempts=9)
    elif name == "on_exception":
        with link:
            link.deliver(b"bad")


@every_kind
@pytest.mark.parametrize(
    "name", ["on_error", "on_ready", "on_heartbeat", "on_giving_up", "on_exception"]
)
def test_a_callback_of_a_consumer_fails(
    face: Face, mock: Callable[..., MockNsqd], kind: type[BaseException], name: str
) -> None:
    if face.name == "aio" and (
        kind is KeyboardInterrupt or (name == "on_giving_up" and kind is SystemExit)
    ):
        pytest.skip("raised by the event loop")
    nsqd = mock()
    kept = Kept()

    def handle(message: Any) -> Any:
        if message.body == b"bad":
            raise ValueError
        return kept(message)

    bomb = Bomb(kind)
    face.consumer("t", "c", nsqd.address, message_handler=handle, max_in_flight=5, **{name: bomb})
    callbacks_of(nsqd, name)
    eventually(lambda: bomb.calls > 0)
    link = nsqd.subscriber(1 if name == "on_error" else 0)
    if name in ("on_giving_up", "on_exception"):
        eventually(lambda: link.said("REQ"))
    with link:
        link.deliver(b"m")
    eventually(lambda: kept.bodies == [b"m"])


@every_kind
def test_a_handler_fails(
    face: Face, mock: Callable[..., MockNsqd], kind: type[BaseException]
) -> None:
    if face.name == "aio" and kind in (SystemExit, KeyboardInterrupt):
        pytest.skip("ends the program")
    nsqd = mock()
    bomb = Bomb(kind)
    face.consumer("t", "c", nsqd.address, message_handler=bomb, max_in_flight=5)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"1", b"2", b"3")
    eventually(lambda: len(link.said("FIN")) == 2)
    assert len(link.said("REQ")) == 1


@every_kind
@pytest.mark.parametrize("name", ["on_error", "on_retry"])
def test_a_callback_of_a_producer_fails(
    face: Face, mock: Callable[..., MockNsqd], kind: type[BaseException], name: str
) -> None:
    if face.name == "aio" and kind is KeyboardInterrupt:
        pytest.skip("raised by the event loop")

    def refuse_first(peer: Any, line: str, body: bytes) -> bool:
        if body == b"1" and not refused:
            refused.append(body)
            peer.error("E_PUB_FAILED no")
            return True
        return False

    refused: list[bytes] = []
    nsqds = [mock(script=refuse_first) for _ in range(2)]
    bomb = Bomb(kind)
    producer = face.producer([each.address for each in nsqds], **{name: bomb})
    assert face.call(producer.publish, "t", b"1") == b"OK"
    eventually(lambda: bomb.calls > 0)
    assert face.call(producer.publish, "t", b"2") == b"OK"


def test_asyncio_raises_an_interrupt_once_the_client_is_done(mock: Callable[..., MockNsqd]) -> None:
    """Afterwards, the program can continue to use its event loop."""
    nsqd = mock()
    event_loop = asyncio.new_event_loop()

    async def begin() -> Any:
        return nsqcy.client.aio.Producer(nsqd.address, on_error=Bomb(KeyboardInterrupt))

    producer = event_loop.run_until_complete(begin())
    assert event_loop.run_until_complete(producer.publish("t", b"1")) == b"OK"
    nsqd.link().close()
    with pytest.raises(KeyboardInterrupt):
        event_loop.run_forever()
    assert event_loop.run_until_complete(producer.publish("t", b"2")) == b"OK"
    event_loop.run_until_complete(producer.close())
    event_loop.close()


def test_gevent_raises_an_interrupt_once_the_client_is_done(mock: Callable[..., MockNsqd]) -> None:
    """The exception is raised in the main greenlet, which may continue."""
    nsqd = mock()
    producer = Producer(nsqd.address, on_error=Bomb(KeyboardInterrupt), runtime="gevent")
    assert producer.publish("t", b"1") == b"OK"
    nsqd.link().close()
    with pytest.raises(KeyboardInterrupt):
        gevent.sleep(30)
    assert producer.publish("t", b"2") == b"OK"
    producer.close()


def test_gevent_raises_the_interrupt_of_a_handler(mock: Callable[..., MockNsqd]) -> None:
    """The handler's message is requeued, and later messages are handled."""
    nsqd = mock()
    bomb = Bomb(KeyboardInterrupt)
    consumer = Consumer("t", "c", nsqd.address, message_handler=bomb, runtime="gevent")
    consumer.start()
    waiting = gevent.get_hub().threadpool.spawn(nsqd.subscriber)
    with waiting.get() as link:
        link.deliver(b"1")
    with pytest.raises(KeyboardInterrupt):
        gevent.sleep(30)
    with link:
        link.deliver(b"2")
    gevent.get_hub().threadpool.apply(eventually, (lambda: link.said("FIN"),))
    assert len(link.said("REQ")) == 1
    consumer.close(graceful=False)


def test_asyncio_goes_on_after_a_handler_that_ends_the_program(
    mock: Callable[..., MockNsqd],
) -> None:
    """The handler's message is requeued, and later messages are handled if the event loop runs
    again."""
    nsqd = mock()
    event_loop = asyncio.new_event_loop()
    bomb = Bomb(SystemExit)

    async def begin() -> Any:
        consumer = nsqcy.client.aio.Consumer(
            "t", "c", nsqd.address, message_handler=bomb, max_in_flight=5
        )
        await consumer.start()
        return consumer

    async def handled(link: Link) -> None:
        await asyncio.to_thread(eventually, lambda: len(link.said("FIN")) == 2)

    consumer = event_loop.run_until_complete(begin())
    waiting = event_loop.create_task(asyncio.to_thread(nsqd.subscriber))
    link = event_loop.run_until_complete(waiting)
    with link:
        link.deliver(b"1", b"2", b"3")
    with pytest.raises(SystemExit):
        event_loop.run_forever()
    event_loop.run_until_complete(handled(link))
    assert len(link.said("REQ")) == 1
    event_loop.run_until_complete(consumer.close(graceful=False))
    event_loop.close()


# -- threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that prevents the client from starting threads with these words in their
    names. If it is called without words, all threads can start."""
    start = threading.Thread.start
    words = ""

    def refuse(thread: threading.Thread) -> None:
        if words and words in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    def choose(new: str) -> None:
        nonlocal words
        words = new

    return choose


def test_no_thread_for_a_reconnect(
    face: Face,
    mock: Callable[..., MockNsqd],
    no_threads: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd = mock()
    address = f"localhost:{nsqd.port}"
    kept = Kept()
    consumer = face.consumer("t", "c", address, message_handler=kept)
    producer = face.producer(address, reconnect_interval=0.01, retries=1)
    nsqd.subscriber()
    assert face.call(producer.publish, "t", b"1") == b"OK"
    no_threads("nsqcy")
    links = list(nsqd.links)
    for link in links:
        link.close()
    eventually(lambda: caplog.text.count("can't start new thread") >= 2)
    with pytest.raises(NoConnection, match="can't start new thread"):
        face.call(producer.publish, "t", b"2")
    assert consumer.is_running and producer.is_running
    no_threads("")
    assert face.call(producer.publish, "t", b"3") == b"OK"
    with (link := subscriber(nsqd, len(links))):
        link.deliver(b"m")
    eventually(lambda: kept.bodies == [b"m"])


def test_no_thread_for_a_query(
    face: Face, mock: Callable[..., MockNsqd], no_threads: Callable[[str], None]
) -> None:
    nsqd = mock()
    with LookupPages(("127.0.0.1", nsqd.port)) as lookupd:
        no_threads("nsqcy call" if face.name == "aio" else "nsqcy lookup")
        producer = face.producer(
            lookupd_http_addresses=lookupd.address,
            lookupd_request_timeout=30,
            reconnect_interval=0.01,
            timeout=30,
        )
        with pytest.raises(NoConnection, match="can't start new thread"):
            face.call(producer.publish, "t", b"1")
        no_threads("")
        assert face.call(producer.publish, "t", b"2") == b"OK"


def test_no_thread_for_the_client_itself(
    mock: Callable[..., MockNsqd], no_threads: Callable[[str], None]
) -> None:
    """The caller gets the error, nothing was published, and the next call retries."""
    nsqd = mock()
    consumer = Consumer("t", "c", nsqd.address)
    producer = Producer(nsqd.address)
    no_threads("nsqcy")
    calls: list[Callable[[], Any]] = [
        consumer.start,
        lambda: consumer.get(0),
        lambda: producer.publish("t", b"m"),
        lambda: producer.publish_nowait("t", b"m"),
    ]
    for call in calls:
        with pytest.raises(NoConnection, match="cannot start a thread"):
            call()
    no_threads("")
    consumer.start()
    assert producer.publish("t", b"m") == b"OK"
    with (link := subscriber(nsqd, 0)):
        link.deliver(b"m")
    message = consumer.get(30)
    assert message is not None
    message.finish()
    consumer.close()
    producer.close()


@pytest.mark.parametrize("words", ["nsqcy handler", "nsqcy giving up"])
def test_no_thread_for_a_handler(
    words: str,
    mock: Callable[..., MockNsqd],
    no_threads: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The messages wait until a thread is available. A consumer without messages closes
    immediately."""
    monkeypatch.setattr("nsqcy.client.blocking_loop.NEXT_THREAD", 0.01)
    nsqd = mock()
    no_threads(words)
    done: list[bytes] = []

    def note(message: Any) -> None:
        done.append(message.body)

    consumer = Consumer(
        "t", "c", nsqd.address, message_handler=note, on_giving_up=note, max_in_flight=5
    )
    consumer.start()
    with nsqd.subscriber() as link:
        link.deliver(b"m")
        link.deliver(b"given up", attempts=9)
    eventually(lambda: "cannot start a thread: can't start new thread" in caplog.text)
    no_threads("")
    eventually(lambda: sorted(done) == [b"given up", b"m"])
    consumer.close()
    no_threads(words)
    other = Consumer("t", "c", nsqd.address, message_handler=note)
    other.start()
    other.close()
    assert not other.is_running


@every_kind
def test_a_function_added_to_a_future_fails(
    mock: Callable[..., MockNsqd], kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(mock().address) as producer:
        bomb = Bomb(kind)
        future: Any = producer.publish_nowait("t", b"1")
        future.add_done_callback(bomb)
        eventually(lambda: bomb.calls > 0)
        assert producer.publish("t", b"2") == b"OK"


# -- the program's exit


class Ending:
    """A loop that does not end in time."""

    may_be_awaited = True

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self.ended = self

    def at_exit(self) -> None:
        self._clock.calls.append("end")

    def wait(self, timeout: float) -> None:
        self._clock.calls.append(timeout)
        self._clock.time += timeout


class Clock:
    def __init__(self) -> None:
        self.time = 100.0
        self.calls: list[object] = []

    def monotonic(self) -> float:
        return self.time


def test_all_clients_share_one_second_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(blocking_loop, "time", clock)
    monkeypatch.setattr(blocking_loop, "_running", {Ending(clock) for _ in range(3)})
    blocking_loop._end_all()
    assert clock.calls == ["end", "end", "end", 1.0, 0.0, 0.0]


# -- errors that end the client


def test_an_error_of_the_client_itself_is_raised_to_callers(
    face: Face, mock: Callable[..., MockNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = mock(script=lambda peer, line, body: line.startswith("PUB"))
    reported: list[Any] = []
    consumer = face.consumer("t", "c", nsqd.address, on_error=reported.append)
    producer = face.producer(nsqd.address, max_pending=1)
    nsqd.subscriber()
    waits_get = face.begin(consumer.get)
    waits_join = face.begin(consumer.join)
    waits_publish = face.begin(producer.publish, "t", b"m")
    eventually(lambda: any(each.said("PUB") for each in nsqd.links))
    waits_room = face.begin(producer.publish, "t", b"m")

    def broken(*about: Any) -> None:
        raise ZeroDivisionError

    for core in (consumer.core, producer.core):
        monkeypatch.setattr(core, "received", broken)
    for link in nsqd.links:
        with link:
            link.beat()
    for future in (waits_get, waits_join, waits_publish, waits_room):
        with pytest.raises(Closed, match="has failed: ZeroDivisionError") as caught:
            future.result(30)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for call, *arguments in (
        (consumer.get,),
        (consumer.join,),
        (producer.publish, "t", b"m"),
        (producer.publish_nowait, "t", b"m"),
        (producer.publish_all, "t", [b"m"]),
    ):
        with pytest.raises(Closed, match="has failed"):
            face.call(call, *arguments)
    assert not consumer.is_running and not producer.is_running
    assert [type(each) for each in reported] == [Closed]
