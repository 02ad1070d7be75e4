"""One consumer of several topics, by name or by a pattern, with real daemons and both
interfaces."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy import client
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face, Kept
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd

pytestmark = pytest.mark.usefixtures("soon", "quick")
Running = Callable[[], Nsqd]
POLL = 0.1  # seconds between queries


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between turns."""
    monkeypatch.setattr("nsqcy.client.flow_across_topics.REVIEW", 0.1)
    monkeypatch.setattr("nsqcy.client.consumer.MAX_RETRY", 0.5)


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Starter]:
    """Factory of daemons with one worker: the owner of a topic does not matter here."""
    starter = Starter(1, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


@pytest.fixture
def lookupd() -> Iterator[Lookupd]:
    with Lookupd() as running:
        yield running


@pytest.fixture
def names(topic: str) -> list[str]:
    return [f"{topic}.{each}" for each in ("a", "b", "c")]


def publish(daemon: Nsqd, topic: str, *bodies: bytes) -> None:
    assert daemon.web.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def channels(daemon: Nsqd) -> dict[str, list[str]]:
    topics = daemon.web.get("/stats?format=json").json()["topics"]
    return {
        each["topic_name"]: [channel["channel_name"] for channel in each["channels"]]
        for each in topics
    }


class Seen:
    """A handler that counts messages by topic and body, and records the maximum number handled at
    the same time."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, bytes]] = Counter()
        self.peak = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self._now += 1
            self.peak = max(self.peak, self._now)
            self.counts[message.topic, message.body] += 1
        threading.Event().wait(0.002)
        with self._lock:
            self._now -= 1


def test_one_nsqd(face: Face, plain_daemon: Running, names: list[str]) -> None:
    daemon = plain_daemon()
    address = f"127.0.0.1:{daemon.tcp_port}"
    kept = Kept()
    consumer = face.consumer(names, "c", address, message_handler=kept, max_in_flight=6)
    for name in names:
        publish(daemon, name, name.encode())
    eventually(lambda: len(kept.messages) == 3)
    assert {each.topic.encode() for each in kept.messages} == set(kept.bodies)
    assert {each.nsqd_address for each in kept.messages} == {address}
    assert sorted(consumer.connections) == [f"{address}/{name}" for name in names]
    assert consumer.topics == tuple(names)
    assert f"{','.join(names)}:c running, 3 connections, 3 in flight" in repr(consumer)
    for each in kept.messages:
        face.call(each.finish)
    assert all(channels(daemon)[name] == ["c"] for name in names)


def test_a_single_name_in_a_list_is_like_a_string(
    face: Face, plain_daemon: Running, topic: str
) -> None:
    daemon = plain_daemon()
    consumer = face.consumer([topic], "c", f"127.0.0.1:{daemon.tcp_port}")
    assert list(consumer.connections) == [f"127.0.0.1:{daemon.tcp_port}"]


def test_each_message_names_its_topic(face: Face, plain_daemon: Running, names: list[str]) -> None:
    daemon = plain_daemon()
    for name in names:
        publish(daemon, name, b"1", b"2")
    consumer = face.consumer(names, "c", f"127.0.0.1:{daemon.tcp_port}", max_in_flight=12)
    seen: Counter[str] = Counter()
    while seen.total() < 6:
        message = face.call(consumer.get, 10)
        seen[message.topic] += 1
        face.call(message.finish)
    assert seen == dict.fromkeys(names, 2)


def test_a_batch_has_messages_of_all_topics(plain_daemon: Running, names: list[str]) -> None:
    daemon = plain_daemon()
    address = f"127.0.0.1:{daemon.tcp_port}"
    with client.Consumer(names, "c", address, max_in_flight=60) as consumer:
        eventually(lambda: [each.ready for each in consumer.connections.values()] == [20] * 3)
        for name in names:
            publish(daemon, name, b"1", b"2")
        batch = next(consumer.batches(6, within=20))
        assert Counter(each.topic for each in batch) == dict.fromkeys(names, 2)
        client.finish(batch)


@pytest.mark.parametrize("budget", [1, 5])
def test_never_more_in_flight_than_allowed(
    face: Face, plain_daemon: Running, topic: str, budget: int
) -> None:
    daemon = plain_daemon()
    names = [f"{topic}.{number}" for number in range(6)]
    for name in names:
        publish(daemon, name, *(b"%d" % number for number in range(8)))
    kept = Kept()
    consumer = face.consumer(
        names,
        "c",
        f"127.0.0.1:{daemon.tcp_port}",
        message_handler=kept,
        max_in_flight=budget,
        rdy_redistribute_interval=0.3,  # topics take short turns
    )
    finished: set[Any] = set()
    topics: Counter[str] = Counter()
    while len(finished) < 48:
        eventually(lambda: len(kept.messages) > len(finished))
        assert len(kept.messages) - len(finished) <= budget
        assert consumer.total_in_flight <= budget
        message = next(each for each in list(kept.messages) if each not in finished)
        topics[message.topic] += 1
        finished.add(message)
        face.call(message.finish)
    assert topics == dict.fromkeys(names, 8)


def test_two_nsqds_one_killed_and_started_again(
    face: Face, nsqd: Starter, lookupd: Lookupd, names: list[str]
) -> None:
    daemons = [
        nsqd(
            tcp_address=f"127.0.0.1:{free_port()}",
            lookupd_tcp_address=lookupd.tcp_address,
            broadcast_address="127.0.0.1",
        )
        for _ in range(2)
    ]
    seen = Seen()
    consumer = face.consumer(
        names,
        "c",
        lookupd_http_addresses=lookupd.http_address,
        message_handler=seen,
        max_in_flight=4,
        lookupd_poll_interval=POLL,
    )
    for daemon in daemons:
        for name in names[:2]:  # the third topic does not exist yet
            publish(daemon, name, b"1 from %d" % daemon.tcp_port)
    eventually(lambda: len(seen.counts) == 4)
    daemons[0].kill()
    daemons[0].start()
    for daemon in daemons:
        for name in names:
            publish(daemon, name, b"2 from %d" % daemon.tcp_port)
    eventually(lambda: len(seen.counts) == 10)
    assert {name for name, _ in seen.counts} == set(names)
    assert seen.peak <= 4
    assert len(consumer.connections) == 6


def test_a_pattern(face: Face, nsqd: Starter, lookupd: Lookupd, topic: str) -> None:
    """Matching topics that appear later are consumed, other topics are not, and a deleted topic is
    not created again."""
    daemon = nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")
    errors: list[Any] = []
    seen = Seen()
    consumer = face.consumer(
        topics_pattern=re.escape(topic) + r"\.\w+(-dead)?(#ephemeral)?",
        channel="c",
        lookupd_http_addresses=lookupd.http_address,
        message_handler=seen,
        dead_letter_topic="{topic}-dead",
        on_error=errors.append,
        max_in_flight=10,
        lookupd_poll_interval=POLL,
    )
    others = [f"{topic}.a.b", f"{topic}.a-dead", f"{topic}.a#ephemeral", f"x{topic}.a"]
    for name in (f"{topic}.a", *others):
        publish(daemon, name.replace("#", "%23"), b"1")
    eventually(lambda: seen.counts == {(f"{topic}.a", b"1"): 1})
    publish(daemon, f"{topic}.b", b"2")  # a new topic
    eventually(lambda: seen.counts[f"{topic}.b", b"2"])
    assert consumer.topics == (f"{topic}.a", f"{topic}.b")
    assert not errors

    daemon.web.post(f"/topic/delete?topic={topic}.a")
    eventually(lambda: consumer.topics == (f"{topic}.b",))
    publish(daemon, f"{topic}.b", b"3")
    eventually(lambda: seen.counts[f"{topic}.b", b"3"])
    found = channels(daemon)
    assert f"{topic}.a" not in found
    assert not any(map(found.__getitem__, others))
    assert [str(each) for each in errors] == [
        f"127.0.0.1:{daemon.tcp_port}/{topic}.a: nsqd closed the connection"
    ]
    publish(daemon, f"{topic}.a", b"4")  # the topic exists again
    eventually(lambda: seen.counts[f"{topic}.a", b"4"])


def test_a_pattern_without_lookupds(face: Face, nsqd: Starter, topic: str) -> None:
    daemons = [
        nsqd(tcp_address=f"127.0.0.1:{free_port()}", http_address=f"127.0.0.1:{free_port()}")
        for _ in range(2)
    ]
    seen = Seen()
    consumer = face.consumer(
        topics_pattern=re.escape(topic) + r"\..*",
        channel="c",
        nsqd_tcp_addresses=[f"127.0.0.1:{each.tcp_port}" for each in daemons],
        nsqd_http_addresses=[f"127.0.0.1:{each.http_port}" for each in daemons],
        message_handler=seen,
        lookupd_poll_interval=POLL,
    )
    publish(daemons[0], f"{topic}.a", b"1")
    publish(daemons[1], f"{topic}.b", b"1")
    eventually(lambda: len(seen.counts) == 2)
    assert list(channels(daemons[0])) == [f"{topic}.a"]  # a topic is not created on other nsqds
    daemons[0].kill()
    publish(daemons[1], f"{topic}.c", b"1")
    eventually(lambda: seen.counts[f"{topic}.c", b"1"])
    daemons[0].start()
    publish(daemons[0], f"{topic}.a", b"2")
    eventually(lambda: seen.counts[f"{topic}.a", b"2"])
    daemons[1].web.post(f"/topic/delete?topic={topic}.b")
    eventually(lambda: consumer.topics == (f"{topic}.a", f"{topic}.c"))
    assert f"{topic}.b" not in channels(daemons[1])


def test_dead_letters_of_each_topic(face: Face, plain_daemon: Running, names: list[str]) -> None:
    daemon = plain_daemon()
    address = f"127.0.0.1:{daemon.tcp_port}"
    letters = Kept()
    face.consumer(
        [f"dead.{name}" for name in names], "look", address, message_handler=letters, headers=True
    )
    face.consumer(
        names,
        "c",
        address,
        message_handler=lambda _: False,
        dead_letter_topic="dead.{topic}",
        max_tries=1,
        requeue_delay=0,
        headers=True,
    )
    for name in names:
        publish(daemon, name, name.encode())
    found = set()
    for number in range(3):
        eventually(lambda number=number: len(letters.messages) > number)
        each = letters.messages[number]
        assert each.headers["origin-topic"] == each.body.decode()
        found.add((each.topic, each.body))
        face.call(each.finish)
    assert found == {(f"dead.{name}", name.encode()) for name in names}


def test_failures_name_the_topic(
    face: Face, plain_daemon: Running, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = plain_daemon()

    def fail(message: Any) -> None:
        raise ValueError(message.topic)

    face.consumer(names, "c", f"127.0.0.1:{daemon.tcp_port}", message_handler=fail)
    publish(daemon, names[1], b"1")
    eventually(lambda: f" of {names[1]} failed (attempt 1)" in caplog.text)
