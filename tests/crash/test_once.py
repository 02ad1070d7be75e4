"""Publishing once across kills and power losses: no message twice, and no id without its message.

The number of a program is its seed, so a failure can be reproduced.
"""

from pathlib import Path
from typing import ClassVar

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import RESPONSE, SECOND, Client, mpub
from tests.crash import lives
from tests.crash.lives import Lives

OK = (RESPONSE, b"OK")
LIVES = 4
ACTIONS = 25
CLIENTS = 3
WINDOW = 3600 * SECOND


class Program(Lives):
    """A topic with a deduplication window, producers that resend whatever is not answered, and one
    consumer."""

    file_bytes = 6000
    durability: ClassVar[str] = "fsync"

    def __init__(self, path: Path, number: int) -> None:
        self.policies = Policies(
            TopicPolicy(durability=self.durability, dedup_window=WINDOW, dedup_id="json:/id")
        )
        self.bodies: list[bytes] = []
        self.accepted: set[bytes] = set()
        self.ids: dict[bytes, set[bytes]] = {}  # the ids under which each message was seen
        super().__init__(path, number)
        self.core.create("t").channel("c")

    def boot(self, folder: Path) -> None:
        super().boot(folder)
        self.producers: list[Client | None] = [None] * CLIENTS
        self.sent: list[list[list[bytes]]] = [[] for _ in range(CLIENTS)]
        self.consumer = self.core.client().subscribe("t", "c", 100)

    def run(self) -> None:
        actions = [self.publish] * 4 + [self.repeat] * 3 + [self.step] * 2
        actions += [self.settle, self.consume, self.wait]
        for _ in range(LIVES):
            for _ in range(ACTIONS):
                self.chance.choice(actions)()
            self.crash()
        self.finish()

    # ---- actions ----

    def fresh(self) -> bytes:
        size = self.chance.choice([10, 100, 700])
        body = b'{"id":%d,"x":"%b"}' % (len(self.bodies), b"x" * size)
        self.bodies.append(body)
        return body

    def old(self) -> bytes:
        return self.chance.choice(self.bodies[-20:] or [self.fresh()])

    def publish(self) -> None:
        count = self.chance.choice([1, 1, 2, 5, 20])
        self.send([self.fresh() if self.chance.random() < 0.7 else self.old()] * count)

    def repeat(self) -> None:
        """Publish messages that may or may not exist, together with new ones."""
        count = self.chance.choice([1, 1, 2, 5])
        self.send(
            [self.old() if self.chance.random() < 0.8 else self.fresh() for _ in range(count)]
        )

    def send(self, bodies: list[bytes]) -> None:
        number = self.chance.randrange(CLIENTS)
        client = self.producers[number]
        if client is None or client.closed:
            client = self.producers[number] = self.core.client()
            self.sent[number] = []
        self.sent[number].append(bodies)
        if len(bodies) == 1:
            size = len(bodies[0]).to_bytes(4, "big")
            client.send(b"PUB t\n", size, bodies[0])
        else:
            client.send(mpub("t", bodies))

    def listen(self) -> None:
        super().listen()
        for number, client in enumerate(self.producers):
            while client is not None and (answer := client.answer()) is not None:
                bodies = self.sent[number].pop(0)
                assert answer == OK
                self.accepted.update(bodies)

    def consume(self) -> None:
        for each in self.consumer.messages():
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
        for body in self.bodies:
            self.send([body])
        self.settle()
        assert self.accepted == set(self.bodies)
        for _ in range(1000):
            self.core.settle()
            self.consume()
            if not self.consumer.heard and self.core.counters("t", "c")["depth"] == 0:
                break
            self.core.advance(61 * SECOND)
        assert set(self.ids) == set(self.bodies)
        for body, ids in self.ids.items():
            assert len(ids) == 1, body
        self.core.close()


class Killed(Program):
    """The same in class os, which survives kills."""

    durability = "os"


def run_all(path: Path, numbers: range, program: type[Program]) -> None:
    for number in numbers:
        try:
            program(path / str(number), number).run()
        except BaseException as error:
            error.add_note(f"program {number}")
            raise


@pytest.mark.parametrize("first", [0, 30])
def test_each_id_once(tmp_path: Path, first: int) -> None:
    run_all(tmp_path, range(first, first + 30), Program)


def test_each_id_once_in_class_os(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "POWER", 0)
    run_all(tmp_path, range(30), Killed)


@pytest.mark.soak
def test_each_id_once_a_thousand_times(tmp_path: Path) -> None:
    run_all(tmp_path, range(1000, 2000), Program)
