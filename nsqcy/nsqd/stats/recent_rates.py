"""Rates of a worker's topics, channels and consumers over the last few seconds.

Keeps two samples of the counters, taken one PERIOD apart. A rate is the mean since the older
sample, so it covers between one and two periods and costs nothing per message. Objects are
identified by name or, for consumers, by their id(), so that samples keep no deleted object alive.
Also counts saturated consumers: consumers that cannot take a waiting message. Performs no I/O: the
caller triggers the samples and passes a clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from nsqcy.cluster import rates
from nsqcy.cluster.rates import Counts, Rates

PERIOD = 5.0  # seconds between samples
MIN_SECONDS = 1.0  # minimum time for a meaningful mean


class Consumer(Protocol):
    @property
    def finish_count(self) -> int: ...
    @property
    def ready_count(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Channel(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def message_count(self) -> int: ...
    @property
    def finish_count(self) -> int: ...
    @property
    def requeue_count(self) -> int: ...
    @property
    def timeout_count(self) -> int: ...
    @property
    def consumers(self) -> Sequence[Any]: ...
    def ledger(self) -> dict[str, Any]: ...


class Topic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def message_count(self) -> int: ...
    @property
    def channels(self) -> Mapping[str, Any]: ...


class _ChannelSample(NamedTuple):
    at: float
    counts: Counts
    finished: Mapping[int, int]  # by consumer
    saturated: int


class _TopicSample(NamedTuple):
    at: float
    published: int
    channels: Mapping[str, _ChannelSample]


class RecentRates:
    """clock: returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._older: dict[str, _TopicSample] = {}
        self._newer: dict[str, _TopicSample] = {}

    def sample(self, topics: Iterable[Topic], step: Callable[[], None] = lambda: None) -> None:
        """Take a sample. `step` is called before each topic and channel. The oldest sample is freed
        topic by topic: freeing it in one step would take as long as a hundred slices."""
        taken = {}
        for topic in topics:
            step()
            self._older.pop(topic.name, None)
            channels = {}
            for name, channel in list(topic.channels.items()):
                step()
                channels[name] = self._sample_channel(channel)
            taken[topic.name] = _TopicSample(self._clock(), topic.message_count, channels)
        self._older, self._newer = self._newer, taken

    def _sample_channel(self, channel: Channel) -> _ChannelSample:
        ledger = channel.ledger()
        counts = _counts(channel, ledger["queued"] + ledger["in_flight"])
        finished = {id(each): each.finish_count for each in channel.consumers}
        saturated = count_saturated(channel, ledger["queued"])
        return _ChannelSample(self._clock(), counts, finished, saturated)

    def of_topic(self, topic: Topic) -> float | None:
        """Return the messages published per second; None if not known yet."""
        now = self._clock()
        for samples in (self._older, self._newer):
            before = samples.get(topic.name)
            if before is not None and now - before.at >= MIN_SECONDS:
                return rates.per_second(before.published, topic.message_count, now - before.at)
        return None

    def of_channel(self, topic: str, channel: Channel, backlog: int) -> Rates | None:
        """Return a channel's rates, given its current backlog; None if not known yet."""
        now = self._clock()
        for before in self._channel_samples(topic, channel.name):
            if now - before.at >= MIN_SECONDS:
                counts = _counts(channel, backlog)
                return rates.between(before.counts, counts, now - before.at)
        return None

    def of_consumer(self, topic: str, channel: str, consumer: Consumer) -> float | None:
        """Return the messages that a consumer finishes per second; None if not known yet."""
        now = self._clock()
        for before in self._channel_samples(topic, channel):
            finished = before.finished.get(id(consumer))
            if finished is not None and now - before.at >= MIN_SECONDS:
                return rates.per_second(finished, consumer.finish_count, now - before.at)
        return None

    def saturated(self) -> dict[tuple[str, str], int]:
        """Return the saturated consumers of the latest sample by topic and channel, without
        channels that have none."""
        return {
            (topic, name): channel.saturated
            for topic, sample in self._newer.items()
            for name, channel in sample.channels.items()
            if channel.saturated
        }

    def _channel_samples(self, topic: str, channel: str) -> list[_ChannelSample]:
        """Return the channel's samples, the older one first."""
        found = [samples.get(topic) for samples in (self._older, self._newer)]
        samples = [each.channels.get(channel) for each in found if each is not None]
        return [each for each in samples if each is not None]


def count_saturated(channel: Channel, depth: int) -> int:
    """Return the number of consumers that cannot take a waiting message."""
    return sum(map(is_full, channel.consumers)) if depth else 0


def count_backing_off(channel: Channel, depth: int) -> int:
    """Return the number of consumers that refuse a waiting message, usually after failures."""
    return sum(not each.ready_count for each in channel.consumers) if depth else 0


def is_full(consumer: Consumer) -> bool:
    return 0 < consumer.ready_count <= consumer.in_flight


def _counts(channel: Channel, backlog: int) -> Counts:
    return Counts(
        channel.message_count,
        channel.finish_count,
        channel.requeue_count,
        channel.timeout_count,
        backlog,
    )
