"""nsq-strategies distributes messages among the nsqds of a cluster, as it does with NSQ."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from conftest import Starter, three_workers
from nsqcy.testing.http_requests import eventually
from support.client_libraries import (
    NODE_MODULES,
    STRATEGIES,
    Consumer,
    Producer,
    absent,
    command_of,
)
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd

pytestmark = [
    pytest.mark.skipif(bool(absent(STRATEGIES)), reason=absent(STRATEGIES)),
    three_workers,
]

Consume = Callable[..., Consumer]
Publish = Callable[..., Producer]

RENAMED = "import os, socket, sys; _, name, *words = sys.argv; socket.sethostname(name)"
RENAMED += "; os.execvp(words[0], words)"
COUNT = 30


def host(name: str) -> tuple[str, ...]:
    """Return a command prefix that makes a program see a different host name."""
    return ("unshare", "--map-root-user", "--uts", sys.executable, "-c", RENAMED, name)


class Cluster:
    """Two nsqlookupds, and three nsqds that register with both. Each nsqd has its own host name,
    because the library connects to only one nsqd per host name."""

    def __init__(self, stack: ExitStack, starter: Starter) -> None:
        self.lookupds = [stack.enter_context(Lookupd()) for _ in range(2)]
        self.addresses = ",".join(each.http_address for each in self.lookupds)
        self.nsqds = [
            starter.prepare(
                within=host(f"node{number}"),
                tcp_address=f"127.0.0.1:{free_port()}",
                broadcast_address="127.0.0.1",
                lookupd_tcp_address=[each.tcp_address for each in self.lookupds],
            )
            for number in range(3)
        ]
        for each in self.nsqds:
            stack.callback(each.destroy)
            each.launch()
        for each in self.nsqds:
            each.await_ready()
        self.await_nodes(3)

    def await_nodes(self, count: int) -> None:
        eventually(lambda: [len(each.nodes()) for each in self.lookupds] == [count] * 2)

    def counts(self, topic: str) -> list[int]:
        """Return how many messages each nsqd has accepted."""
        return [each.web.counts(topic)["message_count"] for each in self.nsqds]

    def await_finished(self, topic: str, consumer: Consumer, sent: list[bytes]) -> None:
        """Wait until the consumer has received everything, and nsqd has counted as many FINs as
        deliveries."""
        eventually(lambda: not Counter(sent) - Counter(consumer.bodies()))

        def finished() -> int:
            channels = [each.web.channel(topic, "c") for each in self.nsqds]
            return sum(client["finish_count"] for each in channels for client in each["clients"])

        for each in self.nsqds:
            each.web.await_counts(topic, "c", depth=0, in_flight_count=0)
        eventually(lambda: finished() == len(consumer.raw))
        assert {message.attempts for message in consumer.messages(0)} == {1}


@pytest.fixture(scope="module")
def cluster(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if subprocess.run([*host("probe"), "true"], capture_output=True).returncode:
        pytest.skip("UTS namespaces are not permitted here")
    with ExitStack() as stack:
        yield Cluster(stack, Starter(workers, tmp_path_factory.mktemp("cluster")))


@pytest.fixture
def produce(cluster: Cluster, topic: str, publish: Publish) -> Publish:
    """`produce(strategy="fan_out")`: a producer that finds the nsqds through the nsqlookupds."""
    return lambda **options: publish(STRATEGIES, None, topic, lookupds=cluster.addresses, **options)


@pytest.fixture
def consume_all(cluster: Cluster, topic: str, consume: Consume) -> Callable[[], Consumer]:
    return lambda: consume(STRATEGIES, None, topic, "c", rdy=9, lookupds=cluster.addresses)


def bodies(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_round_robin(
    cluster: Cluster, topic: str, produce: Publish, consume_all: Callable[[], Consumer]
) -> None:
    producer = produce(strategy="round_robin")
    producer.publish(bodies())
    assert producer.finish() == ["OK"] * COUNT
    assert cluster.counts(topic) == [COUNT / 3] * 3
    consumer = consume_all()
    cluster.await_finished(topic, consumer, bodies())
    assert len(consumer.raw) == COUNT


def test_fan_out(
    cluster: Cluster, topic: str, produce: Publish, consume_all: Callable[[], Consumer]
) -> None:
    """Every nsqd gets a copy, or, in rotation, as many nsqds as the producer requests."""
    everywhere, on_two = produce(strategy="fan_out"), produce(strategy="fan_out", nodes=2)
    everywhere.publish(bodies())
    assert everywhere.finish() == ["OK"] * COUNT
    assert cluster.counts(topic) == [COUNT] * 3
    on_two.publish(bodies())
    assert on_two.finish() == ["OK"] * COUNT
    assert cluster.counts(topic) == [COUNT + COUNT * 2 / 3] * 3
    consumer = consume_all()
    cluster.await_finished(topic, consumer, bodies() * 5)
    assert len(consumer.raw) == 5 * COUNT


def test_a_killed_nsqd(
    cluster: Cluster, topic: str, produce: Publish, consume_all: Callable[[], Consumer]
) -> None:
    """The producer retries on another nsqd, and returns to the first one after its restart.
    Meanwhile, new producers find only the other nsqds."""
    sent = bodies(300)
    producer = produce(retries=60)
    producer.publish(sent)
    producer.await_that(lambda: len(producer.answers) >= 10)
    killed = cluster.nsqds[0]
    killed.kill()
    producer.await_that(lambda: producer.answers == ["OK"] * len(sent))
    cluster.await_nodes(2)
    late = produce()
    late.publish(bodies())
    assert late.finish() == ["OK"] * COUNT
    killed.restart()
    before = killed.web.counts(topic)["message_count"]

    def is_used_again() -> bool:
        producer.publish([b"again"])
        sent.append(b"again")
        producer.await_that(lambda: producer.answers == ["OK"] * len(sent))
        return bool(killed.web.counts(topic)["message_count"] > before)

    eventually(is_used_again)
    sent += bodies()
    consumer = consume_all()
    cluster.await_finished(topic, consumer, sent)
    assert len(consumer.raw) - len(sent) in (0, 1)  # one if the answer to a message was lost


def test_nsqd_away(nsqd: Starter, topic: str, publish: Publish) -> None:
    """A producer without nsqlookupds fails while its nsqd is away; with retries, it waits for the
    nsqd."""
    daemon = nsqd(tcp_address=f"127.0.0.1:{free_port()}")
    hasty, patient = (publish(STRATEGIES, daemon, topic, retries=each) for each in (0, 60))
    for producer in hasty, patient:
        producer.publish([b"before"])
        producer.await_that(lambda each=producer: each.answers == ["OK"])
    daemon.stop()
    hasty.publish([b"refused"])
    hasty.await_that(lambda: hasty.answers[1:])
    assert hasty.answers[1].startswith("failed")
    patient.publish([b"delayed"])
    daemon.start()
    patient.await_that(lambda: patient.answers == ["OK"] * 2)
    conn = daemon.connect().sub(topic, "c", rdy=10)
    assert [message.body for message in conn.take(3)] == [b"before", b"before", b"delayed"]


def answers_to(daemon: Nsqd, lookupd: Lookupd, calls: list[tuple[str, ...]]) -> list[Any]:
    """Return the status and the content of each answer."""
    addresses = f"--address=127.0.0.1:{daemon.http_port}", f"--lookupds={lookupd.http_address}"
    done = subprocess.run(
        [*command_of(STRATEGIES, f"{STRATEGIES}_client"), "call", *addresses],
        env=os.environ | {"NSQCY_NODE_MODULES": str(NODE_MODULES)},
        input="".join(json.dumps(each) + "\n" for each in calls),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_http_calls(nsqd: Starter) -> None:
    ok, done, missing = [200, "OK"], [200, ""], [404, {"message": "TOPIC_NOT_FOUND"}]
    with Lookupd() as lookupd:
        daemon = nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")

        def check(*steps: tuple[tuple[str, ...], list[Any]]) -> None:
            assert answers_to(daemon, lookupd, [call for call, _ in steps]) == [
                answer for _, answer in steps
            ]

        check(
            (("nsqd", "ping"), ok),
            (("nsqd", "createTopic", "t"), done),
            (("nsqd", "createChannel", "t", "c"), done),
            (("nsqd", "publish", "t", "body"), ok),
            (("nsqd", "deferPublish", "t", "body", "1000"), ok),
            (("nsqd", "emptyTopic", "t"), done),
            (("nsqd", "emptyChannel", "t", "c"), done),
            (("nsqd", "deleteTopic", "missing"), missing),
            (("lookupd", "ping"), ok),
            (("lookupd", "lookup", "missing"), missing),
        )
        eventually(lambda: lookupd.channels("t") == ["c"])
        lookup, nodes = answers_to(
            daemon, lookupd, [("lookupd", "lookup", "t"), ("lookupd", "nodes")]
        )
        assert lookup[1]["channels"] == ["c"]
        for (producer,) in lookup[1]["producers"], nodes[1]["producers"]:
            assert (producer["broadcast_address"], producer["tcp_port"]) == daemon.address
        check(
            (("lookupd", "topics"), [200, {"topics": ["t"]}]),
            (("lookupd", "channels", "t"), [200, {"channels": ["c"]}]),
            (("lookupd", "deleteChannel", "t", "c"), done),
            (("lookupd", "channels", "t"), [200, {"channels": []}]),
            (("lookupd", "deleteTopic", "t"), done),
            (("lookupd", "deleteTopic", "t"), done),
            (("nsqd", "deleteChannel", "t", "c"), done),
            (("nsqd", "deleteTopic", "t"), done),
            (("nsqd", "deleteTopic", "t"), missing),
        )
