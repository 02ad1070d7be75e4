"""nsqlookupd's connections on a hub: if many have input at the same time, they take turns."""

import socket
from collections import Counter
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from nsqcy.net.input_pool import InputPool
from nsqcy.nsqlookupd.daemon import Connection
from nsqcy.nsqlookupd.protocol import Session, SessionContext
from nsqcy.nsqlookupd.registry import Registry
from nsqcy.process.handoff import Accepted
from nsqcy.util.slices import Turns
from support.gevent_hub import Lines, wait_until


def test_connections_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop polls between the commands of two connections, so others do not wait."""
    iteration, executed = [0], Counter[int]()
    polls = gevent.get_hub().loop.check()
    polls.start(lambda: iteration.__setitem__(0, iteration[0] + 1))
    turn = Session.turn

    def counted(session: Session, now: Any) -> tuple[bytes, bool]:
        executed[iteration[0]] += 1
        return turn(session, now)

    monkeypatch.setattr(Session, "turn", counted)
    lines = Lines()
    daemon: Any = SimpleNamespace(
        context=SessionContext(Registry(1, 1), b"identity", lines),
        options=SimpleNamespace(max_input_bytes=1 << 20),
        log=lines,
        turns=Turns(),
        input=InputPool(1 << 20, 1 << 20),
    )
    pairs = [socket.socketpair() for _ in range(20)]
    connections = []
    for client, server in pairs:
        client.sendall(b"  V1" + b"PING\n" * 200)
        connections.append(Connection(daemon, Accepted(server, "tcp", "1.2.3.4:5", "")))
        connections[-1].start()
    answers = {client: b"" for client, _ in pairs}

    def all_answered() -> bool:
        for client in answers:
            client.setblocking(False)
            try:
                answers[client] += client.recv(65536)
            except BlockingIOError:
                pass
        return all(len(each) == 200 * 6 for each in answers.values())

    wait_until(all_answered)
    polls.stop()
    polls.close()
    gevent.killall(connections)
    for client, _ in pairs:
        client.close()
    assert set(executed.values()) == {1}
