"""A realistic cluster whose parts disappear and return.

There are two nsqlookupds, three nsqds (one of them behind a proxy), and a producer for the pool.
Four consumers of one channel discover the nsqds, each with a different client library. 100,000
numbered messages are published. Meanwhile, an nsqd and a nsqlookupd are restarted, and the network
between one nsqd and all clients is cut for some time.
"""

import asyncio
import json
import struct
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsqcy.client.aio import Producer
from nsqcy.testing import Nsqd, Nsqlookupd, nsqd, nsqlookupd
from nsqcy.testing.http_requests import eventually
from support.client_libraries import Consumer, absent
from support.tcp_proxy import ThreadedProxy

MESSAGES = 100_000
RATE = 8_000  # messages per second: each consumer can handle more
TASKS = 100
TOPIC, CHANNEL = "flow", "workers"
CLIENTS = ("aio", "blocking", "pynsq", "nsqjs")
READY = 200
ATTEMPTS = struct.Struct(">8xH16s")
HEARTBEAT = 1  # seconds; a connection that misses two is closed
MESSAGE_TIMEOUT = 10  # seconds


class Cluster:
    """The daemons, and a proxy in front of the last nsqd."""

    def __init__(self, stack: ExitStack) -> None:
        enter = stack.enter_context
        self.lookupds: list[Nsqlookupd] = [enter(nsqlookupd()) for _ in range(2)]
        self.proxy = enter(ThreadedProxy())
        options: dict[str, Any] = {
            "lookupd_tcp_address": [each.tcp_address for each in self.lookupds],
            "msg_timeout": f"{MESSAGE_TIMEOUT}s",
        }
        self.nsqds: list[Nsqd] = [enter(nsqd(**options)) for _ in range(2)]
        self.nsqds.append(enter(nsqd(broadcast_tcp_port=self.proxy.port, **options)))
        self.proxy.forward_to(int(self.nsqds[2].tcp_address.rpartition(":")[2]))

    @property
    def lookupd_addresses(self) -> list[str]:
        return [each.http_address for each in self.lookupds]

    def clients(self) -> list[int]:
        """Return the number of consumers connected to each nsqd."""
        return [self._channel(each).get("client_count", 0) for each in self.nsqds]

    def create_topic(self) -> None:
        for each in self.nsqds:
            ask(each, f"/topic/create?topic={TOPIC}", b"")

    def _channel(self, daemon: Nsqd) -> dict[str, Any]:
        topics = json.loads(ask(daemon, f"/stats?format=json&topic={TOPIC}"))["topics"]
        return next((each for topic in topics for each in topic["channels"]), {})


def ask(daemon: Nsqd, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://{daemon.http_address}{path}", body, 10) as answer:
        return bytes(answer.read())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


class Flow:
    """Producer that sends RATE messages per second, regardless of failures, and runs each step when
    its message is sent."""

    def __init__(self, cluster: Cluster, steps: dict[int, Callable[[], None]]) -> None:
        self.cluster = cluster
        self.retries: Counter[bytes] = Counter()  # by message body
        self.answers: Counter[bytes] = Counter()
        self._steps = steps
        self._numbers = iter(range(MESSAGES))

    async def run(self) -> None:
        self._began = asyncio.get_running_loop().time()
        async with (
            Producer(
                lookupd_http_addresses=self.cluster.lookupd_addresses,
                lookupd_poll_interval=1,
                heartbeat_interval=HEARTBEAT,
                on_retry=lambda publish, error: self.retries.update([publish.body]),
                retries=20,
            ) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(TASKS):
                tasks.create_task(self._publish(producer))

    async def _publish(self, producer: Producer) -> None:
        for number in self._numbers:
            if step := self._steps.pop(number, None):
                await asyncio.to_thread(step)
            early = self._began + number / RATE - asyncio.get_running_loop().time()
            if early > 0:
                await asyncio.sleep(early)
            self.answers[await producer.publish(TOPIC, b"%d" % number)] += 1


@pytest.mark.skipif(bool(absent("nsqjs")), reason=absent("nsqjs"))
def test_nothing_is_lost_and_nobody_starves(
    cluster: Cluster, consume: Callable[..., Consumer]
) -> None:
    cluster.create_topic()
    lookupds = ",".join(cluster.lookupd_addresses)
    consumers = {
        each: consume(each, None, TOPIC, CHANNEL, lookupds=lookupds, rdy=READY, heartbeat=HEARTBEAT)
        for each in CLIENTS
    }
    eventually(lambda: cluster.clients() == [len(CLIENTS)] * 3, 60)
    seen: dict[str, dict[str, int]] = {}

    def look(when: str) -> None:
        seen[when] = {name: len(each.raw) for name, each in consumers.items()}

    flow = Flow(
        cluster,
        {
            10_000: lambda: look("all is well"),
            15_000: cluster.nsqds[0].stop,
            30_000: cluster.nsqds[0].start,
            40_000: cluster.lookupds[0].stop,
            55_000: cluster.lookupds[0].start,
            60_000: cluster.proxy.cut,
            85_000: cluster.proxy.heal,
            95_000: lambda: look("all has been repaired"),
        },
    )
    asyncio.run(flow.run())
    assert flow.answers == {b"OK": MESSAGES}

    def numbers() -> set[bytes]:
        return {body for each in consumers.values() for body in each.bodies()}

    eventually(lambda: len(numbers()) == MESSAGES, 60)
    assert numbers() == {b"%d" % number for number in range(MESSAGES)}
    for each in consumers.values():
        assert each.process.poll() is None, each.story()

    # All consumers have reconnected to each of the three nsqds.
    eventually(lambda: cluster.clients() == [len(CLIENTS)] * 3, 60)

    # A message arrives twice if it was redelivered, or if it was published again to a different
    # nsqd because the first one might not have accepted it.
    ids: dict[bytes, set[bytes]] = defaultdict(set)
    deliveries: dict[bytes, list[int]] = defaultdict(list)
    for each in consumers.values():
        for raw in each.raw:
            attempts, ident = ATTEMPTS.unpack_from(raw)
            body = raw[ATTEMPTS.size :]
            ids[body].add(ident)
            deliveries[body + b" " + ident].append(attempts)
    published_twice = {body: len(found) for body, found in ids.items() if len(found) > 1}
    for body, times in published_twice.items():
        assert times <= 1 + flow.retries[body], body
    again = 0
    for attempts in deliveries.values():
        again += len(attempts) - 1
        assert len(set(attempts)) == len(attempts), "two consumers received the same delivery"
    shares = {name: len(each.raw) for name, each in consumers.items()}
    print(f"shares {shares}, {flow.retries.total()} publishes tried again,")
    print(f"{len(published_twice)} messages published twice, {again} deliveries repeated; {seen}")

    # Each consumer has received its share, at every stage.
    for when, counts in {**seen, "at the end": shares}.items():
        for name, count in counts.items():
            assert count > sum(counts.values()) / 50, (when, name, counts)
