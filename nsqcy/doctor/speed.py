"""Checks for slow or failing consumers: pure functions of a cluster's facts, and their table.

nsqcy.cluster.problems decides what counts as a problem.
"""

from collections.abc import Iterator
from itertools import chain

from nsqcy.cluster import problems
from nsqcy.cluster.problems import NodeState
from nsqcy.doctor.checks import Check
from nsqcy.doctor.facts import Attempted, Cluster
from nsqcy.doctor.findings import Finding, from_problem, of_kinds, warning

MANY_ATTEMPTS = 5  # default maximum number of attempts of most clients


def poison_messages(cluster: Cluster) -> Iterator[Finding]:
    most: dict[tuple[str, str], Attempted] = {}
    for each in chain.from_iterable(nsqd.attempted for nsqd in cluster.alive):
        place = each.topic, each.channel
        if place not in most or each.attempts > most[place].attempts:
            most[place] = each
    for each in most.values():
        if each.attempts >= MANY_ATTEMPTS:
            name = f"message {each.id}" if each.id else "a message"
            text = f"{name} of channel {each.topic}/{each.channel} has had {each.attempts} attempts"
            yield warning(
                f"{text}, the most in this channel",
                f"see its messages with: nsqcy peek {each.topic} {each.channel}; to remove messages"
                " that always fail, set max_attempts and dead_letter_topic",
            )


def disks(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        state = NodeState(nsqd.name, disk_free=nsqd.disk_free)
        yield from map(from_problem, problems.of_node(state))


def _has_rates(cluster: Cluster) -> bool:
    """Return whether rates are known: without a second query, only nsqcy's nsqds report them."""
    return any(
        channel.rates is not None
        for topic in cluster.rated_topics.values()
        for channel in topic.channels.values()
    )


def _has_disks(cluster: Cluster) -> bool:
    return any(each.disk_free is not None for each in cluster.alive)


CHECKS = (
    Check(
        "growing-backlog",
        "channels whose consumers finish fewer messages than arrive, with a backlog of at least"
        f" {problems.MIN_SECONDS:.0f} s of growth at this rate",
        "no channel with consumers is falling behind",
        lambda cluster: of_kinds(cluster.problems, "falling-behind"),
        _has_rates,
    ),
    Check(
        "slow-consumers",
        "consumers that have their maximum in flight, but finish messages at less than"
        f" {problems.SLOW_SHARE:.0%} of the channel's median rate",
        "no consumer is much slower than the others of its channel",
        lambda cluster: of_kinds(cluster.problems, "slow-consumer"),
        _has_rates,
    ),
    Check(
        "failing-messages",
        "channels in which more attempts fail than succeed, for example because of messages "
        "that always fail; channels in"
        f" which {problems.TIMEOUT_SHARE:.0%} of attempts time out",
        "most attempts succeed in every channel",
        lambda cluster: of_kinds(cluster.problems, "failing", "timeouts"),
        _has_rates,
    ),
    Check(
        "poison-messages",
        f"messages with {MANY_ATTEMPTS} or more attempts, among those that doctor peeks at in the"
        " channels with the most failed attempts",
        "no message has had many attempts",
        poison_messages,
        lambda cluster: any(each.attempted for each in cluster.alive),
    ),
    Check(
        "disks",
        f"nsqds whose disk has less than {problems.DISK_WARNING:.0%} free space (an error below"
        f" {problems.DISK_ERROR:.0%})",
        "all nsqds have enough disk space",
        disks,
        _has_disks,
    ),
)
