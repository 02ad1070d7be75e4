"""The blocking client with threads and with greenlets, connected to a real daemon."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import pytest

from nsqcy.client import (
    ConnectionFailed,
    Consumer,
    Message,
    Producer,
    Requeue,
    finish,
)
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, environment

PROGRAM = Path(__file__).parent / "programs" / "processes.py"
FORKED = "the producer was created before this process was forked: create one after the fork"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("blocking"), workers=1).start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def address(daemon: Nsqd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


class Beside:
    """Runs functions concurrently with the test, and waits for them, in one runtime."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def run(self, work: Callable[[], object]) -> Any:
        if self.kind == "gevent":
            return gevent.spawn(work)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def event(self) -> Any:
        return gevent.event.Event() if self.kind == "gevent" else threading.Event()

    def sleep(self) -> None:
        """Yield to the other threads or greenlets."""
        if self.kind == "gevent":
            gevent.sleep(0.01)
        else:
            threading.Event().wait(0.01)

    def eventually(self, predicate: Callable[[], Any]) -> Any:
        def look() -> Any:
            self.sleep()
            return predicate()

        return eventually(look)

    def await_counts(self, daemon: Nsqd, topic: str, **counts: int) -> None:
        """Wait until the channel has these counts. Other greenlets keep running, because they may
        not have sent the last answers yet."""
        self.eventually(lambda: channel(daemon, topic).items() >= counts.items())


@pytest.fixture(params=["threads", "gevent"])
def beside(request: pytest.FixtureRequest) -> Beside:
    return Beside(request.param)


@pytest.fixture
def consume(beside: Beside, address: str, topic: str) -> Iterator[Callable[..., Consumer]]:
    """Factory of consumers for the test's topic; they are closed at the end."""
    made: list[Consumer] = []

    def make(**options: Any) -> Consumer:
        options = {"nsqd_tcp_addresses": address, "runtime": beside.kind} | options
        made.append(Consumer(topic, "c", **options))
        return made[-1]

    yield make
    for each in made:
        each.close(graceful=False)


@pytest.fixture
def producer(beside: Beside, address: str) -> Iterator[Producer]:
    with Producer(address, runtime=beside.kind) as producer:
        yield producer


def channel(daemon: Nsqd, topic: str) -> dict[str, Any]:
    found = daemon.web.channel(topic, "c")
    assert found is not None
    return found


def take(consumer: Consumer, count: int) -> list[bytes]:
    bodies = []
    for message in consumer:
        bodies.append(message.body)
        message.finish()
        if len(bodies) == count:
            break
    return bodies


# -- producing


def test_publishes_that_nobody_waits_for_keep_their_order(
    producer: Producer, consume: Callable[..., Consumer], topic: str
) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    futures = [producer.publish_nowait(topic, body) for body in bodies]
    assert {future.result() for future in futures} == {b"OK"}
    assert take(consume(max_in_flight=1), 3000) == bodies


def test_publish_all(producer: Producer, consume: Callable[..., Consumer], topic: str) -> None:
    bodies = [b"%d" % number for number in range(5000)]
    assert producer.publish_all(topic, iter(bodies), batch_messages=300) == 5000
    assert sorted(take(consume(max_in_flight=2500), 5000)) == sorted(bodies)


def test_many_publish_at_once(producer: Producer, beside: Beside, topic: str) -> None:
    answers: list[bytes] = []

    def publish() -> None:
        for _ in range(50):
            answers.append(producer.publish(topic, b"x"))

    for each in [beside.run(publish) for _ in range(8)]:
        each.join()
    assert answers == [b"OK"] * 400


class Mute:
    """Completes the handshake and reads everything, but never sends OK."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            self._accepted, _ = self._listener.accept()
            self._accepted.sendall(b"\0\0\0\6\0\0\0\0OK")
            while self._accepted.recv(65536):
                pass

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self._accepted.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    mute = Mute()
    yield mute
    mute.close()


def test_whoever_waits_for_room_gets_it(beside: Beside, mute: Mute) -> None:
    """Losing a connection also makes room for more publishes."""
    failed = beside.event()
    with Producer(mute.address, runtime=beside.kind, max_pending=10, retries=0) as producer:

        def publish() -> None:
            with suppress(ConnectionFailed):
                producer.publish("t", b"x" * 10)
            failed.set()

        first = producer.publish_nowait("t", b"x" * 10)
        beside.run(publish)
        beside.eventually(lambda: producer.is_connected and len(producer._waiters))
        mute.close()
        assert failed.wait(10)
        with pytest.raises(ConnectionFailed):
            first.result()


def test_a_callback_cannot_wait_for_its_own_producer(beside: Beside) -> None:
    said = beside.event()
    raised: list[BaseException] = []

    def on_error(error: object) -> None:
        try:
            producer.publish("t", b"x")
        except BaseException as error:
            raised.append(error)
        said.set()

    producer = Producer("127.0.0.1:1", runtime=beside.kind, on_error=on_error)
    with producer:
        assert said.wait(10)
    assert isinstance(raised[0], RuntimeError)


@pytest.mark.parametrize("codec", ["deflate", "snappy", None])
def test_more_than_a_socket_takes_at_once(
    beside: Beside, address: str, consume: Callable[..., Consumer], topic: str, codec: str | None
) -> None:
    options: Any = {codec: True} if codec else {}
    body = bytes(range(256)) * 3900
    with Producer(address, runtime=beside.kind, **options) as producer:
        futures = [producer.publish_nowait(topic, body) for _ in range(20)]
        assert {future.result() for future in futures} == {b"OK"}
    assert take(consume(max_in_flight=20, **options), 20) == [body] * 20


# -- consuming


def test_get(producer: Producer, consume: Callable[..., Consumer], topic: str) -> None:
    consumer = consume()
    assert consumer.get(timeout=0.01) is None
    producer.publish(topic, b"x")
    message = consumer.get(timeout=10)
    assert message is not None
    assert (message.body, message.attempts) == (b"x", 1)
    message.finish()
    consumer.close()
    assert consumer.get() is None
    assert not consumer.is_running


def test_closing_ends_who_iterate(beside: Beside, consume: Callable[..., Consumer]) -> None:
    consumer = consume()
    ended: list[int] = []
    waiting = [beside.run(lambda: ended.append(len(list(consumer)))) for _ in range(3)]
    beside.eventually(lambda: len(consumer._waiters) == 3)
    consumer.close()
    for each in waiting:
        each.join()
    assert ended == [0, 0, 0]


def test_several_iterate(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    """Each message goes to exactly one iterator, and no message is left over."""
    consumer = consume(max_in_flight=50)
    bodies: list[bytes] = []

    def work() -> None:
        for message in consumer:
            bodies.append(message.body)
            message.finish()

    for _ in range(4):
        beside.run(work)
    sent = [b"%d" % number for number in range(2000)]
    producer.publish_all(topic, sent, batch_messages=100)
    beside.eventually(lambda: len(bodies) == 2000)
    assert sorted(bodies) == sorted(sent)


def test_handlers(
    producer: Producer, beside: Beside, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    """At most `concurrency` handlers run at once; their results determine the answer to each
    message."""
    inside: list[Message] = []
    go_on = beside.event()
    failed: list[tuple[bytes, str]] = []

    def handle(message: Message) -> object:
        inside.append(message)
        assert go_on.wait(10)
        if message.attempts > 1:
            return None
        if message.body == b"raises":
            raise KeyError("no")
        if message.body == b"again":
            raise Requeue(0, backoff=False)
        return message.body != b"false"

    consumer = consume(
        message_handler=handle,
        concurrency=4,
        max_in_flight=4,
        requeue_delay=0,
        max_backoff_duration=0,
        on_exception=lambda message, error: failed.append((message.body, str(error))),
    )
    consumer.start()
    producer.multipublish(topic, [b"true", b"false", b"raises", b"again"])
    beside.eventually(lambda: len(inside) == 4)
    go_on.set()
    beside.eventually(lambda: len(inside) == 7)
    assert sorted(each.body for each in inside[4:]) == [b"again", b"false", b"raises"]
    assert failed == [(b"raises", "'no'")]
    beside.eventually(lambda: consumer.total_in_flight == 0)
    consumer.close()
    assert (channel(daemon, topic)["depth"], channel(daemon, topic)["requeue_count"]) == (0, 3)


def test_a_handler_closes(
    producer: Producer, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.body)
        consumer.close()

    consumer = consume(message_handler=handle, max_in_flight=2)
    producer.multipublish(topic, [b"x", b"x"])
    consumer.run()
    assert handled == [b"x"]
    found = channel(daemon, topic)
    assert (found["depth"], found["in_flight_count"], found["message_count"]) == (1, 0, 2)


def test_concurrency_alone_sets_how_many_are_in_flight(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    inside: list[bytes] = []
    go_on = beside.event()

    def handle(message: Message) -> None:
        inside.append(message.body)
        assert go_on.wait(10)

    consumer = consume(message_handler=handle, concurrency=3)
    consumer.start()
    producer.multipublish(topic, [b"x"] * 3)
    beside.eventually(lambda: len(inside) == 3)
    assert consumer.max_in_flight == 3
    go_on.set()
    beside.eventually(lambda: consumer.total_in_flight == 0)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_coroutine_that_a_handler_returns_is_a_failure(
    producer: Producer, beside: Beside, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    """The coroutine would never be awaited, so the message is not finished."""

    async def work(message: Message) -> None: ...

    failed: list[BaseException] = []
    consumer = consume(
        message_handler=lambda message: work(message),
        on_exception=lambda message, error: failed.append(error),
    )
    consumer.start()
    producer.publish(topic, b"x")
    beside.eventually(lambda: channel(daemon, topic)["deferred_count"] == 1)
    assert isinstance(failed[0], TypeError) and "nsqcy.client.aio" in str(failed[0])


@pytest.mark.parametrize("error", [SystemExit("no such flag"), GeneratorExit()])
@pytest.mark.parametrize("hook", ["message_handler", "on_giving_up"])
def test_an_exception_that_is_not_an_error_is_a_failure(
    producer: Producer,
    beside: Beside,
    consume: Callable[..., Consumer],
    topic: str,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    hook: str,
) -> None:
    """sys.exit() in a handler would end its thread silently."""
    calls: list[bytes] = []

    def fail_once(message: Message) -> None:
        calls.append(message.body)
        if len(calls) == 1:
            raise error

    settings = {"message_handler": fail_once, "requeue_delay": 0, "max_backoff_duration": 0}
    if hook == "on_giving_up":
        settings |= GIVES_UP | {"on_giving_up": fail_once}
    consumer = consume(**settings)
    consumer.start()
    producer.publish(topic, b"x")
    beside.eventually(lambda: calls == [b"x", b"x"])
    beside.eventually(lambda: consumer.total_in_flight == 0)
    assert [each.exc_info[1] for each in caplog.records if each.exc_info] == [error]


def hopeless(message: Message) -> bool:
    return False


GIVES_UP = {
    "message_handler": hopeless,
    "max_tries": 1,
    "requeue_delay": 0,
    "max_backoff_duration": 0,
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("how", ["raises", "requeues", "coroutine"])
def test_what_on_giving_up_has_not_done_comes_again(
    producer: Producer,
    beside: Beside,
    daemon: Nsqd,
    consume: Callable[..., Consumer],
    topic: str,
    how: str,
) -> None:
    given_up: list[int] = []
    failed: list[str] = []

    async def coroutine() -> None: ...

    def hook(message: Message) -> Any:
        given_up.append(message.attempts)
        if message.attempts > 2:
            return None
        if how == "raises":
            raise KeyError("no")
        if how == "requeues":
            raise Requeue(0)
        return coroutine()

    consumer = consume(
        **GIVES_UP,
        on_giving_up=hook,
        on_exception=lambda message, error: failed.append(type(error).__name__),
    )
    consumer.start()
    producer.publish(topic, b"x")
    beside.eventually(lambda: given_up == [2, 3])
    beside.await_counts(daemon, topic, depth=0, in_flight_count=0, deferred_count=0)
    assert failed == {"raises": ["KeyError"], "requeues": [], "coroutine": ["TypeError"]}[how]
    assert channel(daemon, topic)["requeue_count"] == 2


def test_on_giving_up_may_wait(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    """While a handler is waiting, heartbeats are answered and other messages are handled."""
    beats, handled, saved = beside.event(), beside.event(), beside.event()

    def handle(message: Message) -> bool:
        if message.body == b"good":
            handled.set()
        return message.body == b"good"

    def hook(message: Message) -> None:
        producer.publish(f"{topic}-dead", message.body)
        producer.publish(topic, b"good")
        assert beats.wait(10) and handled.wait(10)
        saved.set()

    consumer = consume(
        **GIVES_UP | {"message_handler": handle},
        max_in_flight=2,
        heartbeat_interval=1,
        on_heartbeat=lambda connection: beats.set(),
        on_giving_up=hook,
    )
    consumer.start()
    producer.publish(topic, b"bad")
    assert saved.wait(10)
    beside.eventually(lambda: consumer.total_in_flight == 0)


def test_on_giving_up_may_close(
    producer: Producer, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    consumer = consume(
        **GIVES_UP, on_giving_up=lambda message: consumer.close(), close_timeout=3600.0
    )
    producer.publish(topic, b"x")
    consumer.run()
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0)


def test_a_close_waits_for_on_giving_up(
    producer: Producer, beside: Beside, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    """A running hook completes; messages that have not reached the hook are requeued."""
    inside: list[Message] = []
    go_on = beside.event()

    def hook(message: Message) -> None:
        inside.append(message)
        assert go_on.wait(10)

    consumer = consume(**GIVES_UP, on_giving_up=hook, max_in_flight=3)
    consumer.start()
    producer.multipublish(topic, [b"x"] * 3)
    beside.eventually(lambda: inside and channel(daemon, topic)["requeue_count"] == 3)
    beside.eventually(lambda: channel(daemon, topic)["in_flight_count"] == 3)
    closing = beside.run(consumer.close)
    beside.eventually(lambda: channel(daemon, topic)["depth"] == 2)
    assert consumer.is_running
    go_on.set()
    closing.join()
    assert not consumer.is_running
    assert (channel(daemon, topic)["depth"], len(inside)) == (2, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_on_giving_up_that_ends_its_thread(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    given_up: list[tuple[bytes, int]] = []

    def hook(message: Message) -> None:
        given_up.append((message.body, message.attempts))
        if message.attempts == 2:
            raise gevent.GreenletExit

    consumer = consume(**GIVES_UP, on_giving_up=hook, max_in_flight=2)
    consumer.start()
    producer.multipublish(topic, [b"1", b"2"])
    beside.eventually(lambda: len(given_up) == 4)
    assert sorted(given_up) == [(b"1", 2), (b"1", 3), (b"2", 2), (b"2", 3)]


def test_batches(producer: Producer, consume: Callable[..., Consumer], topic: str) -> None:
    """A full batch, and batches that cannot become full because no more messages may arrive."""
    producer.publish_all(topic, [b"%d" % number for number in range(25)])
    consumer = consume(max_in_flight=10)
    sizes = []
    for batch in consumer.batches(20, within=30.0):
        assert len(batch) <= 10
        sizes.append(len(batch))
        finish(batch)
        if sum(sizes) >= 20:
            break
    rest = next(consumer.batches(5, within=30.0))
    assert sum(sizes) + len(rest) == 25
    finish(rest)


def test_starved(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    """A consumer that still holds untaken messages is not starved."""
    producer.multipublish(topic, [b"x"] * 5)
    consumer = consume(max_in_flight=5)
    consumer.start()
    beside.eventually(lambda: consumer.total_in_flight == 5)
    assert not consumer.is_starved
    taken = [consumer.get() for _ in range(5)]
    assert consumer.is_starved
    finish([each for each in taken if each])
    assert not consumer.is_starved


def test_a_close_waits_for_those_that_were_taken(
    producer: Producer, beside: Beside, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    producer.multipublish(topic, [b"x"] * 10)
    consumer = consume(max_in_flight=10)
    taken = [consumer.get(), consumer.get()]
    closing = beside.run(consumer.close)
    beside.eventually(lambda: channel(daemon, topic)["depth"] == 8)
    assert consumer.is_running
    for message in taken:
        assert message is not None
        message.finish()
    closing.join()
    assert not consumer.is_running
    assert consumer.join(0)
    found = channel(daemon, topic)
    assert (found["depth"], found["in_flight_count"], found["clients"]) == (8, 0, [])


def test_a_close_waits_for_handlers_that_have_answered(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    answered, go_on = beside.event(), beside.event()
    done: list[bytes] = []

    def handle(message: Message) -> None:
        message.finish()
        answered.set()
        assert go_on.wait(10)
        done.append(message.body)

    consumer = consume(message_handler=handle)
    consumer.start()
    producer.publish(topic, b"x")
    assert answered.wait(10)
    beside.run(lambda: (consumer.join(), go_on.set()))
    consumer.close()
    assert done == [b"x"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_ends_its_thread(
    producer: Producer, beside: Beside, consume: Callable[..., Consumer], topic: str
) -> None:
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.body)
        message.finish()
        if message.body == b"1":
            raise gevent.GreenletExit

    ready: list[object] = []
    consumer = consume(message_handler=handle, on_ready=ready.append)
    consumer.start()
    producer.publish(topic, b"1")
    producer.publish(topic, b"2")
    beside.eventually(lambda: handled == [b"1", b"2"])
    assert ready == list(consumer.connections.values())


def test_closed_before_it_began(consume: Callable[..., Consumer]) -> None:
    consumer = consume()
    consumer.close()
    consumer.start()
    assert consumer.join(0)
    assert list(consumer) == []


def test_answers_of_other_threads(
    producer: Producer, beside: Beside, daemon: Nsqd, consume: Callable[..., Consumer], topic: str
) -> None:
    """Operating-system threads may answer messages, regardless of the consumer's runtime."""
    producer.multipublish(topic, [b"x"] * 2)
    consumer = consume(max_in_flight=2)
    first, second = consumer.get(), consumer.get()
    assert first and second
    for answer in (first.finish, lambda: second.requeue(0, backoff=False)):
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
    beside.eventually(lambda: channel(daemon, topic)["requeue_count"] == 1)
    assert take(consumer, 1) == [b"x"]
    beside.eventually(lambda: channel(daemon, topic)["in_flight_count"] == 0)


def test_nonsense(address: str) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        Consumer("t", "c", address, concurrency=0)
    with pytest.raises(ValueError, match="runtime"):
        Producer(address, runtime="fibers")  # type: ignore[arg-type]


async def coroutine_function(*about: object) -> None: ...


class Asynchronous:
    async def __call__(self, *about: object) -> None: ...


@pytest.mark.parametrize(
    "function",
    [coroutine_function, partial(coroutine_function, 1), Asynchronous()],
    ids=["function", "partial", "object"],
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Consumer, "message_handler"),
        (Consumer, "on_error"),
        (Consumer, "on_exception"),
        (Consumer, "on_giving_up"),
        (Consumer, "on_heartbeat"),
        (Consumer, "on_ready"),
        (Producer, "on_error"),
        (Producer, "on_retry"),
    ],
)
def test_coroutine_functions_are_refused(kind: Any, name: str, function: Any) -> None:
    """The coroutines of these functions would never be awaited."""
    names = ("t", "c") if kind is Consumer else ()
    with pytest.raises(TypeError, match=f"{name} cannot be a coroutine function.*nsqcy.client.aio"):
        kind(*names, "a", **{name: function})


# -- processes


class Process:
    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_word(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, list[str], str]:
        out, errors = self._process.communicate(timeout=60)
        return self._process.returncode, out.splitlines(), errors

    def destroy(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def run(address: str, topic: str) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def run(program: str, *more: str) -> Process:
        processes.append(Process(program, address, topic, *more))
        return processes[-1]

    yield run
    for each in processes:
        each.destroy()


def test_a_program_that_closes_nothing(
    run: Callable[..., Process], daemon: Nsqd, topic: str
) -> None:
    """When the program exits, its answers and publishes are not lost."""
    assert run("forgotten").end() == (0, [], "")
    daemon.web.await_counts(topic, "c", depth=2, message_count=4)


@pytest.mark.parametrize("program", ["iterates", "publishes", "runs"])
def test_an_interrupt(run: Callable[..., Process], program: str) -> None:
    process = run(program)
    process.await_word("waits")
    process.signal(signal.SIGINT)
    code, _, errors = process.end()
    assert "KeyboardInterrupt" in errors.splitlines()
    assert code == -signal.SIGINT


def test_a_signal_handler_closes_in_the_middle_of_a_message(run: Callable[..., Process]) -> None:
    code, said, errors = run("closed_by_signal").end()
    assert (code, said, errors) == (0, ["finished 1", "ended True"], "")


def test_a_signal_handler_closes_one_that_waits(run: Callable[..., Process]) -> None:
    process = run("closed_while_waiting")
    process.await_word("waits")
    process.signal(signal.SIGTERM)
    assert process.end() == (0, ["ended False"], "")


def test_a_fork(run: Callable[..., Process]) -> None:
    """The child uses none of the parent's clients, and the parent keeps all of them."""
    code, said, errors = run("forked").end()
    assert (code, said, errors) == (0, [f"{FORKED} 0", "OK", "OK", "1 2 3"], "")


def test_a_fork_in_an_event_loop(run: Callable[..., Process]) -> None:
    assert run("forked_aio").end() == (0, [f"{FORKED} 0", "OK", "1"], "")


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [("auto", "GeventRuntime"), ("gevent", "GeventRuntime"), ("threads", "ThreadRuntime")],
)
def test_a_patched_program(run: Callable[..., Process], kind: str, runtime: str) -> None:
    code, said, errors = run("patched", kind).end()
    assert (code, said, errors) == (0, ["OK", "OK", "ended False", runtime], "")


def test_its_import_is_light() -> None:
    code = "import sys, nsqcy.client; print({'asyncio', 'gevent', 'urllib3'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
