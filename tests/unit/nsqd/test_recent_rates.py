"""Rates over the last seconds, and their keys in /stats."""

import json
from typing import Any

from nsqcy.cluster.rates import Rates
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats.metrics_shares import in_series
from nsqcy.nsqd.stats.recent_rates import PERIOD, RecentRates
from nsqcy.nsqd.stats.stats_page import Walk


class Consumer:
    closed = False

    def __init__(self, ready: int = 1, in_flight: int = 0) -> None:
        self.finish_count = 0
        self.ready_count = ready
        self.in_flight = in_flight

    def counters(self) -> dict[str, Any]:
        numbers = dict.fromkeys(
            [
                *("state", "message_count", "finish_count", "requeue_count", "connect_ts"),
                *("ready_count", "in_flight_count", "sample_rate"),
            ],
            0,
        )
        flags = dict.fromkeys(["deflate", "snappy", "tls"], False)
        texts = dict.fromkeys(
            [
                *("client_id", "hostname", "version", "remote_address", "user_agent"),
                *("topology_zone", "topology_region", "tls_cipher_suite", "tls_version"),
                "tls_negotiated_protocol",
            ],
            "",
        )
        return {**numbers, **flags, **texts, "tls_negotiated_protocol_is_mutual": False}


class Channel:
    def __init__(self, name: str, *consumers: Consumer) -> None:
        self.name = name
        self.consumers = list(consumers)
        self.message_count = self.finish_count = self.requeue_count = self.timeout_count = 0
        self.depth = self.in_flight = 0

    def ledger(self) -> dict[str, Any]:
        return {"queued": self.depth, "in_flight": self.in_flight}

    def counters(self) -> dict[str, Any]:
        return {
            "channel_name": self.name,
            "depth": self.depth,
            "backend_depth": 0,
            "in_flight_count": self.in_flight,
            "deferred_count": 0,
            "message_count": self.message_count,
            "requeue_count": 0,
            "timeout_count": 0,
            "client_count": len(self.consumers),
            "paused": False,
        }


class Topic:
    gone = False

    def __init__(self, *channels: Channel) -> None:
        self.name = "t"
        self.message_count = 0
        self.channels = {each.name: each for each in channels}

    def ledger(self) -> dict[str, Any]:
        return {}

    def counters(self) -> dict[str, Any]:
        numbers = dict.fromkeys(["depth", "backend_depth", "message_count", "message_bytes"], 0)
        return {"topic_name": "t", **numbers, "paused": False}


class World:
    """A topic with one channel and one consumer, sampled under a clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.consumer = Consumer()
        self.channel = Channel("c", self.consumer)
        self.topic = Topic(self.channel)
        self.rates = RecentRates(lambda: self.now)

    def sample(self) -> None:
        self.rates.sample([self.topic])

    def work(self, received: int = 0, finished: int = 0, seconds: float = PERIOD) -> None:
        self.topic.message_count += received
        self.channel.message_count += received
        self.channel.finish_count += finished
        self.consumer.finish_count += finished
        self.channel.depth += received - finished
        self.now += seconds

    @property
    def channel_rates(self) -> Rates | None:
        backlog = self.channel.depth + self.channel.in_flight
        return self.rates.of_channel("t", self.channel, backlog)

    @property
    def consumer_rate(self) -> float | None:
        return self.rates.of_consumer("t", "c", self.consumer)


def test_nothing_is_known_before_the_first_sample() -> None:
    world = World()
    assert world.rates.of_topic(world.topic) is None
    assert (world.channel_rates, world.consumer_rate) == (None, None)
    world.sample()
    world.work(received=10, seconds=0.9)
    assert world.channel_rates is None, "a mean over less than a second is noise"


def test_rates_since_the_first_sample() -> None:
    world = World()
    world.sample()
    world.work(received=10, finished=4, seconds=2.0)
    assert world.rates.of_topic(world.topic) == 5.0
    assert world.channel_rates == Rates(received=5.0, finished=2.0, growth=3.0)
    assert world.consumer_rate == 2.0


def test_a_rate_covers_between_one_and_two_periods() -> None:
    world = World()
    world.sample()
    world.work(received=1000)  # before both of the retained samples
    world.sample()
    world.work(received=50)
    world.sample()
    assert world.rates.of_topic(world.topic) == 50 / PERIOD
    world.work()
    assert world.rates.of_topic(world.topic) == 50 / (2 * PERIOD)
    world.sample()
    assert world.rates.of_topic(world.topic) == 0.0


def test_requeues_timeouts_and_messages_in_flight() -> None:
    world = World()
    world.sample()
    world.work(received=10, seconds=2.0)
    world.channel.requeue_count, world.channel.timeout_count = 4, 2
    world.channel.depth, world.channel.in_flight = 3, 7
    assert world.channel_rates == Rates(5.0, 0.0, 2.0, 1.0, 5.0)


def test_a_recreated_channel_is_unknown() -> None:
    world = World()
    world.work(received=10, finished=10)
    world.sample()
    world.channel = Channel("c")
    world.now += PERIOD
    assert world.channel_rates is None
    assert world.rates.of_channel("t", Channel("other"), 0) is None


def test_a_new_consumer_is_unknown_until_it_is_sampled() -> None:
    world = World()
    world.sample()
    world.channel.consumers.append(late := Consumer())
    world.now += PERIOD
    assert world.rates.of_consumer("t", "c", late) is None
    world.sample()
    late.finish_count = 10
    world.now += 2.0
    assert world.rates.of_consumer("t", "c", late) == 5.0
    assert world.consumer_rate == 0.0


def test_samples_keep_no_deleted_objects() -> None:
    world = World()
    for _ in range(2):
        world.sample()
    world.rates.sample([])
    world.rates.sample([])
    world.now += PERIOD
    assert world.channel_rates is None


def test_the_oldest_sample_is_freed_topic_by_topic() -> None:
    world = World()
    topics = [Topic() for _ in range(3)]
    for number, topic in enumerate(topics):
        topic.name = f"t{number}"
    world.rates.sample(topics)
    world.rates.sample(topics)
    left: list[int] = []
    world.rates.sample(topics, lambda: left.append(len(world.rates._older)))
    assert left == [3, 2, 1]


def test_a_sample_gives_way() -> None:
    steps: list[None] = []
    World().rates.sample([Topic(Channel("a"), Channel("b"))], lambda: steps.append(None))
    assert len(steps) == 3


def test_saturated_consumers_of_the_latest_sample() -> None:
    world = World()
    world.channel.consumers = [Consumer(5, 5), Consumer(5, 4), Consumer(0, 0)]
    world.sample()
    assert world.rates.saturated() == {}, "no message is waiting"
    world.channel.depth = 1
    world.sample()
    assert world.rates.saturated() == {("t", "c"): 1}
    world.rates.sample([])
    assert world.rates.saturated() == {}


def test_series_are_bounded() -> None:
    values = {
        ("t", "a"): 1,
        ("t", "x#ephemeral"): 2,
        ("t", "y#ephemeral"): 3,
        ("t", "b"): 4,
        ("u", "c"): 5,
        ("v#ephemeral", "d"): 6,
    }
    assert in_series(values, 2) == [
        ("t", "a", 1),
        ("t", "#ephemeral", 5),
        ("(other)", "(other)", 9),
        ("#ephemeral", "#ephemeral", 6),
    ]


# -- /stats


def shown(world: World, rates: RecentRates | None, *, text: bool = False, **query: Any) -> Any:
    walk = Walk(Query(json=not text, **query), lambda: None, 0, rates)
    ((_, piece),) = walk.topics([world.topic])
    return piece.decode() if text else json.loads(piece)


def test_keys_follow_those_of_nsq() -> None:
    world = World()
    world.sample()
    world.work(received=100, finished=60, seconds=2.0)
    with_rates, without = shown(world, world.rates), shown(world, None)
    assert with_rates.pop("publish_rate") == 50.0
    (channel,), (usual,) = with_rates["channels"], without["channels"]
    keys = list(channel)
    added = {
        "receive_rate": 50.0,
        "finish_rate": 30.0,
        "requeue_rate": 0.0,
        "timeout_rate": 0.0,
        "falling_behind": 20.0,
        "drain_seconds": None,
        "saturated_client_count": 0,
        "backing_off_client_count": 0,
    }
    assert keys == [*usual, *added]
    assert {key: channel.pop(key) for key in added} == added
    (client,) = channel["clients"]
    assert list(client)[-2:] == ["finish_rate", "saturated"]
    assert (client.pop("finish_rate"), client.pop("saturated")) == (30.0, False)
    assert with_rates == without


def test_unknown_rates_are_null() -> None:
    world = World()
    page = shown(world, world.rates)
    (channel,) = page["channels"]
    assert page["publish_rate"] is None
    assert channel["falling_behind"] is None and channel["finish_rate"] is None
    assert channel["drain_seconds"] is None
    assert channel["clients"][0]["finish_rate"] is None


def test_time_until_a_channel_is_empty() -> None:
    world = World()
    world.channel.depth = 100
    world.sample()
    world.work(finished=40, seconds=2.0)
    (channel,) = shown(world, world.rates)["channels"]
    assert (channel["falling_behind"], channel["drain_seconds"]) == (-20.0, 3.0)


def test_saturated_consumers() -> None:
    world = World()
    world.channel.consumers = [Consumer(5, 5), Consumer(5, 4), Consumer(0, 0), Consumer(1, 2)]
    world.channel.depth = 1

    def saturated() -> tuple[int, list[bool]]:
        (channel,) = shown(world, world.rates)["channels"]
        clients = [each["saturated"] for each in channel["clients"]]
        return channel["saturated_client_count"], clients

    assert saturated() == (2, [True, False, False, True])
    (channel,) = shown(world, world.rates, include_clients=False)["channels"]
    assert (channel["saturated_client_count"], channel["clients"]) == (2, None)
    assert channel["backing_off_client_count"] == 1
    world.channel.depth = 0
    assert saturated() == (0, [False] * 4)


def test_producers_and_text_have_no_rates() -> None:
    world = World()
    walk = Walk(Query(json=True), lambda: None, 0, world.rates)
    assert b'rate":' not in walk.producers([Consumer()]).replace(b"sample_rate", b"")
    assert "rate" not in shown(world, world.rates, text=True, include_clients=False)
