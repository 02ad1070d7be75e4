"""Dead letters across kills and power losses: every acknowledged message is in exactly one topic.

The number of a program is its seed, so a failure can be reproduced.
"""

import struct
from collections import Counter
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import RESPONSE, SECOND, Client, Delivery
from tests.crash.lives import Lives
from tests.crash.program import run_all

OK = (RESPONSE, b"OK")
PLACES = [("t", "c"), ("dead", "look")]
LIVES = 4
ACTIONS = 30
REST = 2 * SECOND  # longer than the pause after a failed dead-letter transfer


class Program(Lives):
    """Topics of class fsync, a consumer that requeues most messages, a reader of the dead letters,
    and a producer that publishes some of them again."""

    policies = Policies(
        TopicPolicy(durability="fsync"),
        [],
        [("t/c", {"max_attempts": 2, "dead_letter_topic": "dead"})],
    )
    file_bytes = 4000

    def __init__(self, path: Path, number: int) -> None:
        self.sent: list[bytes] = []
        self.answered: set[bytes] = set()
        self.finished: set[bytes] = set()
        super().__init__(path, number)

    def boot(self, folder: Path) -> None:
        super().boot(folder)
        for topic, channel in PLACES:
            self.core.create(topic).channel(channel)
        self.producer = self.core.client()
        self.waiting: list[bytes] = []
        self.readers = [
            self.core.client().subscribe(topic, channel, 20) for topic, channel in PLACES
        ]

    def run(self) -> None:
        actions = [self.publish] * 2 + [self.step] * 3 + [self.consume] * 4
        actions += [self.settle, self.wait, self.redrive]
        for _ in range(LIVES):
            for _ in range(ACTIONS):
                self.chance.choice(actions)()
            self.crash()
        self.drain()

    # ---- actions ----

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            body = b"%d " % len(self.sent) + bytes(self.chance.choice([0, 100, 900]))
            self.sent.append(body)
            self.waiting.append(body)
            self.producer.send(b"PUB t\n", struct.pack(">i", len(body)), body)

    def listen(self) -> None:
        super().listen()
        while self.waiting and (answer := self.producer.answer()) is not None:
            assert answer == OK
            self.answered.add(self.waiting.pop(0))

    def consume(self) -> None:
        """Requeue most messages, finish some, and leave some unanswered."""
        for reader in self.readers:
            for each in reader.messages():
                chance = self.chance.random()
                if chance < 0.1:
                    self.finish(reader, each)
                elif chance < 0.9:
                    reader.requeue(each.id, self.chance.choice([0, 0, 100]))

    def finish(self, reader: Client, message: Delivery) -> None:
        reader.finish(message.id)
        self.finished.add(message.body)

    def redrive(self) -> None:
        self.core.topic("dead").channels["look"].redrive(self.chance.choice([1, 3, 0]))

    def wait(self) -> None:
        self.core.advance(self.chance.choice([SECOND // 10, REST, 61 * SECOND]))
        self.listen()

    # ---- what must hold ----

    def drain(self) -> None:
        """Finish all remaining messages in all topics."""
        found: Counter[bytes] = Counter()
        for _ in range(1000):
            self.core.advance(REST)
            for reader in self.readers:
                for each in reader.messages():
                    found[each.body] += 1
                    reader.finish(each.id)
            self.core.settle()
            if not any(self.held(*place) for place in PLACES):
                break
        assert not any(self.held(*place) for place in PLACES)
        assert [body for body, count in found.items() if count > 1] == []
        assert self.answered - self.finished - set(found) == set()
        assert set(found) <= set(self.sent)
        self.core.close()

    def held(self, topic: str, channel: str) -> int:
        shown = self.core.counters(topic, channel)
        return int(shown["depth"] + shown["in_flight_count"] + shown["deferred_count"])


def run(path: Path, number: int) -> None:
    Program(path, number).run()


# Program 1291: a transfer of a message whose record is not on disk.
@pytest.mark.parametrize("first", [0, 1280])
def test_in_exactly_one_place(tmp_path: Path, first: int) -> None:
    run_all(run, tmp_path, range(first, first + 30))


@pytest.mark.soak
def test_in_exactly_one_place_a_thousand_times(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(1000, 2000))
