"""Rules for keys across kills and power losses: the order of each key, and limits.

The number of a program is its seed, so a failure can be reproduced.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nsqcy.config.policies import Policies
from support.runs import runs
from support.worker_core import MILLISECOND, RESPONSE, SECOND, Client, mpub
from tests.crash import lives
from tests.crash.lives import Lives

OK = (RESPONSE, b"OK")
LIVES = 4
ACTIONS = 40
CONSUMERS = 3
PRODUCERS = 2
TIMEOUT = 60 * SECOND
CREDIT = 10 * MILLISECOND  # of a key's rate
KEYS = ["a", "b", "c", "d", None]
PLACES = [("t", "c"), ("dead", "look")]
RULES: list[dict[str, Any]] = [
    {"order": "key"},
    {"order": "key"},
    {"order": "key", "fair": True, "key_rate": 0.5},
    {"order": "key", "max_attempts": 2, "dead_letter_topic": "dead"},
    {"fair": True, "in_flight_per_key": 2},
    {"fair": True, "key_rate": 3.0},
    {"in_flight_per_key": 1, "key_rate": 7.0},
    {"urgent_first": True, "fair": True},
    {},
]


@dataclass(eq=False)
class Message:
    number: int
    key: str | None
    place: int  # among the messages of its key; a deferred one has none
    answered: bool = False
    finished: bool = False
    failed: bool = False  # at least one attempt has failed
    dead: bool = False  # it may be a dead letter
    finished_life: int = -1


@dataclass(eq=False)
class Held:
    message: Message
    client: Client
    id: bytes
    until: int


@dataclass
class Life:
    """What one life has delivered of a key."""

    last: Message | None = None
    times: list[int] = field(default_factory=list)


class Program(Lives):
    """A topic with keys, consumers that finish, requeue or keep messages, or disconnect, and
    another policy in some lives."""

    file_bytes = 6000
    durability: ClassVar[str] = "fsync"

    def __init__(self, path: Path, number: int) -> None:
        self.messages: list[Message] = []
        self.of_key: dict[str | None, list[Message]] = defaultdict(list)
        self.latest: dict[str | None, int] = defaultdict(lambda: -1)  # place, delivered with order
        self.policies = Policies(
            sections=[
                ("*", {"durability": self.durability, "key": "json:/k", "priority": "json:/p"})
            ]
        )
        self.rules: dict[str, Any] = {}
        super().__init__(path, number)

    def boot(self, folder: Path) -> None:
        self.options = {  # type: ignore[misc]
            "budget": self.chance.choice([1 << 40, 20_000, 0]),
            "mem_queue_size": self.chance.choice([10_000, 10, 0]),
        }
        if not self.rules or self.chance.random() < 0.5:
            self.rules = self.chance.choice(RULES)
            self.policies.set("t/c", self.rules)
        for message in self.messages:
            message.dead |= message.failed and "dead_letter_topic" in self.rules
        super().boot(folder)
        for topic, channel in PLACES:
            self.core.create(topic).channel(channel)
        self.life: dict[str | None, Life] = defaultdict(Life)
        self.held: list[Held] = []
        self.consumers = [self.connected() for _ in range(CONSUMERS)]
        self.producers = [self.core.client() for _ in range(PRODUCERS)]
        self.sent: list[list[list[Message]]] = [[] for _ in self.producers]
        self.reader = self.core.client().subscribe("dead", "look", 100)

    def connected(self) -> Client:
        return self.core.client().subscribe("t", "c", self.chance.choice([1, 2, 10]))

    def run(self) -> None:
        actions = [self.publish] * 4 + [self.step] * 3 + [self.consume] * 5
        actions += [self.settle, self.wait, self.wait, self.reconnect]
        for _ in range(LIVES):
            for _ in range(ACTIONS):
                self.chance.choice(actions)()
                self.listen()
            self.crash()
        self.drain()

    # ---- actions ----

    def publish(self) -> None:
        number = self.chance.randrange(PRODUCERS)
        delay = self.chance.choice([0] * 9 + [1500])
        count = 1 if delay else self.chance.choice([1, 1, 3, 8])
        messages = [self.fresh(bool(delay)) for _ in range(count)]
        self.sent[number].append(messages)
        bodies = [self.body(each) for each in messages]
        size = len(bodies[0]).to_bytes(4, "big")
        if delay:
            self.producers[number].send(b"DPUB t %d\n" % delay, size, bodies[0])
        elif count == 1:
            self.producers[number].send(b"PUB t\n", size, bodies[0])
        else:
            self.producers[number].send(mpub("t", bodies))

    def fresh(self, deferred: bool) -> Message:
        key = self.chance.choice(KEYS)
        place = -1 if deferred else len(self.of_key[key])
        message = Message(len(self.messages), key, place)
        self.messages.append(message)
        if not deferred:
            self.of_key[key].append(message)
        return message

    def body(self, message: Message) -> bytes:
        text = json.dumps({"n": message.number, "k": message.key, "p": message.number % 3})
        return text.encode() + b" " * self.chance.choice([0, 100, 900])

    def listen(self) -> None:
        super().listen()
        for number, client in enumerate(self.producers):
            while (answer := client.answer()) is not None:
                assert answer == OK
                for message in self.sent[number].pop(0):
                    message.answered = True
        self.held = [each for each in self.held if each.until > self.core.now or self.fail(each)]
        for client in self.consumers:
            for delivery in client.messages():
                message = self.messages[json.loads(delivery.body)["n"]]
                self.check(message)
                until = self.core.now + TIMEOUT
                self.held.append(Held(message, client, delivery.id, until))
        self.check_limit()
        for each in self.reader.messages():
            self.messages[json.loads(each.body)["n"]].finished = True
            self.reader.finish(each.id)

    def fail(self, held: Held) -> bool:
        """Note that an attempt has failed; return False."""
        held.message.failed = True
        held.message.dead |= "dead_letter_topic" in self.rules
        return False

    def consume(self) -> None:
        """Finish most messages, requeue some, and leave some unanswered."""
        for each in list(self.held):
            chance = self.chance.random()
            if chance > 0.9:
                continue
            self.held.remove(each)
            if chance < 0.7:
                self.finish(each)
            else:
                self.fail(each)
                each.client.requeue(each.id, self.chance.choice([0, 0, 1500]))

    def finish(self, held: Held) -> None:
        held.message.finished = True
        held.message.finished_life = self.lives
        held.client.finish(held.id)

    def reconnect(self) -> None:
        """With `order`, the messages of a connection return when it ends."""
        client = self.consumers.pop(self.chance.randrange(CONSUMERS))
        client.transport.end()
        for each in self.held:
            if each.client is client and "order" in self.rules:
                each.until = self.core.now
        self.consumers.append(self.connected())

    def wait(self) -> None:
        self.core.advance(self.chance.choice([SECOND // 10, 2 * SECOND, 2 * SECOND, 61 * SECOND]))

    def crash(self) -> None:
        self.listen()
        for each in self.held:
            self.fail(each)
        super().crash()

    # ---- what must hold ----

    def check(self, message: Message) -> None:
        """A message was delivered: nothing forbade it."""
        life = self.life[message.key]
        now = self.core.now
        if message.key is None:
            return
        if rate := self.rules.get("key_rate"):
            life.times.append(now)
            for number, time in enumerate(reversed(life.times), 1):
                assert number <= rate * (now - time + CREDIT) / SECOND + 1.001, self.told(message)
        if "order" not in self.rules:
            return
        assert not [each for each in self.held if each.message.key == message.key], (
            f"{self.told(message)}, while another one of its key is in flight"
        )
        if message.place < 0:
            return
        if life.last is message:
            assert message.finished_life < self.lives, f"{self.told(message)} again"
        elif life.last is not None:
            assert message.place > life.last.place, f"{self.told(message)}, after a later one"
        if message.place < self.latest[message.key]:
            assert message.finished or message.failed, f"{self.told(message)}, after a later one"
        for before in self.of_key[message.key][: message.place]:
            gone = before.finished or before.dead or not before.answered
            assert gone, f"{self.told(message)}, before {before.number}"
        life.last = message
        self.latest[message.key] = max(self.latest[message.key], message.place)

    def told(self, message: Message) -> str:
        name = f"message {message.number} of {message.key}"
        return f"life {self.lives}, {self.rules}: {name} was delivered"

    def check_limit(self) -> None:
        limit = 1 if "order" in self.rules else self.rules.get("in_flight_per_key", 0)
        if limit:
            held: dict[str, int] = defaultdict(int)
            for each in self.held:
                if each.message.key is not None:
                    held[each.message.key] += 1
            assert all(count <= limit for count in held.values()), (self.lives, held)

    def drain(self) -> None:
        """Finish all remaining messages in all topics."""
        self.consumers += [self.connected()]
        for _ in range(1000):
            self.core.advance(2 * SECOND)
            self.listen()
            for each in self.held:
                self.finish(each)
            self.held = []
            self.core.settle()
            self.listen()
            if not any(self.waiting(*place) for place in PLACES):
                break
        assert not any(self.waiting(*place) for place in PLACES)
        assert [each.number for each in self.messages if each.answered > each.finished] == []
        self.core.close()

    def waiting(self, topic: str, channel: str) -> int:
        shown = self.core.counters(topic, channel)
        return int(shown["depth"] + shown["in_flight_count"] + shown["deferred_count"])


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


# A message from before the restart may come after later ones of its key, if it is not the first of
# the channel's queue, or due before its record is read (programs 46 and 377).
@pytest.mark.parametrize("first", [0, 40])
def test_rules_for_keys(tmp_path: Path, first: int) -> None:
    run_all(tmp_path, range(runs(first), runs(first + 40)), Program)


def test_rules_for_keys_in_class_os(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "POWER", 0)
    run_all(tmp_path, range(runs(40)), Killed)
