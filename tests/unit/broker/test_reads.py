"""Reading a topic's log: LOG_META, LOG_SEEK, LOG_FETCH."""

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nsqcy.config.policies import Policies, TopicPolicy
from support.log_columns import ALL, Columns, read_columns
from support.runs import runs
from support.worker_core import EPOCH, ERROR, RESPONSE, SECOND, Client, Core, mpub

HURRY = SECOND // 10
DAY = 86400 * SECOND


def kept(durability: str = "memory", **other: Any) -> Policies:
    """Return policies that keep every topic's log for a day."""
    return Policies(TopicPolicy(durability=durability, retention_time=DAY, **other))


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path, policies=kept())
    yield made
    made.close()


def meta(client: Client, topic: str = "t") -> dict[str, Any]:
    kind, data = client.ask(f"LOG_META {topic}\n".encode()) or (None, b"")
    assert kind == RESPONSE, data
    found: dict[str, Any] = json.loads(data)
    return found


def fetch(
    client: Client,
    first: int,
    end: int,
    *,
    log_id: str | None = None,
    maximum: int = 1 << 23,
    columns: str = ALL,
    topic: str = "t",
) -> Columns:
    log_id = log_id or meta(client, topic)["log_id"]
    line = f"LOG_FETCH {topic} {log_id} {first} {end} {maximum} {columns}"
    kind, data = client.ask(line.encode() + b"\n") or (None, b"")
    assert kind == RESPONSE, data
    return read_columns(data)


def test_commands_that_were_not_asked_for_are_unknown(core: Core) -> None:
    answer = core.client().ask(b"LOG_META t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_META")


def test_commands_that_do_not_exist_are_unknown(core: Core) -> None:
    answer = core.client(topic_log=True).ask(b"LOG_FORGET t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_FORGET")


def test_a_topic_that_does_not_exist_is_not_made(core: Core) -> None:
    client = core.client(topic_log=True)
    assert client.ask(b"LOG_META t\n") == (ERROR, b"E_LOG_NO_TOPIC")
    assert core.topic("t") is None
    assert client.publish("t", b"one") == (RESPONSE, b"OK")


def test_meta(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    core.advance(SECOND)
    client.publish("t", b"two")
    found = meta(client)
    assert len(found["log_id"]) == 32
    assert found == {
        "topic": "t",
        "log_id": found["log_id"],
        "first_seq": 1,
        "next_seq": 2,
        "first_time": EPOCH,
        "last_time": EPOCH,
        "bytes": 48,
        "durability": "memory",
        "retention": {"time": DAY, "bytes": 0},
        "incarnations": [{"log_id": found["log_id"], "first_seq": 1, "next_seq": 2}],
        "cursors": [],
    }
    core.advance(SECOND)
    later = meta(client)
    assert (later["next_seq"], later["last_time"]) == (3, EPOCH + SECOND)


def test_fetch(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    client.publish("t", b"later", 1000)
    client.publish("t", b"three")
    core.advance(SECOND)
    found = fetch(client, 1, 4)
    assert (found.base_seq, found.count, found.damaged) == (1, 3, False)
    assert found.body == [b"one", b"later", b"three"]
    assert found.defer == (0, SECOND, 0)
    assert found.timestamp == (EPOCH, EPOCH, EPOCH)
    assert found.headers == [b"", b"", b""]
    assert found.id is not None and len(set(found.id)) == 3
    some = fetch(client, 2, 3, columns="id,body")
    assert (some.base_seq, some.body, some.id) == (2, [b"later"], found.id[1:2])
    assert (some.timestamp, some.defer, some.headers) == (None, None, None)


@pytest.mark.parametrize("maximum", [1, 100, 1000, 100_000, 1 << 23])
def test_a_log_is_read_in_ranges_of_any_size(core: Core, maximum: int) -> None:
    client = core.client(topic_log=True)
    bodies = [b"%d" % i * (i % 50 + 1) for i in range(1, 301)]
    for i in range(0, 300, 60):
        assert client.ask(mpub("t", bodies[i : i + 60])) == (RESPONSE, b"OK")
        core.advance(SECOND)
    at, found = 1, []
    while at < 301:
        part = fetch(client, at, 301, maximum=maximum)
        assert part.base_seq == at and part.body is not None
        assert part.count == 1 or sum(map(len, part.body)) + 32 * part.count <= maximum
        found += part.body
        at = part.end
    assert found == bodies


def test_what_a_second_brings_may_fill_many_files(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=kept(), log_options=SMALL_FILES)
    client = core.client(topic_log=True)
    assert client.ask(mpub("t", [b"x" * 3000] * 9)) == (RESPONSE, b"OK")
    core.advance(SECOND)
    assert meta(client)["next_seq"] == 10
    core.close()


def error(client: Client, line: str) -> str:
    kind, data = client.ask(line.encode() + b"\n") or (None, b"")
    assert kind == ERROR, data
    return data.decode()


def restart(core: Core, policies: Policies | None = None) -> Core:
    """Exit cleanly and start again."""
    core.save()
    return start(core, policies)


def kill(core: Core) -> Core:
    """Kill the process; everything that is not on disk is lost."""
    assert core.path is not None
    copy = core.path.with_name(core.path.name + "k")
    assert core.io is not None
    core.io.drain_now()
    shutil.copytree(core.path, copy)
    core.close()
    shutil.rmtree(core.path)
    copy.rename(core.path)
    return start(core)


def start(core: Core, policies: Policies | None = None, **other: Any) -> Core:
    assert core.path is not None
    again = Core(
        core.path,
        wall=core.wall + SECOND,
        policies=policies or kept(),
        log_options=SMALL_FILES,
        **other,
    )
    again.load_all()
    return again


SMALL_FILES = {"max_bytes_per_file": 2000, "sync_every": 2500, "sync_timeout": 2 * SECOND}


def logs(client: Client, topic: str = "t") -> list[tuple[str, int, int]]:
    return [tuple(each.values()) for each in meta(client, topic)["incarnations"]]


# ---- which records may be read ----


def test_what_is_not_written_is_not_read(core: Core) -> None:
    client = core.client(topic_log=True)
    core.create("t")
    log_id = meta(client)["log_id"]
    client.publish("t", b"one")
    assert error(client, f"LOG_FETCH t {log_id} 1 2 100 body") == "E_LOG_RANGE 1"
    core.advance(SECOND)
    assert fetch(client, 1, 9).body == [b"one"]
    assert error(client, f"LOG_FETCH t {log_id} 2 3 100 body") == "E_LOG_RANGE 2"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_was_answered_is_read(durability: str, tmp_path: Path) -> None:
    core = Core(tmp_path, policies=kept(durability))
    client = core.client(topic_log=True)
    assert client.publish("t", b"one") == (RESPONSE, b"OK")
    assert fetch(client, 1, 2).body == [b"one"]
    core.close()


def test_what_comes_before_an_overflow_is_written_as_well(tmp_path: Path) -> None:
    """The record was only in memory; a later overflow writes it to disk."""
    core = Core(tmp_path, policies=kept(), mem_queue_size=3)
    client = core.client(topic_log=True)
    core.create("t")
    core.settle()
    for n in range(6):
        client.publish("t", b"%d" % n)
    assert meta(client)["next_seq"] == 1
    core.advance(SECOND)
    assert fetch(client, 1, 99).body == [b"%d" % n for n in range(6)]
    core.close()


def test_who_waits_is_answered_within_a_tenth_of_a_second(core: Core) -> None:
    client, publisher = core.client(topic_log=True), core.client()
    core.create("t")
    client.send(b"LOG_META t 60000 1\n")
    core.settle()
    assert client.answer() is None
    for n in range(5):
        publisher.publish("t", b"%d" % n)
        core.advance(HURRY)
        kind, data = client.answer() or (None, b"")
        assert kind == RESPONSE and json.loads(data)["next_seq"] == n + 2
        client.send(b"LOG_META t 60000 %d\n" % (n + 2))
        core.settle()
    core.advance(60 * SECOND)
    kind, data = client.answer() or (None, b"")
    assert kind == RESPONSE and json.loads(data)["next_seq"] == 6


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_who_waits_is_answered_with_the_publish(durability: str, tmp_path: Path) -> None:
    """If publishes are answered only once they are on disk, no further wait is needed."""
    core = Core(tmp_path, policies=kept(durability))
    client, publisher = core.client(topic_log=True), core.client()
    core.create("t")
    for n in range(3):
        client.send(b"LOG_META t 60000 %d\n" % (n + 1))
        core.settle()
        assert client.answer() is None
        publisher.publish("t", b"%d" % n)
        core.settle()
        kind, data = client.answer() or (None, b"")
        assert kind == RESPONSE and json.loads(data)["next_seq"] == n + 2
    core.close()


def test_without_retention_there_is_what_is_queued(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=Policies(TopicPolicy(durability="os")))
    core.create("t").channel("c")
    client = core.client(topic_log=True)
    for n in range(3):
        client.publish("t", b"%d" % n)
    found = meta(client)
    assert (found["retention"], found["first_seq"], found["next_seq"]) == (None, 1, 4)
    assert fetch(client, 1, 9).body == [b"0", b"1", b"2"]
    core.close()


def test_what_retention_has_let_go_of(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=kept())
    client = core.client(topic_log=True)
    for n in range(3):
        client.publish("t", b"%d" % n * 5000)
        core.advance(SECOND)
    log_id = meta(client)["log_id"]
    core.advance(DAY)
    client.publish("t", b"new")
    core.advance(SECOND)
    first = meta(client)["first_seq"]
    assert 1 < first <= 4
    assert error(client, f"LOG_FETCH t {log_id} 1 9 100 body") == f"E_LOG_GONE {first}"
    assert (fetch(client, first, 99).body or [b""])[-1] == b"new"
    core.close()


# ---- how records are read ----


def cold(tmp_path: Path, count: int, size: int = 30_000) -> tuple[Core, list[bytes]]:
    """Return a core with a log that is not in memory."""
    core = Core(tmp_path, policies=kept(), log_options=SMALL_FILES)
    bodies = [b"%06d" % n + b"." * size for n in range(count)]
    for body in bodies:
        assert core.client().publish("t", body) == (RESPONSE, b"OK")
    core.advance(SECOND)
    return restart(core), bodies


def test_a_read_takes_no_memory_of_others(tmp_path: Path) -> None:
    core, bodies = cold(tmp_path, 40)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    resident = core.pool.resident_bytes
    client.send(f"LOG_FETCH t {log_id} 1 41 8388608 {ALL}\n".encode())
    for _ in range(1000):
        core.manager.run_turn(core.now, core.wall)
        assert core.pool.resident_bytes == resident
        answer = client.answer()
        if answer is not None:
            break
        core.io.drain_now()
    assert read_columns(answer[1]).body == bodies
    core.close()


def test_retention_waits_for_a_read(tmp_path: Path) -> None:
    core, bodies = cold(tmp_path, 3)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    core.io.hold("pread")
    client.send(f"LOG_FETCH t {log_id} 1 2 100 body\n".encode())
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.now, core.wall = core.now + 2 * DAY, core.wall + 2 * DAY
    core.manager.run_turn(core.now, core.wall)
    core.io.release()
    core.settle()
    kind, data = client.answer() or (None, b"")
    assert kind == RESPONSE and read_columns(data).body == bodies[:1]
    assert meta(client)["first_seq"] == 4
    core.close()


def test_a_client_that_leaves_in_the_middle_of_it(tmp_path: Path) -> None:
    core, _ = cold(tmp_path, 5)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    core.io.hold("pread")
    client.send(f"LOG_FETCH t {log_id} 1 6 8388608 body\n".encode())
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.manager.close_sessions()
    core.io.release()
    core.settle()
    core.close()


def test_a_topic_that_goes_in_the_middle_of_it(tmp_path: Path) -> None:
    core, _ = cold(tmp_path, 5)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    core.io.hold("pread")
    client.send(f"LOG_FETCH t {log_id} 1 6 8388608 body\n".encode())
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.shard.delete_topic(b"t")
    core.io.release()
    core.settle()
    assert client.answer() == (ERROR, b"E_LOG_NO_TOPIC")
    core.close()


def test_a_disk_that_cannot_be_read_for_a_while(tmp_path: Path) -> None:
    core, bodies = cold(tmp_path, 2)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    core.io.fault("open", 1, errno.EMFILE, times=1000)
    line = f"LOG_FETCH t {log_id} 1 3 8388608 body"
    assert error(client, line).startswith("E_LOG_FAILED open ")
    core.io.clear_faults()
    assert fetch(client, 1, 3).body == bodies
    core.close()


def test_a_file_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    """The file may reappear, for example when its file system is mounted."""
    core, bodies = cold(tmp_path, 4)
    client = core.client(topic_log=True)
    segments = sorted((tmp_path / "t.topic").glob("*.seg"))
    assert len(segments) == 4
    segments[1].rename(tmp_path / "elsewhere")
    line = f"LOG_FETCH t {meta(client)['log_id']} 1 5 8388608 body"
    assert error(client, line).startswith("E_LOG_FAILED open ")
    (tmp_path / "elsewhere").rename(segments[1])
    found = fetch(client, 1, 5)
    assert not found.damaged and found.body == bodies
    core.close()


def test_a_damaged_record(tmp_path: Path) -> None:
    core, bodies = cold(tmp_path, 3)
    client = core.client(topic_log=True)
    segment = sorted((tmp_path / "t.topic").glob("*.seg"))[1]
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    found = fetch(client, 1, 4)
    assert found.damaged and found.body == [bodies[0], b"", bodies[2]]
    core.close()


@pytest.mark.slow
def test_answers_that_nobody_takes_make_others_short(tmp_path: Path) -> None:
    core, _ = cold(tmp_path, 300, 40_000)
    reader = core.client(topic_log=True)
    log_id = meta(reader)["log_id"]
    line = f"LOG_FETCH t {log_id} 1 301 8388608 body\n".encode()
    sizes = []
    for _ in range(20):
        client = core.client(topic_log=True)
        client.transport.full = 0
        kind, data = client.ask(line) or (None, b"")
        assert kind == RESPONSE
        sizes.append(len(data))
    assert sizes[0] > 8_000_000 > 2 * sizes[-1]
    assert min(sizes) > 200_000 and sum(sizes) < 68 << 20
    core.close()


def test_the_next_answer_waits_until_the_one_before_has_left(tmp_path: Path) -> None:
    core, _ = cold(tmp_path, 10)
    client = core.client(topic_log=True)
    log_id = meta(client)["log_id"]
    client.transport.full = 0
    line = f"LOG_FETCH t {log_id} 1 11 8388608 body\n".encode()
    client.send(line * 3)
    core.settle()
    assert client.answer() is not None and client.answer() is None
    client.transport.full = None
    core.settle()
    assert client.answer() is not None and client.answer() is not None
    core.close()


# ---- the identity of a log ----


def test_a_clean_restart_goes_on_with_the_log(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    core.advance(SECOND)
    before = meta(client)
    again = restart(core)
    client = again.client(topic_log=True)
    assert meta(client) == before
    client.publish("t", b"two")
    again.advance(SECOND)
    assert logs(client) == [(before["log_id"], 1, 3)]
    again.close()


@pytest.fixture
def lived(tmp_path: Path) -> Core:
    """Return a core after a clean exit, with a separate segment for each of six messages."""
    core = Core(tmp_path, policies=kept(), log_options=SMALL_FILES)
    for n in range(6):
        core.client().publish("t", b"%d" % n * 1500)
    core.advance(SECOND)
    core.save()
    return core


def read_all(core: Core) -> list[tuple[str, int, list[bytes]]]:
    client = core.client(topic_log=True)
    return [
        (log_id, first, [body[:1] for body in fetch(client, first, end, log_id=log_id).body or ()])
        for log_id, first, end in logs(client)
        if first < end
    ]


def segments(core: Core) -> list[Path]:
    assert core.path is not None
    return sorted((core.path / "t.topic").glob("*.seg"))


def test_a_log_whose_beginning_is_missing_goes_on(lived: Core) -> None:
    segments(lived)[0].unlink()
    core = start(lived)
    ((_, first, bodies),) = read_all(core)
    assert (first, bodies) == (2, [b"1", b"2", b"3", b"4", b"5"])
    core.close()


def test_a_gap_ends_a_log(lived: Core) -> None:
    segments(lived)[2].unlink()
    core = start(lived)
    one, two = read_all(core)
    assert one[1:] == (1, [b"0", b"1"]) and two[1:] == (4, [b"3", b"4", b"5"])
    client = core.client(topic_log=True)
    assert logs(client)[2][1:] == (7, 7)
    assert error(client, f"LOG_FETCH t {one[0]} 3 4 100 body") == "E_LOG_RANGE 3"
    assert error(client, f"LOG_FETCH t {two[0]} 3 4 100 body") == "E_LOG_GONE 4"
    names = [one[0], two[0]]
    # The gap is remembered across a restart.
    core = restart(core)
    assert [each[0] for each in read_all(core)] == names
    core = kill(core)
    assert [each[0] for each in read_all(core)] == names
    core.close()


def test_a_log_whose_end_is_missing_ends_there(lived: Core) -> None:
    segments(lived)[-1].unlink()
    core = start(lived)
    ((name, first, bodies),) = read_all(core)
    assert (first, bodies) == (1, [b"0", b"1", b"2", b"3", b"4"])
    client = core.client(topic_log=True)
    client.publish("t", b"x")
    core.advance(SECOND)
    before, after = logs(client)
    assert before == (name, 1, 6) and after[0] != name and after[1:] == (7, 8)
    core.close()


def test_without_a_journal_logs_are_named_by_their_segments(lived: Core) -> None:
    assert lived.path is not None
    core = start(lived)
    ((name, *_),) = read_all(core)
    core.save()
    (lived.path / "t.topic" / "journal").unlink()
    core = start(lived)
    names = [each[0] for each in logs(core.client(topic_log=True))]
    assert names[0] == name and len(names) == 2
    core.close()


def test_nothing_is_left_of_a_log_that_was_deleted(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    core.advance(SECOND)
    old = meta(client)["log_id"]
    core.shard.delete_topic(b"t")
    client.publish("t", b"two")
    core.advance(SECOND)
    new = meta(client)["log_id"]
    assert error(client, f"LOG_FETCH t {old} 1 2 100 body") == f"E_LOG_ID {new}"


# ---- any arguments ----

WORDS = st.one_of(
    st.sampled_from(
        ["t", "u", "1", "2", "3", "-1", "", "x" * 70, str(1 << 64), "0" * 32, "id", ALL, "60000"]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=5),
)


@pytest.mark.slow
@given(
    st.sampled_from(["LOG_META", "LOG_SEEK", "LOG_FETCH", "LOG_", "LOG_X"]),
    st.lists(WORDS, max_size=9),
)
@settings(max_examples=runs(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_arguments(core: Core, name: str, words: list[str]) -> None:
    if core.topic("t") is None:
        core.client().publish("t", b"one")
        core.advance(SECOND)
    client = core.client(topic_log=True)
    words = [meta(client)["log_id"] if word == "0" * 32 else word for word in words]
    line = " ".join([name, *words]).encode() + b"\n"
    client.send(line)
    core.settle()
    core.advance(60 * SECOND)
    kind, _ = client.answer() or (None, b"")
    assert kind in (RESPONSE, ERROR)
    assert not any("Error:" in line for line in core.log.lines)


# ---- compared with a list ----


class Machine(RuleBasedStateMachine):
    """A topic that is read in ranges after any event, and compared with a list of its messages."""

    @initialize(durability=st.sampled_from(["memory", "os", "fsync"]))
    def begin(self, durability: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.policies = kept(durability, retention_bytes=60_000)
        self.core = Core(
            Path(self.folder.name),
            policies=self.policies,
            log_options=SMALL_FILES,
            mem_queue_size=10,
            budget=20_000,
        )
        self.sent: list[bytes] = []

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.core.close()
            self.folder.cleanup()

    @rule(count=st.integers(1, 40), size=st.sampled_from([1, 50, 3000]))
    def publish(self, count: int, size: int) -> None:
        bodies = [b"%d." % (len(self.sent) + n) + b"x" * size for n in range(count)]
        assert self.core.client().ask(mpub("t", bodies)) == (RESPONSE, b"OK")
        self.sent += bodies

    @rule()
    def a_second(self) -> None:
        self.core.advance(SECOND)

    @rule()
    def consume(self) -> None:
        if self.core.topic("t") is None:
            return
        client = self.core.client().subscribe("t", "c", 20)
        self.core.settle()
        for each in client.messages():
            client.finish(each.id)
        client.transport.end()
        self.core.settle()

    @rule()
    def restart(self) -> None:
        self.core.save()
        self.core = start(self.core, self.policies, mem_queue_size=10, budget=20_000)

    @rule(data=st.data(), maximum=st.sampled_from([1, 200, 5000, 1 << 23]))
    def read(self, data: st.DataObject, maximum: int) -> None:
        if self.core.topic("t") is None:
            return
        client = self.core.client(topic_log=True)
        facts = meta(client)
        assert len(facts["incarnations"]) == 1
        first, end = facts["first_seq"], facts["next_seq"]
        assert 1 <= first <= end <= len(self.sent) + 1
        if first == end:
            return
        at = data.draw(st.integers(first, end - 1))
        stop = data.draw(st.integers(at + 1, end + 3))
        found = fetch(client, at, stop, maximum=maximum)
        assert found.body == self.sent[at - 1 : found.end - 1]
        assert at < found.end <= min(stop, end)

    @rule()
    def everything_is_there_after_a_second(self) -> None:
        self.core.advance(SECOND)
        if self.sent:
            assert meta(self.core.client(topic_log=True))["next_seq"] == len(self.sent) + 1


Machine.TestCase.settings = settings(max_examples=runs(25), stateful_step_count=25, deadline=None)
test_ranges_against_a_list = pytest.mark.slow(Machine.TestCase)
