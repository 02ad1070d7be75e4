"""Clients on sockets that continue in another process: the event loop and the codecs."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent.socket import socket as GeventSocket
from gevent.socket import socketpair

from nsqcy.net.core import DeflateLayer, SnappyLayer
from nsqcy.protocol.core import Session
from nsqcy.server.core import Loop, accept_handover, accept_socket
from support.left import Remains
from support.taken_over import through_json
from support.worker_core import MESSAGE, RESPONSE, Core, Delivery, mpub


class Client:
    """A client on a socket, which may use snappy from its IDENTIFY on."""

    def __init__(self, core: Core, loop: Loop, codec: str) -> None:
        self.socket, server = socketpair()
        self.socket.settimeout(30)
        self.session: Session = accept_socket(loop, server.detach(), "127.0.0.1:1")
        self.layer: SnappyLayer | None = None
        self.decoded = b""
        text = b'{"feature_negotiation":true,"snappy":%s,"deflate":%s}' % (
            b"true" if codec == "snappy" else b"false",
            b"true" if codec == "deflate" else b"false",
        )
        self.send(b"  V2IDENTIFY\n" + struct.pack(">i", len(text)) + text)
        assert self.frame()[1].startswith(b'{"max_rdy_count"')
        if codec == "snappy":
            self.layer = SnappyLayer()
            early, self.decoded = self.decoded, b""
            self.decode(early)
            assert self.frame() == (RESPONSE, b"OK")

    def encode(self, data: bytes) -> bytes:
        if self.layer is None:
            return data
        self.layer.write(data)
        return self.layer.take()

    def send(self, data: bytes) -> None:
        self.socket.sendall(self.encode(data))

    def receive(self, size: int) -> bytes:
        while len(self.decoded) < size:
            data = self.socket.recv(65536)
            assert data, "closed"
            self.decode(data)
        found, self.decoded = self.decoded[:size], self.decoded[size:]
        return found

    def decode(self, data: bytes) -> None:
        if self.layer is None:
            self.decoded += data
            return
        self.layer.feed(data)
        while piece := self.layer.read():
            self.decoded += piece

    def frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">ii", self.receive(8))
        return kind, self.receive(size - 4)


class Process:
    """A worker's core and its event loop."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.number = 0
        path = base / "0"
        path.mkdir()
        self.core = Core(path, memfd=True, now=time.monotonic_ns(), wall=time.time_ns())
        self.loop = self.start()

    def start(self) -> Loop:
        loop = Loop(self.core.manager, gevent.get_hub())
        loop.start()
        return loop

    def replace(self, *clients: Client) -> None:
        old = self.core
        manager = old.manager
        manager.stop_reading()
        while not manager.is_at_rest:
            gevent.sleep(0)
        self.loop.stop()
        packed = []
        for each in clients:
            state, unread, unsent = each.session.pack_whole()
            packed.append((os.dup(each.session.fileno()), through_json(state), unread, unsent))
        old.now, old.wall = time.monotonic_ns(), time.time_ns()
        self.number += 1
        remains = Remains(old, self.base / str(self.number))
        for each in clients:
            each.session.leave()
        old.close()
        self.core = remains.next_core(taken_over=True)
        remains.load(self.core)
        self.loop = self.start()
        self.loop.enter()
        for each, moved in zip(clients, packed, strict=True):
            each.session = accept_handover(self.loop, *moved)
        remains.end(self.core)

    def close(self) -> None:
        self.loop.stop()
        self.core.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_a_client_notices_nothing(process: Process, codec: str) -> None:
    client = Client(process.core, process.loop, codec)
    command = client.encode(mpub("t", [b"%d " % number + os.urandom(9000) for number in range(40)]))
    client.socket.sendall(command[:100_001])
    process.replace(client)
    client.socket.sendall(command[100_001:])
    assert client.frame() == (RESPONSE, b"OK")
    client.send(b"SUB t c\nRDY 100\n")
    assert client.frame() == (RESPONSE, b"OK")
    ids = []
    for number in range(40):
        if number % 10 == 3:
            process.replace(client)
        kind, data = client.frame()
        message = Delivery(data)
        assert (kind, int(message.body.split()[0])) == (MESSAGE, number)
        ids.append(message.id)
    client.send(b"".join(b"FIN %s\n" % each for each in ids) + b"CLS\n")
    assert client.frame() == (RESPONSE, b"CLOSE_WAIT")
    assert process.core.counters("t", "c")["in_flight_count"] == 0
    assert client.session.counters()["snappy"] == (codec == "snappy")
    client.socket.close()


def test_output_that_a_client_does_not_read(process: Process) -> None:
    """The socket is full, and so is what the codec has encoded."""
    client = Client(process.core, process.loop, "snappy")
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    other = Client(process.core, process.loop, "none")
    client.send(b"SUB t c\nRDY 100\n")
    assert client.frame() == (RESPONSE, b"OK")
    other.send(mpub("t", [b"%d " % number + os.urandom(90_000) for number in range(30)]))
    assert other.frame() == (RESPONSE, b"OK")
    for _ in range(3):
        process.replace(client, other)
    assert [int(Delivery(client.frame()[1]).body.split()[0]) for _ in range(30)] == list(range(30))
    client.socket.close()
    other.socket.close()


def test_deflate_stays(process: Process) -> None:
    """Only the session moves; its layer continues without it."""
    client = Client(process.core, process.loop, "deflate")
    while not client.session.deflate:
        gevent.sleep(0)
    assert client.session.needs_pump
    state, _, _ = client.session.pack_whole()
    assert state["transport"] is None and state["deflate"]
    fd, layer, _ = client.session.surrender()
    peer = DeflateLayer()
    peer.write(b"NOP\n")
    layer.feed(peer.take())
    assert layer.read() == b"NOP\n"
    layer.write(b"\0\0\0\6\0\0\0\0OK")
    assert layer.take().endswith(b"\0\0\xff\xff")
    os.close(fd)
    client.socket.close()


def test_only_what_needs_a_pump_is_surrendered(process: Process) -> None:
    client = Client(process.core, process.loop, "snappy")
    assert not client.session.needs_pump
    with pytest.raises(ValueError, match="has been packed"):
        client.session.surrender()
    client.socket.close()


def test_the_socket_of_a_client_that_was_handed_over_is_watched(process: Process) -> None:
    client = Client(process.core, process.loop, "none")
    process.replace(client)
    client.socket.close()
    while not client.session.closed:
        gevent.sleep(0)
    assert isinstance(client.socket, GeventSocket)
