"""Import and export without a daemon: crashes at every point, full disks, and round trips."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.errors import StartError
from nsqcy.nsqd.data import importer
from nsqcy.nsqd.data.exporter import Export, TopicReader
from nsqcy.nsqd.data.importer import Importer, ImportStopped, is_needed
from nsqcy.storage.core import IoThread
from nsqcy.storage.io_faults import FaultyIoThread
from support import disk_format, nsq_diskqueue
from support.header_client import HeaderClient
from support.nsq_diskqueue import data_file, image, message, messages, write_queue
from support.nsqd_process import environment
from support.runs import runs
from support.worker_core import SECOND, Core, Log

ESSENTIAL = [
    (os, "mkdir"),
    (os, "rename"),
    (os, "unlink"),
    (os, "rmdir"),
    (os, "fsync"),
    (os, "open"),
    (os, "makedirs"),
    (shutil, "copy"),
    (shutil, "rmtree"),
]


class Crash(BaseException):
    """The machine has stopped: calls no longer have any effect."""


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """crash(n) makes the n-th disk-changing call, and every one after it, raise; crash(0) disables
    this. Both return the number of such calls since the previous crash()."""
    state = {"left": -1, "made": 0}

    def wrap(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            state["made"] += 1
            if state["left"] == 0:
                raise Crash
            state["left"] -= 1
            return real(*args, **kwargs)

        return call

    def arm(n: int) -> int:
        made = state["made"]
        state.update(left=n - 1 if n else -1, made=0)
        return made

    for module, name in ESSENTIAL:
        monkeypatch.setattr(module, name, wrap(getattr(module, name)))
    return arm


def content(data: Path) -> dict[str, bytes]:
    """Return NSQ's files in a data path."""
    return {path.name: path.read_bytes() for path in data.glob("*.diskqueue.*")}


def fill(data: Path) -> dict[str, list[nsq_diskqueue.Message]]:
    """Create a data path with two topics; return the messages to be delivered, by queue."""
    queues = {
        "t": messages(0, 30),
        "t:a": messages(100, 50) + messages(200, 5, attempts=3),
        "t:b": messages(100, 8),
        "u:c": messages(300, 20, 100),
    }
    for name, its in queues.items():
        write_queue(data, name, its, limit=1000)
    (data / "nsqd.dat").write_text('{"topics":null,"version":"1.3.0"}')
    return queues


def needed(data: Path) -> dict[str, list[nsq_diskqueue.Message]]:
    """Return the messages to be delivered from nsqcy's data path, by NSQ's name of the queue."""
    found: dict[str, list[nsq_diskqueue.Message]] = {}
    damages: list[Any] = []
    io = IoThread()
    for directory in sorted(data.glob("*.topic")):
        topic = directory.name.removesuffix(".topic")
        reader = TopicReader(io, str(data), topic, [], lambda *what: damages.append(what))
        for one in reader.messages():
            name = topic if one.channel is None else f"{topic}:{one.channel}"
            record = one.record
            its = nsq_diskqueue.Message(
                record.timestamp, one.attempts, b"%016x" % record.id, record.body
            )
            found.setdefault(name, []).append(its)
    io.close()
    assert damages == []
    return {name: sorted(its) for name, its in found.items()}


def in_order(
    queues: dict[str, list[nsq_diskqueue.Message]],
) -> dict[str, list[nsq_diskqueue.Message]]:
    return {name: sorted(its) for name, its in queues.items() if its}


def run(data: Path, **how: Any) -> list[str]:
    log = Log()
    Importer(str(data), log, **how).run()
    return log.lines


def test_an_import_with_nothing_to_import(tmp_path: Path) -> None:
    assert not is_needed(str(tmp_path))
    assert run(tmp_path) == []
    (tmp_path / importer.TMP).mkdir()
    assert is_needed(str(tmp_path))
    assert run(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_an_import_leaves(tmp_path: Path) -> None:
    queues = fill(tmp_path)
    originals = content(tmp_path)
    lines = run(tmp_path)
    assert needed(tmp_path) == in_order(queues)
    (aside,) = tmp_path.glob("imported-go-*")
    assert content(aside) == originals
    assert (aside / "nsqd.dat").read_bytes() == (tmp_path / "nsqd.dat").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        "nsqd.dat",
        "t.topic",
        "u.topic",
        aside.name,
    }
    assert not is_needed(str(tmp_path))
    assert lines[-1] == "import: complete; messages: 113; unreadable parts: 0"
    # The import follows docs/DISKFORMAT.md.
    (segment,) = (tmp_path / "t.topic").glob("*.seg")
    records = disk_format.segment_messages(segment)
    everything = queues["t"] + queues["t:a"] + queues["t:b"]
    assert sorted((one.timestamp, one.id, one.body) for one in records) == sorted(
        (one.timestamp, int(one.id, 16), one.body) for one in everything
    )
    seqs = [one.seq for one in records]
    assert len(set(seqs)) == len(seqs)
    footer = disk_format.footer(segment.read_bytes())
    assert footer is not None and footer.max_id == max(one.id for one in records)


@pytest.mark.slow
def test_a_crash_at_any_point_of_an_import(tmp_path: Path, crash: Any) -> None:
    (tmp_path / "0").mkdir()
    queues = fill(tmp_path / "0")
    originals = content(tmp_path / "0")
    crash(0)
    run(tmp_path / "0")
    steps = crash(0)
    assert steps > 40
    committed = 0
    for n in range(1, steps + 1):
        data = tmp_path / str(n)
        data.mkdir()
        fill(data)
        crash(n)
        with pytest.raises(Crash):
            run(data)
        crash(0)
        done = (data / importer.DONE).exists() or bool(list(data.glob("imported-go-*")))
        committed += done
        if not done:
            assert content(data) == originals
            assert not list(data.glob("*.topic"))
        run(data)
        assert needed(data) == in_order(queues), n
        (aside,) = data.glob("imported-go-*")
        assert content(aside) == originals
        assert (aside / "nsqd.dat").exists()
        assert not is_needed(str(data)), n
        shutil.rmtree(data)
    assert 10 < committed < steps - 10


def test_two_crashes_while_an_import_is_completed(tmp_path: Path, crash: Any) -> None:
    data = tmp_path / "data"
    data.mkdir()
    queues = fill(data)
    originals = content(data)
    crash(0)
    n = 1
    while is_needed(str(data)):
        crash(n)
        try:
            run(data)
        except Crash:
            n += 1
        crash(0)
    assert n > 20
    assert needed(data) == in_order(queues)
    (aside,) = data.glob("imported-go-*")
    assert content(aside) == originals


@pytest.mark.parametrize("call", ["open", "pwrite", "fdatasync", "fsync", "mkdir", "rename"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_fails(tmp_path: Path, call: str, nth: int) -> None:
    queues = fill(tmp_path)
    originals = content(tmp_path)
    io = FaultyIoThread()
    io.fault(call, nth, errno.ENOSPC, times=1000)
    with pytest.raises(StartError, match=r"failed to import NSQ's files - .*no space left"):
        run(tmp_path, io=io)
    assert content(tmp_path) == originals and not (tmp_path / importer.TMP).exists()
    io.clear_faults()
    run(tmp_path)
    assert needed(tmp_path) == in_order(queues)


def test_too_little_room_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    originals = content(tmp_path)

    class Full:
        f_bavail, f_frsize = 2, 512

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    with pytest.raises(StartError, match="bytes to import, but only 1024 bytes free"):
        run(tmp_path)
    assert content(tmp_path) == originals
    assert is_needed(str(tmp_path))


def test_a_file_that_may_not_be_read_stops_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    originals = content(tmp_path)
    real = os.open

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("u:c.diskqueue.000001.dat"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(StartError, match=r"u:c\.diskqueue\.000001\.dat: permission denied"):
        run(tmp_path)
    assert content(tmp_path) == originals and not (tmp_path / importer.TMP).exists()


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "BEAT", 0.0)
    monkeypatch.setattr(importer, "PROGRESS", 0.0)
    data_file(tmp_path, "t:c").write_bytes(image(messages(0, 3000)))
    told: list[str] = []
    lines = run(tmp_path, on_progress=told.append)
    expected = [f"t:c: {n} messages so far, {n} in total" for n in (1024, 2048)]
    assert told == [f"importing {text}" for text in expected]
    assert [line for line in lines if "so far" in line] == [f"import: {text}" for text in expected]


def test_an_import_is_abandoned_on_request(tmp_path: Path) -> None:
    data_file(tmp_path, "t:c").write_bytes(image(messages(0, 5000)))
    originals = content(tmp_path)
    asked = iter([False, False, True])
    with pytest.raises(ImportStopped):
        run(tmp_path, stopping=lambda: next(asked))
    assert content(tmp_path) == originals and not (tmp_path / importer.TMP).exists()


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / importer.DONE).mkdir()
    (tmp_path / importer.DONE / importer.MANIFEST).write_text("{")
    with pytest.raises(StartError, match=r"failed to complete the import - .*manifest"):
        run(tmp_path)


def test_a_manifest_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / importer.DONE / importer.MANIFEST
    (tmp_path / importer.DONE / "t.topic").mkdir(parents=True)
    path.write_text('{"version": 2, "aside": "imported-go-x", "files": []}')
    with pytest.raises(StartError, match=f"{path}: import manifest format version 2 is newer"):
        run(tmp_path)
    assert (tmp_path / importer.DONE / "t.topic").is_dir()


def test_names_nobody_has(tmp_path: Path) -> None:
    write_queue(tmp_path, "no name", messages(0, 2))
    write_queue(tmp_path, "t:no name", messages(0, 2))
    write_queue(tmp_path, "t#ephemeral", messages(0, 2))
    write_queue(tmp_path, "t:c#ephemeral", messages(0, 2))
    write_queue(tmp_path, "..:c", messages(0, 2))
    write_queue(tmp_path, "a.b_c-D.:x", messages(5, 2))
    lines = run(tmp_path)
    assert needed(tmp_path) == {"..:c": messages(0, 2), "a.b_c-D.:x": messages(5, 2)}
    for name in ("no name", "t:no name"):
        assert f"import: {name}: invalid name; files not read: 1" in lines
    for name in ("t#ephemeral", "t:c#ephemeral"):
        assert f"import: {name}: ephemeral; files not read: 1" in lines
    (aside,) = tmp_path.glob("imported-go-*")
    assert len(content(aside)) == 12


def test_attempts_beyond_what_fits_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "MAX_ENTRIES", 10)
    write_queue(tmp_path, "t:c", messages(0, 25, attempts=4))
    lines = run(tmp_path)
    found = needed(tmp_path)["t:c"]
    assert [one.body for one in sorted(found, key=lambda one: one.body)] == [
        one.body for one in messages(0, 25)
    ]
    assert Counter(one.attempts for one in found) == {4: 10, 0: 15}
    assert "import: topic t: messages that restart at attempt 1: 15" in lines


def test_large_messages_and_rolled_segments(tmp_path: Path) -> None:
    several = [message(n, size) for n, size in enumerate([10, 3_000_000, 5, 700_000, 262_144, 1])]
    tried = [message(9, 900_000, attempts=2)]
    write_queue(tmp_path, "t:c", several + tried)
    run(tmp_path, max_bytes_per_file=1_000_000)
    assert len(list((tmp_path / "t.topic").glob("*.seg"))) >= 3
    assert needed(tmp_path) == {"t:c": sorted(several + tried)}


# ---- round trips ----

queue_contents = st.lists(
    st.builds(
        message,
        st.integers(0, 999_999),
        st.one_of(st.integers(8, 200), st.integers(60_000, 300_000)),
        st.sampled_from([0, 0, 0, 1, 7, 65535]),
    ),
    max_size=12,
)
topics = st.dictionaries(
    st.sampled_from(["t", "u..v", "w-_9"]),
    st.tuples(
        st.booleans(),
        queue_contents,
        st.dictionaries(st.sampled_from(["a", "b.c", "d"]), queue_contents, max_size=3),
    ),
    min_size=1,
)


@pytest.mark.slow
@settings(max_examples=runs(40), suppress_health_check=list(HealthCheck), deadline=None)
@given(topics, st.integers(200, 400_000))
def test_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any], limit: int
) -> None:
    data = tmp_path_factory.mktemp("go")
    queues: dict[str, list[nsq_diskqueue.Message]] = {}
    listed = []
    for topic, (paused, backlog, channels) in layout.items():
        queues[topic] = [one._replace(attempts=0) for one in backlog]
        queues |= {f"{topic}:{name}": its for name, its in channels.items()}
        names = [{"name": name, "paused": not paused} for name in channels]
        listed.append({"name": topic, "paused": paused, "channels": names or None})
    for name, its in queues.items():
        write_queue(data, name, its, limit=limit)
    known_topics = {"topics": listed, "version": "1.3.0"}
    (data / "nsqd.dat").write_text(json.dumps(known_topics))
    expected = {name: Counter(its) for name, its in queues.items() if its}

    run(data, max_bytes_per_file=limit)
    out = data.with_name(data.name + "-out")
    Export(str(data), str(out), Log(), max_bytes_per_file=limit).run()
    assert {name: Counter(its) for name, its in nsq_diskqueue.queues(out).items()} == expected
    assert json.loads((out / "nsqd.dat").read_bytes()) == known_topics

    # A worker loads the result.
    core = Core(data)
    for topic, (_, _, channels) in layout.items():
        core.shard.load_topic(topic.encode(), True, dict.fromkeys(channels, False))
    core.settle()
    for topic, (_, backlog, channels) in layout.items():
        assert core.counters(topic)["depth"] == len(backlog)
        for name, its in channels.items():
            assert core.counters(topic, name)["depth"] == len(its)
            client = core.client().subscribe(topic, name, 2500)
            core.settle()
            found = Counter((one.timestamp, one.id, one.body) for one in client.messages())
            assert found == Counter((one.timestamp, one.id, one.body) for one in its)
            assert core.counters(topic, name)["depth"] == 0
    # Save with everything in flight: nothing is lost, and every attempt counts.
    core.save()
    again = data.with_name(data.name + "-again")
    Export(str(data), str(again), Log()).run()
    for name, its in expected.items():
        found = Counter(one._replace(attempts=0) for one in nsq_diskqueue.read_queue(again, name))
        assert found == Counter(one._replace(attempts=0) for one in its.elements())
    for path in (data, out, again):
        shutil.rmtree(path)


def test_export_refuses_what_it_must(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    fill(data)
    with pytest.raises(StartError, match="contains NSQ files that have not been imported"):
        Export(str(data), str(out), Log()).run()
    run(data)
    out.mkdir()
    (out / "something").touch()
    with pytest.raises(StartError, match="is not empty"):
        Export(str(data), str(out), Log()).run()
    (out / "something").unlink()
    Export(str(data), str(out), Log()).run()
    assert nsq_diskqueue.read_queue(out, "u:c") == messages(300, 20, 100)
    (data / "nsqd.dat").write_bytes(b"{")
    with pytest.raises(StartError, match="failed to parse metadata"):
        Export(str(data), str(tmp_path / "other"), Log()).run()


def test_export_without_a_journal_loses_nothing(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    queues = fill(data)
    run(data)
    (data / "t.topic" / "journal").unlink()
    (data / "nsqd.dat").write_text(
        '{"topics":[{"name":"t","channels":[{"name":"a"},{"name":"b"}]}],"version":"1.3.0"}'
    )
    Export(str(data), str(out), Log()).run()
    found = nsq_diskqueue.queues(out)
    plain = {one.id for name in ("t", "t:a", "t:b") for one in queues[name] if not one.attempts}
    tried = {one.id for one in queues["t:a"] if one.attempts}
    assert {one.id for one in found["t"]} == plain
    assert {one.id for one in found["t:a"]} == {one.id for one in found["t:b"]} == tried


def test_export_says_what_it_could_not_read(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_queue(data, "t:c", messages(0, 10, 100))
    run(data)
    (segment,) = (data / "t.topic").glob("*.seg")
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"<000004>") + 50] ^= 1
    segment.write_bytes(damaged)
    log = Log()
    export = Export(str(data), str(out), log)
    export.run()
    assert export.damages == 1 and any(f"{segment} at " in line for line in log.lines)
    several = messages(0, 10, 100)
    assert nsq_diskqueue.read_queue(out, "t:c") == several[:4] + several[5:]


def test_export_of_what_nsq_does_not_have(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    core = Core(data, wall=time.time_ns() - 10 * SECOND)
    core.create("t").channel("c")
    producer = HeaderClient(core)
    producer.publish_with(b"old", {"ttl": "5000"})
    producer.publish_with(b"young", {"a": "odd", "ttl": "500000"})
    producer.publish_with(b"plain", {})
    core.save()
    core.close()
    (data / "nsqd.dat").write_text(
        '{"topics":[{"name":"t","channels":[{"name":"c"}]}],"version":"1.3.0"}'
    )
    log = Log()
    Export(str(data), str(out), log).run()
    assert [one.body for one in nsq_diskqueue.read_queue(out, "t:c")] == [b"young", b"plain"]
    assert "export: messages written without headers, which NSQ does not have: 1" in log.lines
    assert "export: expired messages not written: 1" in log.lines


def test_an_export_counts_the_ids_that_it_drops(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    policy = TopicPolicy(dedup_window=60 * SECOND, dedup_id="json:/id")
    core = Core(data, policies=Policies(policy))
    core.create("t").channel("c")
    for body in (b'{"id":1}', b'{"id":1}', b'{"id":2}', b"{}"):
        core.client().publish("t", body)
    core.save()
    core.close()
    (data / "nsqd.dat").write_text(
        '{"topics":[{"name":"t","channels":[{"name":"c"}]}],"version":"1.3.0"}'
    )
    log = Log()
    Export(str(data), str(out), log).run()
    assert len(nsq_diskqueue.read_queue(out, "t:c")) == 3
    assert (
        "export: messages written without keys, priorities or deduplication ids, which NSQ does "
        "not have: 2" in log.lines
    )


# ---- a backlog of any size ----

MEASURED = """
import re, sys
from nsqcy.nsqd.data.command import Terminal
from nsqcy.nsqd.data.exporter import Export
from nsqcy.nsqd.data.importer import Importer
def peak():
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])
before = peak()
importer = Importer(sys.argv[1], Terminal())
importer.run()
assert importer.messages == 200_000
Export(sys.argv[1], sys.argv[1] + "-out", Terminal()).run()
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    block = image(messages(0, 10_000, 100))
    for channel in ("a", "b"):
        for number in range(2):
            data_file(data, f"t:{channel}", number).write_bytes(block * 5)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(data)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout.split()[-1])
    assert kilobytes < 16 << 10, "memory use grows with the size of the import"
