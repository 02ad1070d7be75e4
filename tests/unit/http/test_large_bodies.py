"""Large bodies that become complete at the same time: each loop iteration handles one body."""

from collections import Counter

import pytest

from nsqcy.http import server
from support.http_core import Web


def test_large_bodies_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LARGE", 100)
    web = Web()
    api, loop = web.server.api, web.loop
    handled, iterations = Counter[int](), [0]
    ready, call = loop.ready, api.call

    def next_iteration() -> object:
        iterations[0] += 1
        return ready()

    def counted(*request: object) -> object:
        handled[iterations[0]] += 1
        return call(*request)

    monkeypatch.setattr(loop, "ready", next_iteration)
    monkeypatch.setattr(api, "call", counted)
    clients = [web.client() for _ in range(12)]
    for client in clients:
        body = b"x\n" * 100
        head = b"POST /mpub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
        client.send(head % len(body) + body)
    web.settle()
    assert [client.output.count(b"200 OK") for client in clients] == [1] * 12
    assert sorted(handled.values()) == [1] * 12
    web.close()
