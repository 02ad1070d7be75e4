"""Topic and channel checks: pure functions of the responses from nsqds and nsqlookupds."""

from collections.abc import Iterator

from nsqcy.cluster.problems import how_to_unpause
from nsqcy.cluster.stats import AnyFigures, ChannelStats, ClientStats
from nsqcy.doctor.checks import Check
from nsqcy.doctor.facts import Cluster, Nsqd, Policy
from nsqcy.doctor.findings import Finding, error, note, several, warning
from nsqcy.names import is_ephemeral

NEARLY = 0.8  # share of a limit
SETTLED = 60.0  # seconds within which a working consumer sets RDY


def ghost_topics(cluster: Cluster) -> Iterator[Finding]:
    """Find topics that are registered with nsqlookupds but that no nsqd has."""
    ghosts = [name for name in _without_nsqd(cluster) if not is_ephemeral(name)]
    if ghosts:
        text = f"nsqlookupds list topics that no nsqd has: {several(ghosts)}"
        yield warning(text, "publish to them, or delete them on the Lookup page of nsqadmin")


def unread_topics(cluster: Cluster) -> Iterator[Finding]:
    for name, topic in cluster.topics.items():
        if not topic.channels and topic.figures.depth:
            later = cluster.topics_later.get(name, topic)
            waiting = _waiting(cluster, topic.figures, later.figures)
            text = f"topic {name} has no channel, and {waiting}"
            advice = "start its consumers, which creates a channel; delete the topic only if nobody"
            yield warning(text, f"{advice} needs it")


def idle_channels(cluster: Cluster) -> Iterator[Finding]:
    for channel, later in _channels(cluster):
        figures = channel.figures
        if figures.client_count or not _held(channel) or is_ephemeral(channel.name):
            continue
        if figures.paused:
            continue  # one finding for both
        waiting = _waiting(cluster, figures, later.figures)
        text = f"channel {_name(channel)} has no consumer, and {waiting}"
        if figures.deferred_count:
            text += f", {figures.deferred_count} deferred"
        yield warning(text, "start its consumers, or delete it: it keeps a copy of every message")


def uneven_consumers(cluster: Cluster) -> Iterator[Finding]:
    for channel, _ in _channels(cluster):
        without = [
            each.node
            for each in channel.nodes
            if not each.figures.client_count and each.figures.depth
        ]
        if without and channel.figures.client_count:
            where = f"on {several(without)}, where messages are waiting"
            text = f"channel {_name(channel)} has consumers, but none {where}"
            yield warning(
                text, "consumers cannot reach that nsqd, or query an nsqlookupd that lacks it"
            )


def stuck_consumers(cluster: Cluster) -> Iterator[Finding]:
    for channel, later in _channels(cluster):
        if not channel.clients or not channel.figures.depth:
            continue
        silent = [_client(each) for each in channel.clients if _asks_nothing(each, cluster.now)]
        if silent:
            text = (
                f"consumers of {_name(channel)} refuse messages (RDY 0) while"
                f" {_messages(channel.figures.depth)}: {several(silent)}"
            )
            yield warning(text, "they back off after failures, or are closing: check their logs")
        if not cluster.watched:
            continue
        before = {_identity(each): each for each in channel.clients}
        full = [
            _client(each)
            for each in later.clients or ()
            if _identity(each) in before and _is_full(before[_identity(each)], each)
        ]
        if full:
            text = (
                f"consumers of {_name(channel)} have their maximum in flight and finished nothing"
                f" within {cluster.watched:g} s: {several(full)}"
            )
            yield note(
                text,
                "if messages should not take this long, the consumers may be stuck:"
                " also check --msg-timeout",
            )


def paused(cluster: Cluster) -> Iterator[Finding]:
    for name, topic in cluster.topics.items():
        if topic.figures.paused:
            yield _paused(f"topic {name}", topic.figures.depth, how_to_unpause(name))
    for channel, _ in _channels(cluster):
        if channel.figures.paused:
            advice = how_to_unpause(channel.topic, channel.name)
            consumers = "" if channel.figures.client_count else ", has no consumer"
            advice += "; then start its consumers" if consumers and channel.figures.depth else ""
            yield _paused(f"channel {_name(channel)}", channel.figures.depth, advice, consumers)


def _paused(what: str, depth: int, advice: str, more: str = "") -> Finding:
    if depth:
        return warning(f"{what} is paused{more}, and {_messages(depth)}", advice)
    return note(f"{what} is paused", advice)


def ephemeral(cluster: Cluster) -> Iterator[Finding]:
    left = [name for name in _without_nsqd(cluster) if is_ephemeral(name)]
    left += [
        name for name, topic in cluster.topics.items() if is_ephemeral(name) and not topic.channels
    ]
    left += [
        _name(channel)
        for channel, _ in _channels(cluster)
        if is_ephemeral(channel.name) and not channel.figures.client_count
    ]
    if left:
        text = f"ephemeral topics and channels without consumers: {several(left)}"
        yield note(text, "they should have disappeared with their last consumer; delete them")


def dead_letters(cluster: Cluster) -> Iterator[Finding]:
    sources: dict[str, set[str]] = {}
    for nsqd in cluster.alive:
        for (topic, channel), policy in nsqd.policies.items():
            if policy.dead_letter_topic:
                sources.setdefault(policy.dead_letter_topic, set()).add(f"{topic}/{channel}")
    for name, channels in sorted(sources.items()):
        dead = cluster.topics.get(name)
        if dead is None:
            continue
        waiting = max([dead.figures.depth, *map(_held, dead.channels.values())])
        if waiting:
            text = f"{_messages(waiting)} in dead-letter topic {name} of {several(channels)}"
            yield warning(
                text,
                "find out why they failed, then redrive them or empty the topic; "
                "see docs/POLICIES.md",
            )


def limits(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        for topic in nsqd.topics:
            policy = nsqd.policies.get((topic.name, ""))
            channels = topic.channels.values()
            depths = [each.figures.depth for each in channels]
            if policy:
                maximum = max([topic.figures.depth, *depths])
                yield from _limit(nsqd, f"topic {topic.name}", maximum, policy)
            for each, depth in zip(channels, depths, strict=True):
                if own := nsqd.policies.get((topic.name, each.name)):
                    yield from _limit(nsqd, f"channel {_name(each)}", depth, own)


def _limit(nsqd: Nsqd, what: str, depth: int, policy: Policy) -> Iterator[Finding]:
    maximum = policy.max_depth
    if not maximum or depth < NEARLY * maximum:
        return
    text = f"{_messages(depth)} in {what} on {nsqd.name}, and max_depth is {maximum}"
    advice = "add consumers or raise max_depth; see docs/POLICIES.md"
    if depth < maximum:
        yield warning(text, advice)
    elif policy.on_full == "reject":
        yield error(f"{text}: publishes are refused", advice)
    else:
        yield warning(f"{text}: messages are dropped ({policy.on_full})", advice)


# --- parts --------------------------------------------------------------------------------------


def _without_nsqd(cluster: Cluster) -> set[str]:
    """Return the topics that nsqlookupds list without any nsqd."""
    known: set[str] = set()
    had = set(cluster.topics)
    for lookupd in cluster.answering:
        known |= lookupd.topics
        for producer in lookupd.producers:
            had |= producer.topics.keys()
    return known - had


def _channels(cluster: Cluster) -> Iterator[tuple[ChannelStats, ChannelStats]]:
    """Return each channel, summed across all nsqds, and the same a moment later."""
    for name, topic in cluster.topics.items():
        after = cluster.topics_later.get(name, topic)
        for channel in topic.channels.values():
            yield channel, after.channels.get(channel.name, channel)


def _name(channel: ChannelStats) -> str:
    return f"{channel.topic}/{channel.name}"


def _held(channel: ChannelStats) -> int:
    return channel.figures.depth + channel.figures.deferred_count


def _waiting(cluster: Cluster, figures: AnyFigures, later: AnyFigures) -> str:
    more = later.depth - figures.depth
    grew = f", {more} more within {cluster.watched:g} s" if more > 0 else ""
    return f"{_messages(figures.depth)}{grew}"


def _messages(count: int) -> str:
    return "1 message is waiting" if count == 1 else f"{count} messages are waiting"


def _client(client: ClientStats) -> str:
    return (
        f"{client.remote_address} ({client.client_id})"
        if client.client_id
        else client.remote_address
    )


def _identity(client: ClientStats) -> tuple[str, str]:
    return client.node, client.remote_address


def _asks_nothing(client: ClientStats, now: float) -> bool:
    return not client.ready_count and now - client.connect_ts > SETTLED


def _is_full(before: ClientStats, after: ClientStats) -> bool:
    return all(0 < each.ready_count <= each.in_flight_count for each in (before, after)) and (
        before.finish_count == after.finish_count
    )


def _any_alive(cluster: Cluster) -> object:
    return cluster.alive


CHECKS = (
    Check(
        "ghost-topics",
        "topics that nsqlookupds list but no nsqd has",
        "every listed topic exists on an nsqd",
        ghost_topics,
        lambda cluster: cluster.answering,
    ),
    Check(
        "unread-topics",
        "topics without a channel in which messages are accumulating",
        "no topic without a channel has messages",
        unread_topics,
        _any_alive,
    ),
    Check(
        "idle-channels",
        "channels without a consumer in which messages are waiting, and whether their number is "
        "growing",
        "no channel without a consumer has messages, unless it is paused",
        idle_channels,
        _any_alive,
    ),
    Check(
        "uneven-consumers",
        "channels that have consumers on some nsqds, but only waiting messages on others",
        "every nsqd with waiting messages has consumers",
        uneven_consumers,
        _any_alive,
    ),
    Check(
        "stuck-consumers",
        f"consumers whose RDY is still 0 at {SETTLED:.0f} s after connecting, or that have their"
        " maximum in flight and finish nothing while doctor watches",
        "consumers request messages and finish them",
        stuck_consumers,
        _any_alive,
    ),
    Check("paused", "paused topics and channels", "nothing is paused", paused, _any_alive),
    Check(
        "ephemeral",
        "ephemeral topics and channels without consumers",
        "no ephemeral topic or channel is left over",
        ephemeral,
        _any_alive,
    ),
    Check(
        "dead-letters",
        "messages in topics that channels use as their dead_letter_topic",
        "no dead letters are waiting",
        dead_letters,
        _any_alive,
    ),
    Check(
        "limits",
        f"topics and channels at {NEARLY:.0%} of their max_depth, or at the limit, where"
        " publishes are refused or messages are dropped",
        "no topic or channel is near its max_depth",
        limits,
        _any_alive,
    ),
)
