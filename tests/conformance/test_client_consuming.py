"""A consumer's connections and messages, with a scripted nsqd."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from nsqcy.client.errors import (
    DecodeError,
    NsqdError,
    Requeue,
)
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face, Kept
from support.fake_nsqd import MockNsqd, Peer

pytestmark = pytest.mark.usefixtures("soon")


def answered(verb: str, text: str) -> Callable[[Peer, str, bytes], bool]:
    """Return a script that answers this command with an error."""

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.split()[0] == verb:
            peer.error(text)
            return True
        return False

    return script


# -- the handshake


@pytest.mark.case("CL-001", "CL-004", "CL-046")
def test_what_it_says_first(face: Face, mock: Callable[..., MockNsqd]) -> None:
    """IDENTIFY contains only configured fields, and the client does not wait for SUB's answer."""
    nsqd = mock(script=lambda peer, line, body: line.startswith("SUB"))
    face.consumer("t", "c", nsqd.address, auth_secret="s3")
    link = nsqd.subscriber()
    link.expect("IDENTIFY", "SUB t c", "RDY 1")
    identity = link.identity
    assert identity["client_id"] and identity["hostname"]
    assert identity["user_agent"].startswith("nsqcy/")
    assert identity["feature_negotiation"] is True
    assert identity["heartbeat_interval"] == 30000
    assert identity["output_buffer_size"] == 16384
    assert identity["output_buffer_timeout"] == 250
    assert "msg_timeout" not in identity


@pytest.mark.case("CL-003")
def test_identify_is_refused(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock(script=answered("IDENTIFY", "E_BAD_BODY IDENTIFY no"))
    errors: list[Any] = []
    face.consumer("t", "c", nsqd.address, on_error=errors.append)
    assert nsqd.link(0).ended.wait(10)
    nsqd.link(1)
    assert isinstance(errors[0], NsqdError) and str(errors[0]) == "E_BAD_BODY IDENTIFY no"
    assert nsqd.link(0).lines == ["IDENTIFY"]


# -- answers


def conversation(
    face: Face, mock: Callable[..., MockNsqd], handler: Any, *attempts: int, **options: Any
) -> list[str]:
    """Deliver messages one after another; return the command that answers each."""
    nsqd = mock()
    face.consumer("t", "c", nsqd.address, message_handler=handler, **options)
    link = nsqd.subscriber()
    for number, each in enumerate(attempts):
        with link:
            link.deliver(b"m", attempts=each)
        eventually(lambda number=number: len(link.said("FIN") + link.said("REQ")) > number)
    return [line.replace(f"{0:016x}", "ID") for line in link.lines[3:]]


@pytest.mark.case("CL-024")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"delay": 0}, "REQ ID 0"),
        ({"delay": 1.5}, "REQ ID 1500"),
        ({"time_ms": 1500}, "REQ ID 1500"),
    ],
)
def test_delays_of_ones_own(
    face: Face, mock: Callable[..., MockNsqd], options: dict[str, Any], line: str
) -> None:
    assert conversation(face, mock, lambda message: message.requeue(**options), 1) == [line]


def fail(message: Any) -> None:
    raise RuntimeError("my handler")


@pytest.mark.case("CL-025")
@pytest.mark.parametrize(
    ("handler", "line"),
    [
        (lambda message: None, "FIN ID"),
        (lambda message: True, "FIN ID"),
        (lambda message: False, "REQ ID 1000"),
        (fail, "REQ ID 1000"),
    ],
    ids=["None", "True", "False", "raises"],
)
def test_ends_of_handlers(
    face: Face, mock: Callable[..., MockNsqd], handler: Any, line: str
) -> None:
    assert conversation(face, mock, handler, 1) == [line]


@pytest.mark.case("CL-026")
def test_a_handler_that_waits(face: Face, mock: Callable[..., MockNsqd]) -> None:
    """While a coroutine is waiting, heartbeats are answered and other messages are handled."""
    if face.name != "aio":
        pytest.skip("coroutines are for asyncio")
    import asyncio

    begun: list[bytes] = []
    gate = face.call(asyncio.Event)

    async def handler(message: Any) -> bool:
        begun.append(message.body)
        await gate.wait()
        return True

    nsqd = mock()
    face.consumer("t", "c", nsqd.address, message_handler=handler, max_in_flight=2)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"1", b"2")
        link.beat()
    link.wait_for("NOP")
    eventually(lambda: begun == [b"1", b"2"])
    assert link.said("FIN") == []
    face.call(gate.set)
    eventually(lambda: len(link.said("FIN")) == 2)


@pytest.mark.case("CL-027")
def test_manual_answers(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd, kept = mock(), Kept()
    face.consumer("t", "c", nsqd.address, message_handler=kept)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"m")
        link.beat()
    link.wait_for("NOP")
    eventually(lambda: kept.messages)
    assert link.said("FIN") == []
    face.call(kept.messages[0].finish)
    with link:
        link.beat()
    link.wait_for("NOP", 2)
    link.expect("IDENTIFY", "SUB t c", "RDY 1", "NOP", f"FIN {0:016x}", "NOP")


def test_one_failing_message_delays_no_other(face: Face, mock: Callable[..., MockNsqd]) -> None:
    """By default, a failure does not change RDY, and failed messages are kept."""

    def handle(message: Any) -> None:
        if message.attempts == 9:
            raise RuntimeError("my handler")

    said = conversation(face, mock, handle, 9, 1)
    assert said == ["REQ ID 256000", "FIN ID"]


# -- failures


def requeue(message: Any) -> None:
    raise Requeue(5, backoff=False)


def requeue_after_failure(message: Any) -> None:
    try:
        fail(message)
    except RuntimeError as error:
        raise Requeue(5, backoff=False) from error


def requeue_in_except(message: Any) -> None:
    try:
        fail(message)
    except RuntimeError:
        raise Requeue(5, backoff=False)  # noqa: B904


def requeue_as_planned(message: Any) -> None:
    try:
        fail(message)
    except RuntimeError:
        raise Requeue(5, backoff=False) from None


@pytest.mark.parametrize(
    ("handler", "logged"),
    [
        (requeue, False),
        (requeue_after_failure, True),
        (requeue_in_except, True),
        (requeue_as_planned, False),
    ],
)
def test_a_requeue_does_not_hide_a_failure(
    face: Face,
    mock: Callable[..., MockNsqd],
    caplog: pytest.LogCaptureFixture,
    handler: Any,
    logged: bool,
) -> None:
    assert conversation(face, mock, handler, 7) == ["REQ ID 5000"]
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert bool(errors) is logged
    for each in errors:
        assert each.getMessage() == f"[t:c] handling message {0:016x} failed (attempt 7)"
        assert each.exc_info and str(each.exc_info[1]) == "my handler"


@pytest.mark.parametrize("answers", ["finish", "requeue", None])
@pytest.mark.parametrize("how", ["a function", "awaited"])
def test_an_error_that_on_exception_answers_is_no_error_in_the_log(
    face: Face,
    mock: Callable[..., MockNsqd],
    caplog: pytest.LogCaptureFixture,
    answers: str | None,
    how: str,
) -> None:
    if how == "awaited" and face.name != "aio":
        pytest.skip("coroutines are for asyncio")
    caplog.set_level("INFO", "nsqcy.client")

    def answer(message: Any, error: BaseException) -> None:
        assert isinstance(error, DecodeError)
        if answers:
            getattr(message, answers)()

    async def answer_later(message: Any, error: BaseException) -> None:
        answer(message, error)

    hook = answer_later if how == "awaited" else answer
    conversation(face, mock, lambda value: None, 1, codec="json", on_exception=hook)
    eventually(lambda: caplog.records)
    (record,) = [each for each in caplog.records if f"{0:016x}" in each.getMessage()]
    if answers is None:
        assert record.levelname == "ERROR" and record.exc_info
        return
    assert record.levelname == "INFO" and not record.exc_info
    assert record.getMessage().startswith(
        f"[t:c] on_exception answered message {0:016x}: cannot decode the body"
    )


def test_an_error_after_the_answer_is_logged(
    face: Face, mock: Callable[..., MockNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    def finish_and_fail(message: Any) -> None:
        message.finish()
        fail(message)

    conversation(face, mock, finish_and_fail, 1, on_exception=lambda message, error: None)
    eventually(lambda: "RuntimeError: my handler" in caplog.text)


# -- batches


def test_batches_with_a_timeout(face: Face, mock: Callable[..., MockNsqd]) -> None:
    """A batch is empty if no message has arrived. Closing the consumer still ends the iteration."""
    nsqd = mock()
    consumer = face.consumer("t", "c", nsqd.address, max_in_flight=3)
    link = nsqd.subscriber()
    pause = timedelta(milliseconds=1)
    batches = face.call(consumer.batches, 3, within=30.0, timeout=pause)
    step = anext if face.name == "aio" else next

    def batch() -> Any:
        return face.call(lambda: step(batches))

    assert batch() == []
    with link:
        link.deliver(b"1", b"2", b"3")
    messages = eventually(batch)
    assert [each.body for each in messages] == [b"1", b"2", b"3"]
    face.call(face.module.finish, messages)
    assert batch() == []
    face.call(consumer.close)
    with pytest.raises(StopAsyncIteration if face.name == "aio" else StopIteration):
        batch()


# -- keeping and losing a connection


@pytest.mark.case("CL-033")
def test_heartbeats_while_all_handlers_are_busy(face: Face, mock: Callable[..., MockNsqd]) -> None:
    import asyncio

    gate: Any = threading.Event() if face.name == "blocking" else face.call(asyncio.Event)

    def wait(message: Any) -> Any:
        return gate.wait(10) if face.name == "blocking" else gate.wait()

    nsqd = mock()
    beats: list[Any] = []
    face.consumer(
        "t", "c", nsqd.address, message_handler=wait, concurrency=1, on_heartbeat=beats.append
    )
    link = nsqd.subscriber()
    with link:
        link.deliver(b"m")
        link.beat()
    link.wait_for("NOP")
    eventually(lambda: beats)
    assert link.said("FIN") == []
    face.call(gate.set)
    eventually(lambda: link.said("FIN"))


# -- the end


@pytest.mark.case("CL-051")
def test_a_close_waits_for_answers(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd, kept = mock(), Kept()
    consumer = face.consumer("t", "c", nsqd.address, message_handler=kept, max_in_flight=3)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"1", b"2", b"3")
    eventually(lambda: len(kept.messages) == 3)
    closing = face.begin(consumer.close)
    link.wait_for("CLS")
    for message in kept.messages:
        assert not closing.done()
        face.call(message.finish)
    closing.result(10)
    assert link.ended.wait(10)
    assert link.lines[3:] == ["CLS", *(f"FIN {number:016x}" for number in range(3))]
    face.call(consumer.close)
    assert len(nsqd.links) == 1


@pytest.mark.case("CL-051")
def test_a_close_returns_what_nobody_has_taken(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock()
    consumer = face.consumer("t", "c", nsqd.address, max_in_flight=3)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"1", b"2", b"3")
    eventually(lambda: consumer.total_in_flight == 3)
    face.call(consumer.close)
    assert link.ended.wait(10)
    assert sorted(link.said("REQ")) == [f"REQ {number:016x} 0" for number in range(3)]


def test_a_hard_close_still_sends_answers(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd, kept = mock(), Kept()
    consumer = face.consumer("t", "c", nsqd.address, message_handler=kept, max_in_flight=2)
    link = nsqd.subscriber()
    with link:
        link.deliver(b"1", b"2")
    eventually(lambda: len(kept.messages) == 2)
    face.call(lambda: kept.messages[0].finish())
    face.call(consumer.close, graceful=False)
    assert link.ended.wait(10)
    assert len(link.said("FIN")) == 1
    assert face.call(consumer.join, 0) and not consumer.is_running
