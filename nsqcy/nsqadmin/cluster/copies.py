"""Groups of copies as their nsqds report them, and the risks that follow from the reports.

Pure. A group has one owner and other members; each of them reports the group from its own view. The
owner's report counts most, because only the owner knows which copies respond.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsqcy.cluster.copies import NEW, is_owners, listed, rank, sessions
from nsqcy.nsqadmin.cluster.answers import NodeAnswer

# States of a group, the worst first.
REFUSING = "refuses publishes"
OWNERLESS = "no owner"
UNKNOWN = "owner does not answer"
MISSING = "copies missing"
MOVING = "moving messages"
COMPLETE = "complete"
STATES = (REFUSING, OWNERLESS, UNKNOWN, MISSING, MOVING, COMPLETE)

# Severities, the worst first.
CRITICAL, WARNING, NOTICE = "critical", "warning", "notice"
SEVERITIES = (CRITICAL, WARNING, NOTICE)


class Member(NamedTuple):
    """A node of a group.

    id: the node's name in etcd; a node is a worker of an nsqd
    nsqd: the nsqd's address, even if it comes from an earlier response; empty if unknown
    answers: whether an nsqd currently reports this id
    is_whole: whether the copy has everything that it has ever confirmed; None if unknown
    """

    id: str
    nsqd: str = ""
    answers: bool = False
    is_whole: bool | None = None

    @property
    def name(self) -> str:
        return self.nsqd or self.id


@dataclass(frozen=True)
class Group:
    """A group, combined from all reports. responding: None if the owner has not reported. bytes:
    size of the largest copy."""

    id: str
    owner: Member
    members: Sequence[Member]
    state: str
    copies: int
    min_copies: int
    durability: str
    topics: Sequence[str] = ()
    responding: int | None = None
    joining: str = ""  # node whose copy is being filled
    is_new: bool = False  # not in etcd yet
    is_closed: bool = False  # taken over: its messages are being moved to other logs
    bytes: int = 0

    @property
    def title(self) -> str:
        """Return the topics and their nsqd, or the group's id if the topics are unknown."""
        if not self.topics:
            return f"group {self.id}"
        return f"{listed(self.topics)} on {self.owner.name}"


class Risk(NamedTuple):
    """A current risk. group: the id of the group at risk; empty if the risk concerns nsqds."""

    severity: str
    text: str
    group: str = ""


# Reports


class _Report(NamedTuple):
    """A group in an nsqd's response, and the worker that reported it."""

    nsqd: str
    node: str
    group: Mapping[str, Any]

    @property
    def is_owner(self) -> bool:
        return is_owners(self.group)


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


def groups(answers: Sequence[NodeAnswer], earlier: Mapping[str, str] | None = None) -> list[Group]:
    """Return all groups, those at risk first. earlier: addresses of nsqds by node id, for nodes
    that currently do not respond."""
    workers = _workers(answers)
    reports: dict[str, list[_Report]] = defaultdict(list)
    for nsqd, worker in workers:
        for group in worker["groups"]:
            reports[group["group"]].append(_Report(nsqd, worker["node"], group))
    nsqds = {worker["node"]: nsqd for nsqd, worker in workers}
    alive = sessions([worker for _, worker in workers])
    found = [_combined(each, nsqds, earlier or {}, alive) for each in reports.values()]
    return sorted(found, key=lambda each: (STATES.index(each.state), each.topics, each.id))


def _combined(
    reports: Sequence[_Report],
    nsqds: Mapping[str, str],
    earlier: Mapping[str, str],
    alive: Iterable[str],
) -> Group:
    best = max(reports, key=lambda each: rank(each.group))
    value = best.group
    whole = {each.node: each.group.get("whole") for each in reports}

    def member(node: str) -> Member:
        return Member(
            node, nsqds.get(node) or earlier.get(node, ""), node in nsqds, whole.get(node)
        )

    is_owned = best.is_owner
    return Group(
        id=value["group"],
        owner=member(best.node if is_owned else value["owner"]),
        members=[member(each) for each in value["members"]],
        state=_owned_state(value) if is_owned else _ownerless_state(value, nsqds, alive),
        copies=value["copies"],
        min_copies=value["min_copies"],
        durability=value["durability"],
        topics=_topics(best, reports),
        responding=value.get("responding") if is_owned else None,
        joining=value.get("joining", "") if is_owned else "",
        is_new=value["role"] == NEW,
        is_closed=value["closed"],
        bytes=max(each.group.get("bytes", 0) for each in reports),
    )


def _topics(best: _Report, reports: Iterable[_Report]) -> list[str]:
    """Return the owner's topics; if there are none, those in the holders' files."""
    if best.is_owner and best.group["topics"]:
        found: list[str] = best.group["topics"]
        return found
    return sorted({name for each in reports for name in each.group["topics"]})


def _owned_state(value: Mapping[str, Any]) -> str:
    if value["role"] == NEW:
        return REFUSING
    if value["closed"]:
        return MOVING
    if not value.get("accepts", True):
        return REFUSING
    return MISSING if value.get("responding", value["copies"]) < value["copies"] else COMPLETE


def _ownerless_state(
    value: Mapping[str, Any], nsqds: Mapping[str, str], alive: Iterable[str]
) -> str:
    """Return the state of a group that no responding node owns. As long as the owner has a session
    in etcd, it may be alive, even if it does not respond to nsqadmin."""
    may_live = value["owner"] not in nsqds and value["owner"] in alive
    return UNKNOWN if may_live else OWNERLESS


# Risks


def risks(found: Sequence[Group], answers: Sequence[NodeAnswer]) -> list[Risk]:
    """Return all current risks, the worst first."""
    all_of_them = [
        *(risk for group in found for risk in _of_group(group)),
        *_of_silent_owners(found),
        *_of_nsqds(answers),
    ]
    return sorted(all_of_them, key=lambda each: SEVERITIES.index(each.severity))


def _of_group(group: Group) -> list[Risk]:
    risks = []
    if group.state == REFUSING:
        reason = _too_few(group)
        text = f"Publishes to {group.title} are refused: {reason}."
        risks.append(Risk(CRITICAL, text, group.id))
    elif group.state == OWNERLESS:
        # If there are no files, there are no messages.
        risks.append(Risk(CRITICAL if group.bytes else NOTICE, _no_owner(group), group.id))
    elif group.responding is not None and group.responding < group.copies:
        risks.append(Risk(WARNING, _missing(group), group.id))
    if group.state == MOVING:
        text = f"After a takeover, messages are being moved to {group.title}."
        if not group.topics:
            text = f"After a takeover, {group.owner.name} is moving the messages of {group.title}."
        risks.append(Risk(NOTICE, text, group.id))
    return risks


def _too_few(group: Group) -> str:
    if group.is_new:
        return "etcd has not confirmed their group yet"
    if group.responding is None or group.responding >= group.min_copies:
        return f"{group.owner.name} is handing group {group.id} over to another member"
    return f"{_responding(group)}, but at least {group.min_copies} are required"


def _responding(group: Group) -> str:
    verb = "responds" if group.responding == 1 else "respond"
    return f"{group.responding} of {group.copies} copies {verb}"


def _missing(group: Group) -> str:
    text = f"{_responding(group)} for {group.title}."
    if group.joining:
        text += " Another node is receiving a copy."
    if not group.is_closed and group.responding == group.min_copies:
        text += " If one more fails, publishes are refused."
    return text


def _no_owner(group: Group) -> str:
    names = listed([each.name for each in group.members])
    of = f" ({listed(group.topics)})" if group.topics else ""
    text = f"Group {group.id}{of} has no owner: its messages are not delivered until one of its"
    text += f" members takes over ({names})."
    if not any(each.is_whole for each in group.members):
        text += " No responding member has a complete copy, so all members must return."
    return text


def _of_silent_owners(found: Iterable[Group]) -> list[Risk]:
    """Return one risk per owner that does not respond, no matter how many groups it owns."""
    counts = Counter(group.owner for group in found if group.state == UNKNOWN)
    return [
        Risk(
            WARNING,
            f"{owner.name} (groups owned: {count}) does not answer nsqadmin. etcd"
            " still has its session, so no member takes over. nsqadmin cannot see whether it"
            " accepts publishes.",
        )
        for owner, count in counts.items()
    ]


def _of_nsqds(answers: Sequence[NodeAnswer]) -> list[Risk]:
    workers = _workers(answers)
    without = list(dict.fromkeys(nsqd for nsqd, worker in workers if not worker["etcd"]))
    waiting = list(dict.fromkeys(nsqd for nsqd, worker in workers if not worker.get("ready", True)))
    risks = []
    if without:
        text = f"etcd does not respond to {listed(without)}: these nsqds cannot take over groups or"
        if len(without) == 1:
            text = f"etcd does not respond to {without[0]}: this nsqd cannot take over groups or"
        risks.append(Risk(WARNING, f"{text} replace lost copies."))
    if waiting:
        text = f"Topics with copies cannot be used yet on {listed(waiting)}: the groups are not"
        risks.append(Risk(WARNING, f"{text} open."))
    return risks


# One topic, one nsqd


class TopicCopies(NamedTuple):
    """The copies of a topic's messages on one nsqd."""

    copies: int
    responding: int | None
    state: str


def of_topic(answers: Iterable[NodeAnswer], topic: str) -> dict[str, TopicCopies]:
    """Return a topic's copies by nsqd. Logs that an nsqd is draining do not count."""
    found: dict[str, TopicCopies] = {}
    for nsqd, worker in _workers(answers):
        for group in worker["groups"]:
            if is_owners(group) and not group["closed"] and topic in group["topics"]:
                responding = group.get("responding")
                found[nsqd] = TopicCopies(group["copies"], responding, _owned_state(group))
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
    owned = sum(map(is_owners, found))
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
