"""Copies of topics as nsqadmin shows them: groups, topics and nsqds according to the nsqds'
responses.

Pure, except for the record of earlier responses. nsqcy.cluster.copies combines the reports and
judges them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.cluster import copies
from nsqcy.cluster.copies import STATES, Group
from nsqcy.cluster.problems import Problem, Severity, by_severity
from nsqcy.nsqadmin.cluster.answers import NodeAnswer

CRITICAL, WARNING, NOTICE = "critical", "warning", "notice"
_SEVERITIES = {Severity.ERROR: CRITICAL, Severity.WARNING: WARNING, Severity.NOTE: NOTICE}


class Risk(NamedTuple):
    """A current risk. group: the id of the group at risk; empty if the risk concerns nsqds."""

    severity: str
    text: str
    group: str = ""


def _workers(answers: Iterable[NodeAnswer]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each worker with the address of its nsqd."""
    return [
        (answer.node, worker)
        for answer in answers
        if answer.is_done
        for worker in answer.value["workers"]
    ]


def has_groups(answers: Iterable[NodeAnswer]) -> bool:
    return any(worker["groups"] for _, worker in _workers(answers))


def groups(answers: Iterable[NodeAnswer], earlier: Mapping[str, str] | None = None) -> list[Group]:
    """Return all groups, those at risk first. earlier: addresses of nsqds by node id, for nodes
    that currently do not respond."""
    found = copies.groups(_workers(answers), earlier)
    return sorted(found, key=lambda each: (STATES.index(each.state), each.topics, each.id))


def risks(found: Iterable[Group], answers: Iterable[NodeAnswer]) -> list[Risk]:
    """Return all current risks, the worst first."""
    problems = by_severity(copies.problems(found, _workers(answers)))
    return [Risk(_SEVERITIES[each.severity], _text(each), each.place.group) for each in problems]


def _text(problem: Problem) -> str:
    advice = problem.advice
    return f"{copies.text_with_owner(problem)}. {advice[0].upper()}{advice[1:]}."


class TopicCopies(NamedTuple):
    """The copies of a topic's messages on one nsqd."""

    copies: int
    responding: int | None
    state: str


def of_topic(answers: Iterable[NodeAnswer], topic: str) -> dict[str, TopicCopies]:
    """Return a topic's copies by nsqd, without the logs that an nsqd is draining."""
    found: dict[str, TopicCopies] = {}
    for nsqd, worker in _workers(answers):
        for group in worker["groups"]:
            if copies.is_owners(group) and not group["closed"] and topic in group["topics"]:
                responding = group.get("responding")
                found[nsqd] = TopicCopies(group["copies"], responding, copies.state(group))
    return found


class NodeCopies(NamedTuple):
    """The groups on one nsqd. bytes: total size of its copies."""

    nsqd: str
    owned: int
    held: int
    bytes: int
    has_etcd: bool


def of_nsqd(answer: NodeAnswer) -> NodeCopies | None:
    """Return the groups that an nsqd owns and holds; None if it has not reported any copies."""
    workers = [worker for _, worker in _workers([answer])]
    if not workers:
        return None
    found = [group for worker in workers for group in worker["groups"]]
    owned = sum(map(copies.is_owners, found))
    return NodeCopies(
        answer.node,
        owned,
        len(found) - owned,
        sum(group.get("bytes", 0) for group in found),
        all(worker["etcd"] for worker in workers),
    )


class Sighting:
    """Record of the copies that nsqadmin has seen. Thread-safe: values are replaced, not modified.

    is_used: whether any nsqd has groups; only then do pages link to the copies page
    nsqds: addresses of nsqds by node id, used to name nodes that no longer respond
    """

    def __init__(self) -> None:
        self.is_used = False
        self.nsqds: Mapping[str, str] = {}

    def note(self, answers: Sequence[NodeAnswer], *, of_all: bool = False) -> None:
        """Record the responses of some nsqds, or of all nsqds: only the latter can show that no
        nsqd has groups."""
        if has_groups(answers):
            self.is_used = True
        elif of_all:
            self.is_used = False
        known = {**self.nsqds, **{worker["node"]: nsqd for nsqd, worker in _workers(answers)}}
        self.nsqds = _still_named(known, answers) if of_all else known


def _still_named(known: Mapping[str, str], answers: Iterable[NodeAnswer]) -> dict[str, str]:
    """Return the nodes that have reported, or that are still members of a group."""
    workers = [worker for _, worker in _workers(answers)]
    named = {each for worker in workers for group in worker["groups"] for each in group["members"]}
    named |= {worker["node"] for worker in workers}
    return {node: nsqd for node, nsqd in known.items() if node in named}
