"""A data path written by NSQ's nsqd and opened by nsqcy's nsqd, and the reverse.

The cases about NSQ's files are tested here as import and export.
"""

import json
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support import nsq_diskqueue
from support.nsq_diskqueue import data_file, message, messages, meta_file, write_meta, write_queue
from support.nsqd_process import Nsqd, environment, free_port

pytestmark = pytest.mark.ours


def listing(**topics: Any) -> dict[str, Any]:
    """Return the content of nsqd.dat, for example for t={"paused": True, "channels": {"c":
    False}}."""
    return {
        "topics": [
            {
                "name": name,
                "paused": what.get("paused", False),
                "channels": [
                    {"name": channel, "paused": paused}
                    for channel, paused in what.get("channels", {}).items()
                ]
                or None,
            }
            for name, what in topics.items()
        ],
        "version": "1.3.0",
    }


def put_listing(data: Path, **topics: Any) -> None:
    (data / "nsqd.dat").write_text(json.dumps(listing(**topics)))


def kept(data: Path) -> Path:
    """Return the directory with the original files."""
    found = list(data.glob("imported-go-*"))
    assert len(found) == 1, found
    return found[0]


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def drained(conn: Conn) -> list[nsq_diskqueue.Message]:
    """Return all messages that arrive, in NSQ's disk format."""
    found = [
        nsq_diskqueue.Message(one.timestamp, one.attempts - 1, one.id, one.body)
        for one in conn.drain(quiet=0.5)
    ]
    return sorted(found)


def consumed(daemon: Nsqd, topic: str, channel: str) -> list[nsq_diskqueue.Message]:
    conn = daemon.connect().sub(topic, channel, rdy=200)
    found = drained(conn)
    conn.barrier()
    conn.close()
    return found


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    """`nsqcy data ...`"""
    return subprocess.run(
        [sys.executable, "-m", "nsqcy", "data", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.case("C333")
def test_a_data_path_of_nsq_opens(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    data = daemon.data
    backlog = messages(0, 20)
    first = messages(100, 3000, 300) + messages(4000, 5, attempts=2)
    second = messages(100, 40)
    write_queue(data, "t", backlog, read=3)
    write_queue(data, "t:first", first, read=7, limit=100_000)
    write_queue(data, "t:second", second)
    write_queue(data, "t:done", messages(0, 10), read=10)
    write_queue(data, "a..b", messages(500, 2))
    put_listing(
        data,
        t={"paused": True, "channels": {"first": False, "second": True, "done": False}},
        **{"a..b": {"channels": {}}, "empty": {"channels": {"c": False}}},
    )
    originals = snapshot(data)
    daemon.start()
    web = daemon.web
    web.await_counts("t", depth=17, paused=True)
    web.await_counts("t", "first", depth=2998, paused=False)
    web.await_counts("t", "second", depth=40, paused=True)
    web.await_counts("t", "done", depth=0)
    web.await_counts("a..b", depth=2)
    web.await_counts("empty", "c", depth=0)
    assert snapshot(kept(data)) == originals
    assert not list(data.glob("*.diskqueue.*")) and not list(data.glob("import.*"))

    assert consumed(daemon, "t", "first") == sorted(first[7:])
    web.await_counts("t", "first", depth=0)
    web.do("unpause", "t", "second")
    assert consumed(daemon, "t", "second") == sorted(second)
    web.do("unpause", "t")
    assert consumed(daemon, "t", "done") == backlog[3:]
    assert consumed(daemon, "t", "first") == backlog[3:]
    # A restart does not import the queues again.
    daemon.restart()
    daemon.web.await_counts("t", "second", depth=17)
    daemon.web.await_counts("t", "first", depth=0)
    assert consumed(daemon, "t", "second") == backlog[3:]
    assert len(list(data.glob("imported-go-*"))) == 1


@one_worker
@pytest.mark.case("C333")
def test_half_of_an_imported_backlog_survives_restarts(nsqd: Starter) -> None:
    daemon = nsqd.prepare(mem_queue_size=10)
    write_queue(daemon.data, "t:a", messages(0, 2000, 200))
    write_queue(daemon.data, "t:b", messages(5000, 1000, 200))
    write_queue(daemon.data, "t", messages(9000, 100))
    daemon.start()
    seen: dict[str, list[bytes]] = {"a": [], "b": []}
    for killed in (False, True, False):
        for channel in seen:
            conn = daemon.connect().sub("t", channel, rdy=50)
            seen[channel] += [one.body for one in conn.take(300)]
        daemon.restart(killed=killed)
    for channel in seen:
        seen[channel] += [one.body for one in daemon.connect().sub("t", channel, rdy=50).drain()]
    backlog = {one.body for one in messages(9000, 100)}
    assert set(seen["a"]) == {one.body for one in messages(0, 2000, 200)} | backlog
    assert set(seen["b"]) == {one.body for one in messages(5000, 1000, 200)} | backlog


@one_worker
@pytest.mark.case("C313", "C314")
def test_attempts_ids_and_timestamps_are_kept(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    three = [message(1), message(2, attempts=2), message(3, attempts=65535)]
    write_queue(daemon.data, "t:c", three)
    assert nsq_diskqueue.read_meta(daemon.data, "t:c")[0] == 3
    daemon.start()
    daemon.web.await_counts("t", "c", depth=3)
    found = {one.body: one for one in daemon.connect().sub("t", "c", rdy=3).messages(3)}
    assert [found[one.body].attempts for one in three] == [1, 3, 0]
    assert [found[one.body].id for one in three] == [one.id for one in three]
    assert [found[one.body].timestamp for one in three] == [one.timestamp for one in three]
    # New ids are larger than any existing one.
    far = nsq_diskqueue.Message(1, 0, b"6000000000000000", b"from the future")
    daemon.stop()
    write_queue(daemon.data, "late", [far])
    daemon.start()
    daemon.connect().pub("late", b"new")
    ids = {one.body: one.id for one in daemon.connect().sub("late", "c", rdy=2).messages(2)}
    assert ids[b"new"] > far.id


@one_worker
@pytest.mark.case("C314", "C317", "C318")
def test_export_writes_what_nsq_would(nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd()
    producer = daemon.connect()
    daemon.web.create("t", "c", "other")
    daemon.web.create("bare#ephemeral", "c")
    conn = daemon.connect().sub("t", "c", rdy=1)
    producer.pub("t", b"in flight")
    conn.req(conn.message())
    held = conn.message()
    producer.dpub("t", 600_000, b"deferred")
    producer.pub("t", b"queued")
    daemon.web.do("pause", "t", "other")
    for size in (50, *[50] * 49):
        producer.pub("small", b"." * size)
    for size in (1000, 10, 1000):
        producer.pub("large", b"." * size)
    daemon.web.await_counts("t", "c", depth=1, in_flight_count=1, deferred_count=1)
    daemon.stop()

    out = tmp_path / "go"
    done = command("export", str(daemon.data), str(out), "--max-bytes-per-file=1000")
    assert done.returncode == 0, done.stderr
    assert "due times: 1\n" in done.stderr or "due times: 2\n" in done.stderr
    found = {one.body: one for one in nsq_diskqueue.read_queue(out, "t:c")}
    assert set(found) == {b"in flight", b"queued", b"deferred"}
    assert found[b"in flight"] == nsq_diskqueue.Message(held.timestamp, 2, held.id, held.body)
    assert found[b"queued"].attempts == found[b"deferred"].attempts == 0
    size = sum(30 + len(body) for body in found)
    assert meta_file(out, "t:c").read_text() == f"3\n0,0\n0,{size}\n"
    assert {one.body for one in nsq_diskqueue.read_queue(out, "t:other")} == set(found)
    sizes = [path.stat().st_size for path in sorted(out.glob("small.diskqueue.0*"))]
    assert sizes == [960, 960, 960, 960, 160]
    sizes = [path.stat().st_size for path in sorted(out.glob("large.diskqueue.0*"))]
    assert sizes == [1030, 40, 1030]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in out.iterdir())
    topics = {one["name"]: one for one in json.loads((out / "nsqd.dat").read_bytes())["topics"]}
    assert set(topics) == {"t", "small", "large"}
    assert sorted(topics["t"]["channels"], key=str) == [
        {"name": "c", "paused": False},
        {"name": "other", "paused": True},
    ]

    # nsqcy's nsqd can also open the result.
    again = nsqd(data=out)
    again.web.await_counts("t", "c", depth=3)
    again.web.await_counts("t", "other", depth=3, paused=True)
    again.web.await_counts("small", depth=50)


@one_worker
@pytest.mark.case("C319")
def test_what_was_written_after_the_last_sync_is_imported(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    data = daemon.data
    write_queue(data, "t:c", messages(0, 30), unsynced=12)
    # Killed twice: after the first restart, nsqd wrote to the next file and never synced.
    data_file(data, "t:c", 1).write_bytes(nsq_diskqueue.image(messages(50, 5)))
    # Killed before the first sync, so there is no metadata.
    data_file(data, "young:c").write_bytes(nsq_diskqueue.image(messages(100, 9)))
    daemon.start()
    assert consumed(daemon, "t", "c") == messages(0, 30) + messages(50, 5)
    assert consumed(daemon, "young", "c") == messages(100, 9)
    assert "t:c: depth is 18 in the metadata, but 35 messages were found" in daemon.log_text()
    assert "young:c: no metadata file: reading every data file" in daemon.log_text()


def eight_files(data: Path) -> list[list[nsq_diskqueue.Message]]:
    """Write a queue of eight files with ten messages each."""
    several = [messages(number * 10, 10) for number in range(8)]
    write_queue(data, "t:c", [one for file in several for one in file], limit=10 * 50)
    assert len(list(data.glob("t:c.diskqueue.0*"))) == 8
    return several


@one_worker
@pytest.mark.case("C320")
def test_a_damaged_length_costs_one_message(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    several = eight_files(daemon.data)
    path = data_file(daemon.data, "t:c", 2)
    content = bytearray(path.read_bytes())
    content[4 * 50 : 4 * 50 + 4] = struct.pack(">i", -7)
    path.write_bytes(content)
    daemon.start()
    expected = [one for file in several for one in file if one != several[2][4]]
    assert consumed(daemon, "t", "c") == expected
    daemon.web.await_counts("t", "c", depth=0)
    assert f"{path} at 200: 50 bytes without a valid record" in daemon.log_text()


@one_worker
@pytest.mark.case("C321")
def test_a_missing_file_costs_that_file(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    several = eight_files(daemon.data)
    data_file(daemon.data, "t:c", 4).unlink()
    daemon.start()
    assert consumed(daemon, "t", "c") == [
        one for number, file in enumerate(several) if number != 4 for one in file
    ]
    assert f"{data_file(daemon.data, 't:c', 4)} at 0: the file is missing" in daemon.log_text()


@one_worker
@pytest.mark.case("C322")
def test_a_torn_last_record_costs_that_record(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    several = eight_files(daemon.data)
    path = data_file(daemon.data, "t:c", 7)
    path.write_bytes(path.read_bytes()[:-3])
    daemon.start()
    expected = [one for file in several for one in file][:-1]
    assert consumed(daemon, "t", "c") == expected
    assert f"{path} at 450: no complete record in the last 47 bytes" in daemon.log_text()
    daemon.connect().pub("t", b"new")
    assert daemon.connect().sub("t", "c", rdy=1).message().body == b"new"


@one_worker
@pytest.mark.case("C323")
def test_a_message_larger_than_the_limit_is_no_damage(nsqd: Starter) -> None:
    daemon = nsqd.prepare(max_msg_size=1000)
    several = [message(1), message(2, 300_000), message(3, 2_000_000), message(4)]
    write_queue(daemon.data, "t:c", several)
    daemon.start()
    assert consumed(daemon, "t", "c") == several
    assert "ERROR" not in daemon.log_text()


@one_worker
@pytest.mark.case("C324")
def test_emptying_an_imported_channel_leaves_the_others(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    for channel in ("a", "b", "c"):
        write_queue(daemon.data, f"t:{channel}", messages(0, 2000, 300), limit=100_000)
    daemon.start()
    daemon.web.do("empty", "t", "b")
    daemon.web.await_counts("t", "b", depth=0)
    daemon.web.await_counts("t", "a", depth=2000)
    daemon.restart()
    daemon.web.await_counts("t", "b", depth=0)
    assert len(consumed(daemon, "t", "a")) == len(consumed(daemon, "t", "c")) == 2000
    eventually(lambda: len(list((daemon.data / "t.topic").glob("*.seg"))) <= 1)


@one_worker
@pytest.mark.case("C331")
def test_ephemeral_queues_are_named_and_kept(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    write_queue(daemon.data, "et#ephemeral:dur", messages(0, 3))
    write_queue(daemon.data, "t:c", messages(10, 3))
    daemon.start()
    assert set(daemon.web.topics()) == {"t"}
    assert "et#ephemeral:dur: ephemeral; files not read: 1" in daemon.log_text()
    assert nsq_diskqueue.read_queue(kept(daemon.data), "et#ephemeral:dur") == messages(0, 3)


@one_worker
@pytest.mark.case("C332", "F6")
@pytest.mark.parametrize("backlog", [0, 1, 2])
def test_a_drained_queue_that_rolled_is_no_damage(nsqd: Starter, backlog: int) -> None:
    daemon = nsqd.prepare()
    data = daemon.data
    # The reader is at or near the end of the first file; the writer is in the second.
    first, second = messages(0, 10), messages(10, 3)
    data_file(data, "t:c", 0).write_bytes(nsq_diskqueue.image(first))
    data_file(data, "t:c", 1).write_bytes(nsq_diskqueue.image(second))
    end = len(nsq_diskqueue.image(first))
    read = len(nsq_diskqueue.image(first[: 10 - backlog]))
    write_meta(data, "t:c", backlog, (0, read), (1, 0))
    # As before, but the second file does not exist yet.
    data_file(data, "u:c", 0).write_bytes(nsq_diskqueue.image(first))
    write_meta(data, "u:c", backlog, (0, read), (1, 0))
    # A file that NSQ's nsqd has set aside in this state, although it is complete.
    data_file(data, "v:c", 0).with_name("v:c.diskqueue.000000.dat.bad").write_bytes(
        nsq_diskqueue.image(first)
    )
    data_file(data, "v:c", 1).write_bytes(nsq_diskqueue.image(second))
    write_meta(data, "v:c", 3, (1, 0), (1, len(nsq_diskqueue.image(second))))
    daemon.start()
    assert end == 500
    assert consumed(daemon, "t", "c") == first[10 - backlog :] + second
    if backlog:
        assert consumed(daemon, "u", "c") == first[10 - backlog :]
    assert consumed(daemon, "v", "c") == second
    assert "v:c: .bad files not read: 1 (500 bytes)" in daemon.log_text()
    assert "ERROR" not in daemon.log_text()


@one_worker
@pytest.mark.case("F8")
@pytest.mark.parametrize("content", [b"", b"3\n0,0\n", b"rubbish", b"3\n5,0\n2,0\n", None])
def test_without_metadata_every_file_is_read(nsqd: Starter, content: bytes | None) -> None:
    daemon = nsqd.prepare()
    several = eight_files(daemon.data)
    meta = meta_file(daemon.data, "t:c")
    if content is None:
        meta.unlink()
    else:
        meta.write_bytes(content)
    daemon.start()
    assert consumed(daemon, "t", "c") == [one for file in several for one in file]
    assert "reading every data file" in daemon.log_text()


def importing(daemon: Nsqd) -> None:
    """Start a daemon with a lot to import, and return while the import is running."""
    data_file(daemon.data, "t:c").write_bytes(nsq_diskqueue.image(messages(0, 10_000, 8)) * 40)
    daemon.launch()
    eventually(lambda: (daemon.data / "import.tmp").exists())


def test_a_client_waits_while_an_import_goes_on(nsqd: Starter) -> None:
    port = free_port()
    daemon = nsqd.prepare(tcp_address=f"127.0.0.1:{port}")
    importing(daemon)
    daemon.process.send_signal(signal.SIGSTOP)
    assert (daemon.data / "import.tmp").exists(), "the import ended too soon"
    conn = Conn(("127.0.0.1", port), timeout=30.0)
    daemon.process.send_signal(signal.SIGCONT)
    with conn.sub("t", "c", rdy=100):
        assert len(conn.take(1000)) == 1000
    daemon.await_ready()


@one_worker
def test_a_topic_that_is_here_already_is_not_mixed(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.connect().pub("t", b"ours")
    daemon.stop()
    write_queue(daemon.data, "t", messages(0, 3))
    write_queue(daemon.data, "t:c", messages(0, 3))
    write_queue(daemon.data, "u:c", messages(5, 3))
    for _ in range(2):
        daemon.start()
        assert "topic t: not imported, t.topic already exists" in daemon.log_text()
        daemon.web.await_counts("t", depth=1)
        daemon.web.await_counts("u", "c", depth=3)
        daemon.stop()
    assert nsq_diskqueue.read_queue(daemon.data, "t:c") == messages(0, 3)
    assert nsq_diskqueue.read_queue(kept(daemon.data), "u:c") == messages(5, 3)


def test_sigterm_ends_an_import(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    importing(daemon)
    originals = snapshot(daemon.data)
    daemon.process.terminate()
    assert daemon.wait(20) == 0
    assert snapshot(daemon.data) == originals
    assert not list(daemon.data.glob("import*"))
    assert "stopped during the import of NSQ's files" in daemon.log_text()


def written(data: Path) -> int:
    """Return the number of bytes written by a running import."""
    try:
        return sum(path.stat().st_size for path in data.glob("import.tmp/*/*"))
    except FileNotFoundError:
        return 0


@one_worker
def test_kill_leaves_the_originals(nsqd: Starter) -> None:
    daemon = nsqd.prepare(announced=False)
    data = daemon.data
    several = messages(0, 60_000, 200)
    write_queue(data, "t:c", several, limit=4 << 20)
    originals = snapshot(data)
    for minimum in (0, 1 << 16, 1 << 20, 6 << 20):
        daemon.start()
        eventually(lambda: (data / "import.tmp").exists())
        eventually(lambda: written(data) >= minimum or not (data / "import.tmp").exists())  # noqa: B023
        daemon.kill()
        if not list(data.glob("*.topic")) and not (data / "import.done").exists():
            assert snapshot(data) == originals
    daemon.announced = True
    daemon.start()
    daemon.web.await_counts("t", "c", depth=60_000)
    assert snapshot(kept(data)).items() >= originals.items()
    assert not list(data.glob("import.*"))
    conn = daemon.connect().sub("t", "c", rdy=500)
    assert [one.body for one in conn.take(60_000)] == [one.body for one in several]


def test_export_and_import_of_everything(nsqd: Starter, tmp_path: Path) -> None:
    """Export and import, in a state that a busy daemon leaves behind: all clients get the same
    messages."""
    daemon = nsqd(mem_queue_size=20)
    producer = daemon.connect()
    for topic in ("x", "y"):
        daemon.web.create(topic, "a", "b")
        producer.mpub(topic, [b"%s %d" % (topic.encode(), n) for n in range(200)])
    conn = daemon.connect().sub("x", "a", rdy=10)
    for number, one in enumerate(conn.messages(10)):
        if number % 2:
            conn.fin(one)
        else:
            conn.req(one, 0 if number % 4 else 60_000)
    daemon.web.do("pause", "y")
    producer.mpub("y", [b"y %d" % n for n in range(200, 250)])
    daemon.stop()
    before, after = tmp_path / "before", tmp_path / "after"
    assert command("export", str(daemon.data), str(before)).returncode == 0
    queues = nsq_diskqueue.queues(before)
    assert len(queues["y"]) == 50 and len(queues["y:a"]) == 200 and len(queues["x:a"]) < 200

    assert command("import", str(before)).returncode == 0
    assert command("check", str(before)).returncode == 0
    assert command("export", str(before), str(after)).returncode == 0
    assert {name: Counter(its) for name, its in nsq_diskqueue.queues(after).items()} == {
        name: Counter(its) for name, its in queues.items()
    }
    assert json.loads((after / "nsqd.dat").read_bytes()) == json.loads(
        (daemon.data / "nsqd.dat").read_bytes()
    )


# ---- the command ----


def test_check_reads_both_formats(tmp_path: Path) -> None:
    go, ours = tmp_path / "go", tmp_path / "ours"
    go.mkdir()
    write_queue(go, "t:c", messages(0, 100, 100))
    write_queue(go, "t", messages(200, 10, 100))
    done = command("check", str(go))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "t: 10 messages to deliver",
        "t:c: 100 messages to deliver",
        f"{go}: unreadable parts: 0",
    ]
    shutil.copytree(go, ours)
    path = data_file(go, "t:c")
    content = bytearray(path.read_bytes())
    content[0] = 0xFF
    path.write_bytes(content)
    done = command("check", str(go))
    assert done.returncode == 1
    assert f"error: {path} at 0: 130 bytes without a valid record\n" in done.stderr

    assert command("import", str(ours)).returncode == 0
    done = command("check", str(ours))
    assert done.returncode == 0 and "t: 110 records" in done.stdout, done.stderr
    assert "formats: journal 1, segment 1\n" in done.stdout
    assert "versions that read these formats: 0.1.0\n" in done.stdout
    (segment,) = (ours / "t.topic").glob("*.seg")
    content = bytearray(segment.read_bytes())
    at = content.index(b"<000050>")
    content[at] ^= 1
    segment.write_bytes(content)
    done = command("check", str(ours))
    assert done.returncode == 1 and "t: 109 records" in done.stdout
    assert f"error: {segment} at {at - 40}: damaged record of 144 bytes\n" in done.stderr
    (ours / "t.topic" / "journal").write_bytes(b"rubbish")
    done = command("check", str(ours))
    assert done.returncode == 1 and "damaged journal entry" in done.stderr
    (ours / "nsqd.dat").write_bytes(b"")
    assert "failed to parse metadata" in command("check", str(ours)).stderr


def test_import_with_damage_and_set_aside_files(tmp_path: Path) -> None:
    several = messages(0, 20)
    write_queue(tmp_path, "t:c", several, limit=500)
    first = data_file(tmp_path, "t:c", 0)
    first.rename(first.with_name(first.name + ".bad"))
    write_meta(tmp_path, "t:c", 10, (1, 0), (1, 500))
    second = data_file(tmp_path, "t:c", 1)
    second.write_bytes(second.read_bytes()[:-1])
    done = command("import", str(tmp_path), "--bad")
    assert done.returncode == 1
    assert f"error: import: {second} at 450: no complete record in the last 49 bytes" in done.stderr
    assert "import: complete; messages: 19; unreadable parts: 1" in done.stdout
    assert command("import", str(tmp_path)).stdout.endswith("no NSQ files to import\n")


def test_the_command_leaves_a_running_daemon_alone(nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd()
    for word, code in (("import", 1), ("check", 2)):
        done = command(word, str(daemon.data))
        assert done.returncode == code and "cannot flock directory" in done.stderr
    done = command("export", str(daemon.data), str(tmp_path / "out"))
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    done = command("check", str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "no such file or directory" in done.stderr
    assert command("frobnicate").returncode == 2
    assert command().returncode == 2
    assert "export" in command("--help").stdout
