"""A disk operation that does not return is detected while it is in progress."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.nsqd.exit_report import SHOWN, describe
from nsqcy.nsqd.master import readiness
from nsqcy.nsqd.stats.stats_page import overall_health
from nsqcy.nsqd.worker.disk_watch import DiskWatch, ExitWatch
from nsqcy.process import arbiter
from nsqcy.storage.hung_disk import HungDisk
from support.worker_core import ERROR, RESPONSE, SECOND, Core, Log

LIMIT = 30 * SECOND
SYNC = ("awaited", 7, "sync", "/data/t.topic/1.seg")


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    policies = Policies(TopicPolicy(), [("f*", {"durability": "fsync"})])
    core = Core(tmp_path, policies=policies)
    yield core
    core.io.release()
    core.settle()
    core.close()


@pytest.fixture
def watch(core: Core) -> Iterator[DiskWatch]:
    watch = DiskWatch(core.shard, core.io, LIMIT, lambda: None, core.log)
    yield watch
    watch.stop()


def run(core: Core) -> None:
    core.manager.run_turn(core.now, core.wall)


def hang(core: Core) -> None:
    """Make the sync of a publish hang."""
    core.io.hold("fdatasync")
    core.client().send(b"PUB f\n\0\0\0\3one")
    run(core)
    core.io.wait_parked()


def test_an_operation_in_progress_is_noticed_and_so_is_its_end() -> None:
    log = Log()
    hung = HungDisk(log)
    assert not hung.look(100 * SECOND, [SYNC])
    assert not hung.look(104 * SECOND, [SYNC])
    assert hung.look(105 * SECOND, [SYNC])
    assert hung.reason == "disk hangs: sync /data/t.topic/1.seg has not returned for 5 s"
    assert hung.look(110 * SECOND, [SYNC]) and hung.age == 10 * SECOND
    assert len(log.lines) == 1
    assert hung.look(166 * SECOND, [SYNC]) and len(log.lines) == 2
    assert not hung.look(167 * SECOND, []) and hung.reason is None
    assert "took 67 s" in log.lines[-1]


def test_operations_that_return_are_no_hang() -> None:
    hung = HungDisk(Log())
    for second in range(60):
        assert not hung.look(second * SECOND, [("awaited", second, "sync", "x")])


def test_publishes_that_need_the_disk_are_refused_and_others_go_on(
    core: Core, watch: DiskWatch
) -> None:
    hang(core)
    assert core.io.under_way()[0][2] == "sync"
    watch.look(0)
    watch.look(5 * SECOND)
    client = core.client()
    client.send(b"PUB f\n\0\0\0\3two")
    run(core)
    answer = client.answer()
    assert answer is not None and answer[0] == ERROR and b"disk hangs: sync" in answer[1]
    assert core.client().publish("memory#ephemeral", b"x") == (RESPONSE, b"OK")
    client = core.client()
    client.send(b"PUB m\n\0\0\0\1x")
    assert client.answer() == (RESPONSE, b"OK")
    core.io.release()
    core.settle()
    watch.look(6 * SECOND)
    assert core.shard.hung is None and core.client().publish("f", b"three") == (RESPONSE, b"OK")


def test_a_publish_whose_outcome_is_unknown_is_not_answered(core: Core, watch: DiskWatch) -> None:
    core.create("f").channel("c")
    core.settle()
    hang(core)
    publisher = core.clients[-1]
    for second in range(0, 35, 5):  # the hang is detected after 5 s
        watch.look(second * SECOND)
        assert not publisher.closed
    watch.look(35 * SECOND)
    run(core)
    assert publisher.closed and publisher.answer() is None
    core.io.release()
    core.settle()
    consumer = core.client().subscribe("f", "c", 1)
    core.settle()
    assert [each.body for each in consumer.messages()] == [b"one"]


def test_an_exit_says_what_it_waits_for_and_ends() -> None:
    log, ends, reports = Log(), [], []
    watch = ExitWatch(
        *(2, Stuck(), HungDisk(log), 60 * SECOND, lambda: {"b": 2, "a": 1}, reports.append, log),
        end=ends.append,
    )
    for second in range(0, 60, 5):
        watch.look(second * SECOND)
    assert not ends
    assert "worker 2: exiting: waiting for sync /data/t.topic/1.seg, 55 s so far" in log.lines[-1]
    watch.look(60 * SECOND)
    assert ends == [arbiter.NOT_SAVED] and reports == [{"b": 2, "a": 1}]
    assert log.lines[-1].endswith("sync /data/t.topic/1.seg has not returned for 60 s")


def test_what_is_not_saved_is_described() -> None:
    assert describe({"b": 2, "a": 1, "c": 0}) == (
        "3 messages are not on disk: a (1), b (2), c (its journal)"
    )
    assert describe({"a": 1}) == "1 message is not on disk: a (1)"
    many = describe({f"topic{number:04}": 1 for number in range(SHOWN + 5)})
    assert "topic0099 (1), other topics: 5" in many


def test_a_saved_topic_is_not_reported(core: Core) -> None:
    core.create("m").channel("c")
    assert core.client().publish("m", b"x") == (RESPONSE, b"OK")
    core.manager.close_sessions()
    assert core.shard.save() == {}


def test_what_a_full_disk_refuses_is_reported(core: Core) -> None:
    core.create("m").channel("c")
    for _ in range(3):
        assert core.client().publish("m", b"x") == (RESPONSE, b"OK")
    assert core.io is not None
    core.io.fault("pwrite", 1, errno.ENOSPC, times=1000)
    core.manager.close_sessions()
    assert core.shard.save() == {"m": 3}


def test_a_journal_that_is_not_written_is_reported(core: Core) -> None:
    core.create("f").channel("c")
    assert core.client().publish("f", b"x") == (RESPONSE, b"OK")
    assert core.io is not None
    core.io.fault("rename", 1, errno.ENOSPC, times=1000)
    core.manager.close_sessions()
    assert core.shard.save() == {"f": 0}


class Stuck:
    def under_way(self) -> list[tuple[str, int, str, str]]:
        return [SYNC]


def test_messages_are_counted_until_they_are_synced(core: Core) -> None:
    core.create("m").channel("c")
    for _ in range(3):
        assert core.client().publish("m", b"x") == (RESPONSE, b"OK")
    assert core.client().publish("f", b"x") == (RESPONSE, b"OK")
    assert core.shard.unsaved() == {"m": 3}


def test_health_and_readiness() -> None:
    fine = {"health": "OK", "health_at": 9, "hung": None}
    hung = {"health": "OK", "health_at": 3, "hung": "disk hangs: sync x"}
    assert overall_health([fine, hung], 2) == "NOK - disk hangs: sync x"
    assert readiness.reasons(2, {0: fine, 1: hung}, None, 10) == ["worker 1: disk hangs: sync x"]
