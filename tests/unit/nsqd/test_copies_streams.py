"""The port for copies: TLS, and running out of descriptors."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from nsqcy.config import loader
from nsqcy.copies.messages import Refuse, Write
from nsqcy.nsqd.copies import settings, streams
from nsqcy.nsqd.copies.copy_files import Data, Piece
from nsqcy.nsqd.copies.streams import MAX_GREETING, Listener, Stream, connect
from nsqcy.nsqd.copies.wire import Decoder, Greeting
from nsqcy.nsqd.options import NSQD, resolve
from nsqcy.process.acceptor import MAX_PAUSE, PAUSE
from nsqcy.testing import certificates
from support.gevent_hub import Lines, wait_until

GREETING = Greeting("c", "n.0", "n.1", "g")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TIMEOUT", 60.0)  # the machine may be busy


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def listener(lines: Lines) -> Iterator[Listener]:
    listener = Listener(("127.0.0.1", 0), None, lambda greeting: "", lambda *_: None, lines)
    yield listener
    listener.close()


def test_accepting_pauses_while_no_descriptors_are_left(
    listener: Listener,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pauses: list[float] = []
    accept = StreamServer.do_read

    def fails(server: Any) -> object:
        if len(pauses) == 3:
            return accept(server)
        pauses.append(server.pause)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(StreamServer, "do_read", fails)
    sock, _ = connect(("127.0.0.1", listener.port), GREETING, None)
    sock.close()
    assert pauses == [PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert lines.all == ["COPIES: accept: Too many open files; pausing"]
    assert capfd.readouterr().err == ""
    assert listener._server.pause == PAUSE


def test_pauses_have_a_limit(listener: Listener) -> None:
    for _ in range(10):
        listener._server._begin_pause("")
    assert listener._server.pause == MAX_PAUSE


def node(folder: Path, signer: certificates.Identity) -> settings.CopiesSettings:
    """Return the settings of a node whose certificate this CA has signed."""
    folder.mkdir()
    files = certificates.make("node", by=signer).save(folder)
    root = certificates.make("ca", authority=True).save(folder).certificate
    words = [
        f"--copies-tls-cert={files.certificate}",
        f"--copies-tls-key={files.key}",
        f"--copies-tls-root-ca-file={root}",
        "--etcd-endpoints=127.0.0.1:2379",
    ]
    return settings.settings(resolve(loader.load(NSQD, words)), {"token": ""}, 0)


@pytest.fixture
def accepted() -> list[Any]:
    """The messages that a listener with TLS has received."""
    return []


@pytest.fixture
def encrypted(tmp_path: Path, accepted: list[Any]) -> Iterator[Listener]:
    def accept(greeting: Greeting, sock: Any, decoder: Decoder) -> None:
        stream = Stream(sock, decoder, accepted.append, accepted.append)
        stream.send(Refuse("leaving"))
        stream.run()

    terms = node(tmp_path / "holder", certificates.make("ca", authority=True))
    listener = Listener(("127.0.0.1", 0), terms.server_tls, lambda greeting: "", accept, Lines())
    yield listener
    listener.close()


def test_streams_are_encrypted(tmp_path: Path, encrypted: Listener, accepted: list[Any]) -> None:
    terms = node(tmp_path / "owner", certificates.make("ca", authority=True))
    sock, decoder = connect(("127.0.0.1", encrypted.port), GREETING, terms.client_tls)
    received: list[Any] = []
    stream = Stream(sock, decoder, received.append, received.append)
    gevent.spawn(stream.run)
    bodies = [bytes([number]) * size for number, size in enumerate((1, 300_000, 1_000_000))]
    for at, body in enumerate(bodies):
        stream.send(Write("t/1.seg", at, Data(body), at))
    wait_until(lambda: len(accepted) == len(bodies) and received)
    assert [bytes(each.data.data) for each in accepted] == bodies
    assert received == [Refuse("leaving")]
    stream.close()
    wait_until(lambda: accepted[-1] == "connection closed")


def test_another_cas_certificate_is_refused(
    tmp_path: Path, encrypted: Listener, accepted: list[Any]
) -> None:
    terms = node(tmp_path / "owner", certificates.make("other", authority=True))
    with pytest.raises(OSError, match=r"UNKNOWN_CA|unknown ca"):
        connect(("127.0.0.1", encrypted.port), GREETING, terms.client_tls)
    assert accepted == []


def test_another_level_is_refused(listener: Listener) -> None:
    text = r"copies stream format version 2 is newer than this nsqcy supports \(1\)"
    with pytest.raises(ConnectionError, match=text):
        connect(("127.0.0.1", listener.port), replace(GREETING, level=2), None)


def test_connections_without_a_greeting_have_a_limit(listener: Listener) -> None:
    address = "127.0.0.1", listener.port
    first, *others = [socket.create_connection(address) for _ in range(MAX_GREETING)]
    wait_until(lambda: len(listener._greeting) == MAX_GREETING)
    connect(address, GREETING, None)[0].close()
    assert first.recv(1) == b""
    wait_until(lambda: len(listener._greeting) == len(others))
    for each in (first, *others):
        each.close()


@pytest.mark.parametrize(
    "error, reason",
    [
        (errno.EIO, "t/1.seg cannot be read: EIO"),
        (errno.ENOENT, "t/1.seg was deleted before it was sent; the copy is compared again"),
    ],
)
def test_a_file_that_cannot_be_sent_ends_the_stream(error: int, reason: str) -> None:
    class Unread(Piece):
        def read(self, done: Callable[[int, bytes], object]) -> None:
            done(error, b"")

    here, there = socket.socketpair()
    ended: list[str] = []
    stream = Stream(here, Decoder(), ended.append, ended.append)
    stream.send(Write("t/1.seg", 0, object.__new__(Unread), -1))
    assert ended == [reason]
    there.close()
