"""nsq_to_file's files and crashes: after a crash at any disk operation, no file contains a partial
message, and no acknowledged message is missing."""

import errno
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.tools.files.codecs import Codec, Gzip, Plain, Zstd
from nsqcy.tools.files.names import FileNames
from nsqcy.tools.files.writer import Moment, Rules, TopicFiles
from support.memory_disk import Killed, MemoryDisk

delimited_messages: Any = pytest.importorskip("support.delimited_messages")

CODECS: dict[str, Codec] = {"": Plain(), ".gz": Gzip(6), ".zst": Zstd(3)}
START = 1_700_000_000
HOUR = 3600


class NoLog:
    def info(self, text: str, /, **fields: object) -> None: ...
    def warn(self, text: str, /, **fields: object) -> None: ...
    def error(self, text: str, /, **fields: object) -> None: ...


def stored(disk: MemoryDisk, folder: str) -> list[int]:
    return delimited_messages.stored(disk.contents(folder))


class Scene:
    """A process that is killed and restarted, and the nsqd that redelivers to it."""

    def __init__(self, disk: MemoryDisk, rules: Rules) -> None:
        self.disk = disk
        self.rules = rules
        self.now = START
        self.count = 0
        self.waiting: list[tuple[int, bytes]] = []  # delivered but not acknowledged
        self.acknowledged: set[int] = set()
        self.files: TopicFiles | None = None

    def start(self) -> None:
        file_names = FileNames(
            "<DATETIME>/<TOPIC><REV>.log",
            "%H",
            topic="t",
            host="h",
            revisions=self.rules.revisions,
            suffix=self.rules.codec.suffix,
        )
        files = TopicFiles("[t/c]", file_names, self.rules, self.disk, NoLog())
        files.start()
        self.files = files
        self._acknowledge(lambda: files.write([each for _, each in self.waiting], self._moment()))

    def _moment(self) -> Moment:
        return Moment(self.now, self.now * 1_000_000_000)

    def _acknowledge(self, call) -> None:
        assert self.files is not None
        try:
            call()
        finally:
            synced, self.files.written, self.files.synced = (
                self.files.synced,
                self.files.written - self.files.synced,
                0,
            )
            self.acknowledged |= {number for number, _ in self.waiting[:synced]}
            del self.waiting[:synced]

    def step(self, action: str, fillers: list[bytes]) -> None:
        files = self.files
        assert files is not None
        self.now += 1
        if action == "write":
            bodies = []
            for filler in fillers:
                self.count += 1
                bodies.append(delimited_messages.record(self.count, filler))
                self.waiting.append((self.count, bodies[-1]))
            self._acknowledge(lambda: files.write(bodies, self._moment()))
        elif action == "tick":
            self._acknowledge(lambda: files.tick(self._moment()))
        elif action == "sync":
            self._acknowledge(files.sync)
        elif action == "finish":
            self._acknowledge(files.finish)
        else:
            self.now += HOUR

    def finish(self) -> None:
        assert self.files is not None
        self._acknowledge(self.files.finish)


actions = st.tuples(
    st.sampled_from(["write", "write", "write", "tick", "sync", "finish", "later"]),
    st.lists(st.binary(max_size=12) | st.sampled_from([b"a\nb\n", b"\n\n"]), max_size=4),
)
rule_sets = st.builds(
    Rules,
    output_dir=st.just("/out"),
    work_dir=st.sampled_from(["/out", "/work"]),
    codec=st.sampled_from(list(CODECS.values())),
    rotate_size=st.sampled_from([0, 20]),
    rotate_interval=st.sampled_from([0, 2_000_000_000]),
    skip_empty=st.booleans(),
    buffer=st.sampled_from([1, 3, 100]),
)
crashes = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from(["kill", "power", "full", "broken"])), max_size=3
)


def run(scene: Scene, steps, crashes) -> None:
    disk, rules = scene.disk, scene.rules
    left = list(steps)
    for after, kind in [*crashes, (0, "never")]:
        disk.error = {"full": errno.ENOSPC, "broken": errno.EIO}.get(kind, 0)
        disk.fail_at = disk.calls + after if after else 0
        try:
            scene.start()
            while left:
                scene.step(*left.pop(0))
            scene.finish()
        except (Killed, OSError):
            assert after
        finally:
            disk.die()
        if kind == "power":
            disk.lose_power()
        if rules.moves:
            stored(disk, "/out")  # only complete files, at any time
    found = stored(disk, "/out")
    assert set(found) == scene.acknowledged == set(range(1, scene.count + 1))
    if not crashes:
        assert sorted(found) == sorted(set(found))
    assert not (rules.moves and disk.contents("/work"))
    assert not disk.noted()


@pytest.mark.slow
@given(st.data(), rule_sets, st.lists(actions, max_size=12), crashes)
def test_no_part_of_a_message_and_none_missing(data, rules, steps, crashes) -> None:
    disk = MemoryDisk(lambda maximum: data.draw(st.integers(0, maximum)))
    run(Scene(disk, rules), steps, crashes)


STEPS = [("write", [b"one\n", b"two"]), ("later", []), ("write", [b"three"] * 3), ("finish", [])]
STEPS += [("tick", []), ("write", [b"four"]), ("sync", []), ("write", [b"five"])]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "power", "full"])
@pytest.mark.parametrize("work_dir", ["/out", "/work"])
@pytest.mark.parametrize("suffix", CODECS)
def test_every_call_may_be_the_last(suffix: str, work_dir: str, kind: str) -> None:
    rules = Rules("/out", work_dir, CODECS[suffix], buffer=2)
    whole = Scene(MemoryDisk(lambda maximum: maximum), rules)
    run(whole, STEPS, [])
    for call in range(1, whole.disk.calls + 1):
        for seed in range(4 if kind == "power" else 2):
            chance = random.Random(call * 4 + seed)
            disk = MemoryDisk(lambda maximum, chance=chance: chance.randint(0, maximum))
            run(Scene(disk, rules), STEPS, [(call, kind)])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", CODECS)
@given(st.data(), st.integers(1, 60))
def test_without_notes_lines_and_members_are_judged_by_what_they_are(suffix, data, call) -> None:
    rules = Rules("/out", "/out", CODECS[suffix], buffer=2)
    disk = MemoryDisk(lambda maximum: data.draw(st.integers(0, maximum)), notes=False)
    run(Scene(disk, rules), [(action, [b"x"] * len(f)) for action, f in STEPS], [(call, "kill")])
