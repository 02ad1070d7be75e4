"""Keys, limits, priorities and deduplication ids with three nsqds, one of which fails.

docs/guides/several-nsqds.md names these tests.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsqcy.client import ConnectionFailed, Consumer, Message, NoConnection, Producer
from nsqcy.client.keys import ranked
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn
from support.copying_nsqds import await_copies, copying_nsqds
from support.etcd_process import Etcd, needs_etcd
from support.nsqd_process import Nsqd, free_port

pytestmark = pytest.mark.ours

TOPIC = """
[topic *]
durability = os
dedup_window = 10m
"""
JSON = """
key = json:/k
priority = json:/p
dedup_id = json:/id
"""
CHANNEL_RULES = """
[channel */ordered]
order = key

[channel */limited]
fair = true
in_flight_per_key = 1

[channel */rated]
key_rate = 0.001

[channel */urgent]
urgent_first = true
"""
HEADER_POLICIES = TOPIC + CHANNEL_RULES
JSON_POLICIES = TOPIC + JSON + CHANNEL_RULES


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[Nsqd]]]:
    nsqds: list[Nsqd] = []

    def started(count: int = 3, policies: str = HEADER_POLICIES) -> list[Nsqd]:
        path = tmp_path / "nsqd.ini"
        path.write_text(policies)
        for number in range(count):
            (data := tmp_path / f"{number}").mkdir()
            nsqd = Nsqd(
                data,
                workers=2,
                config=path,
                tcp_address=f"127.0.0.1:{free_port()}",  # unchanged by a restart
                http_address=f"127.0.0.1:{free_port()}",
            )
            nsqds.append(nsqd)
            nsqd.start()
        return nsqds

    yield started
    for nsqd in nsqds:
        nsqd.destroy()


def addresses(nsqds: list[Nsqd]) -> list[str]:
    return [f"127.0.0.1:{nsqd.tcp_port}" for nsqd in nsqds]


def pool(nsqds: list[Nsqd], **options: Any) -> Producer:
    return Producer(
        addresses(nsqds),
        headers=True,
        reconnect_interval=0.05,
        max_reconnect_interval=0.1,
        **options,
    )


def home_of(nsqds: list[Nsqd], key: str, rank: int = 0) -> Nsqd:
    """Return the nsqd that a producer with these nsqds chooses for a key."""
    found = ranked(key.encode(), addresses(nsqds))[rank]
    return nsqds[addresses(nsqds).index(found)]


def keys_of(nsqds: list[Nsqd]) -> list[str]:
    """Return keys, of which each nsqd has four."""
    names = [f"k{number}" for number in range(200)]
    return [
        name
        for nsqd in nsqds
        for name in [each for each in names if home_of(nsqds, each) is nsqd][:4]
    ]


def crash(nsqd: Nsqd) -> None:
    nsqd.hang_up()
    os.killpg(nsqd.process.pid, signal.SIGKILL)
    nsqd.process.wait()


def create(nsqds: list[Nsqd], channel: str) -> None:
    for nsqd in nsqds:
        nsqd.web.create("t", channel)


class Received:
    """What consumers of all nsqds receive: numbers by key, and keys that were in flight twice."""

    def __init__(self, nsqds: list[Nsqd], channel: str, consumers: int = 3) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.nsqds: dict[str, set[str]] = {}
        self.twice: list[str] = []
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._consumers = [
            Consumer(
                "t",
                channel,
                addresses(nsqds),
                message_handler=self._handle,
                headers=True,
                concurrency=6,
            )
            for _ in range(consumers)
        ]

    def __enter__(self) -> "Received":
        for consumer in self._consumers:
            consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.close()

    def _handle(self, message: Message) -> None:
        key = message.headers["key"]
        with self._lock:
            if key in self._held:
                self.twice.append(key)
            self._held.add(key)
            self.numbers.setdefault(key, []).append(int(message.body))
            self.nsqds.setdefault(key, set()).add(str(message.nsqd_address))
        with self._lock:
            self._held.discard(key)

    def await_count(self, count: int) -> None:
        eventually(lambda: sum(map(len, self.numbers.values())) >= count)


def test_a_pool_keeps_the_order_of_each_key(start: Callable[..., list[Nsqd]]) -> None:
    nsqds = start()
    keys = keys_of(nsqds)
    create(nsqds, "ordered")
    with Received(nsqds, "ordered") as received, pool(nsqds) as producer:
        for number in range(20):
            for key in keys:
                producer.publish("t", b"%d" % number, key=key)
        received.await_count(20 * len(keys))
    assert received.twice == []
    assert all(each == list(range(20)) for each in received.numbers.values())
    homes = {key: {addresses([home_of(nsqds, key)])[0]} for key in keys}
    assert received.nsqds == homes


def test_without_a_common_nsqd_each_nsqd_has_its_own_order(
    start: Callable[..., list[Nsqd]],
) -> None:
    """A producer that sends messages to each nsqd in turn, as other clients do, gives each nsqd a
    part of a key."""
    nsqds = start(2)
    create(nsqds, "ordered")
    publish_in_turn(nsqds)
    conns = [nsqd.connect().sub("t", "ordered", rdy=5) for nsqd in nsqds]
    held = [conn.message() for conn in conns]  # two messages of the key at a time
    assert sorted(each.body for each in held) == [b"0", b"1"]
    for conn, message in zip(conns, held, strict=True):
        conn.fin(message)
    assert sorted(conn.message().body for conn in conns) == [b"2", b"3"]


def publish_in_turn(nsqds: list[Nsqd]) -> None:
    """Publish four messages with the key a."""
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Producer(address, headers=True)) for address in addresses(nsqds)
        ]
        for number in range(4):
            producers[number % len(nsqds)].publish("t", b"%d" % number, key="a")


def test_while_an_nsqd_is_down_its_keys_go_to_the_next(start: Callable[..., list[Nsqd]]) -> None:
    """Nothing is lost. A key whose nsqd was down may be out of order; the other keys are not."""
    nsqds = start()
    create(nsqds, "ordered")
    lost, keys = nsqds[0], keys_of(nsqds)
    moved = [key for key in keys if home_of(nsqds, key) is lost]
    with pool(nsqds) as producer:
        for key in keys:
            producer.publish("t", b"0", key=key)
        crash(lost)
        for key in keys:
            producer.publish("t", b"1", key=key)
        lost.start()

        def is_back() -> bool:
            depth = depth_of(lost, "ordered")
            producer.publish("t", b"2", key=moved[0])
            return depth_of(lost, "ordered") > depth

        assert depth_of(lost, "ordered") == len(moved)
        eventually(is_back)
    with Received(nsqds, "ordered") as received:
        received.await_count(2 * len(keys) + 1)
        eventually(lambda: not any(depth_of(nsqd, "ordered") for nsqd in nsqds))
    for key in keys:
        if key not in moved:
            assert received.numbers[key] == [0, 1]
        else:
            assert {0, 1} <= set(received.numbers[key])
            others = {addresses([home_of(nsqds, key, rank)])[0] for rank in (0, 1)}
            assert received.nsqds[key] == others
    assert 2 in received.numbers[moved[0]]


def depth_of(nsqd: Nsqd, channel: str) -> int:
    found = nsqd.web.channel("t", channel)
    return found["depth"] if found else 0


def test_with_strict_key_the_order_holds_while_an_nsqd_is_down(
    start: Callable[..., list[Nsqd]],
) -> None:
    nsqds = start()
    create(nsqds, "ordered")
    lost, keys = nsqds[0], keys_of(nsqds)
    with pool(nsqds, strict_key=True, retries=1) as producer:
        for key in keys:
            producer.publish("t", b"0", key=key)
        crash(lost)
        failed = []
        for key in keys:
            try:
                producer.publish("t", b"1", key=key, timeout=20)
            except (ConnectionFailed, NoConnection):
                failed.append(key)
        assert failed == [key for key in keys if home_of(nsqds, key) is lost]
        lost.start()
        for key in failed:
            eventually(lambda key=key: is_published(producer, key))
    with Received(nsqds, "ordered") as received:
        received.await_count(2 * len(keys))
    assert received.twice == []
    assert all(received.numbers[key] == [0, 1] for key in keys)


def is_published(producer: Producer, key: str) -> bool:
    try:
        return bool(producer.publish("t", b"1", key=key, dedup_id=f"{key}/1", timeout=20))
    except (ConnectionFailed, NoConnection):
        return False


def test_a_pool_publishes_an_id_once(start: Callable[..., list[Nsqd]]) -> None:
    """Until its nsqd fails: the next one does not know the id. The first one still knows it."""
    nsqds = start()
    create(nsqds, "ordered")
    with pool(nsqds) as producer:
        for _ in range(3):
            for number in range(6):
                producer.publish("t", b"1", dedup_id=f"id{number}")
        assert sum(depth_of(nsqd, "ordered") for nsqd in nsqds) == 6
        home = home_of(nsqds, "id0")
        kept = depth_of(home, "ordered")
        crash(home)
        for _ in range(2):
            producer.publish("t", b"1", dedup_id="id0")
    rest = [nsqd for nsqd in nsqds if nsqd is not home]
    assert sum(depth_of(nsqd, "ordered") for nsqd in rest) == 6 - kept + 1
    home.start()
    with pool(nsqds, strict_key=True) as producer:
        producer.publish("t", b"1", dedup_id="id0")
    assert depth_of(home, "ordered") == kept


def test_with_strict_key_an_id_is_published_once_after_a_crash(
    start: Callable[..., list[Nsqd]],
) -> None:
    nsqds = start()
    create(nsqds, "ordered")
    home = home_of(nsqds, "id0")
    with pool(nsqds, strict_key=True, retries=1) as producer:
        producer.publish("t", b"1", dedup_id="id0")
        crash(home)
        with pytest.raises((ConnectionFailed, NoConnection)):
            producer.publish("t", b"1", dedup_id="id0", timeout=20)
        home.start()

        def again() -> bool:
            try:
                return bool(producer.publish("t", b"1", dedup_id="id0", timeout=20))
            except (ConnectionFailed, NoConnection):
                return False

        eventually(again)
    assert sum(depth_of(nsqd, "ordered") for nsqd in nsqds) == 1


def test_limits_and_turns_are_those_of_each_nsqd(start: Callable[..., list[Nsqd]]) -> None:
    """A producer that sends messages in turn: the limit applies once per nsqd. With the pool by
    key, it applies once."""
    nsqds = start(2)
    create(nsqds, "limited")
    publish_in_turn(nsqds)
    with pool(nsqds) as producer:
        for _ in range(4):
            producer.publish("t", b"by key", key="b")
    conns = [nsqd.connect().sub("t", "limited", rdy=10) for nsqd in nsqds]
    found = []
    for conn in conns:
        messages = [conn.message()]
        if conn is conns[nsqds.index(home_of(nsqds, "b"))]:
            messages.append(conn.message())
        found += messages
        conn.nothing(0.2)
    assert sorted(each.body for each in found) == [b"0", b"1", b"by key"]


def test_each_nsqd_delivers_its_own_highest_priority(start: Callable[..., list[Nsqd]]) -> None:
    nsqds = start(2)
    create(nsqds, "urgent")
    for nsqd, priorities in zip(nsqds, ([0, 3], [1, 9]), strict=True):
        with Producer(addresses([nsqd]), headers=True) as producer:
            for priority in priorities:
                producer.publish("t", b"%d" % priority, priority=priority)
    first = [nsqd.connect().sub("t", "urgent", rdy=1).message().body for nsqd in nsqds]
    assert first == [b"3", b"9"]  # the 3 does not wait for the 9 of another nsqd


def body(key: str, number: int, priority: int = 0) -> bytes:
    return json.dumps({"k": key, "n": number, "p": priority, "id": f"{key}{number}"}).encode()


def taken(conn: Conn, count: int) -> list[str]:
    found = [json.loads(each.body) for each in conn.take(count)]
    return [f"{each['k']}{each['n']}" for each in found]


CHANNELS = ("ordered", "limited", "rated", "urgent")


@pytest.mark.parametrize("killed", [False, True], ids=["restarted", "killed"])
def test_rules_hold_after_a_restart_and_a_crash(
    start: Callable[..., list[Nsqd]], killed: bool
) -> None:
    (nsqd,) = start(1, JSON_POLICIES)
    create([nsqd], "ordered")
    nsqd.web.create("t", *CHANNELS)
    with nsqd.connect() as producer:
        for number, (key, priority) in enumerate([("a", 0), ("a", 5), ("a", 9), ("b", 1)]):
            producer.pub("t", body(key, number, priority))
    for channel in CHANNELS:
        conn = nsqd.connect().sub("t", channel, rdy=1)
        conn.message()  # in flight when nsqd ends
    if killed:
        crash(nsqd)
    else:
        nsqd.stop()
    nsqd.start()
    conns = {name: nsqd.connect().sub("t", name, rdy=1) for name in CHANNELS}
    assert taken(conns["ordered"], 4) == ["a0", "a1", "a2", "b3"]
    assert taken(conns["limited"], 4) == ["a0", "b3", "a1", "a2"]
    assert taken(conns["urgent"], 4) == ["a2", "a1", "b3", "a0"]
    assert taken(conns["rated"], 2) == ["a0", "b3"]
    conns["rated"].nothing(0.2)
    with nsqd.connect() as producer:
        producer.pub("t", body("a", 0), body("a", 4))  # the first is a duplicate
    assert taken(conns["limited"], 1) == ["a4"]


@pytest.mark.parametrize("killed", [False, True], ids=["restarted", "killed"])
def test_a_rate_may_allow_one_too_early_after_a_restart(
    start: Callable[..., list[Nsqd]], killed: bool
) -> None:
    (nsqd,) = start(1, JSON_POLICIES)
    create([nsqd], "rated")
    with nsqd.connect() as producer:
        producer.pub("t", *(body("a", number) for number in range(5)))
    conn = nsqd.connect().sub("t", "rated", rdy=10)
    assert taken(conn, 1) == ["a0"]
    conn.barrier()
    if killed:
        crash(nsqd)
    else:
        nsqd.stop()
    nsqd.start()
    conn = nsqd.connect().sub("t", "rated", rdy=10)
    again = {json.loads(each.body)["n"] for each in conn.drain()} - {0}  # which may come again
    assert again <= {1}


@needs_etcd
def test_rules_hold_after_a_takeover_but_ids_are_forgotten(tmp_path: Path, etcd: Etcd) -> None:
    policies = f"{TOPIC}copies = 3\n{JSON}{CHANNEL_RULES}"
    with copying_nsqds(tmp_path, etcd, policies) as nsqds:
        owner, *others = nsqds

        def is_ready() -> bool:
            return owner.web.post("/topic/create", topic="t").status == 200

        eventually(is_ready, 60)
        eventually(lambda: all(created(owner.web, each) for each in CHANNELS), 60)
        await_copies(owner, "t")
        with owner.connect() as producer:
            for number, (key, priority) in enumerate([("a", 0), ("a", 5), ("a", 9), ("b", 1)]):
                producer.pub("t", body(key, number, priority))
        crash(owner)

        def successor() -> Nsqd | None:
            for nsqd in others:
                depths = [depth_of(nsqd, each) for each in CHANNELS]
                if depths == [4] * len(CHANNELS):
                    return nsqd
            return None

        found = eventually(successor, 60)
        assert found is not None
        held = found.connect().sub("t", "ordered", rdy=10)
        first = {json.loads(each.body)["k"] for each in held.messages(2)}
        held.nothing(0.2)
        assert first == {"a", "b"}  # one message of each key
        limited = found.connect().sub("t", "limited", rdy=10)
        limited.messages(2)
        limited.nothing(0.2)
        assert taken(found.connect().sub("t", "urgent", rdy=1), 4) == ["a2", "a1", "b3", "a0"]
        rated = found.connect().sub("t", "rated", rdy=10)
        rated.messages(2)
        rated.nothing(0.2)
        with found.connect() as producer:
            eventually(lambda: republished(producer, body("a", 0)), 60)
        topic = found.web.topic("t")
        assert topic is not None and topic["duplicates"] == 0


def created(web: Web, channel: str) -> bool:
    return web.post("/channel/create", topic="t", channel=channel).status == 200


def republished(producer: Conn, text: bytes) -> bool:
    producer.command("PUB", "t", body=text)
    return producer.frame().data == b"OK"
