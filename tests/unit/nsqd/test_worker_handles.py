"""The master's worker handles: the number of connections per worker, used to select a worker."""

import os
import socket
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.nsqd.master import workers as workers_module
from nsqcy.nsqd.master.requests import WorkerRequests
from nsqcy.nsqd.master.workers import WorkerHandle, Workers
from nsqcy.nsqd.process_calls import Call
from nsqcy.nsqd.process_messages.to_worker import AdoptSession
from nsqcy.process.control import Answer, CallTimeout, ChannelClosed, RemoteError, Request
from support.gevent_hub import Lines

CONNECTIONS = 10


class Slots:
    """Every worker had this number of connections at its last heartbeat."""

    def __init__(self) -> None:
        self.beat = 1
        self.workers = 2
        self.far_consumers = [0, 0]

    def view(self, worker: int) -> SimpleNamespace:
        return SimpleNamespace(
            beat=self.beat, connections=CONNECTIONS, far_consumers=self.far_consumers[worker]
        )


class Channel:
    error: Exception | None = None

    def call(self, method: str, timeout: float, **args: Any) -> Answer:
        if self.error is not None:
            raise self.error
        return Answer(None)


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def handles(slots: Any) -> list[WorkerHandle]:
    nothing: Any = SimpleNamespace(resume=None, refused=lambda item: None)
    made = []
    for index in range(2):
        born: Any = SimpleNamespace(
            worker=index, pid=1, control=socket.socketpair()[0], handoff=socket.socketpair()[0]
        )
        handle = WorkerHandle(born, slots, nothing, nothing, lambda _: None)
        handle.channel.close()
        handle.channel = Channel()  # type: ignore[assignment]
        made.append(handle)
        assert handle.load() == CONNECTIONS
    return made


def forward(handles: list[WorkerHandle], method: str) -> None:
    workers = Workers(log=None)  # type: ignore[arg-type]
    for handle in handles:
        workers.add(handle)
    requests = WorkerRequests(workers, None, None)  # type: ignore[arg-type]
    requests.called(0, Request(method, {}, b"", (), to=1))


def test_a_session_that_migrates_is_counted_at_once(
    slots: Slots, handles: list[WorkerHandle]
) -> None:
    forward(handles, AdoptSession.__name__)
    assert [handle.load() for handle in handles] == [CONNECTIONS - 1, CONNECTIONS + 1]
    slots.beat = 2  # this heartbeat's count includes the session
    assert [handle.load() for handle in handles] == [CONNECTIONS] * 2


def test_a_consumer_loads_its_own_worker_and_the_owner_of_its_topic(
    slots: Slots, handles: list[WorkerHandle]
) -> None:
    for workers, load in (2, 4), (3, 6), (4, 8), (16, 8):
        slots.workers = workers
        slots.far_consumers[1] = 4  # a heartbeat need not follow
        assert [handle.load() for handle in handles] == [CONNECTIONS, CONNECTIONS + load]


def test_a_worker_that_refuses_a_socket_is_full_for_a_while(
    handles: list[WorkerHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not handles[0].full()
    handles[0].sender._refused(None)  # type: ignore[arg-type]
    assert [handle.full() for handle in handles] == [True, False]
    now += workers_module.FULL
    assert not handles[0].full()


def test_other_requests_and_refused_sessions_do_not_count(handles: list[WorkerHandle]) -> None:
    forward(handles, "Health")
    handles[1].channel.error = RemoteError("it has no room")  # type: ignore[attr-defined]
    with pytest.raises(RemoteError):
        forward(handles, AdoptSession.__name__)
    assert [handle.load() for handle in handles] == [CONNECTIONS] * 2


@dataclass(frozen=True)
class Question(Call[Any, Any]):
    pass


@dataclass(frozen=True)
class Count(Question):
    timeout = 5.0
    fds: tuple[int, ...] = ()


def ask_ready(handles: list[WorkerHandle], *errors: Exception | None) -> dict[int, Any]:
    workers = Workers(log=Lines())
    for handle, error in zip(handles, errors, strict=True):
        channel: Any = handle.channel
        channel.error = error
        handle.ready = True
        workers.add(handle)
    return workers.ask_ready(Count())


@pytest.mark.parametrize("error", [CallTimeout("it hangs"), ChannelClosed("it is gone")])
def test_a_worker_that_does_not_answer_is_omitted(
    handles: list[WorkerHandle], error: Exception
) -> None:
    assert ask_ready(handles, None, error) == {0: None}


@pytest.mark.parametrize(
    "error", [RemoteError("Too many open files"), RemoteError("gone", unreachable=True)]
)
def test_an_answer_is_never_without_the_share_of_a_worker_that_failed(
    handles: list[WorkerHandle], error: Exception
) -> None:
    with pytest.raises(RemoteError, match=str(error)):
        ask_ready(handles, None, error)


def test_a_call_without_a_descriptor_to_send_is_an_error(handles: list[WorkerHandle]) -> None:
    closed = os.dup(0)
    os.close(closed)
    assert isinstance(handles[0].ask(Count((closed,))), OSError)
