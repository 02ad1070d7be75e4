"""LOG_PUB: each chunk is published once, even if it is resent, across every kind of exit.

The tests simulate a kill with a copy of the files at that moment.
"""

import errno
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nsqcy.broker.producers import EXPIRY
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.io_faults import FaultyIoThread
from support.recorded_disk import RecordedDisk
from support.worker_core import ERROR, RESPONSE, SECOND, Client, Core, log_pub

OK = (RESPONSE, b"OK")
DURABILITIES = ["memory", "os", "fsync"]
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(durability: str, path: Path | None = None, **more: Any) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        retention = more.pop("retention_time", 0)
        policy = TopicPolicy(durability=durability, retention_time=retention)
        core = Core(path, policies=Policies(policy), **more)
        made.append(core)
        core.load_all()
        return core

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, durability: str, **more: Any) -> Core:
    """Return what would be found at startup if the process were killed now."""
    return make(durability, core.copied(), now=core.now + 77 * SECOND, wall=core.wall, **more)


def restarted(make: Make, core: Core, durability: str) -> Core:
    """Return the core after a clean exit."""
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    return make(durability, core.path, now=core.now, wall=core.wall)


def publish(core: Core, chunk: int, *bodies: bytes, **key: Any) -> tuple[int, bytes] | None:
    client = core.client(topic_log=True, durability=key.pop("durability", ""))
    return client.ask(log_pub("t", chunk, list(bodies), **key))


def bodies(core: Core, topic: str = "t", channel: str = "c", finish: bool = True) -> list[bytes]:
    client = core.client().subscribe(topic, channel, 2500)
    found = []
    while True:
        core.settle()
        some = client.messages()
        if not some:
            break
        found += [each.body for each in some]
        if finish:
            for each in some:
                client.finish(each.id)
    client.transport.end()
    core.settle()
    return found


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_chunk_is_published_once(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    for _ in range(3):
        assert publish(core, 1, b"one", b"two") == OK
    assert publish(core, 2, b"three") == OK
    assert publish(core, 1, b"one", b"two") == OK
    assert publish(core, 1, b"other", part=1) == OK
    assert core.counters("t")["message_count"] == 4
    assert bodies(core) == [b"one", b"two", b"three", b"other"]


def test_it_makes_the_topic_and_may_be_pipelined(make: Make) -> None:
    core = make("os")
    client = core.client(topic_log=True)
    client.send(*(log_pub("t", chunk // 2, [b"%d" % (chunk // 2)]) for chunk in range(20)))
    core.settle()
    assert [client.answer() for _ in range(21)] == [OK] * 20 + [None]
    assert bodies(core) == [b"%d" % chunk for chunk in range(10)]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("LOG_PUB t p 1 2", "E_INVALID LOG_PUB insufficient number of parameters"),
        ("LOG_PUB t? p 1 2 3", 'E_BAD_TOPIC LOG_PUB topic name "t?" is not valid'),
        (
            "LOG_PUB t#ephemeral p 1 2 3",
            'E_BAD_TOPIC LOG_PUB topic name "t#ephemeral" is not valid',
        ),
        ("LOG_PUB t p/ 1 2 3", 'E_INVALID LOG_PUB producer "p/" is not valid'),
        (f"LOG_PUB t {65 * 'p'} 1 2 3", f'E_INVALID LOG_PUB producer "{65 * "p"}" is not valid'),
        ("LOG_PUB t p -1 2 3", "E_INVALID LOG_PUB could not parse epoch"),
        (f"LOG_PUB t p {2**64} 2 3", "E_INVALID LOG_PUB could not parse epoch"),
        (f"LOG_PUB t p 1 {2**32} 3", "E_INVALID LOG_PUB could not parse part"),
        ("LOG_PUB t p 1 2 x", "E_INVALID LOG_PUB could not parse chunk"),
    ],
)
def test_what_cannot_be_understood(make: Make, line: str, error: str) -> None:
    core = make("memory")
    client = core.client(topic_log=True)
    assert client.ask(line.encode() + b"\n") == (ERROR, error.encode())


@pytest.mark.parametrize("announced", [1, 4, 17, 19, 1000])
def test_its_length_has_to_be_right(make: Make, announced: int) -> None:
    """The size of an MPUB need not be correct, because old clients declare it wrongly."""
    core = make("memory")
    client = core.client(topic_log=True)
    whole = log_pub("t", 1, [b"one", b"two"])
    at = whole.index(b"\n") + 1
    command = whole[:at] + announced.to_bytes(4, "big") + whole[at + 4 :]
    assert client.ask(command) == (
        ERROR,
        b"E_BAD_BODY LOG_PUB body of %d bytes holds messages for 18" % announced,
    )
    assert b"t" not in core.shard.topics


def test_the_largest_numbers(make: Make) -> None:
    core = make("memory")
    maximum = 2**64 - 1
    for _ in range(2):
        assert publish(core, maximum, b"one", epoch=maximum, part=2**32 - 1) == OK
    assert bodies(core) == [b"one"]


def test_it_is_unknown_to_whoever_did_not_ask(make: Make) -> None:
    core = make("memory")
    answer = core.client().ask(log_pub("t", 1, [b"one"]))
    assert answer == (ERROR, b"E_INVALID invalid command LOG_PUB")


CALLS = {"os": "pwrite", "fsync": "fdatasync"}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_repeat_of_a_pending_publish_gets_its_outcome(
    make: Make, durability: str, asked: bool
) -> None:
    core = make("memory" if asked else durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold(CALLS[durability])
    clients = [
        core.client(topic_log=True, durability=durability if asked else "") for _ in range(3)
    ]
    for client in clients:
        client.send(log_pub("t", 1, [b"one", b"two"]))
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.io.poll_now()
    core.manager.run_turn(core.now, core.wall)
    assert [client.answer() for client in clients] == [None] * 3
    core.io.release()
    core.settle()
    assert [client.answer() for client in clients] == [OK] * 3
    assert bodies(core) == [b"one", b"two"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_rejected_chunk_is_not_remembered(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    assert publish(core, 1, b"one") == OK
    core.io.fault(CALLS[durability], 1, errno.ENOSPC)
    first, second = core.client(topic_log=True), core.client(topic_log=True)
    first.send(log_pub("t", 2, [b"two"]))
    second.send(log_pub("t", 2, [b"two"]))
    core.settle()
    for client in (first, second):
        kind, text = client.answer() or (None, b"")
        assert kind == ERROR and text.startswith(b"E_LOG_PUB_FAILED LOG_PUB failed "), text
        assert client.closed
    assert publish(core, 2, b"two") == OK
    assert publish(core, 2, b"two") == OK
    assert bodies(core) == [b"one", b"two"]


def test_chunks_behind_a_rejected_chunk_are_rejected(make: Make) -> None:
    core = make("os")
    core.io.fault("pwrite", 2, errno.ENOSPC)
    client = core.client(topic_log=True)
    client.send(*(log_pub("t", chunk, [b"%d" % chunk]) for chunk in range(9)))
    core.settle()
    assert client.closed
    for chunk in range(9):
        assert publish(core, chunk, b"%d" % chunk) == OK
    assert bodies(core) == [b"%d" % chunk for chunk in range(9)]


def test_a_refusal_costs_no_repeat(make: Make) -> None:
    """Accepted chunks need no disk space."""
    core = make("os")
    assert publish(core, 1, b"one") == OK
    core.shard.set_refusal("disk full")
    assert publish(core, 1, b"one") == OK
    assert publish(core, 2, b"two") == (ERROR, b"E_LOG_PUB_FAILED LOG_PUB failed disk full")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_over_clean_exits(make: Make, durability: str) -> None:
    """Chunks are remembered even if the topic no longer has any messages."""
    core = make(durability)
    core.create("t").channel("c")
    for chunk in range(5):
        assert publish(core, chunk, b"%d" % chunk) == OK
        assert bodies(core) == [b"%d" % chunk]
        core = restarted(make, core, durability)
        assert publish(core, chunk, b"%d" % chunk) == OK
        assert bodies(core) == []
    core.advance(EXPIRY + SECOND)
    core = restarted(make, core, durability)
    assert core.files() == []


@pytest.mark.parametrize("journalled", [False, True])
@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_over_kills(make: Make, durability: str, consumed: bool, journalled: bool) -> None:
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    assert publish(core, 1, b"one", b"two") == OK
    if consumed:
        assert bodies(core) == [b"one", b"two"]
    if journalled:
        core.advance(3 * SECOND)
    after = killed(make, core, durability)
    assert publish(after, 1, b"one", b"two") == OK
    assert publish(after, 2, b"three") == OK
    assert bodies(after)[-1 if consumed else -3 :] == [b"one", b"two", b"three"][2 * consumed :]
    again = killed(make, after, durability)
    assert publish(again, 2, b"three") == OK
    assert len(set(bodies(again))) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_of_what_is_consumed_a_trace_stays_until_the_journal_has_it(
    make: Make, durability: str
) -> None:
    """The record is kept even if its file is full and no channel needs it."""
    options = {"max_bytes_per_file": 4096, "sync_every": 2500, "sync_timeout": 2 * SECOND}
    core = make(durability, log_options=options)
    core.create("t").channel("c")
    core.settle()
    for chunk in range(30):
        assert publish(core, chunk, bytes(1000), part=chunk) == OK
        assert len(bodies(core)) == 1
    after = killed(make, core, durability)
    for chunk in range(30):
        assert publish(after, chunk, bytes(1000), part=chunk) == OK
    assert after.counters("t")["message_count"] == 0
    before = core.topic("t").log_bytes
    core.advance(3 * SECOND)
    core.advance(3 * SECOND)
    assert core.topic("t").log_bytes < before // 4
    again = make(durability, shutil.copytree(core.path, core.path.with_name("later")))
    for chunk in range(30):
        assert publish(again, chunk, bytes(1000), part=chunk) == OK
    assert again.counters("t")["message_count"] == 0


def test_runs_without_chunks_are_not_read(make: Make) -> None:
    options = {"max_bytes_per_file": 4096, "sync_every": 2500, "sync_timeout": 2 * SECOND}
    core = make("os", retention_time=3600 * SECOND, log_options=options)
    assert publish(core, 1, b"one") == OK
    core.advance(3 * SECOND)
    for n in range(500):
        assert core.client().publish("t", b"%d" % n) == OK
    after = killed(make, core, "os", retention_time=3600 * SECOND)
    # Only the run that contains a chunk, and extends beyond the journal, is read from the log.
    assert after.topic("t").memory_bytes <= 4096 < after.topic("t").log_bytes // 4
    assert publish(after, 1, b"one") == OK
    assert after.counters("t")["message_count"] == 0


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("kept", range(6))
def test_a_repeat_completes_a_chunk_torn_by_a_crash(make: Make, durability: str, kept: int) -> None:
    """`kept` records of a chunk remain; the repetition publishes the others."""
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    assert publish(core, 1, b"before") == OK
    whole = [b"message %d" % n for n in range(5)]
    assert publish(core, 2, *whole) == OK
    copy = core.path.with_name("torn")
    shutil.copytree(core.path, copy)
    segment = max(copy.glob("t.topic/*.seg"))
    data = segment.read_bytes()
    at = [data.index(each) for each in whole]
    # Bodies come after the header and the extension.
    cut = (at[kept] - 88 if kept < 5 else len(data)) + (20 if kept < 5 else 0)
    segment.write_bytes(data[:cut])
    after = make(durability, copy)
    for _ in range(2):
        assert publish(after, 2, *whole) == OK
        assert after.counters("t")["message_count"] == 5 - kept
    assert bodies(after) == [b"before", *whole]


@pytest.mark.parametrize("lost", range(5))
def test_a_lost_record_of_what_was_not_answered_comes_again(make: Make, lost: int) -> None:
    """The sectors of a write may reach the disk in any order."""
    core = make("fsync")
    core.create("t").channel("c")
    core.settle()
    whole = [b"message %d" % n for n in range(5)]
    assert publish(core, 2, *whole) == OK
    copy = core.path.with_name("torn")
    shutil.copytree(core.path, copy)
    segment = max(copy.glob("t.topic/*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(whole[lost])
    data[at - 88 : at + 8] = bytes(96)
    segment.write_bytes(data)
    after = make("fsync", copy)
    assert publish(after, 2, *whole) == OK
    assert after.counters("t")["message_count"] == 1
    assert sorted(bodies(after)) == whole


def test_a_kill_of_memory_forgets_no_chunk_that_it_keeps(make: Make) -> None:
    """The chunk is kept although the records before it are lost and the log has a new id."""
    core = make("memory", mem_queue_size=3)
    core.create("t").channel("c")
    whole = [b"%d" % n for n in range(8)]
    assert publish(core, 1, *whole) == OK
    assert publish(core, 2, *whole) == OK
    before = core.topic("t").log_facts()["log_id"]
    after = killed(make, core, "memory")
    assert after.topic("t").log_facts()["log_id"] != before
    after.create("t").channel("c")
    assert publish(after, 2, *whole) == OK
    assert after.counters("t")["message_count"] == 0


def test_compaction_confuses_nobody(make: Make) -> None:
    """Some records of old chunks were copied, and the originals are gone."""
    core = make(
        "os",
        log_options={"max_bytes_per_file": 1 << 20, "sync_every": 2500, "sync_timeout": 2 * SECOND},
    )
    core.create("t").channel("c")
    core.settle()
    for chunk in range(40):
        assert publish(core, chunk, *(bytes(4000) for _ in range(25))) == OK
    client = core.client().subscribe("t", "c", 2500)
    core.settle()
    kept = 0
    for n, each in enumerate(client.messages()):
        if n % 50:
            client.finish(each.id)
        else:
            kept += 1
    for _ in range(10):
        core.advance(SECOND)
    assert core.topic("t").log_bytes < 1 << 20
    after = killed(make, core, "os")
    for chunk in range(40):
        assert publish(after, chunk, *(bytes(4000) for _ in range(25))) == OK
    assert after.counters("t")["message_count"] == 0
    assert len(bodies(after)) == kept


def test_a_damaged_journal_makes_no_chunk_that_is_there_come_twice(make: Make) -> None:
    core = make("os")
    core.create("t").channel("c")
    core.settle()
    assert publish(core, 1, b"one") == OK
    core.advance(3 * SECOND)
    copy = shutil.copytree(core.path, core.path.with_name("damaged"))
    journal = copy / "t.topic" / "journal"
    journal.write_bytes(journal.read_bytes()[:40])
    after = make("os", copy)
    assert publish(after, 1, b"one") == OK
    assert after.counters("t")["message_count"] == 0


@pytest.mark.parametrize(("durability", "asked"), [("fsync", ""), ("os", "fsync")])
def test_the_power_goes_after_a_kill(tmp_path: Path, durability: str, asked: str) -> None:
    """If a chunk was written but not synced when the process was killed, it is synced before a
    repetition is answered."""
    path = tmp_path / "data"
    path.mkdir()
    disk = RecordedDisk(path)

    def start(folder: Path) -> Core:
        io = FaultyIoThread(stepped=True)
        io.record()
        core = Core(folder, io=io, policies=Policies(TopicPolicy(durability=durability)))
        for each in folder.glob("*.topic"):
            core.shard.load_topic(each.name.removesuffix(".topic").encode(), False, {})
        return core

    core = start(path)
    core.create("t").channel("c")
    assert publish(core, 1, b"one", durability=asked) == OK
    client = core.client(topic_log=True, durability=asked)
    client.send(log_pub("t", 2, [b"two"]))
    core.manager.run_turn(core.now, core.wall)
    disk.take(core.io.recorded())
    while not any(call.name == "pwrite" and b"two" in call.data for call in disk.calls):
        assert core.io.step_now()
        disk.take(core.io.recorded())
    killed = tmp_path / "killed"
    disk.kill(len(disk.calls), killed)
    after = start(killed)
    after_disk = RecordedDisk(killed)
    after_disk.calls, after_disk.before = disk.calls, disk.before
    client = after.client(topic_log=True, durability=asked)
    client.send(log_pub("t", 2, [b"two"]))
    while client.answer() is None:
        after.manager.run_turn(after.now, after.wall)
        after.io.step_now()
    after_disk.take(after.io.recorded())
    off = tmp_path / "off"
    after_disk.lose_power(len(after_disk.calls), off, Least())
    for each in (core, after):
        each.io.recorded()
        each.close()
    last = start(off)
    assert sorted(bodies(last)) == [b"one", b"two"]
    last.io.recorded()
    last.close()


class Least(Random):
    """Random choices that lose all unsynced data."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Any) -> Any:
        return seq[0]


def with_headers(core: Core) -> Client:
    client = core.client()
    wanted = (
        b'{"topic_log":true,"headers":true,"feature_negotiation":true,"heartbeat_interval":60000}'
    )
    kind, text = client.ask(b"IDENTIFY\n", struct.pack(">i", len(wanted)), wanted) or (ERROR, b"")
    assert kind == RESPONSE and b'"headers":true' in text
    return client


def headered(headers: bytes, body: bytes) -> bytes:
    return struct.pack(">H", len(headers)) + headers + body


def test_messages_with_headers(make: Make) -> None:
    """The missing part of a chunk is published with its headers."""
    core = make("os")
    core.create("t").channel("c")
    core.settle()
    trace = b"\5trace\0\3abc"
    whole = [headered(trace * (n % 2), b"message %d" % n) for n in range(5)]
    client = with_headers(core)
    assert client.ask(log_pub("t", 1, whole)) == OK
    copy = shutil.copytree(core.path, core.path.with_name("torn"))
    segment = max(copy.glob("t.topic/*.seg"))
    data = segment.read_bytes()
    segment.write_bytes(data[: data.index(b"message 3") - 10])
    after = make("os", copy)
    client = with_headers(after)
    for _ in range(2):
        assert client.ask(log_pub("t", 1, whole)) == OK
    consumer = with_headers(after).subscribe("t", "c", 10)
    after.settle()
    assert [each.body for each in consumer.messages()] == whole
    kind, text = client.ask(log_pub("t", 2, [b"\0\xff"])) or (None, b"")
    assert (kind, text) == (
        ERROR,
        b"E_BAD_MESSAGE LOG_PUB headers of 255 bytes extend beyond a message of 2",
    )


def epochs(core: Core, words: bytes) -> object:
    kind, text = core.client(topic_log=True).ask(b"LOG_EPOCHS %s\n" % words)
    return json.loads(text)["epochs"] if kind == RESPONSE else text


def test_the_epochs_of_a_producer(make: Make) -> None:
    core = make("os")
    for epoch in (7, 2**64 - 1, 5):
        assert publish(core, 1, b"x", epoch=epoch) == OK
    for after in (core, killed(make, core, "os"), restarted(make, core, "os")):
        assert epochs(after, b"t p") == [5, 7, 2**64 - 1]
        assert epochs(after, b"t other") == []
        assert epochs(after, b"u p") == b"E_LOG_NO_TOPIC"
        assert epochs(after, b"t x/") == b'E_INVALID LOG_EPOCHS producer "x/" is not valid'
        assert epochs(after, b"t") == b"E_INVALID LOG_EPOCHS insufficient number of parameters"
    after.advance(EXPIRY + SECOND)
    assert epochs(after, b"t p") == []


@pytest.mark.parametrize("on_full", ["reject", "drop-newest"])
def test_a_topic_that_is_full(tmp_path: Path, on_full: str) -> None:
    policy = TopicPolicy(durability="os", max_depth=3, on_full=on_full)
    core = Core(tmp_path, policies=Policies(policy))
    core.create("t").channel("c")
    core.settle()
    assert publish(core, 1, b"1", b"2") == OK
    refused = publish(core, 2, b"3", b"4", b"5")
    if on_full == "reject":
        assert refused is not None and refused[1].startswith(b"E_LOG_PUB_FAILED LOG_PUB failed ")
        assert bodies(core) == [b"1", b"2"]
        assert publish(core, 2, b"3", b"4", b"5") == OK
    else:
        assert publish(core, 3, b"6") == OK
        assert bodies(core) == [b"1", b"2", b"3"]
    assert publish(core, 2, b"3", b"4", b"5") == OK
    assert publish(core, 4, b"7") == (refused if on_full == "reject" else OK)
    assert bodies(core) == ([b"3", b"4", b"5"] if on_full == "reject" else [b"7"])
    core.close()


@pytest.mark.parametrize("seed", range(40))
def test_lines_of_any_kind(make: Make, seed: int) -> None:
    """Each line is answered once, or ends its connection."""
    chance = Random(seed)
    core = make("os")
    words = [
        b"LOG_PUB",
        b"LOG_CURSOR",
        b"LOG_EPOCHS",
        b"t",
        b"p",
        b"-",
        b"delete",
        b"",
        b"0",
        b"1",
        b"x/",
        b"\xff",
    ]
    words += [b"%d" % 2**64, b"9" * 30, b"#ephemeral", b"t#ephemeral", b"00" * 16]
    core.create("t")
    for _ in range(30):
        client = core.client(topic_log=True)
        name = chance.choice(words[:3])
        line = b" ".join([name, b"t", *chance.choices(words, k=chance.randint(0, 6))]) + b"\n"
        body = bytes(chance.choices(range(3), k=chance.randint(0, 30)))
        if chance.random() < 0.5:
            body = log_pub("t", 1, [body or b"x"]).split(b"\n", 1)[1]
        client.send(line, *([body] if name == b"LOG_PUB" else []))
        core.settle()
        answer = client.answer()
        assert answer is None or answer == OK or answer[1].startswith((b"E_", b"{"))
        assert answer is not None or not client.closed
    assert publish(core, 1, b"still there") == OK
