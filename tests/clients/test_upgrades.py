"""Third-party client libraries with TLS and with compression."""

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psutil
import pytest

from conftest import keep, three_workers
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from support.client_libraries import Consumer, Producer, Program, libraries
from support.nsqd_process import Nsqd

P = TypeVar("P", bound=Program)

WAYS = [{"tls": True}, {"codec": "snappy"}, {"codec": "deflate"}]
WAYS += [{"tls": True, "codec": "snappy"}, {"tls": True, "codec": "deflate"}]

every_library = pytest.mark.parametrize("library", libraries())
every_way = pytest.mark.parametrize(
    "way", WAYS, ids=["+".join("tls" if v is True else str(v) for v in w.values()) for w in WAYS]
)


@pytest.fixture(scope="module")
def secured_daemon(
    workers: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    path = tmp_path_factory.mktemp("secured")
    yield from keep(workers, path, **make("server").save(path).options)


@pytest.fixture
def secured(secured_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    daemon = secured_daemon()
    yield daemon
    daemon.hang_up()


def bodies(count: int) -> list[bytes]:
    """Return bodies: some compress well, some not at all, and some exceed a snappy chunk."""
    return [
        [b"%06d " % number * 20, os.urandom(1000), b"x" * 100_000][number % 3]
        for number in range(count)
    ]


def create(daemon: Nsqd, topic: str) -> int:
    """Create a topic with a channel. Return the topic's owner, which is the process whose topic
    count has changed."""
    before = daemon.topics_of_workers()
    daemon.web.create(topic, "c")
    after = daemon.topics_of_workers()
    (owner,) = (pid for pid, count in after.items() if count != before[pid])
    return owner


def home_of(daemon: Nsqd, program: Program) -> int | None:
    """Return the worker that serves a client program's only connection."""
    for each in psutil.Process(program.process.pid).net_connections("tcp"):
        if each.raddr and each.raddr.port == daemon.tcp_port:
            return daemon.home_of_port(each.laddr.port)
    return None


def elsewhere(daemon: Nsqd, owner: int, start: Callable[[], P]) -> P:
    """Return a program that is connected to a worker other than the owner of its topic. A client
    cannot choose its worker, so programs are started until one is connected to a different worker.
    In the meantime, the programs on the owner stay connected, because a busier worker is less
    likely to get the next connection.
    """
    misses: list[P] = []

    def attempt() -> P | None:
        program = start()
        if eventually(lambda: home_of(daemon, program), 30) != owner:
            return program
        misses.append(program)
        return None

    found = eventually(attempt, 60)
    for program in misses:
        program.close()
    return found


@three_workers
@every_library
@every_way
def test_publish_and_consume(
    library: str,
    way: dict[str, Any],
    secured: Nsqd,
    topic: str,
    consume: Callable[..., Consumer],
    publish: Callable[..., Producer],
) -> None:
    """No client is connected to the owner of the topic, so all data passes through the rings."""
    sent = bodies(90)
    owner = create(secured, topic)
    consumer = elsewhere(
        secured, owner, lambda: consume(library, secured, topic, "c", rdy=20, **way)
    )
    # gnsq's producer mistakes the upgrade's OK for the answer to a publish, and fails.
    its_way = {} if library == "gnsq" else way
    producer = elsewhere(
        secured, owner, lambda: publish(library, secured, topic, batch=10, **its_way)
    )
    secured.web.await_counts(topic, "c", client_count=1)
    producer.publish(sent)
    assert producer.finish() == ["OK"] * 9
    messages = consumer.messages(90)
    assert [message.body for message in messages] == sent
    assert {message.attempts for message in messages} == {1}
    secured.web.await_counts(topic, "c", depth=0, in_flight_count=0, timeout_count=0)
    client = secured.web.client(topic, "c")
    assert client["tls"] is way.get("tls", False)
    codec = way.get("codec")
    assert (client["snappy"], client["deflate"]) == (codec == "snappy", codec == "deflate")
    home = secured.home_of_port(int(client["remote_address"].rpartition(":")[2]))
    assert home != owner
    consumer.close()
    eventually(lambda: secured.web.channel(topic, "c")["clients"] == [])
