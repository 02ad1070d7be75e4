"""Parts that several integrations share, and the inbox of the kombu transport, without a broker."""

import threading
import time
from typing import Any, cast

import pytest

from nsqcy.client import AlreadyAnswered, Message
from nsqcy.integrations.client_options import sorted_options
from nsqcy.integrations.delays import milliseconds, remaining
from nsqcy.integrations.message_keys import message_keys
from nsqcy.integrations.unanswered import Unanswered


class FakeMessage:
    """Records answers."""

    def __init__(self, timestamp: float = 0.0) -> None:
        self.timestamp = int(timestamp * 1e9)
        self.calls: list[str] = []

    def _answer(self, name: str) -> None:
        if self.has_responded():
            raise AlreadyAnswered("twice")
        self.calls.append(name)

    def finish(self) -> None:
        self._answer("finish")

    def requeue(self, delay: float, *, backoff: bool) -> None:
        self._answer(f"requeue {delay:g} {backoff}")

    def touch(self) -> None:
        self._answer("touch")

    def has_responded(self) -> bool:
        return any(not each.startswith("touch") for each in self.calls)


def fake(timestamp: float = 0.0) -> Any:
    return FakeMessage(timestamp)


def test_options_are_sorted_for_consumers_and_producers() -> None:
    given = {"snappy": True, "retries": 2, "requeue_delay": 5.0}
    consumer, producer = sorted_options(given)
    assert consumer == {"snappy": True, "requeue_delay": 5.0}
    assert producer == {"snappy": True, "retries": 2}
    with pytest.raises(TypeError, match=r"^options has no option 'retrys': did you mean 'retries'"):
        sorted_options({"retrys": 2})
    with pytest.raises(TypeError, match="no option 'max_tries'"):
        sorted_options({"max_tries": 2}, own=("max_tries",))


@pytest.mark.parametrize(
    ("options", "priority", "is_retry", "expected"),
    [
        ({}, None, False, {}),
        ({"key": "a", "dedup_id": 7}, 9, False, {"key": "a", "dedup_id": "7", "priority": 9}),
        ({"key": 7, "dedup_id": "x"}, "5", True, {"key": "7", "priority": 5}),
        ({}, 200, False, {"priority": 9}),
        ({}, -1, False, {}),
        ({}, 0, False, {}),
    ],
)
def test_keys_of_a_message(
    options: dict[str, Any], priority: Any, is_retry: bool, expected: dict[str, Any]
) -> None:
    assert message_keys(options, priority, is_retry=is_retry) == expected


@pytest.mark.parametrize(
    ("options", "priority"), [({"key": True}, 0), ({"dedup_id": []}, 0), ({}, "high")]
)
def test_bad_keys_of_a_message(options: dict[str, Any], priority: Any) -> None:
    with pytest.raises(ValueError, match="must be a"):
        message_keys(options, priority, is_retry=False)


@pytest.mark.parametrize(
    ("delay", "expected"), [(-1, None), (0, None), (0.0001, 1), (1.5, 1500), (9999, 3_600_000)]
)
def test_a_delay_in_milliseconds_has_a_limit(delay: float, expected: int | None) -> None:
    assert milliseconds(delay, 3600) == expected


def test_only_a_delay_over_the_limit_is_compared_with_the_clock() -> None:
    now = time.time()
    assert remaining(fake(now), delay=50, max_defer=60) == 0
    assert remaining(fake(now - 200), delay=100, max_defer=60) == 0
    assert remaining(fake(now - 60), delay=100, max_defer=60) == pytest.approx(40, abs=5)
    assert remaining(fake(now - 60), delay=1000, max_defer=60) == 60


def test_unanswered_messages_are_touched_until_they_are_answered() -> None:
    messages = [fake() for _ in range(4)]
    unanswered = Unanswered(30.0)
    for each in messages:
        unanswered.add(each)
    unanswered.touch_all()
    unanswered.finish(messages[0])
    unanswered.requeue(messages[1], 2.0)
    messages[2].finish()
    unanswered.touch_all()
    unanswered.requeue_all()
    assert [each.calls for each in messages] == [
        ["touch", "finish"],
        ["touch", "requeue 2 False"],
        ["touch", "finish"],
        ["touch", "touch", "requeue 0 False"],
    ]
    unanswered.finish(cast(Message, messages[0]))  # a second answer is ignored


def test_a_thread_touches_until_it_is_closed() -> None:
    touched = threading.Event()
    message = fake()
    message.touch = touched.set
    unanswered = Unanswered(0.03)
    unanswered.add(message)
    unanswered.start_thread()
    assert touched.wait(30)
    unanswered.close()


def test_touching_begins_once_a_thread_can_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    touched = threading.Event()
    message = fake()
    message.touch = touched.set
    unanswered = Unanswered(0.03)
    unanswered.add(message)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        unanswered.start_thread()
    assert "failed to touch messages: can't start new thread" in caplog.text
    unanswered.start_thread()
    assert touched.wait(30)
    unanswered.close()


class Source:
    """A channel of kombu."""

    is_full = False


class Loop:
    """An event loop of kombu."""

    def __init__(self) -> None:
        self.readers: dict[Any, Any] = {}

    def add_reader(self, reader: Any, callback: Any, *arguments: Any) -> None:
        self.readers[reader] = lambda: callback(*arguments)

    def remove(self, reader: Any) -> None:
        del self.readers[reader]


def inbox() -> Any:
    pytest.importorskip("kombu")
    from nsqcy.integrations.kombu.inbox import Inbox

    return Inbox()


def test_the_most_urgent_message_comes_first_unless_its_source_is_full() -> None:
    box, busy, other = inbox(), Source(), Source()
    got: list[str] = []
    for urgency, source, name in [(6, busy, "c"), (0, busy, "a"), (0, busy, "b"), (3, other, "x")]:
        box.put(source, urgency, lambda name=name: got.append(name))
    box.get(0).deliver()
    busy.is_full = True
    box.get(0).deliver()
    assert box.get(0) is None
    assert box.get(0.01) is None
    box.put(busy, -1, lambda: got.append("command"))
    box.get(0).deliver()
    busy.is_full = False
    box.get(0).deliver()
    box.get(0).deliver()
    assert got == ["a", "x", "command", "b", "c"]


def test_waiting_ends_when_a_source_is_no_longer_full() -> None:
    box, source = inbox(), Source()
    source.is_full = True
    box.put(source, 0, lambda: True)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(box.get(30)))
    waiting.start()
    source.is_full = False
    box.wake()
    waiting.join(30)
    assert found[0] is not None


def test_an_event_loop_is_woken_once_for_several_messages() -> None:
    box, source, loop = inbox(), Source(), Loop()
    got: list[int] = []
    box.put(source, 0, lambda: got.append(0))
    box.deliver_from(loop)
    box.put(source, 0, lambda: got.append(1))
    ((reader, ready),) = loop.readers.items()
    ready()
    assert got == [0, 1]
    with pytest.raises(BlockingIOError):
        reader.recv(1)
    box.put(source, 0, lambda: got.append(2))
    ready()
    assert got == [0, 1, 2]
    box.close()
    assert not loop.readers
    box.put(source, 0, lambda: got.append(3))
    assert box.get(0) is not None
