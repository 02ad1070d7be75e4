"""The commands and routes of nsqlookupd."""

import json
from collections.abc import Callable, Iterator

from loadtest.turns.rows import Row, Sizes
from nsqcy.testing import Nsqlookupd
from nsqcy.testing.http_requests import Web
from nsqcy.testing.wire_client import Conn, sized

MAGIC = b"  V1"
AT_ONCE = 500  # commands sent before their answers are read


class Peer:
    """A connected nsqd, as seen by nsqlookupd."""

    def __init__(self, daemon: Nsqlookupd, number: int = 1, timeout: float = 60.0) -> None:
        address = "127.0.0.1", int(daemon.tcp_address.rpartition(":")[2])
        self.conn = Conn(address, magic=MAGIC, timeout=timeout)
        self.send([b"IDENTIFY\n" + sized(identity(number))])

    def send(self, commands: list[bytes]) -> None:
        for start in range(0, len(commands), AT_ONCE):
            some = commands[start : start + AT_ONCE]
            self.conn.send(*some)
            for _ in some:
                self.answer()

    def answer(self) -> bytes:
        """Read an answer, which has no type, unlike nsqd's."""
        data = self.conn.socket.recv(4, 256)  # MSG_WAITALL
        size = int.from_bytes(data, "big")
        return self.conn.socket.recv(size, 256) if size else b""


def identity(number: int, **fields: object) -> bytes:
    known = {"broadcast_address": f"h{number}", "tcp_port": 1, "http_port": number, "version": "1"}
    return json.dumps(known | fields).encode()


def rows(daemon: Nsqlookupd, sizes: Sizes) -> Iterator[Row]:
    web = Web.at(daemon.http_address)
    web.timeout = 60.0
    count = sizes.registrations

    def http(method: str, path: str, **query: object) -> None:
        answer = web.request(method, path, **query)  # type: ignore[arg-type]
        assert answer.status == 200, (method, path, answer.status, answer.body[:200])

    def said(data: bytes) -> None:
        """Send bytes on a new connection, and wait for its end."""
        peer = Peer(daemon)
        peer.conn.send(data)
        peer.conn.half_close()
        while peer.conn.socket.recv(1 << 20):
            pass
        peer.conn.close()

    peer = Peer(daemon)
    peer.send([b"REGISTER t%d\n" % n for n in range(count // 2)])
    peer.send([b"REGISTER wide c%d\n" % n for n in range(count // 2)])
    many = f"{count:,} registrations"
    for path in ("ping", "info", "debug", "metrics", "topics", "nodes", "nodes/lost"):
        yield Row(f"GET /{path}", many, lambda path=path: http("GET", f"/{path}"))
    for path in ("lookup", "channels"):
        yield Row(
            f"GET /{path}",
            f"{count // 2:,} channels",
            lambda path=path: http("GET", f"/{path}", topic="wide"),
        )
    yield Row("POST /topic/create", many, lambda: http("POST", "/topic/create", topic="n"))
    yield Row(
        "POST /channel/create",
        many,
        lambda: http("POST", "/channel/create", topic="wide", channel="n"),
    )
    yield Row(
        "POST /channel/delete",
        many,
        lambda: http("POST", "/channel/delete", topic="wide", channel="c1"),
    )
    yield Row(
        "POST /topic/tombstone",
        many,
        lambda: http("POST", "/topic/tombstone", topic="wide", node="h1:1"),
    )
    yield from debugging(http, many)
    lines = b"".join(b"REGISTER r%d c\n" % n for n in range(4000))
    yield Row("REGISTER", "64 KiB of commands", lambda: said(lines[: 64 << 10]))
    yield Row("PING", "64 KiB of commands", lambda: said(b"PING\n" * 13_000))
    yield Row("AUTH", "4 KiB", lambda: said(b"AUTH " + b"s" * 4000 + b"\n"))
    yield Row(
        "IDENTIFY",
        "1 MiB",
        lambda: said(b"IDENTIFY\n" + sized(identity(2, hostname="h" * 1_000_000))),
    )
    channels = [b"REGISTER wide c%d\n" % n for n in range(count // 2)]
    yield Row(
        "UNREGISTER",
        f"a topic with {count // 2:,} channels",
        lambda: peer.send([b"UNREGISTER wide\n"]),
        lambda: peer.send(channels),
    )
    yield Row(
        "POST /topic/delete",
        f"{count // 2:,} channels",
        lambda: http("POST", "/topic/delete", topic="wide"),
        lambda: peer.send(channels),
    )
    leaving: list[Peer] = []

    def register() -> None:
        leaving.append(Peer(daemon, 3))
        leaving[-1].send([b"REGISTER l%d\n" % n for n in range(count)])

    yield Row(
        "REGISTER",
        f"the end of a connection with {count:,}",
        lambda: leaving[-1].conn.close(),
        register,
    )


def debugging(http: Callable[..., None], state: str) -> Iterator[Row]:
    for path in ("", "/cmdline", "/symbol", "/goroutine", "/heap", "/threadcreate", "/block"):
        yield Row(
            f"GET /debug/pprof{path}", state, lambda path=path: http("GET", f"/debug/pprof{path}")
        )
    yield Row(
        "GET /debug/pprof/profile", state, lambda: http("GET", "/debug/pprof/profile", seconds=1)
    )
    yield Row("POST /debug/pprof/symbol", state, lambda: http("POST", "/debug/pprof/symbol"))
