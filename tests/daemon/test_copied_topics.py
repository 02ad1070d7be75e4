"""Topics with copies on other workers: published, consumed, taken over and drained."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies
from nsqcy.nsqd.copies.topics import CopiedTopics
from support.copies_cluster import Machine, until
from support.etcd_process import Etcd, needs_etcd
from support.worker_core import RESPONSE, Core, Delivery

pytestmark = needs_etcd


class Nsqd(Machine):
    """A worker with topics."""

    def start(self) -> None:
        policies = Policies()
        policies.set("t", {"durability": "os"})
        self.core = Core(self.root.parent, policies=policies)
        self.topics = CopiedTopics(self.core.shard, self._create_channels)
        super().start()

    def make_io(self):
        return self.core.io

    def stop(self) -> None:
        self.host.stop()
        self.core.manager.close_sessions()
        self.core.shard.save()
        self._watcher.stop()
        self.io.close()

    def owned(self, group, files, directory) -> None:
        self.topics.owned(group, files, directory)

    def lost(self, group) -> None:
        self.topics.lost(group)

    def degraded(self, group_id) -> None:
        self.topics.degraded(group_id)

    def tick(self, owners) -> None:
        self.topics.tick(owners)
        self.core.advance(100_000_000)

    def open(self) -> str:
        """Create a group, and topic `t` with two channels in it."""
        group_id = self.host.create_group("os", 3, 2)
        until(lambda: self.topics.is_open(group_id))
        topic = self.topics.open(group_id, b"t")
        topic.channel("a")
        topic.channel("b")
        topic.refused = "TOO_FEW_COPIES"
        until(lambda: (group := self.group(group_id)) and len(group.members) == 3)
        until(lambda: topic.refused is None)
        return group_id

    def _create_channels(self, topic: str, channels: Iterable[str]) -> None:
        found = self.core.create(topic)
        for channel in channels:
            found.channel(channel)

    def consume(self, channel: str, count: int) -> list[bytes]:
        client = self.core.client().subscribe("t", channel, count)
        found: list[Delivery] = []

        def received() -> bool:
            self.core.settle()
            found.extend(client.messages())
            return len(found) >= count

        until(received)
        for message in found:
            client.finish(message.id)
        self.core.settle()
        return [message.body for message in found]

    def consume_all(self, channel: str, wanted: set[bytes]) -> None:
        """Consume until all of these have arrived; others may arrive again."""
        while wanted:
            wanted = wanted - set(self.consume(channel, 1))


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def nsqds(etcd: Etcd, tmp_path: Path) -> Iterator[list[Nsqd]]:
    found = [Nsqd(tmp_path / str(number), etcd) for number in range(3)]
    until(lambda: all(len(each.host.worker.sessions) == 3 for each in found))
    yield found
    for each in found:
        each.stop()


def published(nsqd: Nsqd, bodies: list[bytes]) -> None:
    """Publish, and wait for every answer."""
    clients = [nsqd.core.client() for _ in bodies]
    for client, body in zip(clients, bodies, strict=True):
        client.send(b"PUB t\n", len(body).to_bytes(4, "big"), body)
    answers: dict[int, object] = {}

    def answered() -> bool:
        nsqd.core.settle()
        for number, client in enumerate(clients):
            if number not in answers and (answer := client.answer()):
                answers[number] = answer
        return len(answers) == len(clients)

    until(answered)
    assert set(answers.values()) == {(RESPONSE, b"OK")}


def test_messages_of_a_lost_machine_arrive_from_another(nsqds: list[Nsqd]) -> None:
    owner, *others = nsqds
    group_id = owner.open()
    bodies = [b"%d" % number for number in range(50)]
    published(owner, bodies)
    assert owner.consume("a", 20) == bodies[:20]
    owner.host.stop()
    until(lambda: any(each.core.shard.closed for each in others))
    successor = next(each for each in others if each.core.shard.closed)
    assert sorted(successor.consume("b", 50)) == sorted(bodies)
    successor.consume_all("a", set(bodies[20:]))
    until(lambda: not successor.core.shard.closed)
    until(lambda: (group := successor.group(group_id)) and group.done)
