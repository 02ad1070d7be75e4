"""The data that a data path preserves. Where NSQ's files differ from nsqcy's, the behaviour is
tested."""

import json
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Message
from support.concurrent_cases import lasted
from support.nsqd_process import Nsqd, flags, run

SUFFIX = "#ephemeral"
SLACK = 15.0


def metadata(data: Path) -> Any:
    return json.loads((data / "nsqd.dat").read_bytes())


def listed(data: Path) -> dict[str, set[str]]:
    """Return the topic names in nsqd.dat, with their channels."""
    topics = metadata(data)["topics"] or []
    return {t["name"]: {c["name"] for c in t["channels"] or []} for t in topics}


def segments(data: Path, topic: str = "t") -> list[Path]:
    """Return a topic's segment files, oldest first."""
    return sorted((data / f"{topic}.topic").glob("*.seg"))


def body(number: int, size: int = 100) -> bytes:
    return (b"<body %06d>" % number).ljust(size, b".")


def holding(data: Path, text: bytes) -> Path:
    """Return the only segment that contains these bytes."""
    found = [path for path in segments(data) if text in path.read_bytes()]
    assert len(found) == 1, (text, found)
    return found[0]


def on_disk(data: Path) -> int:
    """Return the number of bodies in the segments."""
    return sum(path.read_bytes().count(b"<body ") for path in segments(data))


def flip(path: Path, text: bytes) -> None:
    """Damage one byte of `text` in a file."""
    content = bytearray(path.read_bytes())
    content[content.index(text) + len(text) // 2] ^= 0x40
    path.write_bytes(content)


def bodies(conn: Conn) -> list[bytes]:
    """Return the bodies of all messages that arrive, sorted; the messages are finished."""
    return sorted(message.body for message in conn.drain(quiet=1.0))


@pytest.mark.case("C310", "C311", "C325", "F14")
def test_metadata_file(nsqd: Starter) -> None:
    daemon = nsqd()
    file = daemon.data / "nsqd.dat"
    version = daemon.web.get("/info").json()["version"]
    assert file.read_bytes() == b'{"topics":null,"version":"%s"}' % version.encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    web = daemon.web
    web.create("t", "c", "c" + SUFFIX)
    web.create("t" + SUFFIX, "c")
    web.create("bare")
    web.do("pause", "t")
    web.do("pause", "t", "c")
    eventually(lambda: set(listed(daemon.data)) == {"t", "bare"})
    topics = {topic["name"]: topic for topic in metadata(daemon.data)["topics"]}
    assert topics["t"] == {
        "name": "t",
        "paused": True,
        "channels": [{"name": "c", "paused": True}],
    }
    assert topics["bare"] == {"name": "bare", "paused": False, "channels": None}

    web.do("delete", "t", "c")
    eventually(lambda: listed(daemon.data) == {"t": set(), "bare": set()})
    web.do("delete", "t")
    eventually(lambda: listed(daemon.data) == {"bare": set()})
    daemon.restart(killed=True)
    assert set(daemon.web.topics()) == {"bare"}


@pytest.mark.case("C325")
def test_a_deleted_topic_leaves_no_files(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=0)
    daemon.web.create("t", "c")
    daemon.connect().mpub("t", [body(number) for number in range(100)])
    eventually(lambda: segments(daemon.data))
    daemon.web.do("delete", "t")
    eventually(lambda: not list(daemon.data.glob("t.*")))
    daemon.stop()
    assert {path.name for path in daemon.data.iterdir() if path.is_file()} == {"nsqd.dat"}
    assert not list(daemon.data.glob("t.*"))


@pytest.mark.case("C304", "C312", "C331")
@pytest.mark.ours
def test_a_clean_restart_keeps_state(nsqd: Starter) -> None:
    daemon = nsqd()
    web = daemon.web
    producer = daemon.connect()
    web.create("paused", "c")
    web.do("pause", "paused")
    producer.pub("paused", b"kept")
    web.create("gone" + SUFFIX, "c" + SUFFIX)
    web.create("mixed" + SUFFIX, "durable")
    producer.pub("mixed" + SUFFIX, b"lost")
    web.create("plain", "c" + SUFFIX, "c")
    assert set(listed(daemon.data)) <= {"paused", "plain"}

    daemon.restart()
    web = daemon.web
    assert set(web.topics()) == {"paused", "plain"}
    web.await_counts("paused", depth=1, paused=True)
    web.await_counts("paused", "c", depth=0, paused=False)
    assert web.channel("plain", "c") is not None
    assert web.channel("plain", "c" + SUFFIX) is None
    assert not [path for path in daemon.data.rglob("*") if SUFFIX in path.name]
    web.create("mixed" + SUFFIX, "durable")
    web.await_counts("mixed" + SUFFIX, "durable", depth=0)


@pytest.mark.case("C313", "C314")
@pytest.mark.ours
def test_queued_in_flight_and_deferred_over_a_clean_restart(nsqd: Starter) -> None:
    daemon = nsqd()
    producer = daemon.connect()
    conn = daemon.connect().sub("t", "c", rdy=1)
    producer.pub("t", b"in flight")
    conn.req(conn.message())
    held = conn.message()
    assert held.attempts == 2
    start = conn.clock()
    producer.dpub("t", 8000, b"deferred")
    producer.dpub("t", 600000, b"much later")
    producer.pub("t", b"queued")
    daemon.web.await_counts("t", "c", depth=1, in_flight_count=1, deferred_count=2)

    daemon.restart()
    daemon.web.await_counts("t", "c", depth=2, in_flight_count=0, deferred_count=2)
    conn = daemon.connect().sub("t", "c", rdy=10)
    found = {message.body: message for message in conn.messages(2)}
    assert found[b"in flight"] == Message(held.timestamp, 3, held.id, held.body)
    assert found[b"queued"].attempts == 1
    deferred = conn.message(timeout=20)
    assert (deferred.body, deferred.attempts) == (b"deferred", 1)
    lasted(start, 8.0, SLACK)
    conn.nothing()
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=3, deferred_count=1)


@pytest.mark.case("C315")
def test_order_through_the_disk(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=0)
    daemon.connect().pub("t", *[body(number) for number in range(50)])
    conn = daemon.connect().sub("t", "c", rdy=10)
    assert [message.body for message in conn.take(50)] == [body(number) for number in range(50)]
    assert daemon.connect().sub("t", "other", rdy=1).nothing() is None


@pytest.mark.case("C317", "C318", "C324")
@pytest.mark.ours
def test_segments_roll_and_go(nsqd: Starter) -> None:
    size = 1 << 20
    daemon = nsqd(mem_queue_size=0, max_bytes_per_file=size)
    daemon.web.create("t", "c")
    producer = daemon.connect()
    for number in range(0, 60, 10):
        producer.mpub("t", [body(n, 100_000) for n in range(number, number + 10)])
    daemon.stop()
    files = segments(daemon.data)
    assert len(files) >= 5
    assert all(path.stat().st_size <= size + (512 << 10) for path in files)

    daemon.start()
    daemon.web.await_counts("t", "c", depth=60)
    conn = daemon.connect().sub("t", "c", rdy=5)
    assert [message.body for message in conn.take(30)] == [body(n, 100_000) for n in range(30)]
    daemon.web.do("empty", "t", "c")
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    eventually(lambda: len(segments(daemon.data)) <= 1)
    conn.close()
    daemon.connect().pub("t", b"after")
    daemon.restart()
    conn = daemon.connect().sub("t", "c", rdy=5)
    assert bodies(conn) == [b"after"]


@pytest.mark.case("C319", "C335")
def test_kill_loses_nothing_that_was_written(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=0, sync_every=1, sync_timeout="100ms")
    daemon.web.create("t", "c")
    producer = daemon.connect()
    written = [body(number) for number in range(200)]
    producer.mpub("t", written)
    eventually(lambda: on_disk(daemon.data) >= 200)
    conn = daemon.connect().sub("t", "c", rdy=3)
    conn.messages(3)
    later = [body(number) for number in range(200, 300)]
    producer.mpub("t", later)

    daemon.restart(killed=True)
    conn = daemon.connect().sub("t", "c", rdy=100)
    found = set(bodies(conn))
    assert set(written) <= found <= set(written + later)
    daemon.connect().pub("t", b"new")
    assert conn.message().body == b"new"
    daemon.web.await_counts("t", "c", depth=0)


def stored(nsqd: Starter, count: int = 80) -> Nsqd:
    """Return a stopped daemon whose data path holds `count` 30 kB messages in several segments."""
    daemon = nsqd(mem_queue_size=0, max_bytes_per_file=300_000)
    daemon.web.create("t", "c")
    producer = daemon.connect()
    for number in range(0, count, 10):
        producer.mpub("t", [body(n, 30_000) for n in range(number, number + 10)])
    daemon.stop()
    assert len(segments(daemon.data)) >= 3
    return daemon


def consumed(daemon: Nsqd) -> list[int]:
    """Start the daemon and consume everything; return the numbers of the bodies."""
    daemon.start()
    conn = daemon.connect().sub("t", "c", rdy=10)
    found = bodies(conn)
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    numbers = [int(text[6:12]) for text in found]
    assert found == [body(number, 30_000) for number in numbers]
    producer = daemon.connect()
    producer.pub("t", b"new")
    assert [message.body for message in conn.take(1)] == [b"new"]
    conn.barrier()
    return numbers


@one_worker
@pytest.mark.case("C320")
@pytest.mark.ours
def test_a_damaged_record_costs_that_record(nsqd: Starter) -> None:
    daemon = stored(nsqd)
    for number in (0, 33, 34, 79):
        flip(holding(daemon.data, body(number, 30_000)), body(number, 30_000))
    before = {path.name for path in segments(daemon.data)}
    assert consumed(daemon) == [n for n in range(80) if n not in (0, 33, 34, 79)]
    assert before and ".seg" in daemon.log_text()
    daemon.restart()
    daemon.web.await_counts("t", "c", depth=0)


@one_worker
@pytest.mark.case("C321")
@pytest.mark.ours
def test_a_missing_segment_costs_that_segment(nsqd: Starter) -> None:
    daemon = stored(nsqd)
    lost = holding(daemon.data, body(40))
    gone = {n for n in range(80) if body(n) in lost.read_bytes()}
    assert 0 < len(gone) < 80
    lost.unlink()
    assert consumed(daemon) == [n for n in range(80) if n not in gone]


@one_worker
@pytest.mark.case("C322")
@pytest.mark.ours
def test_a_torn_end_costs_the_torn_record(nsqd: Starter) -> None:
    daemon = stored(nsqd)
    last = holding(daemon.data, body(79))
    content = last.read_bytes()
    last.write_bytes(content[: content.index(body(79)) + 1000])
    assert consumed(daemon) == list(range(79))


@one_worker
@pytest.mark.case("C323")
@pytest.mark.ours
def test_a_smaller_limit_keeps_larger_messages(nsqd: Starter) -> None:
    daemon = stored(nsqd, 40)
    daemon.options["max_msg_size"] = 1000
    assert consumed(daemon) == list(range(40))


@pytest.mark.case("F8")
@pytest.mark.ours
def test_missing_metadata_overwrites_nothing(nsqd: Starter) -> None:
    daemon = stored(nsqd, 40)
    (daemon.data / "nsqd.dat").unlink()
    assert consumed(daemon) == list(range(40))


@pytest.mark.case("C332", "F6")
def test_a_drained_queue_rolls(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=0, max_bytes_per_file=20_000)
    conn = daemon.connect().sub("t", "c")
    producer = daemon.connect()
    number = 0
    for backlog in (0, 1, 2, 0, 1, 2):
        expected: list[bytes] = []
        for _ in range(40):
            producer.pub("t", body(number, 2000))
            expected.append(body(number, 2000))
            number += 1
            if len(expected) > backlog:
                conn.rdy(1)
                message = conn.message()
                assert message.body == expected.pop(0)
                conn.rdy(0)
                conn.fin(message)
                conn.barrier()
        conn.rdy(1)
        assert [message.body for message in conn.take(len(expected))] == expected
        conn.rdy(0)
        conn.barrier()
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0, message_count=number)
    assert not [path for path in daemon.data.rglob("*") if "bad" in path.suffix]


@one_worker
@pytest.mark.case("C326", "CFG-34")
def test_a_second_daemon_on_the_data_path(nsqd: Starter) -> None:
    first = nsqd()
    start = time.monotonic()
    result = run(*flags(first.options))
    assert result.returncode == 1
    assert f"failed to lock data-path: cannot flock directory {first.data}" in result.stderr
    assert "possibly in use by another instance of nsqd)" in result.stderr
    assert time.monotonic() - start < 5.0
    first.connect().usable()


@one_worker
@pytest.mark.case("C328")
@pytest.mark.parametrize("content", [b"", b"{", b'{"topics":5}', b"\xff"])
def test_malformed_metadata(nsqd: Starter, content: bytes) -> None:
    daemon = nsqd.prepare()
    file = daemon.data / "nsqd.dat"
    file.write_bytes(content)
    result = run(*flags(daemon.options))
    assert result.returncode == 1
    assert "failed to parse metadata" in result.stderr
    assert file.read_bytes() == content


@one_worker
@pytest.mark.case("C329")
def test_invalid_names_in_metadata_are_skipped(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    topics = [
        {"name": "bad$", "paused": False, "channels": None},
        {
            "name": "good",
            "paused": True,
            "channels": [{"name": "c", "paused": True}, {"name": "c:d", "paused": False}],
        },
        {"name": "n" * 65, "paused": False, "channels": []},
        {"name": "second", "paused": False, "channels": []},
    ]
    (daemon.data / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
    daemon.start()
    found = daemon.web.topics()
    assert set(found) == {"good", "second"}
    assert found["good"]["paused"] and not found["second"]["paused"]
    assert [(c["channel_name"], c["paused"]) for c in found["good"]["channels"]] == [("c", True)]
    assert "skipping creation of invalid topic bad$" in daemon.log_text()


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


@one_worker
@pytest.mark.ours
def test_a_data_path_that_may_only_be_read(nsqd: Starter, tmp_path: Path) -> None:
    """This test uses a separate mount namespace: root may write to any path, except on a read-only
    mount."""
    daemon = stored(nsqd, 40)
    before = {path: path.read_bytes() for path in daemon.data.rglob("*") if path.is_file()}
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, str(daemon.data)]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    reader = nsqd.prepare(daemon.data, within=tuple(inside), cwd=tmp_path)
    reader.start(is_healthy=False)
    answer = reader.web.get("/ping")
    assert answer.status == 500 and answer.body.endswith(b"read-only file system")
    reader.process.terminate()
    assert reader.wait() == 1  # nsqd could not save all messages
    assert before == {path: path.read_bytes() for path in daemon.data.rglob("*") if path.is_file()}
    assert consumed(daemon) == list(range(40))


@pytest.mark.ours
def test_an_older_copy_of_the_metadata(nsqd: Starter) -> None:
    """Topics that an older nsqd.dat does not list are found through their own files."""
    daemon = nsqd(mem_queue_size=0)
    older = (daemon.data / "nsqd.dat").read_bytes()
    daemon.web.create("t", "c")
    daemon.connect().pub("t", body(0, 30_000))
    daemon.stop()
    (daemon.data / "nsqd.dat").write_bytes(older)
    (daemon.data / "nsqd.dat.tmp").write_bytes(b"{")
    assert consumed(daemon) == [0]
