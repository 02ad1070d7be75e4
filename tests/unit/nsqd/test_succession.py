"""The messages between the two processes of a hand-over: until the last one, anything that fails
leaves the predecessor as the worker."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsqcy import formats
from nsqcy.nsqd.worker import succession
from nsqcy.nsqd.worker.succession import HandingOver, NotHandedOver, Parcel, TakingOver
from nsqcy.process import ancillary


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    made = ancillary.pair()
    yield made
    for each in made:
        each.close()


class Beside:
    """A function that runs in a thread, as a process would."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.result: Any = None
        self._run = run
        self._thread = threading.Thread(target=self._start)
        self._thread.start()

    def _start(self) -> None:
        try:
            self.result = self._run()
        except Exception as error:
            self.result = error

    def end(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.result


def hand_over(sock: socket.socket, parcels: list[Parcel], *, commits: bool = True) -> Beside:
    def run() -> None:
        try:
            handing_over = HandingOver(sock)
            handing_over.send(iter(parcels))
            if commits:
                handing_over.commit()
        finally:
            sock.close()

    return Beside(run)


def test_everything_arrives(ends: tuple[socket.socket, socket.socket]) -> None:
    read, write = os.pipe()
    os.write(write, b"text")
    blob = os.urandom(3_000_000)
    sent = [
        Parcel("a", {"x": 1}, blob),
        Parcel("b", {}, b"", (read, write)),
        Parcel("c", {"y": []}),
    ]
    beside = hand_over(ends[0], sent)
    found = TakingOver(ends[1]).receive()
    assert beside.end() is None
    assert [each[:3] for each in found] == [each[:3] for each in sent]
    assert os.read(found[1].fds[0], 9) == b"text"
    os.fstat(read)  # the sender keeps its own
    ancillary.close_all([read, write, *found[1].fds])


def test_a_hand_over_that_is_not_committed(ends: tuple[socket.socket, socket.socket]) -> None:
    beside = hand_over(ends[0], [Parcel("a", {})], commits=False)
    with pytest.raises(NotHandedOver, match="the worker has not handed over"):
        TakingOver(ends[1]).receive()
    assert beside.end() is None


def test_both_learn_why_the_successor_refuses(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = formats.numbers_in_use() | {"session": 9}
    monkeypatch.setattr(formats, "numbers_in_use", lambda: numbers)
    beside = hand_over(ends[0], [Parcel("a", {}, bytes(200_000))] * 30)
    text = "the worker: session format version 9 is newer"
    with pytest.raises(NotHandedOver, match=text):
        TakingOver(ends[1]).receive()
    ends[1].close()
    error = beside.end()
    assert isinstance(error, NotHandedOver) and text in str(error)


def test_a_successor_that_exits(ends: tuple[socket.socket, socket.socket]) -> None:
    beside = hand_over(ends[0], [Parcel("a", {}, bytes(200_000))] * 30)
    ends[1].close()
    error = beside.end()
    assert isinstance(error, NotHandedOver) and "exited" in str(error)


def test_a_successor_that_hangs(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "SEND_LIMIT", 0.01)
    error = hand_over(ends[0], [Parcel("a", {}, bytes(200_000))] * 30).end()
    assert isinstance(error, NotHandedOver) and "within 0.01 s" in str(error)


def test_an_error_while_packing_commits_nothing(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    def parcels() -> Iterator[Parcel]:
        yield Parcel("a", {})
        raise NotHandedOver("cannot pack")

    def run() -> None:
        try:
            HandingOver(ends[0]).send(parcels())
        finally:
            ends[0].close()

    beside = Beside(run)
    with pytest.raises(NotHandedOver, match="the worker has not handed over"):
        TakingOver(ends[1]).receive()
    assert str(beside.end()) == "cannot pack"
