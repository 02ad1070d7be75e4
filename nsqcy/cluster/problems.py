"""Problems of a cluster, with their severity: what is wrong, where, and how to fix it.

Pure functions of the statistics that nsqds report. `nsqcy doctor`, `nsqcy top` and nsqadmin share
them, so all three report the same problems. Sends no queries and formats no output.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median
from typing import NamedTuple

from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelStats, ClientStats, Names, TopicStats
from nsqcy.names import is_ephemeral

MIN_GROWTH = 1.0  # messages per second; a short sample is not precise enough for slower growth
MIN_GROWTH_SHARE = 0.02  # share of the received messages: a busy queue is never constant
MIN_SECONDS = 10.0  # a backlog worth fewer seconds of growth may be a burst
MIN_FAILURES = 0.1  # minimum failed attempts per second
TIMEOUT_SHARE = 0.05  # timeouts per attempt
SLOW_SHARE = 0.1  # share of the median finish rate of a channel's consumers
BLOCKED_SECONDS = 900  # as for nsqd_channel_keys_blocked_long
MIN_CONSUMERS = 3  # minimum number of consumers for a meaningful median
DISK_WARNING, DISK_ERROR = 0.1, 0.02  # free share of a disk
CERTIFICATE_DAYS = 30
MAX_NAMES = 3  # maximum number of names to list; the rest are only counted


class Severity(IntEnum):
    """Ordered: an error needs attention now, a warning soon; a note may be intended."""

    NOTE = 1
    WARNING = 2
    ERROR = 3


class Place(NamedTuple):
    """A topic, channel, nsqd, nsqlookupd or group of copies; unused fields are empty."""

    topic: str = ""
    channel: str = ""
    node: str = ""  # HTTP address of an nsqd
    lookupd: str = ""  # HTTP address of an nsqlookupd
    group: str = ""  # id of a group of copies; `node` is then its owner, if any


class Problem(NamedTuple):
    """`kind` is a stable identifier; kind and place identify a problem over time. `label` is for a
    table, `text` is a sentence that includes the place."""

    severity: Severity
    kind: str
    place: Place
    label: str
    text: str
    advice: str


@dataclass(frozen=True)
class NodeState:
    """An nsqd's own state. With an error, it did not answer, and the rest is unknown."""

    name: str
    error: str = ""
    health: str = "OK"
    disk_free: float | None = None  # share of the data path's disk
    unregistered: Sequence[str] = ()  # TCP addresses of nsqlookupds that it cannot register with
    certificate_days: float | None = None  # days until the nsqd's TLS certificate expires


def find(
    topics: Mapping[str, TopicStats],
    nodes: Iterable[NodeState] = (),
    lookupd_errors: Mapping[str, str] | None = None,
    origins: Mapping[str, Sequence[Names]] | None = None,
) -> list[Problem]:
    """Return all problems of a cluster, the most severe first. topics: summed across all nsqds, by
    name, as in NodeStats.topics. lookupd_errors: by HTTP address of the nsqlookupd. origins: the
    dead-letter topics, if `topics` are not all topics."""
    found = [*_of_lookupds(lookupd_errors or {})]
    for node in nodes:
        found += of_node(node)
    dead = dead_letter_topics(topics.values()) if origins is None else origins
    for name, topic in topics.items():
        found += of_topic(topic, dead.get(name, ()))
        for channel in topic.channels.values():
            if name not in dead:
                found += of_channel(channel)
    return by_severity(found)


def by_severity(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems with the most severe first, otherwise in the same order."""
    return sorted(problems, key=lambda each: -each.severity)


def dead_letter_topics(topics: Iterable[TopicStats]) -> dict[str, list[Names]]:
    """Return the dead-letter topics, each with the channels that use it."""
    found: dict[str, set[Names]] = {}
    for topic in topics:
        for each in topic.channels.values():
            if each.dead_letter_topic:
                found.setdefault(each.dead_letter_topic, set()).add((topic.name, each.name))
    return {name: sorted(channels) for name, channels in found.items()}


# --- daemons ------------------------------------------------------------------------------------


def of_node(node: NodeState) -> Iterator[Problem]:
    place, what = Place(node=node.name), f"nsqd {node.name}"
    if node.error:
        yield Problem(
            *(Severity.ERROR, "node-unreachable", place, "unreachable"),
            f"{what} does not answer: {node.error}",
            "start it, or check the address and firewalls",
        )
        return
    if node.health != "OK":
        yield Problem(
            *(Severity.ERROR, "node-unhealthy", place, "unhealthy"),
            f"{what} is unhealthy: {node.health}",
            "check the disk and nsqd's log",
        )
    if node.disk_free is not None and node.disk_free < DISK_WARNING:
        yield Problem(
            Severity.ERROR if node.disk_free < DISK_ERROR else Severity.WARNING,
            *("disk-nearly-full", place, f"disk {1 - node.disk_free:.0%} full"),
            f"the disk of {what} is {1 - node.disk_free:.0%} full",
            "free disk space, or grow the volume: nsqd refuses messages that it cannot write",
        )
    for address in node.unregistered:
        yield Problem(
            *(Severity.ERROR, "unregistered", place, f"not registered with {address}"),
            f"{what} cannot register with nsqlookupd {address}",
            "start that nsqlookupd, or check nsqd's --lookupd-tcp-address; nsqd's log has the"
            " reason",
        )
    yield from _of_certificate(node, place)


def _of_certificate(node: NodeState, place: Place) -> Iterator[Problem]:
    days = node.certificate_days
    if days is None or days >= CERTIFICATE_DAYS:
        return
    span = count(round(abs(days)), "day")
    when = f"expired {span} ago" if days < 0 else f"expires in {span}"
    cannot = "cannot connect" if days < 0 else "will not be able to connect"
    yield Problem(
        Severity.ERROR if days < 0 else Severity.WARNING,
        *("certificate", place, f"certificate {when}"),
        f"the TLS certificate of nsqd {node.name} {when}",
        f"clients that verify it {cannot}: replace the file, and send SIGHUP to nsqd",
    )


def _of_lookupds(errors: Mapping[str, str]) -> Iterator[Problem]:
    for address, error in errors.items():
        yield Problem(
            *(Severity.ERROR, "lookupd-unreachable", Place(lookupd=address), "unreachable"),
            f"nsqlookupd {address} does not answer: {error}",
            "start it, or check the address and firewalls",
        )


# --- topics -------------------------------------------------------------------------------------


def of_topic(topic: TopicStats, origins: Sequence[Names] = ()) -> Iterator[Problem]:
    """Yield the topic's own problems; see of_channel() for its channels. origins: the channels that
    send their dead letters to it."""
    place, depth = Place(topic=topic.name), topic.figures.depth
    if origins:
        yield from _dead_letters(topic, place, origins)
        return
    if topic.figures.paused and depth:
        yield Problem(
            *(Severity.WARNING, "paused", place, "paused"),
            f"topic {topic.name} is paused, and {waiting(depth)}",
            how_to_unpause(topic.name),
        )
    elif depth and not topic.channels:
        _, more = _of_growth(topic.publish_rate or 0.0)
        yield Problem(
            *(Severity.WARNING, "no-channel", place, "no channel"),
            f"topic {topic.name} has no channel, and {waiting(depth)}{more}",
            "start its consumers, which creates a channel. If nothing consumes it any more, look at"
            f" its messages: nsqcy peek {topic.name}",
        )


def _dead_letters(topic: TopicStats, place: Place, origins: Sequence[Names]) -> Iterator[Problem]:
    held = topic.figures.depth + max(map(_held, topic.channels.values()), default=0)
    if not held:
        return
    grows = bool(topic.publish_rate)
    of = listed(["/".join(each) for each in origins])
    more = f", growing by {rate(topic.publish_rate)}" if topic.publish_rate else ""
    yield Problem(
        Severity.ERROR if grows else Severity.WARNING,
        *("dead-letters", place, "dead letters"),
        f"{waiting(held)} in dead-letter topic {topic.name} of {of}{more}",
        "look at them (nsqcy peek), fix the cause, then redrive them (nsqcy redrive); see"
        " docs/runbooks/dead-letters.md",
    )


# --- channels -----------------------------------------------------------------------------------


def of_channel(channel: ChannelStats) -> Iterator[Problem]:
    """Yield the problems of a channel, on one nsqd or summed across all. Clients are optional."""
    if channel.figures.paused:
        yield from _paused(channel)
        return
    if not channel.figures.client_count:
        yield from _no_consumer(channel)
        return
    yield from _blocked_keys(channel)
    refusals = list(_backing_off(channel))
    yield from refusals
    unread = list(_nodes_without_consumer(channel))
    yield from unread
    if channel.rates is not None:
        yield from () if unread else _falling_behind(channel, channel.rates)
        yield from () if refusals else _failures(channel, channel.rates)
    yield from _slow_consumers(channel)


def _paused(channel: ChannelStats) -> Iterator[Problem]:
    if depth := channel.figures.depth:
        consumers = "" if channel.figures.client_count else "has no consumer, "
        yield Problem(
            *(Severity.WARNING, "paused", _place(channel), "paused"),
            f"{_name(channel)} is paused, {consumers}and {waiting(depth)}",
            how_to_unpause(channel.topic, channel.name)
            + ("" if channel.figures.client_count else "; then start its consumers"),
        )


def how_to_unpause(*names: str) -> str:
    """Return advice for a paused topic, or topic and channel."""
    command = "channel unpause" if len(names) > 1 else "topic unpause"
    return f"if this is not intended: nsqcy {command} {' '.join(names)}"


def _blocked_keys(channel: ChannelStats) -> Iterator[Problem]:
    """Find keys that are not paused, and have messages, but may not deliver any for a long time."""
    keys = channel.keys
    if keys is None or keys.blocked_seconds < BLOCKED_SECONDS:
        return
    span = count(int(keys.blocked_seconds // 60), "minute")
    yield Problem(
        *(Severity.WARNING, "keys-blocked", _place(channel), f"a key is blocked for {span}"),
        f"{count(keys.blocked, 'key')} of {_name(channel)} may not deliver the waiting messages,"
        f" one of them for {span}",
        f"see which: nsqcy channel keys {channel.topic} {channel.name} --blocked; see"
        " docs/runbooks/blocked-keys.md",
    )


def _no_consumer(channel: ChannelStats) -> Iterator[Problem]:
    if not _held(channel) or is_ephemeral(channel.name):
        return
    severity, more = _of_growth(channel.rates.growth if channel.rates else 0.0)
    deferred = channel.figures.deferred_count
    depth = channel.figures.depth
    text = f"{_name(channel)} has no consumer"
    text += f", and {waiting(depth)}" if depth or not deferred else ""
    text += f", {deferred} deferred" if deferred else ""
    yield Problem(
        *(severity, "no-consumer", _place(channel), "no consumer"),
        text + more,
        "start its consumers: the channel keeps a copy of every message. If nothing consumes it any"
        f" more, look at its messages: nsqcy peek {channel.topic}"
        f" {channel.name}. To return dead letters to the channels that they came from:"
        f" nsqcy redrive {channel.topic} {channel.name}",
    )


def _nodes_without_consumer(channel: ChannelStats) -> Iterator[Problem]:
    """Consumers that do not know all nsqds leave messages on the unknown ones."""
    nodes = [row for row in channel.nodes if row.figures.depth and not row.figures.client_count]
    if not nodes or is_ephemeral(channel.name):
        return
    severity, more = _of_growth(sum(row.rates.growth for row in nodes if row.rates))
    depth = sum(row.figures.depth for row in nodes)
    yield Problem(
        *(severity, "no-consumer-on-nsqd", _place(channel)),
        f"no consumer on {count(len(nodes), 'nsqd')}",
        f"{_name(channel)} has no consumer on nsqd {listed([row.node for row in nodes])}, and"
        f" {waiting(depth)} there{more}",
        "configure its consumers to discover all nsqds through nsqlookupds, or list all nsqds in"
        " their options",
    )


def _of_growth(growth: float) -> tuple[Severity, str]:
    """Return the severity of a backlog without consumers, and the end of its text."""
    if growth < MIN_GROWTH:
        return Severity.WARNING, ""
    return Severity.ERROR, f", growing by {rate(growth)}"


def _falling_behind(channel: ChannelStats, rates: Rates) -> Iterator[Problem]:
    if not is_falling_behind(channel, rates):
        return
    yield Problem(
        *(Severity.WARNING, "falling-behind", _place(channel)),
        f"falling behind by {rate(rates.growth)}",
        f"{_name(channel)} is falling behind by {rate(rates.growth)}: it receives"
        f" {rate(rates.received)} and finishes {rate(rates.finished)}, and"
        f" {waiting(channel.figures.depth)}",
        _how_to_keep_up(channel, rates),
    )


def is_falling_behind(channel: ChannelStats, rates: Rates) -> bool:
    """Return whether a channel's backlog grows faster than a burst would explain."""
    return (
        rates.growth >= max(MIN_GROWTH, MIN_GROWTH_SHARE * rates.received)
        and channel.figures.depth >= MIN_SECONDS * rates.growth
    )


def _how_to_keep_up(channel: ChannelStats, rates: Rates) -> str:
    if not rates.finished:
        return "its consumers finish no messages: check their logs"
    if _all_saturated(channel):
        return (
            "all consumers have as many messages in flight as they accept: add consumers, or raise"
            " their max_in_flight"
        )
    return (
        "its consumers could receive more messages than they do: check for errors, backoff and"
        " a slow network"
    )


def _all_saturated(channel: ChannelStats) -> bool:
    """A consumer is saturated whenever it is busy, which alone is not a problem."""
    return channel.saturated == channel.figures.client_count > 0


def _failures(channel: ChannelStats, rates: Rates) -> Iterator[Problem]:
    failed = rates.requeued + rates.timed_out
    if failed >= MIN_FAILURES and failed > rates.finished:
        yield Problem(
            *(Severity.WARNING, "failing", _place(channel), f"failing {rate(failed)}"),
            f"most attempts of {_name(channel)} fail: {rate(rates.requeued)} are requeued,"
            f" {rate(rates.timed_out)} time out and {rate(rates.finished)} finish",
            _how_to_see_failing(channel),
        )
    elif rates.timed_out >= MIN_FAILURES and rates.timed_out >= TIMEOUT_SHARE * (
        failed + rates.finished
    ):
        yield Problem(
            *(Severity.WARNING, "timeouts", _place(channel), f"timing out {rate(rates.timed_out)}"),
            f"messages of {_name(channel)} time out: {rate(rates.timed_out)}",
            "lower the consumers' max_in_flight, raise --msg-timeout, or send TOUCH while working",
        )


def _backing_off(channel: ChannelStats) -> Iterator[Problem]:
    """Find channels whose consumers have all set RDY 0. A consumer does so after failures, to
    receive no messages for a while. As long as other consumers receive messages, this is not a
    problem."""
    refusing = channel.backing_off  # NSQ's nsqd does not report it
    if not refusing and channel.figures.depth:
        refusing = sum(not each.ready_count for each in channel.clients or ())
    if refusing == channel.figures.client_count:
        failed = channel.figures.requeue_count + channel.figures.timeout_count
        since = f", after {count(failed, 'failed attempt')}" if failed else ""
        yield Problem(
            *(Severity.WARNING, "backing-off", _place(channel), "backing off"),
            f"all consumers of {_name(channel)} refuse messages at the moment (RDY 0){since}, and"
            f" {waiting(channel.figures.depth)}",
            f"check the logs of the consumers; {_how_to_see_failing(channel)}",
        )


def _how_to_see_failing(channel: ChannelStats) -> str:
    return (
        f"see the messages with: nsqcy peek {channel.topic} {channel.name}; to remove those that"
        " always fail, set max_attempts and dead_letter_topic"
    )


def _slow_consumers(channel: ChannelStats) -> Iterator[Problem]:
    known = [
        (each, each.finish_rate) for each in channel.clients or () if each.finish_rate is not None
    ]
    if len(known) < MIN_CONSUMERS:
        return
    usual = median(speed for _, speed in known)
    slow = [(each, speed) for each, speed in known if each.saturated and speed < SLOW_SHARE * usual]
    if usual < MIN_GROWTH or not slow:
        return
    names = listed([f"{client_name(each)} ({rate(speed)})" for each, speed in slow])
    yield Problem(
        *(Severity.WARNING, "slow-consumer", _place(channel), "slow consumer"),
        f"consumers of {_name(channel)} finish messages at less than a tenth of the median rate"
        f" ({rate(usual)}): {names}",
        "check the hosts and logs of these consumers; if they stop, other consumers receive the"
        " messages",
    )


# --- parts --------------------------------------------------------------------------------------


def rate(value: float | None) -> str:
    """Format messages per second."""
    value = value or 0.0
    return f"{value:,.0f}/s" if abs(value) >= 10 else f"{value:.1f}/s"


def count(number: int, noun: str = "message") -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    others = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {others} more" if others > 0 else "")


def waiting(messages: int) -> str:
    return f"{count(messages)} {'is' if messages == 1 else 'are'} waiting"


def client_name(client: ClientStats) -> str:
    if not client.client_id:
        return client.remote_address
    return f"{client.remote_address} ({client.client_id})"


def _name(channel: ChannelStats) -> str:
    return f"channel {channel.topic}/{channel.name}"


def _place(channel: ChannelStats) -> Place:
    return Place(topic=channel.topic, channel=channel.name)


def _held(channel: ChannelStats) -> int:
    return channel.figures.depth + channel.figures.deferred_count
