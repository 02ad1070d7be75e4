"""A pump moves bytes between a client and its session, on real socket pairs."""

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.nsqd.worker import pump as module
from nsqcy.nsqd.worker.pump import Pump, Pumped
from nsqcy.testing.http_requests import eventually
from support.gevent_hub import Lines

PIECE = 1000


class Turned:
    """A layer that swaps the case of letters. `!` is its end, and `?` an error."""

    def __init__(self) -> None:
        self.input = b""
        self.output = b""
        self.rests = 0
        self.is_released = False

    def feed(self, data: bytes) -> None:
        self.input += data

    def read(self) -> bytes:
        if self.input[:1] == b"!":
            raise LayerEnd("the end")
        if self.input[:1] == b"?":
            raise LayerError("wrong")
        for end in (b"!", b"?"):
            if end in self.input[:PIECE]:
                return self.cut(self.input.index(end))
        return self.cut(PIECE)

    def cut(self, size: int) -> bytes:
        piece, self.input = self.input[:size], self.input[size:]
        return piece.swapcase()

    def write(self, data: bytes) -> None:
        self.output += data.swapcase()

    def take(self) -> bytes:
        taken, self.output = self.output, b""
        return taken

    def rest(self) -> None:
        self.rests += 1

    def close(self) -> None:
        self.output += b"[bye]"

    def release(self) -> None:
        self.is_released = True


class Pair:
    """A pump with one connection, in a thread, and the sockets of the client and the session."""

    def __init__(self, unsent: bytes = b"") -> None:
        self.client, theirs = socket.socketpair()
        self.session, ours = socket.socketpair()
        self.alive, self.master = os.pipe()
        for each in (self.client, self.session):
            each.settimeout(10)
        self.layer = Turned()
        self.log = Lines()
        pumped = Pumped(theirs.detach(), ours.detach(), self.layer, unsent, "client")
        self.pump = Pump([pumped], self.alive, self.log)
        self.thread = threading.Thread(target=self.pump.run)
        self.thread.start()

    def has_ended(self) -> bool:
        self.thread.join(10)
        return not self.thread.is_alive()

    def close(self) -> None:
        os.close(self.master)
        assert self.has_ended()
        os.close(self.alive)
        self.client.close()
        self.session.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Pair]]:
    made = []

    def create(unsent: bytes = b"") -> Pair:
        made.append(Pair(unsent))
        return made[-1]

    yield create
    for each in made:
        each.close()


def everything(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def test_both_directions(make: Callable[..., Pair]) -> None:
    pair = make(b"first ")
    pair.client.sendall(b"ask")
    assert pair.session.recv(100) == b"ASK"
    pair.session.sendall(b"tell")
    assert pair.client.recv(6, socket.MSG_WAITALL) == b"first "
    assert pair.client.recv(100) == b"TELL"


def test_the_client_ends_its_side(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.client.sendall(b"last")
    pair.client.shutdown(socket.SHUT_WR)
    assert everything(pair.session) == b"LAST"
    pair.session.sendall(b"answer")
    pair.session.close()
    assert everything(pair.client) == b"ANSWER[bye]"
    assert pair.has_ended() and pair.layer.is_released


@pytest.mark.parametrize("end", [b"!", b"?"])
def test_the_layer_ends_or_fails(make: Callable[..., Pair], end: bytes) -> None:
    pair = make()
    pair.client.sendall(b"last" + end + b"more")
    assert everything(pair.session) == b"LAST"
    pair.session.close()
    assert everything(pair.client) == b"[bye]"
    assert pair.has_ended()
    assert len(pair.log.all) == (end == b"?")


def test_the_session_ends(make: Callable[..., Pair]) -> None:
    """Everything that it has sent arrives, although the client still sends."""
    pair = make()
    pair.session.sendall(b"x" * 1000)
    pair.client.sendall(b"unread")
    pair.session.close()
    assert everything(pair.client) == b"X" * 1000 + b"[bye]"
    assert pair.has_ended()


def test_the_session_lingers(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.session.shutdown(socket.SHUT_WR)
    assert everything(pair.client) == b"[bye]"
    pair.client.sendall(b"dropped")
    pair.client.close()
    assert everything(pair.session) == b""
    assert pair.has_ended()


def test_the_client_is_gone(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.session.sendall(b"unread")
    pair.client.sendall(b"last")
    pair.client.close()
    assert everything(pair.session) == b"LAST"
    pair.session.close()
    assert pair.has_ended()


@pytest.mark.parametrize("way", ["client", "session"])
def test_a_side_that_does_not_read_stops_the_other(make: Callable[..., Pair], way: str) -> None:
    pair = make()
    source, drain = (pair.client, pair.session)[:: 1 if way == "client" else -1]
    source.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 1 << 26:
            sent += source.send(b"y" * 65536)
    assert len(pair.layer.input) + len(pair.layer.output) <= module.SIZE
    pair.client.shutdown(socket.SHUT_WR)
    if way == "session":
        pair.session.close()
    received = everything(drain)
    assert received.removesuffix(b"[bye]") == b"Y" * sent


def test_the_master_has_exited(make: Callable[..., Pair]) -> None:
    pair = make()
    os.close(pair.master)
    assert pair.has_ended()
    pair.alive, pair.master = os.pipe()


def test_clients_that_do_not_read_have_a_limit(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.session.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while True:
            pair.session.send(b"y" * 65536)
    pair.session.close()
    pair.pump.end()
    assert pair.has_ended()


def test_idle_layers_release_memory(
    make: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_EVERY", 0.0)
    pair = make()
    eventually(lambda: pair.layer.rests)
