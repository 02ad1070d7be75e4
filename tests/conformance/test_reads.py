"""Reading ranges of a topic's log over an ordinary client connection. NSQ has no such feature."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, keep, one_worker, three_workers
from nsqcy.testing import encoded_connection
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, RESPONSE, Conn
from support.fake_auth_server import AuthServer, grant
from support.log_columns import ALL, Columns, read_columns
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours

SERVER = make("server")
UPGRADES = [(tls, codec) for tls in (False, True) for codec in ("", "snappy", "deflate")]


@pytest.fixture(scope="module")
def kept_daemon(
    workers: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    path = tmp_path_factory.mktemp("kept")
    yield from keep(workers, path, retention_time="1h", **SERVER.save(path).options)


@pytest.fixture
def kept(kept_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon with a certificate that keeps logs, shared by many tests: use unique names."""
    daemon = kept_daemon()
    yield daemon
    daemon.hang_up()


def reader(daemon: Nsqd) -> Conn:
    conn = daemon.connect()
    assert conn.negotiate(topic_log=True)["topic_log"] == 1
    return conn


def meta(conn: Conn, topic: str, *wait: int) -> dict[str, Any]:
    conn.command("LOG_META", topic, *wait)
    return conn.expect_json()


def reach(conn: Conn, topic: str, end: int) -> dict[str, Any]:
    """Wait until the log can be read up to record `end`."""
    found = meta(conn, topic, 10_000, end - 1)
    while found["next_seq"] < end:
        found = meta(conn, topic, 10_000, found["next_seq"])
    return found


def fetch(
    conn: Conn,
    topic: str,
    log_id: str,
    first: int,
    end: int,
    maximum: int = 1 << 23,
    what: str = ALL,
) -> Columns:
    conn.command("LOG_FETCH", topic, log_id, first, end, maximum, what)
    frame = conn.frame()
    assert frame.kind == RESPONSE, frame
    return read_columns(frame.data)


def bodies(
    conn: Conn, topic: str, log_id: str, first: int, end: int, maximum: int = 1 << 23
) -> list[bytes]:
    found: list[bytes] = []
    while first < end:
        part = fetch(conn, topic, log_id, first, end, maximum, "body")
        assert part.body is not None and part.base_seq == first and not part.damaged
        found += part.body
        first = part.end
    return found


def test_everything_that_was_published(kept: Nsqd, topic: str) -> None:
    chance = random.Random(1)
    sent = [chance.randbytes(chance.choice([1, 100, 20_000])) for _ in range(2000)]
    publisher = kept.connect()
    for i in range(0, 2000, 100):
        publisher.mpub(topic, sent[i : i + 100])
    conn = reader(kept)
    facts = reach(conn, topic, 2001)
    assert (facts["first_seq"], facts["next_seq"]) == (1, 2001)
    assert facts["first_time"] <= facts["last_time"]
    for maximum in (1, 300_000, 1 << 23):
        first = 1 if maximum > 1 else 1990
        assert bodies(conn, topic, facts["log_id"], first, 2001, maximum) == sent[first - 1 :]


@three_workers
@pytest.mark.parametrize(("tls", "codec"), UPGRADES)
def test_from_anywhere(tls: bool, codec: str, kept: Nsqd, topic: str) -> None:
    """Reads use TLS and compression, and work for topics of any worker."""
    conn = encoded_connection.connect(kept, tls=tls, codec=codec, fields={"topic_log": True})
    sent = [b"%d" % i * 50 for i in range(30_000)]
    for n in range(4):
        name = f"{topic}{n}"
        for i in range(0, 30_000, 10_000):
            conn.mpub(name, sent[i : i + 10_000])
    for n in range(4):
        name = f"{topic}{n}"
        facts = reach(conn, name, 30_001)
        assert bodies(conn, name, facts["log_id"], 1, 30_001) == sent


def test_a_session_that_moves_goes_on(nsqd: Starter, topic: str) -> None:
    daemon = nsqd(retention_time="1h", move_sessions=True)
    for n in range(6):
        daemon.connect().mpub(f"{topic}{n}", [b"%d" % i for i in range(100)])
    for n in range(6):
        conn = reader(daemon)
        facts = reach(conn, f"{topic}{n}", 101)
        for _ in range(2):
            found = bodies(conn, f"{topic}{n}", facts["log_id"], 1, 101)
            assert found == [b"%d" % i for i in range(100)]
        conn.usable()


def test_headers_are_a_column(kept: Nsqd, topic: str) -> None:
    conn = kept.connect()
    conn.negotiate(topic_log=True, headers=True)
    headers = b"\5trace\0\3abc"
    conn.pub(topic, b"\0\x0b" + headers + b"one")
    conn.pub(topic, b"\0\0two")
    facts = reach(conn, topic, 3)
    found = fetch(conn, topic, facts["log_id"], 1, 3)
    assert (found.headers, found.body) == ([headers, b""], [b"one", b"two"])


def test_a_reader_that_leaves_while_it_waits(kept: Nsqd, topic: str) -> None:
    publisher = kept.connect()
    publisher.pub(topic, b"one")
    with reader(kept) as conn:
        at = reach(conn, topic, 2)["next_seq"]
        conn.command("LOG_META", topic, 60_000, at)
    publisher.pub(topic, b"two")
    assert reach(reader(kept), topic, 3)["next_seq"] == 3


def test_a_topic_that_goes_while_a_reader_waits(kept: Nsqd, topic: str) -> None:
    kept.connect().pub(topic, b"one")
    conn = reader(kept)
    log_id = reach(conn, topic, 2)["log_id"]
    conn.command("LOG_META", topic, 60_000, 2)
    conn.nothing(0.1)
    kept.web.post("/topic/delete", topic=topic)
    assert conn.frame() == (ERROR, b"E_LOG_NO_TOPIC")
    kept.connect().pub(topic, b"again")
    again = reach(conn, topic, 2)["log_id"]
    assert again != log_id
    conn.command("LOG_FETCH", topic, log_id, 1, 2, 100, "body")
    assert conn.frame() == (ERROR, f"E_LOG_ID {again}".encode())


def test_errors_are_not_the_end(kept: Nsqd, topic: str) -> None:
    conn = reader(kept)
    conn.command("LOG_META", topic)
    assert conn.frame() == (ERROR, b"E_LOG_NO_TOPIC")
    kept.connect().pub(topic, b"one")
    log_id = reach(conn, topic, 2)["log_id"]
    for line, error in [
        (f"LOG_FETCH {topic} {log_id} 2 3 100 body", "E_LOG_RANGE 2"),
        (f"LOG_FETCH {topic} {log_id} 1 1 100 body", "E_LOG_RANGE 2"),
        (f"LOG_FETCH {topic} {log_id} 0 2 100 body", "E_LOG_GONE 1"),
        (f"LOG_FETCH {topic} {'0' * 32} 1 2 100 body", f"E_LOG_ID {log_id}"),
        (f"LOG_SEEK {topic} nothing 1", f"E_LOG_ID {log_id}"),
        ("LOG_META other#ephemeral", "E_LOG_NO_TOPIC"),
    ]:
        conn.command(line)
        assert conn.frame() == (ERROR, error.encode()), line
    conn.usable()


@one_worker
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("LOG_META", "E_INVALID LOG_META insufficient number of parameters"),
        ("LOG_META {} 10", "E_INVALID LOG_META insufficient number of parameters"),
        ("LOG_META a$", 'E_BAD_TOPIC LOG_META topic name "a$" is not valid'),
        ("LOG_META {} 60001 1", "E_INVALID LOG_META wait 60001 out of range 0-60000"),
        ("LOG_META {} x 1", "E_INVALID LOG_META could not parse wait x"),
        ("LOG_META {} 1 -1", "E_INVALID LOG_META could not parse sequence number -1"),
        ("LOG_SEEK {} 1", "E_INVALID LOG_SEEK insufficient number of parameters"),
        ("LOG_SEEK {} 1 now", "E_INVALID LOG_SEEK could not parse time now"),
        ("LOG_FETCH {} 1 1 2 3", "E_INVALID LOG_FETCH insufficient number of parameters"),
        ("LOG_FETCH {} 1 1 2 x id", "E_INVALID LOG_FETCH could not parse size x"),
        ("LOG_FETCH {} 1 1 2 3 id,,id", "E_INVALID LOG_FETCH unknown column "),
        ("LOG_FETCH {} 1 1 2 3 key", "E_INVALID LOG_FETCH unknown column key"),
        ("LOG_WHAT {}", "E_INVALID invalid command LOG_WHAT"),
    ],
)
def test_what_makes_no_sense_ends_the_connection(
    line: str, error: str, kept: Nsqd, topic: str
) -> None:
    kept.connect().pub(topic, b"one")
    conn = reader(kept)
    conn.command(line.format(topic))
    conn.expect_error(error)


def test_nobody_else_knows_of_it(kept: Nsqd, topic: str) -> None:
    conn = kept.connect()
    assert "topic_log" not in conn.negotiate()
    conn.command("LOG_META", topic)
    conn.expect_error("E_INVALID invalid command LOG_META")


def test_seek(kept: Nsqd, topic: str) -> None:
    publisher = kept.connect()
    for n in range(3):
        publisher.mpub(topic, [b"%d" % i for i in range(n * 100, n * 100 + 100)])
    conn = reader(kept)
    facts = reach(conn, topic, 301)
    times = fetch(conn, topic, facts["log_id"], 1, 301, what="timestamp").timestamp
    assert times is not None and sorted(times) == list(times)
    for time in {0, *times, times[-1] + 1, 1 << 70}:
        conn.command("LOG_SEEK", topic, facts["log_id"], time)
        expected = next((i for i, each in enumerate(times, 1) if each >= time), 301)
        assert conn.expect_json() == {"seq": expected}


def test_over_a_clean_restart_it_is_the_same_log(nsqd: Starter, topic: str) -> None:
    kept = nsqd(retention_time="1h")
    kept.connect().mpub(topic, [b"%d" % i for i in range(100)])
    log_id = reach(reader(kept), topic, 101)["log_id"]
    kept.restart()
    conn = reader(kept)
    kept.connect().pub(topic, b"100")
    facts = reach(conn, topic, 102)
    assert [each["log_id"] for each in facts["incarnations"]] == [log_id]
    assert bodies(conn, topic, log_id, 1, 102) == [b"%d" % i for i in range(101)]


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_after_a_kill(durability: str, nsqd: Starter, topic: str) -> None:
    """The records that were read still exist, and the log continues, because the workers find it in
    the memory of the dead ones."""
    daemon = nsqd(retention_time="1h", durability=durability)
    daemon.connect().mpub(topic, [b"%d" % i for i in range(100)])
    log_id = reach(reader(daemon), topic, 101)["log_id"]
    eventually((Path(daemon.data) / f"{topic}.topic" / "journal").exists)
    before = daemon.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: daemon.web.get("/ping").body == b"OK" and not set(before) & set(daemon.workers())
    )
    conn = reader(daemon)
    daemon.connect().pub(topic, b"100")
    facts = reach(conn, topic, 102)
    names = [each["log_id"] for each in facts["incarnations"]]
    assert names == [log_id]
    found = []
    for each in facts["incarnations"]:
        found += bodies(conn, topic, each["log_id"], each["first_seq"], each["next_seq"])
    assert found == [b"%d" % i for i in range(101)]


def test_many_readers_do_not_starve_others(kept: Nsqd, topic: str) -> None:
    """Some clients do not read their large responses. Meanwhile, a consumer and a publisher
    continue."""
    body = b"x" * 1000
    publisher = kept.connect()
    for _ in range(20):
        publisher.mpub(topic, [body] * 1000)
    facts = reach(reader(kept), topic, 20_001)
    lazy = [reader(kept) for _ in range(20)]
    for conn in lazy:
        for _ in range(3):
            conn.command("LOG_FETCH", topic, facts["log_id"], 1, 20_001, 1 << 23, ALL)
    results: list[int] = []

    def read_all() -> None:
        results.append(len(bodies(reader(kept), topic, facts["log_id"], 1, 20_001)))

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    consumer = kept.connect().sub(f"{topic}x", "c", rdy=1)
    for n in range(50):
        publisher.pub(f"{topic}x", b"%d" % n)
        message = consumer.message()
        assert message.body == b"%d" % n
        consumer.fin(message)
    for thread in threads:
        thread.join(30)
    assert results == [20_000] * 3
    for conn in lazy:
        for _ in range(3):
            frame = conn.frame()
            assert frame.kind == RESPONSE and read_columns(frame.data).base_seq == 1


# -- with an auth server


@pytest.fixture
def guarded_reader(guarded: Nsqd) -> Iterator[Conn]:
    conn = guarded.connect()
    conn.negotiate(topic_log=True)
    yield conn


@one_worker
def test_authorization_comes_first(guarded_reader: Conn, topic: str) -> None:
    guarded_reader.command("LOG_META", topic)
    guarded_reader.expect_error("E_AUTH_FIRST AUTH required before LOG_META")


@pytest.mark.parametrize(
    ("permissions", "channels", "may"),
    [
        (["subscribe"], [".*"], True),
        (["subscribe", "publish"], [".*"], True),
        (["publish"], [".*"], False),
        (["subscribe"], ["^billing$"], False),
    ],
)
def test_who_may_subscribe_to_any_channel_may_read(
    permissions: list[str],
    channels: list[str],
    may: bool,
    auth_server: AuthServer,
    guarded_reader: Conn,
    topic: str,
) -> None:
    auth_server.says(topic, grant(topic="^t", permissions=permissions, channels=channels))
    guarded_reader.auth(topic)
    guarded_reader.command("LOG_META", topic)
    if may:
        assert guarded_reader.frame() == (ERROR, b"E_LOG_NO_TOPIC")
    else:
        guarded_reader.expect_error(f'E_UNAUTHORIZED AUTH failed for LOG_META on "{topic}" ""')


@one_worker
def test_answers_are_json(kept: Nsqd, topic: str) -> None:
    kept.connect().pub(topic, b"one")
    conn = reader(kept)
    eventually(lambda: meta(conn, topic)["next_seq"] == 2)
    conn.command("LOG_META", topic)
    assert list(json.loads(conn.frame().data)) == [
        "topic",
        "log_id",
        "first_seq",
        "next_seq",
        "first_time",
        "last_time",
        "bytes",
        "durability",
        "retention",
        "incarnations",
        "cursors",
    ]
