"""Chunks of producers over kills and power losses: each message is in the log exactly once.

Programs and chances are numbered, so a failure is repeated by its number.
"""

import shutil
from pathlib import Path
from random import Random

import pytest

from nsqcy._io import IoThread
from nsqcy.policies import Policies, TopicPolicy
from tests.core import RESPONSE, SECOND, Client, Core, log_pub
from tests.recorded_disk import RecordedDisk

OK = (RESPONSE, b"OK")
POLICIES = Policies(TopicPolicy(durability="fsync"))
LIVES = 4
ACTIONS = 25
PARTS = 2
FILE_BYTES = 6000


class Program:
    """A topic of class fsync, a producer that repeats what was not answered, and one consumer."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.chance = Random(number)
        self.lives = 0
        self.now = 1000 * SECOND
        self.chunks: list[list[list[bytes]]] = [[] for _ in range(PARTS)]
        self.answered = [0] * PARTS  # chunks of each part
        self.ids: dict[bytes, set[bytes]] = {}  # under which a message was seen
        folder = path / "0"
        folder.mkdir(parents=True)
        self.start(folder)
        self.core.create("t").channel("c")

    def start(self, folder: Path) -> None:
        self.disk = RecordedDisk(folder)
        io = IoThread(faults=True, stepped=True)
        io.record()
        options = {"max_bytes_per_file": FILE_BYTES, "sync_every": 0, "sync_timeout": 2 * SECOND}
        self.core = Core(folder, io=io, policies=POLICIES, now=self.now, log_options=options)
        for each in folder.glob("*.topic"):
            self.core.shard.load_topic(each.name.removesuffix(".topic").encode(), False, {})
        self.producers: list[Client | None] = [None] * PARTS
        self.sent = list(self.answered)
        self.consumer = self.core.client().subscribe("t", "c", 100)

    def run(self) -> None:
        actions = [self.publish] * 3 + [self.step] * 2
        actions += [self.settle, self.plain, self.consume, self.wait, self.repeat]
        for _ in range(LIVES):
            for _ in range(ACTIONS):
                self.chance.choice(actions)()
            self.crash()
        self.finish()

    # ---- what happens ----

    def publish(self) -> None:
        """The next chunks of a part, in one go."""
        part = self.chance.randrange(PARTS)
        for _ in range(self.chance.randint(1, 3)):
            chunk = self.sent[part]
            if chunk == len(self.chunks[part]):
                count = self.chance.choice([1, 2, 5, 20])
                size = self.chance.choice([10, 100, 700])
                self.chunks[part].append(
                    [b"%d/%d/%d " % (part, chunk, index) + bytes(size) for index in range(count)]
                )
            self.send(part, chunk)
            self.sent[part] += 1

    def send(self, part: int, chunk: int) -> None:
        client = self.producers[part]
        if client is None or client.closed:
            client = self.producers[part] = self.core.client(topic_log=True)
        client.send(log_pub("t", chunk, self.chunks[part][chunk], part=part))

    def repeat(self) -> None:
        """Somebody else sends it once more."""
        part = self.chance.randrange(PARTS)
        if self.sent[part]:
            chunk = self.chance.randrange(self.sent[part])
            client = self.core.client(topic_log=True)
            client.send(log_pub("t", chunk, self.chunks[part][chunk], part=part))

    def step(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            self.core.home.run_turn(self.core.now, self.core.wall)
            self.core.io.step_now()
        self.listen()

    def settle(self) -> None:
        self.core.settle()
        self.listen()

    def listen(self) -> None:
        self.disk.take(self.core.io.recorded())
        for part, client in enumerate(self.producers):
            while client is not None and (answer := client.answer()) is not None:
                assert answer == OK
                self.answered[part] += 1

    def plain(self) -> None:
        self.core.client().send(b"PUB t\n\0\0\0\5plain")

    def consume(self) -> None:
        for each in self.consumer.messages():
            if each.body != b"plain":
                self.ids.setdefault(each.body, set()).add(each.id)
            if self.chance.random() < 0.8:
                self.consumer.finish(each.id)

    def wait(self) -> None:
        self.core.advance(self.chance.choice([1, 2, 3]) * SECOND)
        self.listen()

    def crash(self) -> None:
        self.listen()
        self.consume()
        self.lives += 1
        folder = self.path / str(self.lives)
        if self.chance.random() < 0.7:
            self.disk.lose_power(len(self.disk.calls), folder, self.chance)
        else:
            self.disk.kill(len(self.disk.calls), folder, self.chance)
        self.now = self.core.now
        self.core.io.clear_faults()
        self.core.close()
        shutil.rmtree(self.disk.root)
        self.start(folder)

    # ---- what must be so ----

    def finish(self) -> None:
        for part in range(PARTS):
            for chunk in range(self.answered[part], len(self.chunks[part])):
                self.send(part, chunk)
        self.settle()
        for part in range(PARTS):
            assert self.answered[part] == len(self.chunks[part])
            for chunk in range(len(self.chunks[part])):
                self.send(part, chunk)
        for _ in range(1000):
            self.core.settle()
            self.consume()
            if not self.consumer.heard and self.core.counters("t", "c")["depth"] == 0:
                break
            self.core.advance(61 * SECOND)
        expected = {body for part in self.chunks for chunk in part for body in chunk}
        assert set(self.ids) == expected
        for body, ids in self.ids.items():
            assert len(ids) == 1, body
        self.core.close()


def run_all(path: Path, numbers: range) -> None:
    for number in numbers:
        try:
            Program(path / str(number), number).run()
        except BaseException as error:
            error.add_note(f"program {number}")
            raise


@pytest.mark.parametrize("first", [0, 30])
def test_each_message_once(tmp_path: Path, first: int) -> None:
    run_all(tmp_path, range(first, first + 30))


@pytest.mark.soak
def test_each_message_once_a_thousand_times(tmp_path: Path) -> None:
    run_all(tmp_path, range(1000, 2000))
