"""The commands and routes of nsqd."""

import contextlib
import itertools
import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loadtest.daemons import Nsqd
from loadtest.many_clients import Loop
from loadtest.turns.rows import Row, Sizes
from nsqcy.base.core import encode_headers
from nsqcy.nsqd.process_messages.topic_verbs import MAX_SEARCHED
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, MESSAGE, Conn, Frame, Hangup, sized

MAX_BODY = 5 << 20
MAX_QUERY = 64 << 10
ONES = (MAX_BODY - 4) // 5  # number of one-byte messages in the largest MPUB
KEYS_AT_ONCE = 10_000  # messages of one request
MAX_RDY = 2500
COLUMNS = "timestamp,id,defer,headers,body"
NO_ID = "0123456789abcdef"  # id that no message has
RECEIVED = 128 << 10  # bytes that a worker receives at once

_numbers = itertools.count(1)


def name() -> str:
    return f"t{next(_numbers)}"


def ones(count: int = ONES) -> bytes:
    """Return the body of an MPUB of one-byte messages, without its length."""
    return struct.pack(">i", count) + b"\0\0\0\1x" * count


def headered(count: int) -> bytes:
    """Return the body of an MPUB of messages with one header each, without its length."""
    header = encode_headers(((b"a", b"b"),))
    message = struct.pack(">H", len(header)) + header + b"x"
    return struct.pack(">i", count) + sized(message) * count


class Clients:
    """Actions on one nsqd."""

    def __init__(self, daemon: Nsqd, timeout: float = 60.0) -> None:
        self.daemon = daemon
        self.web = daemon.web
        self.web.timeout = timeout
        self.timeout = timeout

    def connect(self) -> Conn:
        return self.daemon.connect(timeout=self.timeout)

    def tcp(
        self, data: bytes, answers: int = 1, *, refused: bool = False, **features: object
    ) -> None:
        """Send commands on a new connection, and wait for this many answers or for its end.

        refused: the answer is an error, which ends the connection, perhaps before it is read;
            otherwise no answer may be an error
        """
        with self.connect() as conn:
            if features:
                conn.negotiate(**features)
            received: list[Frame] = []
            with contextlib.suppress(*((Hangup, ConnectionError) if refused else ())):
                conn.send(data)
                while len(received) < answers:
                    received.append(conn.frame())
        errors = [frame for frame in received if frame.kind == ERROR]
        assert refused or not errors, (data[:80], errors[0])

    def http(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        expects: int = 200,
        headers: dict[str, str] | None = None,
        **query: object,
    ) -> None:
        """Make a request that must be answered with this status."""
        answer = self.web.request(method, path, body, headers=headers, **query)
        assert answer.status == expects, (method, path[:80], answer.status, answer.body[:200])


def to_new_topics(clients: Clients) -> Row:
    made: list[str] = []

    def prepare() -> None:
        while made:  # so that each attempt has the same number of topics
            clients.http("POST", "/topic/delete", topic=made.pop())

    def act() -> None:
        made.extend(name() for _ in range(5000))
        clients.tcp(b"".join(b"PUB %b\n" % each.encode() + sized(b"x") for each in made), 5000)

    return Row("PUB", "to 5,000 new topics, pipelined", act, prepare)


def fill(clients: Clients, topic: str, count: int) -> None:
    """Publish one-byte messages."""
    while count > 0:
        clients.tcp(b"MPUB %b\n" % topic.encode() + sized(ones(min(count, ONES))))
        count -= ONES


def defer(clients: Clients, topic: str, count: int) -> None:
    command = b"DPUB %b 3600000\n" % topic.encode() + sized(b"x")
    with clients.connect() as conn:
        for _ in range(0, count, 10_000):
            conn.send(command * 10_000)
            for _ in range(10_000):
                conn.frame()


def publishing(clients: Clients) -> Iterator[Row]:
    body = ones()
    yield Row(
        "MPUB",
        f"{ONES:,} messages of 1 byte",
        lambda: clients.tcp(b"MPUB %b\n" % name().encode() + sized(body)),
    )
    count = (MAX_BODY - 4) // (len(headered(1)) - 4)
    with_headers = headered(count)
    yield Row(
        "MPUB",
        f"{count:,} messages of 1 byte with a header",
        lambda: clients.tcp(b"MPUB %b\n" % name().encode() + sized(with_headers), headers=True),
    )
    yield Row(
        "LOG_PUB",
        f"{ONES:,} messages of 1 byte",
        lambda: clients.tcp(
            b"LOG_PUB %b p 1 0 1\n" % name().encode() + sized(body), topic_log=True
        ),
    )
    command = b"PUB %b\n" % name().encode() + sized(b"x")
    pubs = RECEIVED // len(command)
    yield Row("PUB", f"{pubs:,} pipelined", lambda: clients.tcp(command * pubs, pubs))
    ask = b"LIMITS %b\n" % name().encode()
    asks = RECEIVED // len(ask)
    yield Row("LIMITS", f"{asks:,} pipelined", lambda: clients.tcp(ask * asks, asks, limits=True))
    yield to_new_topics(clients)
    large = sized(bytes(1 << 20))
    yield Row("PUB", "1 MiB", lambda: clients.tcp(b"PUB %b\n" % name().encode() + large))
    delayed = b"DPUB %b 9\n" % name().encode() + sized(b"x")
    dpubs = RECEIVED // len(delayed)
    yield Row("DPUB", f"{dpubs:,} pipelined", lambda: clients.tcp(delayed * dpubs, dpubs))
    yield Row(
        "POST /pub", "1 MiB", lambda: clients.http("POST", "/pub", bytes(1 << 20), topic=name())
    )
    lines = b"x\n" * (MAX_BODY // 2)
    yield Row(
        "POST /mpub",
        f"{MAX_BODY // 2:,} lines of 1 byte",
        lambda: clients.http("POST", "/mpub", lines, topic=name()),
    )
    yield Row(
        "POST /mpub",
        f"{MAX_BODY:,} empty lines",
        lambda: clients.http("POST", "/mpub", b"\n" * MAX_BODY, topic=name()),
    )
    yield Row(
        "POST /mpub",
        f"binary, {ONES:,} messages of 1 byte",
        lambda: clients.http("POST", "/mpub", body, topic=name(), binary="true"),
    )
    yield Row(
        "POST /mpub",
        "lines of 1 byte with a header",
        lambda: clients.http("POST", "/mpub", lines, topic=name(), headers={"X-Nsq-a": "b"}),
    )


def many(count: int, act: Callable[[], object]) -> None:
    """Run an action on several connections at the same time."""

    def once() -> bool:
        act()
        return False

    loops = [Loop(once) for _ in range(count)]
    for each in loops:
        each.join()


def together(clients: Clients) -> Iterator[Row]:
    """Large publishes on several connections that become complete at about the same moment."""
    body, lines = ones(), b"x\n" * (MAX_BODY // 2)
    yield Row(
        "MPUB",
        f"12 connections with {ONES:,} messages each",
        lambda: many(12, lambda: clients.tcp(b"MPUB %b\n" % name().encode() + sized(body))),
    )
    yield Row(
        "POST /mpub",
        f"12 connections with {MAX_BODY // 2:,} lines each",
        lambda: many(12, lambda: clients.http("POST", "/mpub", lines, topic=name())),
    )


def _numbers_of(conn: Conn, count: int) -> list[bytes]:
    """Receive this many messages, and return their ids."""
    ids: list[bytes] = []
    while len(ids) < count:
        kind, data = conn.frame()
        if kind == MESSAGE:
            ids.append(data[10:26])
    return ids


def consuming(clients: Clients) -> Iterator[Row]:
    """Commands of one connection, as many as a worker receives at once."""
    nops = b"NOP\n" * (RECEIVED // 4)
    topic = name()

    def commands(line: bytes, *, of_messages: bool = False) -> None:
        with clients.connect() as conn:
            conn.negotiate(msg_timeout=600_000, dead_letters=True)
            conn.sub(topic, "c")
            conn.rdy(MAX_RDY)
            ids = _numbers_of(conn, MAX_RDY)
            conn.rdy(0)
            conn.send(b"".join(line % each for each in ids))
            conn.send(b"FIN 0123456789abcdef\n")
            while conn.frame().kind != ERROR:
                pass

    fill(clients, topic, 20 * MAX_RDY)
    clients.web.create(topic, "c")
    yield Row("FIN", f"{MAX_RDY:,} pipelined", lambda: commands(b"FIN %b\n"))
    yield Row("REQ", f"{MAX_RDY:,} pipelined", lambda: commands(b"REQ %b 0\n"))
    yield Row("REQ", f"{MAX_RDY:,} pipelined, deferred", lambda: commands(b"REQ %b 900000\n"))
    yield Row(
        "DEAD_LETTER", f"{MAX_RDY:,} pipelined", lambda: commands(b"DEAD_LETTER %b 0 because\n")
    )
    yield Row("TOUCH", f"{MAX_RDY:,} pipelined", lambda: commands(b"TOUCH %b\n"))

    def subscribed(data: bytes) -> None:
        with clients.connect() as conn:
            conn.sub(name(), "c")
            conn.send(data)
            conn.barrier()

    yield Row("NOP", f"{len(nops) // 4:,} pipelined", lambda: subscribed(nops))
    rdys = b"RDY 0\n" * (RECEIVED // 6)
    yield Row("RDY", f"{len(rdys) // 6:,} pipelined", lambda: subscribed(rdys))
    unknown = b"FIN 0123456789abcdef\n" * (RECEIVED // 21)
    yield Row("FIN", "unknown ids", lambda: subscribed(unknown))
    yield Row("SUB", "and 2,500 messages", lambda: commands(b"FIN %b\n"))
    yield Row("CLS", f"with {MAX_RDY:,} messages in flight", lambda: closed(clients, topic))


def closed(clients: Clients, topic: str) -> None:
    with clients.connect() as conn:
        conn.sub(topic, "c")
        conn.rdy(MAX_RDY)
        _numbers_of(conn, MAX_RDY)
        conn.cls()
        while conn.frame().data != b"CLOSE_WAIT":
            pass


def first_commands(clients: Clients) -> Iterator[Row]:
    nested = b"[" * 50_000 + b"]" * 50_000
    for size in (64 << 10, MAX_BODY):
        what = f"{size >> 10:,} KiB"
        fields = {"feature_negotiation": True, "user_agent": "x" * (size - 60)}
        long = json.dumps(fields).encode()
        yield Row(
            "IDENTIFY",
            f"{what}, one string",
            lambda long=long: clients.tcp(b"IDENTIFY\n" + sized(long), refused=True),
        )
        many_fields = b"{" + b",".join(b'"%d":0' % n for n in range(size // 12)) + b"}"
        yield Row(
            "IDENTIFY",
            f"{what}, many fields",
            lambda body=many_fields, refused=size > 64 << 10: clients.tcp(
                b"IDENTIFY\n" + sized(body), refused=refused
            ),
        )
        arrays = b'{"client_id":%b}' % (b"[" + b"0," * (size // 2 - 20) + b"0]")
        yield Row(
            "IDENTIFY",
            f"{what}, a list",
            lambda body=arrays: clients.tcp(b"IDENTIFY\n" + sized(body), refused=True),
        )
        yield Row(
            "AUTH",
            what,
            lambda size=size: clients.tcp(b"AUTH\n" + sized(b"s" * size), refused=True),
        )
    yield Row(
        "IDENTIFY",
        "nested lists",
        lambda: clients.tcp(b"IDENTIFY\n" + sized(b'{"client_id":%b}' % nested), refused=True),
    )


def written(clients: Clients, topic: str, count: int) -> dict[str, int] | None:
    """Return what LOG_META answers once the log contains this many messages."""
    with clients.connect() as conn:
        conn.negotiate(topic_log=True)
        conn.command("LOG_META", topic)
        meta: dict[str, int] = conn.expect_json()
    return meta if meta["next_seq"] > count else None


def log_commands(clients: Clients, sizes: Sizes) -> Iterator[Row]:
    topic = "kept"
    clients.web.put("/topic/config", b'{"retention_time":"1h"}', topic=topic)
    clients.web.create(topic, "c")
    fill(clients, topic, sizes.messages)
    meta = eventually(lambda: written(clients, topic, sizes.messages))
    log_id = str(meta["log_id"])

    def ask(*words: object) -> None:
        clients.tcp(" ".join(map(str, words)).encode() + b"\n", topic_log=True)

    yield Row("LOG_META", f"{sizes.messages:,} messages", lambda: ask("LOG_META", topic))
    yield Row("LOG_EPOCHS", "of no producer", lambda: ask("LOG_EPOCHS", topic, name()))
    yield Row("LOG_SEEK", f"{sizes.messages:,} messages", lambda: ask("LOG_SEEK", topic, log_id, 1))
    yield Row(
        "LOG_FETCH",
        "the largest answer",
        lambda: ask(
            "LOG_FETCH", topic, log_id, meta["first_seq"], meta["next_seq"], 16 << 20, COLUMNS
        ),
    )
    yield Row(
        "LOG_CURSOR",
        "a new name",
        lambda: ask("LOG_CURSOR", topic, log_id, name(), meta["first_seq"]),
    )
    yield Row(
        "GET /topic/log",
        f"{sizes.messages:,} messages",
        lambda: clients.http("GET", "/topic/log", topic=topic),
    )
    yield Row(
        "GET /topic/peek",
        "100 messages of the log",
        lambda: clients.http(
            "GET", "/topic/peek", topic=topic, state="log", count=100, **{"from": "-100"}
        ),
    )
    yield Row(
        "POST /channel/seek",
        f"over {sizes.messages:,} messages",
        lambda: clients.http("POST", "/channel/seek", topic=topic, channel="c", to="earliest"),
    )


def deferred(clients: Clients, sizes: Sizes) -> Iterator[Row]:
    topic, held = "deferred", f"{sizes.messages:,} deferred messages"
    clients.web.create(topic, "c")
    defer(clients, topic, sizes.messages)
    yield Row(
        "GET /channel/deferred",
        held,
        lambda: clients.http("GET", "/channel/deferred", topic=topic, channel="c", limit=1000),
    )
    yield Row(
        "GET /channel/peek",
        held,
        lambda: clients.http(
            "GET", "/channel/peek", topic=topic, channel="c", state="deferred", count=100
        ),
    )
    yield Row(
        "GET /channel/peek",
        "in flight",
        lambda: clients.http(
            "GET", "/channel/peek", topic=topic, channel="c", state="in_flight", count=100
        ),
    )
    yield from of_one_message(clients, sizes, topic)
    yield Row(
        "POST /channel/redrive",
        held,
        lambda: clients.http("POST", "/channel/redrive", topic=topic, channel="c"),
    )
    yield Row(
        "POST /channel/pause",
        held,
        lambda: clients.http("POST", "/channel/pause", topic=topic, channel="c"),
    )
    yield Row(
        "POST /channel/unpause",
        held,
        lambda: clients.http("POST", "/channel/unpause", topic=topic, channel="c"),
    )
    yield Row("GET /stats", held, lambda: clients.http("GET", "/stats", topic=topic, format="json"))
    yield Row("GET /metrics", held, lambda: clients.http("GET", "/metrics"))
    yield Row(
        "POST /channel/create",
        held,
        lambda: clients.http("POST", "/channel/create", topic=topic, channel=name()),
    )


def of_one_message(clients: Clients, sizes: Sizes, topic: str) -> Iterator[Row]:
    """Requests for the last message in a channel, and for a missing one."""
    waiting, id = name(), ""
    clients.web.create(waiting, "c")
    fill(clients, waiting, min(sizes.messages, MAX_SEARCHED))

    def act(path: str, topic: str, id: str, expects: int = 200) -> None:
        clients.http("POST", path, topic=topic, channel="c", id=id, expects=expects)

    def defer_one() -> None:
        nonlocal id
        clients.web.pub(topic, b"x", defer=3_500_000)
        page = clients.web.get("/channel/deferred", topic=topic, channel="c", limit=1).json()
        id = page["deferred"][0]["id"]

    def wait_for_one() -> None:
        nonlocal id
        page = clients.web.get(
            "/channel/peek", topic=waiting, channel="c", state="queued", count=100
        ).json()
        id = page["messages"][-1]["id"]

    deferred = f"{sizes.messages:,} deferred messages"
    queued = f"{min(sizes.messages, MAX_SEARCHED):,} messages"
    yield Row(
        "POST /message/cancel", deferred, lambda: act("/message/cancel", topic, id), defer_one
    )
    yield Row(
        "POST /message/cancel",
        f"{deferred}, none with the id",
        lambda: act("/message/cancel", topic, NO_ID, 404),
    )
    yield Row(
        "POST /message/delete", queued, lambda: act("/message/delete", waiting, id), wait_for_one
    )
    for path in ("/message/delete", "/channel/redrive"):
        yield Row(
            f"POST {path}",
            f"{queued}, none with the id",
            lambda path=path: act(path, waiting, NO_ID, 404),
        )


def keys(clients: Clients, sizes: Sizes) -> Iterator[Row]:
    """Requests for a channel in which each message has a key of its own."""
    topic = name()
    held = f"{sizes.messages:,} keys"
    clients.web.put("/topic/config", b'{"key": "json:"}', topic=topic)
    clients.web.put("/channel/config", b'{"fair": true}', topic=topic, channel="c")
    clients.web.create(topic, "c")
    for first in range(0, sizes.messages, KEYS_AT_ONCE):
        numbers = range(first, min(first + KEYS_AT_ONCE, sizes.messages))
        clients.web.mpub(topic, [b"%d" % number for number in numbers])
    yield Row(
        "GET /channel/keys",
        held,
        lambda: clients.http("GET", "/channel/keys", topic=topic, channel="c"),
    )
    for verb in ("pause", "unpause", "empty"):
        path = f"/channel/key/{verb}"
        yield Row(
            f"POST {path}",
            held,
            lambda path=path: clients.http("POST", path, topic=topic, channel="c", key="7"),
        )


def gone(clients: Clients, sizes: Sizes) -> Iterator[Row]:
    """Requests that free a lot of memory at once."""
    held = f"{sizes.messages:,} messages"

    def row(path: str, what: str, channels: Sequence[str], *, delayed: bool = False) -> Row:
        topic = ""

        def prepare() -> None:
            nonlocal topic
            topic = name()
            clients.web.create(topic, *channels)
            (defer if delayed else fill)(clients, topic, sizes.messages)

        def act() -> None:
            query = {"topic": topic} | ({"channel": "c"} if "/channel/" in path else {})
            clients.http("POST", path, **query)

        return Row(f"POST {path}", what, act, prepare)

    yield row("/channel/delete", held, ["c"])
    yield row("/channel/delete", f"{held}, deferred", ["c"], delayed=True)
    yield row("/channel/empty", f"{held}, deferred", ["c"], delayed=True)
    yield row("/topic/empty", held, [])
    yield row("/topic/empty", f"{held}, delayed", [], delayed=True)
    yield row("/channel/create", f"{held}, delayed", [], delayed=True)
    yield row("/topic/delete", held, ["a", "b", "c"])
    yield row("/topic/delete", f"{held}, deferred", ["a", "b", "c"], delayed=True)
    many = sizes.topics // 10
    topic = ""

    def create() -> None:
        nonlocal topic
        topic = name()
        clients.web.create(topic, *(f"c{number}" for number in range(many)))

    yield Row(
        "POST /topic/delete",
        f"{many:,} channels",
        lambda: clients.http("POST", "/topic/delete", topic=topic),
        create,
    )


def create_topics(clients: Clients, count: int) -> None:
    with clients.connect() as conn:
        for start in range(0, count, 500):
            conn.send(*(b"PUB m%d\n" % n + sized(b"x") for n in range(start, start + 500)))
            for _ in range(500):
                conn.frame()


def many_topics(clients: Clients, sizes: Sizes) -> Iterator[Row]:
    create_topics(clients, sizes.topics)
    many = f"{sizes.topics:,} topics"
    yield Row("GET /stats", many, lambda: clients.http("GET", "/stats"))
    yield Row(
        "GET /stats",
        f"{many}, JSON",
        lambda: clients.http("GET", "/stats", format="json", include_clients="true"),
    )
    for count in (1000, sizes.topics):
        yield Row(
            "GET /stats",
            f"{many}, JSON, the busiest {count:,} and all names",
            lambda count=count: clients.http(
                "GET", "/stats", format="json", busiest=count, names="true"
            ),
        )
    yield Row("GET /metrics", many, lambda: clients.http("GET", "/metrics"))
    yield Row(
        "GET /metrics",
        f"{many}, compressed",
        lambda: clients.http("GET", "/metrics", headers={"Accept-Encoding": "gzip"}),
    )
    for path in ("ping", "ready", "live", "info", "node", "copies", "config/drain"):
        yield Row(f"GET /{path}", many, lambda path=path: clients.http("GET", f"/{path}"))
    for action in ("create", "pause", "unpause", "delete"):
        yield Row(
            f"POST /topic/{action}",
            f"{many}, until nsqd.dat is written",
            lambda action=action: change_topic(clients, action),
            lambda action=action: prepare_topic(clients, action),
        )
    clients.web.create("m1", "c")
    wide = b'{"msg_timeout":"1m"}' + b" " * ((64 << 10) - 20)
    unknown = json.dumps({"x" * 60_000: 1}).encode()
    nested = b'{"msg_timeout":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    for of, query in (("topic", {"topic": "m1"}), ("channel", {"topic": "m1", "channel": "c"})):
        yield Row(
            f"GET /{of}/config",
            many,
            lambda of=of, query=query: clients.http("GET", f"/{of}/config", **query),
        )
        yield Row(
            f"PUT /{of}/config",
            "64 KiB",
            lambda of=of, query=query: clients.http("PUT", f"/{of}/config", wide, **query),
        )
        for what, body in (("an unknown key", unknown), ("nested lists", nested)):
            yield Row(
                f"PUT /{of}/config",
                f"64 KiB, {what}",
                lambda of=of, body=body, query=query: clients.http(
                    "PUT", f"/{of}/config", body, expects=400, **query
                ),
            )
        yield Row(
            f"DELETE /{of}/config",
            many,
            lambda of=of, query=query: clients.http("DELETE", f"/{of}/config", **query),
        )
    yield Row(
        "POST /channel/rate",
        many,
        lambda: clients.http("POST", "/channel/rate", topic="m1", channel="c", rate="10"),
    )
    yield Row(
        "GET /config/:opt", many, lambda: clients.http("GET", "/config/nsqlookupd_tcp_addresses")
    )
    yield Row("POST /config/reload", many, lambda: clients.http("POST", "/config/reload"))
    yield Row("GET /upgrade", many, lambda: clients.http("GET", "/upgrade"))
    yield Row(
        "POST /upgrade",
        "a missing interpreter",
        lambda: clients.http("POST", "/upgrade?to=/python"),
    )
    option = "/config/nsqlookupd_tcp_addresses"
    value = b"[" + b" " * ((1 << 20) - 2) + b"]"
    yield Row("PUT /config/:opt", "1 MiB", lambda: clients.http("PUT", option, value))
    invalid = json.dumps(["127.0.0.1:1"] * 69_000).encode()[:-1]
    for what, body in (("not closed", invalid), ("nested", b"[" * (1 << 20))):
        yield Row(
            "PUT /config/:opt",
            f"1 MiB, {what}",
            lambda body=body: clients.http("PUT", option, body, expects=400),
        )
    off = b"false" + b" " * ((1 << 20) - 5)
    yield Row("PUT /config/drain", "1 MiB", lambda: clients.http("PUT", "/config/drain", off))
    yield Row(
        "PUT /config/drain",
        "1 MiB of zeros",
        lambda: clients.http("PUT", "/config/drain", bytes(1 << 20), expects=400),
    )
    yield from debugging(clients, many)


def prepare_topic(clients: Clients, action: str) -> None:
    """Bring a topic into the state in which the action changes it."""
    match action:
        case "create":
            clients.web.create("changing")
            clients.web.do("delete", "changing")
        case "pause":
            clients.web.create("changing")
            clients.web.do("unpause", "changing")
        case "unpause":
            clients.web.create("changing")
            clients.web.do("pause", "changing")
        case _:
            clients.web.create("changing")


def change_topic(clients: Clients, action: str) -> None:
    file = Path(clients.daemon.data_path) / "nsqd.dat"
    before = file.stat().st_ino
    clients.http("POST", f"/topic/{action}", topic="changing")
    eventually(lambda: file.stat().st_ino != before)


def debugging(clients: Clients, state: str) -> Iterator[Row]:
    for path in ("", "cmdline", "symbol", "goroutine", "heap", "threadcreate", "block"):
        yield Row(
            f"GET /debug/pprof/{path}",
            state,
            lambda path=path: clients.http("GET", f"/debug/pprof/{path}"),
        )
    yield Row(
        "GET /debug/pprof/profile",
        state,
        lambda: clients.http("GET", "/debug/pprof/profile", seconds=1),
    )
    yield Row(
        "POST /debug/pprof/symbol", state, lambda: clients.http("POST", "/debug/pprof/symbol")
    )
    yield Row(
        "PUT /debug/setblockrate",
        state,
        lambda: clients.http("PUT", "/debug/setblockrate", b"rate=1"),
    )
    yield Row("POST /debug/freememory", state, lambda: clients.http("POST", "/debug/freememory"))


def heads(clients: Clients) -> Iterator[Row]:
    """Requests that are parsed before they are routed."""

    def query(text: str) -> str:
        return "/ping?" + text[:MAX_QUERY]

    yield Row(
        "GET /ping",
        "64 KiB of parameters",
        lambda: clients.http("GET", query("&".join(f"{n}" for n in range(20_000)))),
    )
    yield Row("GET /ping", "64 KiB of escapes", lambda: clients.http("GET", query("%41" * 30_000)))
    yield Row(
        "GET /ping",
        "64 KiB of escaped parameters",
        lambda: clients.http("GET", query("%41&" * 20_000)),
    )
    yield Row("GET /ping", "1 MiB target", lambda: clients.http("GET", "/ping?" + "x" * 1_000_000))
    yield Row(
        "GET /ping",
        "1 MiB of headers",
        lambda: raw(
            clients, (b"GET /ping HTTP/1.1\r\nHost: h\r\n" + b"a:b\r\n" * 200_000 + b"\r\n")
        ),
    )
    yield Row(
        "POST /pub",
        "1 MiB of X-Nsq headers",
        lambda: raw(
            clients,
            (
                b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
                + b"X-Nsq-a:b\r\n" * 90_000
                + b"\r\nx"
            ),
            expects=400,
        ),
    )
    chunks = b"1\r\nx\r\n" * (1 << 20)
    yield Row(
        "POST /pub",
        "1 MiB in chunks of 1 byte",
        lambda: raw(
            clients,
            (
                b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                + chunks
                + b"0\r\n\r\n"
            ),
        ),
    )
    pings = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n" * 5000
    yield Row("GET /ping", "5,000 pipelined", lambda: raw(clients, pings))
    paths = b"".join(
        b"GET /%b%d HTTP/1.1\r\nHost: h\r\n\r\n" % (b"a/" * 1000, n) for n in range(100)
    )
    yield Row(
        "GET /ping", "100 pipelined paths of 1,000 segments", lambda: raw(clients, paths, 404)
    )


def raw(clients: Clients, data: bytes, expects: int = 200) -> None:
    """Send bytes to the HTTP port, and read until no more bytes arrive. The first answer must have
    this status."""
    link = clients.web.link()
    link.connect()
    sock = link.sock
    sock.settimeout(20)

    def send() -> bool:
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        return False

    sender = Loop(send)
    begin = b""
    with contextlib.suppress(OSError):
        while received := sock.recv(1 << 20):
            begin = begin or received
    sender.join()
    sock.close()
    assert begin.startswith(b"HTTP/1.1 %d " % expects), (data[:80], begin[:80])
