"""What a worker had in memory is there again after its death: one death in each test."""

import contextlib
import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from crash.trial import fixed_addresses
from nsqcy.base.core import decode_headers
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, UNKNOWN_ID, Conn, Message
from support.nsqd_process import Nsqd

N = 200
CHANNELS = ["c", "d"]

pytestmark = pytest.mark.ours
# For tests in which only one worker takes part, whichever it is. Replacements start slowly.
one_worker = pytest.mark.parametrize("starter", [1], ids=["w1"], indirect=True)


@pytest.fixture(params=[1, 2], ids=["w1", "w2"])
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(request.param, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


@pytest.fixture
def daemon(starter: Starter) -> Nsqd:
    daemon = starter(durability="memory", **fixed_addresses())
    daemon.web.create("t", *CHANNELS)
    return daemon


def serves(daemon: Nsqd, dead: set[int], topics: set[str]) -> bool:
    """Return whether all dead workers are replaced, and all these topics are served."""
    alive = daemon.workers()
    if set(alive) & dead or len(alive) != len(dead):
        return False
    with contextlib.suppress(OSError, http.client.HTTPException):
        return topics <= set(daemon.web.topics())
    return False


def kill(daemon: Nsqd, number: int = signal.SIGKILL) -> None:
    """Kill all workers, and wait until their replacements serve all topics."""
    topics = {topic for topic in daemon.web.topics() if not topic.endswith("#ephemeral")}
    daemon.hang_up()
    pids = daemon.workers()
    for pid in pids:
        os.kill(pid, number)
    eventually(lambda: serves(daemon, set(pids), topics))


def bodies(count: int = N) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def taken(daemon: Nsqd, topic: str, channel: str, count: int) -> list[Message]:
    """Return exactly this number of messages, finished; then the channel is empty."""
    conn = daemon.connect().sub(topic, channel, rdy=2500)
    found = conn.take(count)
    conn.barrier()
    daemon.web.await_counts(topic, channel, depth=0, in_flight_count=0, deferred_count=0)
    return found


def executed(conn: Conn) -> None:
    """Wait until all commands are executed, among deliveries."""
    conn.fin(UNKNOWN_ID)
    while conn.frame().kind != ERROR:
        pass


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_messages_in_every_state(daemon: Nsqd, number: int) -> None:
    daemon.connect().mpub("t", bodies())
    conn = daemon.connect().sub("t", "c", rdy=N)
    held = {message.body: message for message in conn.messages(N)}
    for body in bodies(50):
        conn.fin(held[body])
    for body in bodies(100)[50:]:
        conn.req(held[body])
    again = {message.body: message for message in conn.messages(50)}
    conn.barrier()
    for body in bodies(120)[100:]:
        conn.req(held[body], 600_000)
    conn.barrier()
    kill(daemon, number)
    daemon.web.await_counts("t", "c", deferred_count=20)
    daemon.web.await_counts("t", "d", depth=N)
    found = daemon.connect().sub("t", "c", rdy=N).take(N - 70)
    assert numbers(found) == [*range(50, 100), *range(120, N)]
    for message in found:
        before = again.get(message.body, held[message.body])
        assert (message.id, message.timestamp) == (before.id, before.timestamp)
        assert message.attempts >= before.attempts
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0, deferred_count=20)
    assert numbers(taken(daemon, "t", "d", N)) == [*range(N)]


@one_worker
def test_deferred_messages_come_at_their_time(daemon: Nsqd) -> None:
    due = time.monotonic() + 3
    producer = daemon.connect()
    for body in bodies(20):
        producer.dpub("t", 3000, body)
    kill(daemon)
    conn = daemon.connect().sub("t", "c", rdy=100)
    first = conn.message(20)
    assert time.monotonic() >= due - 0.01
    assert numbers([first, *conn.messages(19)]) == [*range(20)]


@one_worker
def test_large_bodies(daemon: Nsqd) -> None:
    sizes = [1, 100, 65_536, 262_144, 300_000, 1_000_000]
    for size in sizes:
        daemon.connect().pub("t", os.urandom(1) * size)
    kill(daemon)
    assert sorted(len(message.body) for message in taken(daemon, "t", "c", len(sizes))) == sizes


@one_worker
@pytest.mark.parametrize("channel", [None, "c"], ids=["topic", "channel"])
def test_a_pause(daemon: Nsqd, channel: str | None) -> None:
    daemon.connect().mpub("t", bodies())
    daemon.web.await_counts("t", "c", depth=N)
    daemon.web.do("pause", "t", channel)
    daemon.connect().mpub("t", bodies())
    kill(daemon)
    figures = daemon.web.counts("t", channel)
    assert figures["paused"], figures
    assert figures["depth"] == (N if channel is None else 2 * N)
    daemon.web.do("unpause", "t", channel)
    assert Counter(numbers(taken(daemon, "t", "c", 2 * N))) == dict.fromkeys(range(N), 2)


@one_worker
@pytest.mark.parametrize("channel", [None, "c"], ids=["topic", "channel"])
def test_an_emptied_queue(daemon: Nsqd, channel: str | None) -> None:
    if channel is None:
        daemon.web.do("pause", "t")  # its messages are in no channel yet
    daemon.connect().mpub("t", bodies())
    producer = daemon.connect()
    producer.dpub("t", 600_000, b"deferred")
    daemon.web.await_counts("t", channel, depth=N + (channel is None))
    daemon.web.do("empty", "t", channel)
    assert daemon.web.counts("t", channel)["depth"] == 0
    kill(daemon)
    daemon.web.await_counts("t", channel, depth=0)
    assert daemon.web.counts("t", "c")["deferred_count"] == 0
    daemon.web.await_counts("t", "d", depth=0 if channel is None else N)
    if channel is None:
        daemon.web.do("unpause", "t")
    producer = daemon.connect()
    producer.pub("t", b"1000")
    assert numbers(taken(daemon, "t", "c", 1)) == [1000]


@one_worker
def test_a_channel_emptied_with_messages_in_flight(daemon: Nsqd) -> None:
    daemon.connect().mpub("t", bodies())
    conn = daemon.connect().sub("t", "c", rdy=50)
    for message in conn.messages(50)[:10]:
        conn.req(message, 600_000)
    executed(conn)
    daemon.web.do("empty", "t", "c")
    kill(daemon)
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0, deferred_count=0)
    daemon.web.await_counts("t", "d", depth=N)


@one_worker
def test_a_deleted_channel(daemon: Nsqd) -> None:
    daemon.connect().mpub("t", bodies())
    daemon.web.do("delete", "t", "c")
    kill(daemon)
    assert daemon.web.channel("t", "c") is None
    daemon.web.create("t", "c")
    assert daemon.web.counts("t", "c")["depth"] == 0
    assert numbers(taken(daemon, "t", "d", N)) == [*range(N)]


@one_worker
def test_a_deleted_topic(daemon: Nsqd) -> None:
    daemon.connect().mpub("t", bodies())
    daemon.web.do("delete", "t")
    kill(daemon)
    assert daemon.web.topic("t") is None
    daemon.web.create("t", "c")
    assert daemon.web.counts("t", "c")["depth"] == 0


@one_worker
def test_a_topic_without_channels(daemon: Nsqd) -> None:
    daemon.connect().mpub("alone", bodies())
    kill(daemon)
    daemon.web.await_counts("alone", depth=N)
    assert numbers(taken(daemon, "alone", "first", N)) == [*range(N)]


def test_a_topic_created_immediately_before_the_death(daemon: Nsqd) -> None:
    for turn in range(3):
        conn = daemon.connect()
        conn.command("SUB", f"new{turn}", "c")
        conn.expect_ok()
        producer = daemon.connect()
        topics = {f"new{number}" for number in range(turn)} | {"t"}
        pids = daemon.workers()
        producer.mpub(f"new{turn}", bodies(20))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        daemon.hang_up()
        eventually(lambda: serves(daemon, set(pids), topics))  # noqa: B023
        assert numbers(taken(daemon, f"new{turn}", "c", 20)) == [*range(20)]


@one_worker
def test_ephemeral_topics_and_channels_end(daemon: Nsqd) -> None:
    daemon.connect().sub("e#ephemeral", "c")
    daemon.connect().sub("t", "x#ephemeral")
    producer = daemon.connect()
    producer.mpub("e#ephemeral", bodies())
    producer.mpub("t", bodies())
    daemon.web.await_counts("t", "x#ephemeral", depth=N)
    kill(daemon)
    daemon.web.await_counts("t", "c", depth=N)
    assert daemon.web.channel("t", "x#ephemeral") is None
    assert daemon.web.counts("e#ephemeral")["depth"] == 0


def configure(daemon: Nsqd, topic: str, channel: str | None = None, **policy: Any) -> None:
    path, place = "/topic/config", {"topic": topic}
    if channel is not None:
        path, place["channel"] = "/channel/config", channel
    answer = daemon.web.put(path, json.dumps(policy).encode(), **place)
    assert answer.status == 200, answer.body


@one_worker
def test_keys_keep_their_order(daemon: Nsqd) -> None:
    """One message of a key is in flight, one is requeued, one is deferred, and one is finished."""
    configure(daemon, "t", key="json:/k")
    configure(daemon, "t", "c", order="key")
    daemon.connect().mpub("t", [b'{"k":"%d","n":%d}' % (n % 5, n) for n in range(N)])
    conn = daemon.connect().sub("t", "c", rdy=5)
    first = {json.loads(message.body)["n"]: message for message in conn.messages(5)}
    assert sorted(first) == [*range(5)]
    conn.req(first[0])
    conn.req(first[1], 2000)
    conn.fin(first[2])
    executed(conn)
    kill(daemon)
    conn = daemon.connect().sub("t", "c", rdy=2500)
    orders: dict[str, list[int]] = {str(key): [] for key in range(5)}
    for _ in range(N - 1):
        message = conn.message(20)
        found = json.loads(message.body)
        orders[found["k"]].append(found["n"])
        conn.fin(message)
    for key, order in orders.items():
        assert order == [*range(int(key) + (5 if key == "2" else 0), N, 5)]
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0, deferred_count=0)


@one_worker
def test_a_repeated_publish_is_not_kept(daemon: Nsqd) -> None:
    configure(daemon, "t", dedup_window="1h", dedup_id="json:/id")
    published = [b'{"id":%d}' % number for number in range(N)]
    daemon.connect().mpub("t", published)
    for _ in range(2):
        kill(daemon)
        daemon.connect().mpub("t", published)
    assert daemon.web.counts("t", "c")["depth"] == N
    found = taken(daemon, "t", "c", N)
    assert Counter(message.body for message in found) == Counter(published)


@one_worker
def test_a_repeated_publish_is_not_kept_after_its_message_was_finished(daemon: Nsqd) -> None:
    configure(daemon, "t", dedup_window="1h", dedup_id="json:/id")
    published = [b'{"id":%d}' % number for number in range(N)]
    daemon.connect().mpub("t", published)
    assert len(taken(daemon, "t", "c", N)) == N
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    for _ in range(2):
        kill(daemon)
        daemon.connect().mpub("t", published)
        assert daemon.web.counts("t", "c")["depth"] == 0


def text_of(body: bytes) -> bytes:
    size = int.from_bytes(body[:2], "big")
    assert decode_headers(body[2 : 2 + size])["reason"] == "attempts"
    return body[2 + size :]


def test_dead_letters_in_transfer(daemon: Nsqd) -> None:
    """Each is transferred once, at whatever moment the workers die."""
    daemon.web.create("dead", "look")
    configure(daemon, "t", "c", max_attempts=1, dead_letter_topic="dead")
    for turn in range(3):
        daemon.hang_up()
        daemon.connect().mpub("t", bodies())
        conn = daemon.connect().sub("t", "c", rdy=2500)
        for message in conn.messages(N):
            conn.req(message)
        eventually(lambda turn=turn: daemon.web.counts("dead", "look")["depth"] > turn * N)  # type: ignore[misc]
        kill(daemon)
        # A consumer that requeues what it gets again.
        conn = daemon.connect().sub("t", "c", rdy=2500)
        deadline = (turn + 1) * N

        def moved(conn: Conn = conn, deadline: int = deadline) -> bool:
            with contextlib.suppress(Exception):
                conn.req(conn.message(0.05))
            counts = daemon.web.counts("t", "c")
            return daemon.web.counts("dead", "look")["depth"] >= deadline and not counts["depth"]

        eventually(moved)
    conn = daemon.connect()
    assert conn.negotiate(headers=True)["headers"] is True
    conn.sub("dead", "look", rdy=2500)
    found = Counter(text_of(message.body) for message in conn.take(3 * N))
    assert found == Counter(bodies() * 3)
    conn.nothing(0.1)


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_stop_after_the_death(daemon: Nsqd, is_at_once: bool) -> None:
    """The replacement is started to save."""
    producer = daemon.connect()
    producer.mpub("t", bodies())
    producer.dpub("t", 600_000, b"later")
    conn = daemon.connect().sub("t", "c", rdy=20)
    conn.messages(20)
    pids = daemon.workers()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if not is_at_once:
        eventually(lambda: not set(pids) & set(daemon.workers()))
    daemon.stop()
    daemon.restart()
    daemon.web.await_counts("t", "c", deferred_count=1)
    for channel in CHANNELS:
        found = daemon.connect().sub("t", channel, rdy=2500).take(N)
        assert numbers(found) == [*range(N)]


@one_worker
def test_a_limited_address_space(starter: Starter) -> None:
    """Memory dies with its worker, and the log says so; what is on disk stays."""
    daemon = starter(within=("prlimit", f"--as={8 << 30}"), **fixed_addresses())
    daemon.web.create("t", "c")
    daemon.web.create("u", "c")
    configure(daemon, "u", durability="os")
    assert "messages in memory are lost if their worker dies" in daemon.log_text()
    daemon.connect().mpub("t", bodies())
    daemon.connect().mpub("u", bodies())
    kill(daemon)
    assert numbers(taken(daemon, "u", "c", N)) == [*range(N)]
    daemon.connect().mpub("t", bodies())
    assert daemon.web.counts("t", "c")["depth"] >= N


def memory_of(pid: int) -> int:
    """Return the pages of all memfds that a process holds, in bytes."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(each).startswith("/memfd:nsqd-memory"):
                status = each.stat()
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def descriptors(daemon: Nsqd) -> tuple[int, int]:
    """Return the number of descriptors of the master, and of all workers."""

    def count(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    return count(daemon.process.pid), sum(map(count, daemon.workers()))


@pytest.mark.soak
def test_twenty_deaths_leave_nothing_behind(daemon: Nsqd) -> None:
    """Neither descriptors nor memory of the dead accumulate."""
    daemon.connect().mpub("t", [bytes(1000)] * 2000)
    found = []
    for _ in range(20):
        kill(daemon)
        daemon.web.await_counts("t", "d", depth=2000)
        pages = memory_of(daemon.process.pid)
        found.append((*descriptors(daemon), pages, daemon.memory()))
    print("\n".join(map(str, found)))
    # Sockets that are passed between processes come and go: compare the minimum of each half.
    before = [min(figures) for figures in zip(*found[:10], strict=True)]
    after = [min(figures) for figures in zip(*found[10:], strict=True)]
    assert after[0] <= before[0] and after[1] <= before[1], "descriptors"
    assert after[2] <= before[2] + (4 << 20), "pages of memfds"
    assert after[3] <= before[3] * 1.05 + (4 << 20), "resident memory"
