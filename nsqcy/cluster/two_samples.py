"""Rates of channels on nsqds that do not report them, from two successive queries.

Pure. NSQ's nsqd does not count finished messages, so they are computed: messages received minus the
growth of the channel's contents. Rates that an nsqd reports itself are kept.
"""

from collections.abc import Iterable

from nsqcy.cluster import rates
from nsqcy.cluster.rates import Counts
from nsqcy.cluster.stats import ChannelStats, TopicStats


def with_rates(
    before: Iterable[TopicStats], after: Iterable[TopicStats], seconds: float
) -> list[TopicStats]:
    """Return the later sample of one nsqd with rates. Rates of topics and channels that are missing
    in the earlier sample stay unknown."""
    earlier = {each.name: each for each in before}
    return [
        _topic(earlier[each.name], each, seconds) if each.name in earlier else each
        for each in after
    ]


def _topic(before: TopicStats, after: TopicStats, seconds: float) -> TopicStats:
    channels = {
        name: _channel(before.channels[name], channel, seconds)
        if name in before.channels
        else channel
        for name, channel in after.channels.items()
    }
    published = after.publish_rate
    if published is None:
        published = rates.per_second(
            before.figures.message_count, after.figures.message_count, seconds
        )
    return after._replace(channels=channels, publish_rate=published)


def _channel(before: ChannelStats, after: ChannelStats, seconds: float) -> ChannelStats:
    if after.rates is not None:
        return after
    return after._replace(rates=rates.between(_counts(before), _counts(after), seconds))


def _counts(channel: ChannelStats) -> Counts:
    figures = channel.figures
    backlog = figures.depth + figures.in_flight_count
    return Counts(
        received=figures.message_count,
        finished=figures.message_count - backlog - figures.deferred_count,
        requeued=figures.requeue_count,
        timed_out=figures.timeout_count,
        backlog=backlog,
    )
