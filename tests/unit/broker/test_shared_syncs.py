"""An exit with many topics: one sync of the file system replaces the syncs of their files."""

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.io_faults import FaultyIoThread
from support.recorded_disk import RecordedDisk
from support.worker_core import RESPONSE, SECOND, Core

COUNT = 20
OK = (RESPONSE, b"OK")
SYNCS = ("fdatasync", "fsync", "syncfs")


def core_at(
    path: Path, durability: str = "memory", *, stepped: bool = True, records: bool = False
) -> Core:
    """Return a core whose exit shares syncs: from the second file on, or with threads even for a
    single file, because the threads may be fast enough that never two wait."""
    path.mkdir(exist_ok=True)
    io = FaultyIoThread(stepped=stepped)
    if records:
        io.record()
    assert io.open_file_system(str(path))
    core = Core(path, io=io, policies=Policies(TopicPolicy(durability=durability)))
    core.shard.shares_syncs_from = lambda: 2 if stepped else 1
    return core


def names() -> list[str]:
    return [f"t{number}" for number in range(COUNT)]


def filled(core: Core) -> Core:
    """Create the topics: the first message of each is finished, the second is not."""
    client = core.client()
    for name in names():
        core.create(name).channel("c")
        assert client.publish(name, b"done") == OK
        assert client.publish(name, f"left in {name}".encode()) == OK
        consumer = core.client().subscribe(name, "c", 1)
        core.settle()
        consumer.ready(0)
        consumer.finish(consumer.messages()[0].id)
        core.settle()
    core.manager.close_sessions()
    core.settle()
    return core


def made(core: Core) -> dict[str, int]:
    return {name: core.io.calls_made(name) for name in SYNCS}


def saved(core: Core) -> tuple[dict[str, int], dict[str, int]]:
    """Exit; return what is lost, and the number of syncs of each kind."""
    before = made(core)
    lost = core.shard.save()
    after = made(core)
    core.end()
    return lost, {name: after[name] - before[name] for name in SYNCS}


def left(path: Path, durability: str = "memory") -> dict[str, list[bytes]]:
    """Return what a restart delivers, by topic."""
    core = core_at(path, durability, records=True)  # which skips real syncs
    found = {}
    for name in names():
        core.shard.load_topic(name.encode(), False, {"c": False})
        client = core.client().subscribe(name, "c", 10)
        core.settle()
        found[name] = [message.body for message in client.messages()]
    core.close()
    return found


def wanted() -> dict[str, list[bytes]]:
    return {name: [f"left in {name}".encode()] for name in names()}


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_the_syncs_do_not_grow_with_the_topics(
    tmp_path: Path, durability: str, stepped: bool
) -> None:
    lost, syncs = saved(filled(core_at(tmp_path / "data", durability, stepped=stepped)))
    assert not lost
    if stepped:
        # For the segments, for the snapshots, and for their names. The data path has its own.
        count = 2 if durability == "fsync" else 3
        assert syncs == {"syncfs": count, "fsync": count + 1, "fdatasync": 0}
    assert syncs["syncfs"] > 0
    assert left(tmp_path / "data", durability) == wanted()


def test_topics_without_messages_leave_nothing_and_share_the_sync_of_the_data_path(
    tmp_path: Path,
) -> None:
    core = core_at(tmp_path / "data", "os")
    for name in names():
        core.create(name).channel("c")
    core.settle()
    assert len(core.files()) == COUNT
    lost, syncs = saved(core)
    assert not lost and core.files() == []
    assert syncs == {"syncfs": 0, "fsync": 2, "fdatasync": 0}


@pytest.mark.parametrize("call", ["syncfs", "fsync"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_after_an_error_each_file_has_its_own_sync(tmp_path: Path, call: str, nth: int) -> None:
    """The kernel reports the error of any file, and only once."""
    core = filled(core_at(tmp_path / "data", "os"))
    core.io.fault(call, nth + (call == "fsync"), errno.EIO)
    lost, syncs = saved(core)
    assert not lost and core.shard.host.health == "OK"
    assert syncs["syncfs"] == nth
    own = syncs["fsync"] + syncs["fdatasync"]
    assert own >= COUNT * (4 - nth)
    assert left(tmp_path / "data", "os") == wanted()


def test_a_file_without_blocks_has_its_own_sync(tmp_path: Path) -> None:
    """syncfs() need not report that a file system could not allocate blocks."""
    core = filled(core_at(tmp_path / "data"))
    core.io.fault("sync_file_range", 1, errno.EIO)
    lost, syncs = saved(core)
    assert not lost and syncs["syncfs"] == 3 and syncs["fdatasync"] == 1
    core = filled(core_at(tmp_path / "other"))
    core.io.fault("sync_file_range", 1, errno.EIO)
    core.io.fault("fdatasync", 1, errno.EIO)
    lost, syncs = saved(core)
    assert lost == {"t0": 1} and syncs["syncfs"] == 3


def test_an_error_is_remembered(tmp_path: Path) -> None:
    """The first shared sync replaces the syncs that were queued before the exit. Its error may come
    from any file, so every later file gets its own sync."""
    core = filled(core_at(tmp_path / "data", "os"))
    client = core.client()
    for name in names():
        client.publish(name, b"another")
    core.manager.close_sessions()
    core.settle()
    core.now += 3 * SECOND
    core.shard.run_turn(core.now, core.wall)  # queues the syncs of all topics
    core.io.fault("syncfs", 1, errno.EIO)
    lost, syncs = saved(core)
    assert not lost and syncs["syncfs"] == 1
    assert syncs["fsync"] + syncs["fdatasync"] >= 4 * COUNT


def test_the_error_of_a_file_is_that_of_its_topic(tmp_path: Path) -> None:
    core = filled(core_at(tmp_path / "data", "memory"))
    core.io.fault("syncfs", 1, errno.EIO)
    core.io.fault("fdatasync", 1, errno.EIO)
    lost, _ = saved(core)
    assert lost == {"t0": 1}


def test_a_snapshot_that_cannot_be_written_costs_no_other_topic(tmp_path: Path) -> None:
    core = filled(core_at(tmp_path / "data", "os"))
    core.advance(3 * SECOND)
    for name in names():
        core.client().publish(name, b"another")
    core.manager.close_sessions()
    core.io.fault("pwrite", 1, errno.ENOSPC)
    lost, syncs = saved(core)
    assert list(lost) == ["t0"] and syncs["syncfs"] > 0
    found = left(tmp_path / "data", "os")
    assert found["t0"][-2:] == [*wanted()["t0"], b"another"]
    assert all(found[name] == [*wanted()[name], b"another"] for name in names()[1:])


def test_files_of_an_earlier_process_have_their_own_syncs(tmp_path: Path) -> None:
    """An error that occurred before this process began is not reported to its shared syncs."""
    core = filled(core_at(tmp_path / "data", "os"))
    path = core.copied()  # as after a kill: nothing there has a footer
    core.close()
    again = core_at(path, "os")
    for name in names():
        again.shard.load_topic(name.encode(), False, {"c": False})
    again.settle()
    lost, syncs = saved(again)
    assert not lost
    assert syncs["fdatasync"] == COUNT and syncs["syncfs"] > 0


def test_a_shared_sync_that_hangs_is_seen_while_it_lasts(tmp_path: Path) -> None:
    core = filled(core_at(tmp_path / "data", stepped=False))
    core.io.hold("syncfs")
    lost: list[dict[str, int]] = []
    exit = threading.Thread(target=lambda: lost.append(core.shard.save()))
    exit.start()
    core.io.wait_parked()
    ((lane, number, verb, path),) = core.io.under_way()
    assert (lane, verb) == ("background", "sync") and path.startswith(str(tmp_path))
    assert ((lane, number, verb, path),) == (*core.io.under_way(),)
    assert core.shard.unsaved().keys() <= {*names()}
    core.io.release()
    exit.join(60)
    core.end()
    assert lost == [{}]


class Exit:
    """A recorded exit."""

    def __init__(self, folder: Path, durability: str) -> None:
        self.path = folder / "data"
        core = core_at(self.path, durability, records=True)
        self.disk = RecordedDisk(self.path)
        filled(core)
        core.advance(3 * SECOND)  # a checkpoint
        self.disk.take(core.io.recorded())
        self.begin = len(self.disk.calls)
        core.shard.save()
        self.disk.take(core.io.recorded())
        core.end()
        self.end = len(self.disk.calls)


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_a_power_loss_at_any_moment_of_the_exit(tmp_path: Path, durability: str) -> None:
    """A snapshot becomes the journal only when it and the records are on disk, and the exit ends
    only when the journal is."""
    exit = Exit(tmp_path, durability)
    chance = Random(1)
    cuts = chance.sample(range(exit.begin, exit.end), 30) if durability == "fsync" else []
    for number, cut in enumerate([*cuts, *[exit.end] * 5]):
        folder = tmp_path / f"off{number}"
        exit.disk.lose_power(cut, folder, chance)
        assert left(folder, durability) == wanted(), cut
