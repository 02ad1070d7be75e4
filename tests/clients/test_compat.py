"""Programs that use pynsq or gnsq behave the same with a different import line."""

import asyncio
import logging
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsqcy import client
from nsqcy.compat import gnsq, pynsq
from nsqcy.compat.gnsq.contrib.batch import BatchHandler
from nsqcy.compat.gnsq.errors import error_of
from support.client_libraries import SHIMS, Consumer, Producer, command_of
from support.fake_nsqd import MockNsqd
from support.nsqd_process import Nsqd, environment

every_shim = pytest.mark.parametrize("library", SHIMS)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("compat"), workers=1).start()
    yield daemon
    daemon.destroy()


def said(library: str, script: str, daemon: Nsqd, topic: str, *more: str) -> str:
    words = [f"127.0.0.1:{daemon.tcp_port}", f"{topic}-{library}", *more]
    if script == "gnsq_parts":
        words.append(f"127.0.0.1:{daemon.http_port}")
    done = subprocess.run(
        [*command_of(library, script), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"-{library}", "")


@pytest.mark.parametrize(
    "script",
    [
        "pynsq_reading",
        "pynsq_writing",
        "pynsq_parts",
        "gnsq_reading",
        "gnsq_writing",
        "gnsq_parts",
    ],
)
def test_both_say_the_same(script: str, daemon: Nsqd, topic: str) -> None:
    library = script.partition("_")[0]
    theirs = said(library, script, daemon, topic)
    assert said(f"{library}-shim", script, daemon, topic) == theirs


@pytest.mark.parametrize("how", ["tornado", "term"])
def test_what_pynsq_does_not_do(how: str, daemon: Nsqd, topic: str) -> None:
    """A message is finished if its handler returns None. A message published before the connection
    is open is sent afterwards."""
    assert said("pynsq-shim", "pynsq_tornado", daemon, topic, how) == "at once\nb'OK'\n"
    daemon.web.await_counts(f"{topic}-pynsq-shim", "c", depth=0, in_flight_count=0)


@every_shim
def test_publishing(
    library: str, daemon: Nsqd, topic: str, publish: Callable[..., Producer]
) -> None:
    conn = daemon.connect().sub(topic, "c", rdy=100)
    producer = publish(library, daemon, topic, batch=5)
    producer.publish([b"%d\0\n" % number for number in range(50)])
    assert producer.finish() == ["OK"] * 10
    assert [message.body for message in conn.take(50)] == [b"%d\0\n" % n for n in range(50)]


@every_shim
def test_consuming(
    library: str, daemon: Nsqd, topic: str, consume: Callable[..., Consumer]
) -> None:
    """Messages are requeued once, then touched, then finished."""
    bodies = [b"%d" % number for number in range(20)]
    daemon.web.mpub(topic, bodies)
    consumer = consume(library, daemon, topic, "c", rdy=20, requeue=0, touches=1)
    messages = consumer.messages(40)
    assert sorted(each.body for each in messages) == sorted(bodies * 2)
    assert sorted(each.attempts for each in messages) == [1] * 20 + [2] * 20
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    consumer.close()


@pytest.mark.parametrize(("raises", "answer"), [(False, "FIN"), (True, "REQ")])
def test_a_coroutine_of_giving_up_is_awaited(raises: bool, answer: str) -> None:
    """A message is finished once the coroutine has returned, not before."""

    async def main(nsqd: MockNsqd) -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        class Reader(pynsq.Reader):
            async def giving_up(self, message: pynsq.Message) -> None:
                inside.set()
                await go_on.wait()
                if raises:
                    raise RuntimeError("on purpose")

        reader = Reader("t", "c", lambda message: True, nsqd_tcp_addresses=[nsqd.address])
        link = await asyncio.to_thread(nsqd.subscriber)
        with link:
            link.deliver(b"m", attempts=6)
        await inside.wait()
        assert link.said("FIN") == []
        go_on.set()
        await asyncio.to_thread(link.wait_for_one_of, "FIN", "REQ")
        assert len(link.said(answer)) == 1
        await reader._consumer.close(graceful=False)

    with MockNsqd() as nsqd:
        asyncio.run(asyncio.wait_for(main(nsqd), 30))


def test_delays_are_those_of_pynsq() -> None:
    async def delays() -> list[int]:
        reader = pynsq.Reader("t", "c", lambda message: True, nsqd_tcp_addresses=["127.0.0.1:1"])
        try:
            return [reader._consumer.core.delay_of(attempts) for attempts in (1, 2, 3)]
        finally:
            await reader._consumer.close(graceful=False)

    assert asyncio.run(delays()) == [90_000, 180_000, 270_000]


async def receive(*about: Any, **more: Any) -> None: ...


class Batches(BatchHandler):
    async def handle_batch(self, messages: list[Any]) -> None: ...


def test_receivers_of_gnsq_cannot_be_coroutine_functions() -> None:
    """The coroutines of these handlers would never be awaited, and the messages would be
    finished."""
    consumer = gnsq.Consumer("t", "c", "127.0.0.1:1")
    for signal in (consumer.on_message, consumer.on_giving_up):
        with pytest.raises(TypeError, match="coroutine function"):
            signal.connect(receive)
    with pytest.raises(TypeError, match="coroutine function"):
        gnsq.Consumer("t", "c", "127.0.0.1:1", message_handler=receive)
    for handler in (
        lambda: BatchHandler(1, receive),
        lambda: BatchHandler(1, print, handle_message=receive),
        lambda: Batches(1),
    ):
        with pytest.raises(TypeError, match=r"handle_.* cannot be a coroutine function"):
            handler()


def test_several_nsqds_of_gnsq_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    consumer = gnsq.Consumer("t", "c", ["127.0.0.1:1", "127.0.0.1:2"])
    assert (consumer.max_in_flight, caplog.records) == (1, [])


def test_errors_of_gnsq_that_say_whether_something_was_published() -> None:
    """Programs publish again after NSQNoConnections."""
    assert type(error_of(client.NoConnection("none"))) is gnsq.errors.NSQNoConnections
    for error in (client.PublishTimeout("late"), client.ConnectionFailed("lost")):
        assert type(error_of(error)) is gnsq.errors.NSQSocketError


class Answerable:
    """A message that records how it was answered."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def has_responded(self) -> bool:
        return bool(self.answers)


@pytest.mark.parametrize("part", ["handle_message", "handle_batch"])
def test_a_batch_of_gnsq_is_requeued_whatever_its_handler_raises(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("finish", "requeue"):
        monkeypatch.setattr(gnsq.Message, name, lambda self, name=name: self.answers.append(name))

    def leave(about: Any) -> Any:
        raise SystemExit

    options: Any = {"handle_batch": print, part: leave}
    batches = BatchHandler(2, **options)
    messages: list[Any] = [Answerable(), Answerable()]
    with pytest.raises(SystemExit):
        batches.run_batch(messages)
    assert [each.answers for each in messages] == [["requeue"], ["requeue"]]
