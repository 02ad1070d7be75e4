"""Publishing once: a repeated publish within the window is kept nowhere, and answered as the first
is."""

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.base.core import headers_from_text
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.formats import FormatError
from nsqcy.server.core import Publisher
from nsqcy.storage.core import MirroredIo
from nsqcy.testing.wire_client import sized
from support.disk_format import IDS_HEADER, renumbered, stored
from support.header_client import HeaderClient
from support.worker_core import EPOCH, ERROR, RESPONSE, SECOND, Client, Core, log_pub, mpub

OK = (RESPONSE, b"OK")
WINDOW = 60 * SECOND
MANY_IDS = 1_100_000  # more than one journal files
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(path: Path | None = None, core_options: Any = None, **policy: Any) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        values = {"durability": "os", "dedup_window": WINDOW, "dedup_id": "json:/id"} | policy
        core = Core(path, policies=Policies(TopicPolicy(**values)), **(core_options or {}))
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def body(id: object) -> bytes:
    return b'{"id":"%d"}' % id


def depth(core: Core, channel: str = "c") -> int:
    found: int = core.counters("t", channel)["depth"]
    return found


def duplicates(core: Core) -> int:
    found: int = core.counters("t")["duplicates"]
    return found


def parked(core: Core) -> None:
    """Run a turn until the I/O thread is parked at the held call."""
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.io.poll_now()
    core.manager.run_turn(core.now, core.wall)


def again(make: Make, core: Core, later: int = 0, **policy: Any) -> Core:
    """Return what would be found at startup if the process were killed now."""
    found = make(core.copied(), {"now": core.now + SECOND, "wall": core.wall + later}, **policy)
    found.load_all()
    return found


def http(core: Core, bodies: Any, headers: dict[str, str] | None = None) -> list[str | None]:
    """Publish as HTTP does; return the answers so far."""
    answers: list[str | None] = []
    encoded = headers_from_text(headers or {})
    Publisher(core.manager).publish(b"t", bodies, 0, "memory", answers.append, encoded)
    return answers


def consume(core: Core, client: Client | None = None) -> list[bytes]:
    """Finish everything that waits; return the bodies."""
    client = client or core.client().subscribe("t", "c", 2500)
    core.settle()
    found = client.messages()
    for each in found:
        client.finish(each.id)
    core.settle()
    return [each.body for each in found]


# ---- what is compared ----


def test_a_repeat_is_kept_nowhere_and_counted(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    for _ in range(3):
        assert client.publish("t", body(1)) == OK
    assert client.publish("t", body(2)) == OK
    assert client.publish("t", body(1), delay=1) == OK
    assert (depth(core), duplicates(core)) == (2, 3)
    assert core.counters("t")["message_count"] == 2
    assert len(stored(core.path / "t.topic")) == 2


def test_messages_without_an_id_are_all_kept(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    for text in (b"x", b"x", b"{}", b"{}", b'{"id":null}', b'{"id":null}'):
        assert client.publish("t", text) == OK
    assert (depth(core), duplicates(core)) == (6, 0)


def test_each_message_of_a_batch_is_compared_by_itself(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    assert client.ask(mpub("t", [body(1), body(2), body(1), b"x", b"x"])) == OK
    assert client.ask(mpub("t", [body(2), body(3)])) == OK
    assert client.ask(mpub("t", [body(2), body(3)])) == OK
    assert (depth(core), duplicates(core)) == (5, 4)


def test_a_batch_over_several_turns_is_compared_too(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    bodies = [body(i % 7000) for i in range(9000)]
    assert client.ask(mpub("t", bodies)) == OK
    assert (depth(core), duplicates(core)) == (7000, 2000)
    assert client.ask(mpub("t", bodies)) == OK
    assert (depth(core), duplicates(core)) == (7000, 11000)
    assert core.counters("t")["message_count"] == 7000


def test_http_publishes_are_compared(make: Make) -> None:
    core = make(dedup_id="header:dedup-id")
    core.create("t").channel("c")
    assert http(core, [b"a"], {"dedup-id": "1"}) == http(core, [b"b"], {"dedup-id": "1"}) == []
    core.settle()
    assert (depth(core), duplicates(core)) == (1, 1)
    assert http(core, [b"a"], {"dedup-id": "1"}) == [None]
    client = HeaderClient(core)
    assert client.publish_with(b"z", {"dedup-id": "1"}) == OK
    assert client.publish_with(b"z", {"dedup-id": "2"}) == OK
    assert (depth(core), duplicates(core)) == (2, 3)


def test_log_pub_is_neither_compared_nor_remembered(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client(topic_log=True)
    client.ask(b"IDENTIFY\n", sized(b'{"feature_negotiation":true,"topic_log":true}'))
    assert client.ask(log_pub("t", 1, [body(1)])) == OK
    assert client.publish("t", body(1)) == OK
    assert client.ask(log_pub("t", 2, [body(1)])) == OK
    assert (depth(core), duplicates(core)) == (3, 0)


def test_a_redrive_within_the_window_arrives(tmp_path: Path) -> None:
    channels = [("t/c", {"dead_letter_topic": "dead", "max_attempts": 1})]
    policy = TopicPolicy(durability="os", dedup_window=WINDOW, dedup_id="json:/id")
    core = Core(tmp_path, policies=Policies(policy, channel_sections=channels))
    core.create("dead").channel("c")
    core.create("t").channel("c")
    client = core.client().subscribe("t", "c", 1)
    assert client.publish("t", body(1)) == OK
    (message,) = client.messages()
    client.requeue(message.id)
    core.settle()
    core.advance(SECOND)
    # The dead letter's topic has a window, too, and a message with that id.
    assert core.client().publish("dead", body(1)) == OK
    dead = core.topic("dead")
    assert dead is not None and dead.channels["c"].counters()["depth"] == 2
    dead.channels["c"].redrive(0)
    core.settle()
    core.advance(SECOND)
    client.ready(1)
    core.settle()
    assert [each.body for each in client.messages()] == [body(1)]
    core.close()


# ---- the window ----


def test_an_id_counts_during_the_window(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", body(1)) == OK
    core.advance(WINDOW - 1)
    assert client.publish("t", body(1)) == OK
    assert duplicates(core) == 1
    core.advance(1)
    assert client.publish("t", body(1)) == OK
    assert (depth(core), duplicates(core)) == (2, 1)
    assert client.publish("t", body(1)) == OK
    assert (depth(core), duplicates(core)) == (2, 2)


def test_above_the_maximum_the_oldest_go_early(make: Make) -> None:
    core = make(dedup_ids=3)
    core.create("t").channel("c")
    client = core.client()
    for i in (1, 2, 3, 4, 1, 4):
        assert client.publish("t", body(i)) == OK
    assert (depth(core), duplicates(core)) == (5, 1)
    assert core.counters("t")["dedup"] == {"ids": 3, "early": 2}


def test_deleting_the_topic_forgets_and_emptying_does_not(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", body(1)) == OK
    core.topic("t").empty_channel("c")
    core.topic("t").empty()
    assert client.publish("t", body(1)) == OK
    assert duplicates(core) == 1
    core.advance(3 * SECOND)
    core.shard.delete_topic(b"t")
    core.settle()
    assert not (core.path / "t.topic").exists()
    core.create("t").channel("c")
    assert client.publish("t", body(1)) == OK
    assert (depth(core), duplicates(core)) == (1, 0)


def test_turning_it_off_forgets(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", body(1)) == OK
    core.advance(3 * SECOND)
    assert list((core.path / "t.topic").glob("*.ids"))
    core.topic("t").set_policy(TopicPolicy(durability="os"))
    assert client.publish("t", body(1)) == OK
    core.advance(3 * SECOND)
    assert not list((core.path / "t.topic").glob("*.ids"))
    core.topic("t").set_policy(
        TopicPolicy(durability="os", dedup_window=WINDOW, dedup_id="json:/id")
    )
    assert client.publish("t", body(1)) == OK
    assert (depth(core), duplicates(core)) == (3, 0)


def test_a_newer_file_is_refused(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    assert core.client().publish("t", body(1)) == OK
    core.advance(3 * SECOND)
    copy = core.copied()
    (path,) = (copy / "t.topic").glob("*.ids")
    content = renumbered(path.read_bytes(), IDS_HEADER, 2)
    path.write_bytes(content)
    found = make(copy)
    text = r"\.ids: ids format version 2 is newer than this nsqcy supports \(1\)"
    with pytest.raises(FormatError, match=text):
        found.load_all()
    assert path.read_bytes() == content


# ---- answered as the first is ----


@pytest.mark.parametrize("durability, call", [("os", "pwrite"), ("fsync", "fdatasync")])
def test_a_repeat_waits_with_the_first(make: Make, durability: str, call: str) -> None:
    core = make(durability=durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold(call)
    first, other, later = core.client(), core.client(), core.client()
    first.send(b"PUB t\n", sized(body(1)))
    parked(core)
    later.send(b"PUB t\n", sized(body(2)))
    other.send(b"PUB t\n", sized(body(1)))
    other.send(mpub("t", [body(1), body(1)]))
    core.manager.run_turn(core.now, core.wall)
    assert first.answer() is other.answer() is later.answer() is None
    core.io.release()
    core.settle()
    assert [first.answer(), other.answer(), other.answer(), later.answer()] == [OK] * 4
    assert (depth(core), duplicates(core)) == (2, 3)


@pytest.mark.parametrize("count", [1, 3, 6000])
@pytest.mark.parametrize("durability, call", [("os", "pwrite"), ("fsync", "fdatasync")])
def test_a_repeat_is_refused_with_the_first(
    make: Make, durability: str, call: str, count: int
) -> None:
    core = make(durability=durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold(call)
    core.io.fault(call, error=errno.EIO)
    first, other = core.client(), core.client()
    first.send(mpub("t", [body(i) for i in range(count)]))
    core.manager.run_turn(core.now, core.wall)
    other.send(b"PUB t\n", sized(body(count - 1)))
    core.manager.run_turn(core.now, core.wall)
    parked(core)
    assert first.answer() is other.answer() is None
    core.io.release()
    core.settle()
    for client in (first, other):
        answer = client.answer()
        assert answer is not None and answer[0] == ERROR and b"PUB_FAILED" in answer[1]
    core.io.clear_faults()
    assert core.client().publish("t", body(0)) == OK
    assert depth(core) == 1


def test_a_refused_publish_leaves_no_id(make: Make) -> None:
    core = make(max_depth=1)
    core.create("t").channel("c")
    assert core.client().publish("t", body(1)) == OK
    answer = core.client().publish("t", body(2))
    assert answer is not None and answer[1].startswith(b"E_PUB_FAILED")
    # A repeat needs no room.
    assert core.client().publish("t", body(1)) == OK
    assert http(core, [body(1)]) == [None]
    assert http(core, [body(2)])[0] is not None
    assert consume(core) == [body(1)]
    assert core.client().publish("t", body(2)) == OK
    assert (core.counters("t")["message_count"], duplicates(core)) == (2, 2)


def test_a_message_that_a_full_topic_drops_leaves_no_id(make: Make) -> None:
    core = make(max_depth=1, on_full="drop-newest")
    core.create("t").channel("c")
    client = core.client()
    for id in (1, 2, 2):
        assert client.publish("t", body(id)) == OK
    assert (depth(core), duplicates(core)) == (1, 0)
    consumer = core.client().subscribe("t", "c", 2500)
    assert consume(core, consumer) == [body(1)]
    assert client.publish("t", body(2)) == OK
    assert consume(core, consumer) == [body(2)]


# ---- across restarts ----


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("wait", [0, 3])
@pytest.mark.parametrize("finish", [True, False])
def test_ids_survive_a_kill(make: Make, durability: str, wait: int, finish: bool) -> None:
    core = make(durability=durability)
    core.create("t").channel("c")
    client = core.client()
    assert client.ask(mpub("t", [body(i) for i in range(100)])) == OK
    if finish:
        assert len(consume(core)) == 100
    core.advance(wait * SECOND)
    after = again(make, core, later=wait * SECOND, durability=durability)
    assert after.client().ask(mpub("t", [body(i) for i in range(101)])) == OK
    assert duplicates(after) == 100
    once_more = again(make, after, durability=durability)
    assert once_more.client().ask(mpub("t", [body(i) for i in range(102)])) == OK
    assert duplicates(once_more) == 101


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_ids_survive_a_clean_exit_without_a_message(tmp_path: Path, durability: str) -> None:
    policy = Policies(TopicPolicy(durability, dedup_window=WINDOW, dedup_id="json:/id"))
    core = Core(tmp_path, policies=policy)
    core.create("t").channel("c")
    assert core.client().ask(mpub("t", [body(i) for i in range(100)])) == OK
    assert len(consume(core)) == 100
    core.save()
    for later in (0, 1):
        core = Core(tmp_path, policies=policy, wall=EPOCH + later)
        core.load_all()
        assert core.client().ask(mpub("t", [body(i) for i in range(100)])) == OK
        assert duplicates(core) == 100
        core.save()
    core = Core(tmp_path, policies=policy, wall=EPOCH + WINDOW)
    core.load_all()
    assert core.client().publish("t", body(1)) == OK
    assert duplicates(core) == 0
    core.close()


def test_in_class_memory_a_kill_forgets_what_it_loses(make: Make) -> None:
    core = make(durability="memory", core_options={"mem_queue_size": 5})
    core.create("t").channel("c")
    client = core.client()
    for i in range(20):
        assert client.publish("t", body(i)) == OK
    core.advance(3 * SECOND)
    after = again(make, core, durability="memory")
    after.settle()
    kept = set(consume(after))
    assert 0 < len(kept) < 20
    before = duplicates(after)
    for i in range(20):
        assert after.client().publish("t", body(i)) == OK
    assert duplicates(after) - before == len(kept)


def test_expired_files_are_removed(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    assert core.client().publish("t", body(1)) == OK
    consume(core)
    core.advance(3 * SECOND)
    (file,) = (core.path / "t.topic").glob("*.ids")
    for _ in range(5):
        core.advance(WINDOW)
    assert not file.exists()


def test_a_damaged_file_of_ids_is_reported_and_the_log_is_read(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    assert core.client().ask(mpub("t", [body(1), body(2)])) == OK
    core.advance(3 * SECOND)
    copy = core.copied()
    (file,) = (copy / "t.topic").glob("*.ids")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    after = make(copy, {"now": core.now + SECOND})
    after.load_all()
    assert any("are missing or damaged" in line for line in after.log.lines)
    assert after.client().ask(mpub("t", [body(1), body(2)])) == OK
    assert duplicates(after) == 2


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_write_of_ids_is_repeated(make: Make, call: str) -> None:
    core = make()
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", body(1)) == OK
    core.io.fault(call, error=errno.EIO)
    core.advance(3 * SECOND)
    core.io.clear_faults()
    core.advance(3 * SECOND)
    core.advance(3 * SECOND)
    consume(core)
    core.advance(3 * SECOND)
    after = again(make, core)
    assert after.client().publish("t", body(1)) == OK
    assert duplicates(after) == 1


def ids_on_disk(core: Core) -> int:
    """Return the number of ids in files."""
    files = (core.path / "t.topic").glob("*.ids")
    return sum(file.stat().st_size for file in files) // 24


def test_many_ids_in_records_survive_a_kill(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    assert core.client().ask(mpub("t", [body(each) for each in range(1000)])) == OK
    assert ids_on_disk(core) == 0
    after = again(make, core)
    assert after.client().ask(mpub("t", [body(each) for each in range(1001)])) == OK
    assert duplicates(after) == 1000


def test_many_ids_are_filed_early_and_completely(make: Make) -> None:
    core = make(dedup_id="header:dedup-id")
    core.create("t").channel("c")
    client = HeaderClient(core)
    for start in range(0, MANY_IDS, 4000):
        ids = [struct.pack(">HB8sHQ", 19, 8, b"dedup-id", 8, start + n) for n in range(4000)]
        assert client.ask(mpub("t", [each + b"x" for each in ids])) == OK
    core.advance(SECOND)
    assert ids_on_disk(core) > 0, "earlier than after --sync-timeout"
    core.advance(4 * SECOND)
    assert ids_on_disk(core) >= MANY_IDS


class Mirror:
    """The files of a topic on another machine."""

    def __init__(self) -> None:
        self.position = 0
        self.files: dict[str, bytearray] = {}

    def _changed(self) -> int:
        self.position += 1
        return self.position

    def write(self, path: str, offset: int, data: Any, are_records: bool) -> int:
        content = self.files.setdefault(path, bytearray())
        content[offset : offset + len(data)] = bytes(data)
        return self._changed()

    def truncate(self, path: str, size: int) -> int:
        self.files[path] = self.files.get(path, bytearray())[:size]
        return self._changed()

    def rename(self, path: str, to: str) -> int:
        self.files[to] = self.files.pop(path)
        return self._changed()

    def delete(self, path: str) -> int:
        self.files.pop(path, None)
        return self._changed()

    def shrinks(self, path: str, size: int | None) -> None:
        pass

    def failed(self, error: int) -> None:
        raise AssertionError(error)


def test_the_files_of_a_topic_with_copies_are_mirrored(make: Make, tmp_path: Path) -> None:
    core = make()
    mirror = Mirror()
    root = tmp_path / "copies"
    root.mkdir()
    files = MirroredIo(core.io, root, mirror)
    core.shard.open_topic(b"t", files, str(root)).channel("c")

    def commit() -> None:
        for _ in range(3):
            core.settle()
            files.committed(mirror.position)

    commit()
    client = core.client()
    client.send(mpub("t", [body(1), body(2), body(1)]))
    client.send(b"PUB t\n", sized(body(2)))
    core.settle()
    assert client.answer() is None, "a repeat waits for the other machines, too"
    commit()
    assert [client.answer(), client.answer()] == [OK, OK]
    assert duplicates(core) == 2
    core.advance(3 * SECOND)
    commit()
    (file,) = (root / "t.topic").glob("*.ids")
    assert mirror.files[f"t.topic/{file.name}"] == file.read_bytes()
    for _ in range(4):
        core.advance(WINDOW)
        commit()
    assert not list((root / "t.topic").glob("*.ids"))
    assert not [name for name in mirror.files if name.endswith(".ids")]
    files.wait(False)


@pytest.mark.parametrize("budget", [1, 4096])
def test_no_journal_lists_ids_that_could_not_be_written(make: Make, budget: int) -> None:
    """Their records may leave the log after the journal, which is written in many turns or one."""
    core = make(None, {"snapshot_budget": budget})
    core.create("t").channel("c")
    assert core.client().ask(mpub("t", [body(each) for each in range(50)])) == OK
    consume(core)
    core.io.fault("pwrite", 1, errno.EIO)
    core.advance(3 * SECOND)
    core.io.clear_faults()
    assert any("ids: input/output error" in line for line in core.log.lines)
    after = again(make, core)
    assert not any("are missing or damaged" in line for line in after.log.lines)
    assert after.client().ask(mpub("t", [body(each) for each in range(50)])) == OK
    assert duplicates(after) == 50


def test_one_journal_is_withheld_for_ids_that_could_not_be_written(make: Make) -> None:
    """Even if the journal could not be written either."""
    core = make()
    core.create("t").channel("c")
    assert core.client().publish("t", body(1)) == OK
    core.io.fault("pwrite", error=errno.EIO, times=100)
    core.advance(3 * SECOND)
    core.io.clear_faults()
    renames = core.io.calls_made("rename")
    core.advance(3 * SECOND)
    assert core.io.calls_made("rename") == renames + 1
