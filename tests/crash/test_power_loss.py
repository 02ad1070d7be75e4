"""Power losses and kills at any time: every message acknowledged as `fsync` survives both.

Messages acknowledged as `os` survive kills. Each test runs a random sequence of operations, whose
number is the seed, so a failure can be reproduced.
"""

import errno
from pathlib import Path
from random import Random

import pytest

from nsqcy.storage.io_faults import FaultyIoThread
from support.recorded_disk import RecordedDisk
from support.worker_core import RESPONSE, Core
from tests.crash.program import POLICIES, Program, run_all

ACTIONS = 25
CUTS = 3


def run(path: Path, number: int, **kind: bool) -> None:
    """Run one program, and check random cuts of its calls since the last start."""
    path.mkdir()
    program = Program(path, number, **kind)
    program.run(ACTIONS)
    chance = Random(number)
    for _ in range(CUTS):
        cut = chance.randint(0, len(program.disk.calls))
        program.check(cut, "f", power=True)
        program.check(cut, "fo", power=False)
    program.close()


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_power_loss_and_kill(tmp_path: Path, first: int) -> None:
    run_all(run, tmp_path, range(first, first + 20))


def test_when_the_disk_had_failed_as_well(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(40), faults=True)


def test_in_the_midst_of_compactions(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(10), big=True)


@pytest.mark.soak
def test_power_loss_and_kill_a_thousand_times(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(1000, 3000))
    run_all(run, tmp_path, range(1000, 2000), faults=True)
    run_all(run, tmp_path, range(1000, 1200), big=True)


# ---- bugs that programs once found ----

OK = (RESPONSE, b"OK")


class Least(Random):
    """Random choices that lose everything that was not synced."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq):
        return seq[0]


class Scene:
    """Core with fsync topics on a recorded disk; the operations of its I/O thread run one by
    one."""

    def __init__(self, folder: Path, disk: RecordedDisk | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.disk = RecordedDisk(folder)
        if disk is not None:
            self.disk.calls, self.disk.before = disk.calls, disk.before
        io = FaultyIoThread(stepped=True)
        io.record()
        self.core = Core(folder, io=io, policies=POLICIES)
        for each in sorted(folder.glob("*.topic")):
            name = each.name.removesuffix(".topic")
            self.core.shard.load_topic(name.encode(), False, {})

    def publish(self, body: bytes) -> object:
        answer = self.core.client().publish("f", body)
        self.disk.take(self.core.io.recorded())
        return answer

    def begin_to_publish(self, steps: int) -> None:
        """Start a publish, and run this number of its I/O operations."""
        self.core.client().send(b"PUB f\n\0\0\0\6nobody")
        self.core.manager.run_turn(self.core.now, self.core.wall)
        for _ in range(steps):
            assert self.core.io.step_now()
        self.disk.take(self.core.io.recorded())

    def end(self) -> None:
        self.core.io.recorded()
        self.core.close()

    def killed(self) -> "Scene":
        folder = self.disk.root.with_name(f"{self.disk.root.name}-killed")
        self.disk.kill(len(self.disk.calls), folder)
        self.end()
        return Scene(folder, self.disk)

    def without_power(self) -> "Scene":
        folder = self.disk.root.with_name(f"{self.disk.root.name}-off")
        self.disk.lose_power(len(self.disk.calls), folder, Least())
        self.end()
        return Scene(folder)

    def bodies(self, channel: str = "c") -> list[bytes]:
        client = self.core.client().subscribe("f", channel, 100)
        self.core.settle()
        found = [each.body for each in client.messages()]
        self.end()
        return found


def test_the_directory_that_could_not_be_made_at_first(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data")
    scene.core.io.fault("open", 1, errno.ENOSPC)
    assert scene.publish(b"refused") != OK
    assert scene.publish(b"kept") == OK
    assert scene.without_power().bodies() == [b"kept"]


def test_the_directory_that_a_killed_process_made(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data")
    scene.begin_to_publish(steps=2)
    scene = scene.killed()
    assert scene.publish(b"kept") == OK
    assert b"kept" in scene.without_power().bodies()


def test_what_a_killed_process_wrote_into_the_journal(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data")
    topic = scene.core.create("f")
    topic.channel("gone")
    topic.channel("c")
    assert scene.publish(b"one") == OK
    topic.delete_channel("gone")
    scene.begin_to_publish(steps=1)
    scene = scene.killed()
    assert list(scene.core.topic("f").channels) == ["c"]
    assert scene.publish(b"two") == OK
    scene = scene.without_power()
    assert list(scene.core.topic("f").channels) == ["c"]
    assert scene.bodies() == [b"one", b"two"]


def test_a_power_loss_after_a_clean_exit(tmp_path: Path) -> None:
    """The shard syncs the data path once for all topics."""
    scene = Scene(tmp_path / "data")
    topics = ["one", "two"]
    for name in topics:
        scene.core.create(name).channel("c")
        assert scene.core.client().publish(name, name.encode()) == OK
    scene.core.manager.close_sessions()
    scene.core.shard.save()
    scene.disk.take(scene.core.io.recorded())
    scene.core.close = scene.core.io.close  # type: ignore[method-assign]
    scene = scene.without_power()
    for name in topics:
        client = scene.core.client().subscribe(name, "c", 100)
        scene.core.settle()
        assert [each.body for each in client.messages()] == [name.encode()]
    scene.end()
