"""Rates over the last seconds, and their keys in /stats."""

import json
from typing import Any

from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats.metrics_shares import in_series
from nsqcy.nsqd.worker.rate_sampler import PERIOD
from nsqcy.server.core import Sampling, StatsShare
from support.worker_core import SECOND, Core

RATES = ("receive_rate", "finish_rate", "requeue_rate", "timeout_rate", "falling_behind")


class World:
    """A topic with one channel and one consumer, sampled under a clock that the test advances."""

    def __init__(self, ready: int = 2500) -> None:
        self.core = Core(None)
        self.consumer = self.core.client().subscribe("t", "c", ready=ready)
        self.producer = self.core.client()
        self.received: list[bytes] = []

    def sample(self) -> dict[tuple[str, str], int]:
        sampling = Sampling(self.core.shard)
        assert not sampling.go_on(1000)
        return sampling.saturated

    def work(self, received: int = 0, finished: int = 0, seconds: float = PERIOD) -> None:
        for _ in range(received):
            self.producer.publish("t", b"x")
        self.core.settle()
        self.received += [message.id for message in self.consumer.messages()]
        for _ in range(finished):
            self.consumer.finish(self.received.pop())
        self.core.advance(int(seconds * SECOND))

    def shown(self, *, text: bool = False, **query: Any) -> Any:
        core = self.core
        share = StatsShare(core.manager, [b"t"], Query(json=not text, **query), core.wall)
        assert not share.go_on(1000)
        data, (end, _) = share.take(bytes), share.sizes()
        return data.decode() if text else json.loads(data[: end - 1])

    @property
    def channel(self) -> Any:
        (channel,) = self.shown()["channels"]
        return channel

    @property
    def rates(self) -> list[float | None]:
        return [self.channel[key] for key in RATES]

    @property
    def consumer_rates(self) -> list[float | None]:
        return [client["finish_rate"] for client in self.channel["clients"]]


def test_nothing_is_known_before_the_first_sample() -> None:
    world = World()
    assert world.shown()["publish_rate"] is None
    assert (world.rates, world.consumer_rates) == ([None] * 5, [None])
    assert world.channel["drain_seconds"] is None
    world.sample()
    world.work(received=10, seconds=0.9)
    assert world.rates == [None] * 5, "a mean over less than a second is noise"


def test_rates_since_the_first_sample() -> None:
    world = World()
    world.sample()
    world.work(received=10, finished=4, seconds=2.0)
    assert world.shown()["publish_rate"] == 5.0
    assert world.rates == [5.0, 2.0, 0.0, 0.0, 3.0]
    assert world.consumer_rates == [2.0]


def test_a_rate_covers_between_one_and_two_periods() -> None:
    world = World()
    world.sample()
    world.work(received=1000)  # before both of the retained samples
    world.sample()
    world.work(received=50)
    world.sample()
    assert world.shown()["publish_rate"] == 50 / PERIOD
    world.work()
    assert world.shown()["publish_rate"] == 50 / (2 * PERIOD)
    world.sample()
    assert world.shown()["publish_rate"] == 0.0


def test_requeues_and_timeouts() -> None:
    world = World()
    world.work(received=10, seconds=0)
    world.sample()
    for id in world.received[:4]:
        world.consumer.requeue(id, 1000_000)
    world.core.advance(2 * SECOND)
    assert world.rates == [0.0, 0.0, 2.0, 0.0, -2.0]
    world.core.advance(98 * SECOND)
    assert world.rates[3] == 0.06


def test_a_recreated_channel_is_unknown() -> None:
    world = World()
    world.work(received=10, finished=10)
    world.sample()
    topic = world.core.create("t")
    topic.delete_channel("c")
    topic.channel("c")
    world.core.advance(int(PERIOD * SECOND))
    assert world.rates == [None] * 5


def test_a_new_consumer_is_unknown_until_it_is_sampled() -> None:
    world = World(ready=0)
    world.sample()
    late = world.core.client().subscribe("t", "c", ready=100)
    world.work(seconds=5.0)
    assert world.consumer_rates == [0.0, None]
    world.sample()
    world.work(received=10, seconds=0)
    for message in late.messages():
        late.finish(message.id)
    world.core.advance(2 * SECOND)
    assert world.consumer_rates == [0.0, 5.0]


def test_a_sample_is_taken_in_slices() -> None:
    core = Core(None)
    for name in ("t", "u"):
        core.create(name).channel("a")
        core.create(name).channel("b")
    core.create("gone")
    sampling = Sampling(core.shard)
    core.shard.delete_topic(b"gone")
    core.settle()
    turns = 1
    while sampling.go_on(1):
        turns += 1
    assert turns == 2 * 3 + 1 + 1


def test_saturated_consumers_of_a_sample() -> None:
    world = World(ready=5)
    world.core.client().subscribe("t", "c", ready=0)
    world.work(received=5)
    assert world.sample() == {}, "no message is waiting"
    world.work(received=1)
    assert world.sample() == {("t", "c"): 1}
    world.core.create("t").delete_channel("c")
    assert world.sample() == {}


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


def test_time_until_a_channel_is_empty() -> None:
    world = World(ready=2)
    world.work(received=100, seconds=0)
    world.sample()
    for _ in range(20):
        world.work(finished=2, seconds=0)
    world.core.advance(2 * SECOND)
    assert world.rates == [0.0, 20.0, 0.0, 0.0, -20.0]
    assert (world.channel["depth"], world.channel["drain_seconds"]) == (58, 2.9)


def test_saturated_consumers() -> None:
    world = World(ready=3)
    for ready in (2, 0):
        world.core.client().subscribe("t", "c", ready=ready)
    world.work(received=5)
    assert [each["saturated"] for each in world.channel["clients"]] == [False] * 3
    world.work(received=1)
    channel = world.channel
    assert [each["saturated"] for each in channel["clients"]] == [True, True, False]
    assert (channel["saturated_client_count"], channel["backing_off_client_count"]) == (2, 1)
    (channel,) = world.shown(include_clients=False)["channels"]
    assert (channel["saturated_client_count"], channel["clients"]) == (2, None)


def test_producers_and_text_have_no_rates() -> None:
    world = World()
    world.work(received=1)
    share = StatsShare(world.core.manager, [], Query(json=True), 0)
    assert not share.go_on(1000)
    (producer,) = json.loads(b"[" + share.take(bytes)[:-1] + b"]")
    assert "finish_rate" not in producer and "saturated" not in producer
    assert "rate" not in world.shown(text=True)
