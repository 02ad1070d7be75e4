"""The port for copies while no descriptors are left."""

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
from gevent.server import StreamServer

from nsqcy.nsqd.copies.streams import Listener, connect
from nsqcy.nsqd.copies.wire import Greeting
from nsqcy.process.acceptor import MAX_PAUSE, PAUSE
from support.gevent_hub import Lines

GREETING = Greeting("c", "n.0", "n.1", "g")


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
