"""The commands of docs/runbooks/rolling-upgrade.md, run on three nodes under constant load.

The upgrade drains each node first. The rollback only stops each node, whose messages wait on its
disk.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadtest.soak.ledger import Marks
from nsqcy.client import Consumer
from nsqcy.testing.http_requests import eventually
from support.client_libraries import Consumer as Program
from support.delivery_tally import PlainPublisher, PoolPublisher, Publisher, Tally
from support.simulated_cluster import Cluster
from support.simulated_host import Host, blocks

pytestmark = pytest.mark.ours

WORKERS = 2
NEW, OLD = "0.2.0", "0.1.0"  # names in the runbook
TOPIC = "orders"
BUSY = ("billing", "audit")  # channels with consumers
PYNSQ = "billing"  # one of these channels, which pynsq also consumes
UNREAD = "archive"  # a paused channel without consumers until the end
POLL = 0.3  # seconds between the consumers' queries to nsqlookupds
PAUSE = 0.05  # seconds between publishes, or runs of them
SLICE = 10  # messages per publisher that nsqds must accept while a node is away
DRAINING = "E_PUB_FAILED PUB failed draining"
AWAY = {"not there", "no answer"}  # how a publisher without a library sees a stopped nsqd


class Load:
    """Publishers with and without a library, and consumers that discover the nodes through
    nsqlookupd."""

    def __init__(self, cluster: Cluster) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._publishers: list[Publisher] = []
        self._lookupds = [each.http_address for each in cluster.lookups]
        self._consumers = [self.consumer(channel) for channel in BUSY]
        lookupds = ",".join(self._lookupds)
        self._program = Program("pynsq", None, TOPIC, PYNSQ, lookupds=lookupds, rdy=50)
        self._seen = 0  # number of the program's messages that have been counted

    def consumer(self, channel: str) -> Consumer:
        made = Consumer(
            TOPIC,
            channel,
            lookupd_http_addresses=self._lookupds,
            lookupd_poll_interval=POLL,
            max_in_flight=50,
            message_handler=lambda message: self.tally.receives(channel, message.body),
        )
        made.start()
        return made

    def publish(self, phase: str) -> None:
        """Start the publishers."""
        addresses = [f"127.0.0.1:{node.tcp_port}" for node in self._cluster.nodes]
        plain = [("127.0.0.1", node.tcp_port) for node in self._cluster.nodes]
        self._publishers = [
            PoolPublisher(
                self.tally, f"{phase}-pool", TOPIC, nsqd_tcp_addresses=addresses, pause=PAUSE
            ),
            PoolPublisher(
                self.tally,
                f"{phase}-found",
                TOPIC,
                lookupd_http_addresses=self._lookupds,
                pause=PAUSE,
            ),
            PlainPublisher(self.tally, f"{phase}-plain", TOPIC, plain, pause=PAUSE),
        ]
        for each in self._publishers:
            each.start()

    def goes_on(self) -> None:
        """Check that nsqds accept more messages from every publisher."""
        goals = [(each, each.accepted + SLICE) for each in self._publishers]
        for publisher, goal in goals:
            eventually(lambda p=publisher, g=goal: p.accepted >= g or p.error, 30)
            assert publisher.error is None, publisher.error

    def end_publishing(self) -> None:
        for each in self._publishers:
            each.end()
            assert each.error is None, (each.name, each.error)
        self._publishers = []

    def lost(self, channel: str) -> Marks:
        """Return the messages of a channel that have not been received so far."""
        if channel == PYNSQ:
            bodies = self._program.bodies()[self._seen :]
            self._seen += len(bodies)
            for body in bodies:
                self.tally.receives(channel, body)
        return self.tally.lost(channel)

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.end()
        for consumer in self._consumers:
            consumer.close(graceful=False)
        self._program.destroy()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 3, WORKERS, "--durability=os") as cluster:
        yield cluster


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    for node in cluster.nodes:
        node.web.create(TOPIC, *BUSY)
    load = Load(cluster)
    yield load
    load.close()


def has_all_consumers(node: Host) -> bool:
    return [node.web.counts(TOPIC, each)["client_count"] for each in BUSY] == [2, 1]


def has_consumers(node: Host) -> bool:
    """pynsq reconnects to an nsqd no sooner than 10 s after its last attempt."""
    return all(node.web.counts(TOPIC, each)["client_count"] for each in BUSY)


def nothing_is_lost(cluster: Cluster, load: Load, *channels: str) -> None:
    load.end_publishing()
    for channel in channels:
        with contextlib.suppress(AssertionError):
            eventually(lambda channel=channel: not load.lost(channel), 30)
        account = load.tally.account(channel)
        assert (account.lost, account.unexpected) == (0, 0), account
        for node in cluster.nodes:
            node.web.await_counts(TOPIC, channel, depth=0, in_flight_count=0, deferred_count=0)
        print(account)
    print(f"hidden: {dict(load.tally.hidden)}")


def test_up_and_back_under_load(cluster: Cluster, load: Load) -> None:
    check, install, restart_lookupd, until_known, *page = blocks("rolling-upgrade")
    drain, stop, start_new, verify, consumers, start_old = page
    for node in cluster.nodes:
        eventually(lambda node=node: has_all_consumers(node), 20)
    load.publish("up")
    load.goes_on()
    cluster.nodes[0].type(check)
    with ThreadPoolExecutor() as operators:
        list(operators.map(lambda host: host.type(install), cluster.hosts))
    for lookup in cluster.lookups:
        lookup.type(restart_lookupd)
        lookup.type(until_known)
    for node in cluster.nodes:
        node.type(drain)
        load.goes_on()
        node.type(start_new)
        is_verified(node, verify, consumers, NEW)
    nothing_is_lost(cluster, load, *BUSY)
    assert [load.tally.account(channel).duplicates for channel in BUSY] == [0, 0]
    assert load.tally.hidden["up-plain"].keys() <= {DRAINING} | AWAY
    assert any(DRAINING in errors for errors in load.tally.hidden.values())

    load.tally = Tally()
    for node in cluster.nodes:
        node.web.create(TOPIC, UNREAD)
        # Otherwise, doctor reports an error if the backlog grows quickly.
        node.web.do("pause", TOPIC, UNREAD)
    load.publish("back")
    load.goes_on()
    for node in cluster.nodes:
        node.type(stop)
        load.goes_on()
        node.type(start_old)
        is_verified(node, verify, consumers, OLD)
    for node in cluster.nodes:
        node.web.do("unpause", TOPIC, UNREAD)
    late = load.consumer(UNREAD)
    nothing_is_lost(cluster, load, *BUSY, UNREAD)
    late.close()
    assert load.tally.hidden["back-plain"].keys() <= AWAY


def is_verified(node: Host, verify: str, consumers: str, version: str) -> None:
    assert f'version="{version}"' in node.type(verify)
    eventually(lambda: has_consumers(node), 20)
    assert 'nsqd_channel_consumers{topic="orders",channel="audit"} 1' in node.type(consumers)
