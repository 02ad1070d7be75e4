"""Other people's client libraries over TLS and with compression."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from certificates import make
from conftest import keep
from daemon import Nsqd
from libraries import Consumer, Producer, libraries
from web import eventually

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
    """Some compress well, some not at all, some are larger than a chunk of snappy."""
    return [
        [b"%06d " % number * 20, os.urandom(1000), b"x" * 100_000][number % 3]
        for number in range(count)
    ]


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
    """Three topics, so that with three workers most of the work is another worker's."""
    sent = bodies(90)
    consumers = {}
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        secured.web.create(name, "c")
        consumers[name] = consume(library, secured, name, "c", rdy=20, **way)
        # gnsq's producer takes the OK of an upgrade for the answer to a publish, and fails.
        its_way = {} if library == "gnsq" else way
        producer = publish(library, secured, name, batch=10, **its_way)
        producer.publish(sent)
        assert producer.finish() == ["OK"] * 9
    for name in names:
        messages = consumers[name].messages(90)
        assert [message.body for message in messages] == sent
        assert {message.attempts for message in messages} == {1}
        secured.web.await_counts(name, "c", depth=0, in_flight_count=0, timeout_count=0)
        client = secured.web.client(name, "c")
        assert client["tls"] is way.get("tls", False)
        codec = way.get("codec")
        assert (client["snappy"], client["deflate"]) == (codec == "snappy", codec == "deflate")
        consumers[name].close()
        eventually(lambda name=name: secured.web.channel(name, "c")["clients"] == [])
