"""Topic and channel checks: pure functions of the responses from nsqds and nsqlookupds.

nsqcy.cluster.problems judges individual topics and channels. This module contains the checks that
only doctor makes: nsqlookupds, limits, and changes in individual consumers.
"""

from collections.abc import Iterator, Mapping

from nsqcy.cluster.problems import client_name, how_to_unpause, waiting
from nsqcy.cluster.stats import ChannelStats, ClientStats, TopicStats
from nsqcy.doctor.checks import Check
from nsqcy.doctor.copies import copied_groups
from nsqcy.doctor.facts import MAX_TOPICS, Cluster, Nsqd, Policy
from nsqcy.doctor.findings import Finding, error, note, of_kinds, several, warning
from nsqcy.names import is_ephemeral

NEARLY = 0.8  # share of a limit


def ghost_topics(cluster: Cluster) -> Iterator[Finding]:
    """Find topics that are registered with nsqlookupds but that no nsqd has. An nsqd that does not
    answer may have their messages on its disk."""
    ghosts = [name for name in _without_nsqd(cluster) if not is_ephemeral(name)]
    if not ghosts:
        return
    if unseen := list(_unseen(cluster)):
        text = f"nsqlookupds list topics that no responding nsqd has: {several(ghosts)}"
        yield warning(
            text,
            f"do not delete them: their messages may be on a disk that doctor cannot see, because"
            f" {several(unseen)}. Solve this problem first",
        )
        return
    yield warning(
        f"nsqlookupds list topics that no nsqd has: {several(ghosts)}",
        "first check that no nsqd is stopped or unregistered: its disk may have messages of these"
        " topics; otherwise, publish to the topics, or delete them on nsqadmin's Lookup page",
    )


def _unseen(cluster: Cluster) -> Iterator[str]:
    """Yield the reasons why topics of the cluster may be unknown."""
    if not cluster.alive:
        yield "no nsqd answers"
    for lookupd in cluster.lookupds:
        if lookupd.error:
            yield f"nsqlookupd {lookupd.address} does not answer"
    for nsqd in cluster.nsqds:
        if nsqd.error and not nsqd.assumed:
            yield f"nsqd {nsqd.name} does not answer"
        elif nsqd.unready:
            yield f"nsqd {nsqd.name} is not ready"
    silent = {
        member.full_name
        for group in copied_groups(cluster)
        for member in group.members
        if not member.answers
    }
    yield from (f"node {each}, which has copies, does not answer" for each in silent)


def paused(cluster: Cluster) -> Iterator[Finding]:
    """Find paused topics and channels; those without waiting messages are not a problem."""
    yield from of_kinds(cluster.problems, "paused")
    for name, topic in cluster.rated_topics.items():
        if topic.figures.paused and not topic.figures.depth:
            yield note(f"topic {name} is paused", how_to_unpause(name))
    for channel in _channels(cluster.rated_topics):
        if channel.figures.paused and not channel.figures.depth:
            advice = how_to_unpause(channel.topic, channel.name)
            yield note(f"channel {_name(channel)} is paused", advice)


def stuck_consumers(cluster: Cluster) -> Iterator[Finding]:
    yield from of_kinds(cluster.problems, "backing-off")
    if not cluster.watched:
        return
    for channel in _channels(cluster.topics):
        topic = cluster.rated_topics.get(channel.topic)
        later = topic.channels.get(channel.name) if topic is not None else None
        if later is None or not channel.figures.depth:
            continue
        before = {_identity(each): each for each in channel.clients or ()}
        full = [
            client_name(each)
            for each in later.clients or ()
            if _identity(each) in before and _is_full(before[_identity(each)], each)
        ]
        if full:
            yield note(
                f"consumers of {_name(channel)} have their maximum in flight and finished nothing"
                f" within {cluster.watched:g} s: {several(full)}",
                "if messages should not take this long, the consumers may be stuck:"
                " also check --msg-timeout",
            )


def ephemeral(cluster: Cluster) -> Iterator[Finding]:
    left = [name for name in _without_nsqd(cluster) if is_ephemeral(name)]
    left += [
        name for name, topic in cluster.topics.items() if is_ephemeral(name) and not topic.channels
    ]
    left += [
        _name(channel)
        for channel in _channels(cluster.topics)
        if is_ephemeral(channel.name) and not channel.figures.client_count
    ]
    if left:
        text = f"ephemeral topics and channels without consumers: {several(left)}"
        yield note(
            text,
            "nsqd should have deleted them with their last consumer: look at their messages first"
            " (nsqcy peek), then delete them",
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
    text = f"{waiting(depth)} in {what} on {nsqd.name}, and max_depth is {maximum}"
    advice = "add consumers or raise max_depth; see docs/POLICIES.md"
    if depth < maximum:
        yield warning(text, advice)
    elif policy.on_full == "reject":
        yield error(f"{text}: publishes are refused", advice)
    else:
        yield warning(f"{text}: messages are dropped ({policy.on_full})", advice)


def unexamined(cluster: Cluster) -> Iterator[Finding]:
    """Find nsqds with more busy topics than doctor examines."""
    for nsqd in cluster.alive:
        if nsqd.summary is not None and nsqd.summary.unseen:
            count, busy = nsqd.summary.unseen, len(nsqd.summary.busy)
            text = f"{count:,} topics of nsqd {nsqd.name} with messages or traffic are not examined"
            advice = f"they have fewer messages than the {busy:,} examined ones: see nsqd's metrics"
            yield note(text, advice)


# --- parts --------------------------------------------------------------------------------------


def _without_nsqd(cluster: Cluster) -> set[str]:
    """Return the topics that nsqlookupds list without any nsqd."""
    known: set[str] = set()
    had = {name for nsqd in cluster.nsqds for name in nsqd.names}
    had |= {name for group in copied_groups(cluster) for name in group.reported_topics}
    for lookupd in cluster.answering:
        known |= lookupd.topics
        for producer in lookupd.producers:
            had |= producer.topics.keys()
    return known - had


def _channels(topics: Mapping[str, TopicStats]) -> Iterator[ChannelStats]:
    for topic in topics.values():
        yield from topic.channels.values()


def _name(channel: ChannelStats) -> str:
    return f"{channel.topic}/{channel.name}"


def _identity(client: ClientStats) -> tuple[str, str]:
    return client.node, client.remote_address


def _is_full(before: ClientStats, after: ClientStats) -> bool:
    return all(0 < each.ready_count <= each.in_flight_count for each in (before, after)) and (
        before.finish_count == after.finish_count
    )


def _any_alive(cluster: Cluster) -> object:
    return cluster.alive


CHECKS = (
    Check(
        "unexamined-topics",
        f"nsqds on which more than {MAX_TOPICS:,} topics have messages or traffic; the other"
        f" checks examine only the {MAX_TOPICS:,} busiest",
        "all topics with messages or traffic are examined",
        unexamined,
        _any_alive,
    ),
    Check(
        "ghost-topics",
        "topics that nsqlookupds list but no nsqd has",
        "every listed topic exists on an nsqd",
        ghost_topics,
        lambda cluster: cluster.answering,
    ),
    Check(
        "unread-topics",
        "topics that accumulate messages because they have no channel",
        "every topic with messages has a channel",
        lambda cluster: of_kinds(cluster.problems, "no-channel"),
        _any_alive,
    ),
    Check(
        "idle-channels",
        "channels with waiting messages but no consumer, and whether the backlog is growing",
        "no channel without a consumer has messages, unless it is paused",
        lambda cluster: of_kinds(cluster.problems, "no-consumer"),
        _any_alive,
    ),
    Check(
        "uneven-consumers",
        "channels that have consumers on some nsqds, but only waiting messages on other nsqds",
        "every nsqd with waiting messages has consumers",
        lambda cluster: of_kinds(cluster.problems, "no-consumer-on-nsqd"),
        _any_alive,
    ),
    Check(
        "stuck-consumers",
        "channels in which all consumers have RDY 0, and consumers that have their maximum in "
        "flight and finish no messages while doctor watches",
        "consumers request messages and finish them",
        stuck_consumers,
        _any_alive,
    ),
    Check(
        "blocked-keys",
        "channels with rules for keys in which a key has been blocked for 15 minutes, and is not"
        " paused",
        "no key is blocked for a long time",
        lambda cluster: of_kinds(cluster.problems, "keys-blocked"),
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
        lambda cluster: of_kinds(cluster.problems, "dead-letters"),
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
