"""Producers' chunks across kills and power losses: each message is in the log exactly once.

The number of a program is its seed, so a failure can be reproduced.
"""

from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import RESPONSE, SECOND, Client, log_pub
from tests.crash.lives import Lives

OK = (RESPONSE, b"OK")
LIVES = 4
ACTIONS = 25
PARTS = 2


class Program(Lives):
    """A topic of class fsync, a producer that resends unanswered chunks, and one consumer."""

    policies = Policies(TopicPolicy(durability="fsync"))
    file_bytes = 6000

    def __init__(self, path: Path, number: int) -> None:
        self.chunks: list[list[list[bytes]]] = [[] for _ in range(PARTS)]
        self.answered = [0] * PARTS  # number of answered chunks per part
        self.ids: dict[bytes, set[bytes]] = {}  # the ids under which each message was seen
        super().__init__(path, number)
        self.core.create("t").channel("c")

    def boot(self, folder: Path) -> None:
        super().boot(folder)
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

    # ---- actions ----

    def publish(self) -> None:
        """Send the next chunks of a part without waiting."""
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
        """Resend a chunk over another connection."""
        part = self.chance.randrange(PARTS)
        if self.sent[part]:
            chunk = self.chance.randrange(self.sent[part])
            client = self.core.client(topic_log=True)
            client.send(log_pub("t", chunk, self.chunks[part][chunk], part=part))

    def listen(self) -> None:
        super().listen()
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
        super().crash()

    # ---- what must hold ----

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
