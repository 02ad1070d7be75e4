"""Groups of topics with copies: combines nsqds' responses to /copies, and finds problems in them.

Pure functions. A group has one owner and other members; each worker reports its own view of its
groups, so reports of the same group can differ. The owner's report takes precedence, because only
the owner knows which copies respond. `nsqcy copies status`, nsqadmin and `nsqcy doctor` share these
rules and texts. Sends no queries and formats no output.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from nsqcy.cluster import answers
from nsqcy.cluster.problems import Place, Problem, Severity, count, listed
from nsqcy.util import gojson

Report: TypeAlias = Mapping[str, Any]
Workers: TypeAlias = Sequence[tuple[str, Report]]
"""Each worker's report, with the HTTP address of its nsqd."""

OWNER, NEW = "owner", "new"  # roles of the node that appends to a group; NEW: not in etcd yet

BROKEN = {
    "lost": "etcd has lost its data",
    "older": "etcd has been restored from a backup",
    "foreign": "etcd contains another registry",
}

_TEXTS: tuple[gojson.Reader, Any] = (gojson.array(answers.line, ""), [])
_NAMES: tuple[gojson.Reader, Any] = (gojson.array(answers.name, ""), [])
_GROUP: gojson.Fields = {
    "group": (answers.line, ""),
    "role": (answers.line, ""),
    "owner": (answers.line, ""),
    "members": _TEXTS,
    "epoch": (gojson.int64, 0),
    "copies": (gojson.int64, 0),
    "min_copies": (gojson.int64, 0),
    "durability": (answers.line, ""),
    "closed": (gojson.flag, False),
    "bytes": (gojson.int64, 0),
    "whole": (gojson.flag, False),
    "damaged": _TEXTS,
    "unreadable": _TEXTS,
    "topics": _NAMES,
    "responding": (gojson.int64, 0),
    "accepts": (gojson.flag, False),
    "joining": (answers.line, ""),
    "waiting": (gojson.int64, 0),
}
_WORKER: gojson.Fields = {
    "worker": (gojson.int64, 0),
    "node": (answers.line, ""),
    "etcd": (gojson.flag, False),
    "registry": (gojson.text, ""),
    "unregistered": _TEXTS,
    "ready": (gojson.flag, False),
    "caught_up": (gojson.flag, True),
    "sessions": _TEXTS,
    "mended": (gojson.int64, 0),
    "groups": (gojson.array(gojson.structure(_GROUP), gojson.EMPTY), []),
}
FIELDS: gojson.Fields = {
    "workers": (gojson.array(gojson.structure(_WORKER), gojson.EMPTY), []),
}


# --- groups -------------------------------------------------------------------------------------

# States of a group, from worst to best.
REFUSING = "refuses publishes"
OWNERLESS = "no owner"
UNKNOWN = "owner does not answer"
MISSING = "copies missing"
MOVING = "moving messages"
COMPLETE = "complete"
STATES = (REFUSING, OWNERLESS, UNKNOWN, MISSING, MOVING, COMPLETE)


class Member(NamedTuple):
    """A node of a group.

    id: the node's name in etcd; a node is a worker of an nsqd
    nsqd: the nsqd's address, even if it comes from an earlier response; empty if unknown
    answers: whether an nsqd currently reports this id
    is_whole: whether the copy has all changes that it has ever confirmed; None if unknown
    has_session: whether etcd has a session of the node
    """

    id: str
    nsqd: str = ""
    answers: bool = False
    is_whole: bool | None = None
    has_session: bool = False

    @property
    def name(self) -> str:
        return self.nsqd or self.id

    @property
    def full_name(self) -> str:
        return node_name(self.id, self.nsqd)


@dataclass(frozen=True)
class Group:
    """A group, combined from all reports. responding: None if the owner has not reported. bytes:
    size of the largest copy; owner_bytes: size of the owner's copy, if it has reported. topics: the
    owner's topics; reported_topics: also topics that only other members have. joining: the node
    whose copy is being filled; its id is empty if there is none."""

    id: str
    owner: Member
    members: Sequence[Member]
    state: str
    epoch: int
    copies: int
    min_copies: int
    durability: str
    topics: Sequence[str]
    reported_topics: Sequence[str]
    responding: int | None
    accepts: bool
    joining: Member
    is_new: bool  # not in etcd yet
    is_closed: bool  # taken over: the group's messages are being moved to other logs
    bytes: int
    owner_bytes: int

    @property
    def title(self) -> str:
        if not self.topics:
            return f"group {self.id}"
        return f"{'topic' if len(self.topics) == 1 else 'topics'} {listed(self.topics)}"


def is_owners(report: Report) -> bool:
    """Return whether a group is reported by the node that appends to it."""
    return report["role"] in (OWNER, NEW)


def node_name(node: str, nsqd: str) -> str:
    return f"{nsqd} ({node})" if nsqd else node


def groups(workers: Workers, earlier: Mapping[str, str] | None = None) -> list[Group]:
    """Return all groups, ordered by id. earlier: addresses of nsqds by node id, for nodes that
    currently do not respond."""
    reports: dict[str, list[tuple[str, Report]]] = defaultdict(list)
    for _, worker in workers:
        for report in worker["groups"]:
            reports[report["group"]].append((worker["node"], report))
    nsqds = {worker["node"]: nsqd for nsqd, worker in workers}
    alive = _sessions(workers)

    def combined(of: Sequence[tuple[str, Report]]) -> Group:
        # A node that was cut off may report an old owner; the owner's report has the most details.
        best = max((report for _, report in of), key=lambda each: (each["epoch"], is_owners(each)))
        whole = {node: report.get("whole") for node, report in of}

        def member(node: str) -> Member:
            nsqd = nsqds.get(node) or (earlier or {}).get(node, "")
            return Member(node, nsqd, node in nsqds, whole.get(node), node in alive)

        owner, is_owned = member(best["owner"]), is_owners(best)
        topics = sorted({name for _, report in of for name in report["topics"]})
        largest = max(report.get("bytes", 0) for _, report in of)
        return Group(
            id=best["group"],
            owner=owner,
            members=[member(each) for each in best["members"]],
            state=state(best) if is_owned else _ownerless_state(owner),
            epoch=best["epoch"],
            copies=best["copies"],
            min_copies=best["min_copies"],
            durability=best["durability"],
            # The owner's topics; if there are none, the topics in the holders' files.
            topics=sorted(best["topics"]) if is_owned and best["topics"] else topics,
            reported_topics=topics,
            responding=best.get("responding") if best["role"] == OWNER else None,
            accepts=best.get("accepts", is_owned),
            joining=member(best.get("joining", "") if is_owned else ""),
            is_new=best["role"] == NEW,
            is_closed=best["closed"],
            bytes=largest,
            owner_bytes=best.get("bytes", 0) if best["role"] == OWNER else largest,
        )

    return [combined(reports[group]) for group in sorted(reports)]


def _sessions(workers: Workers) -> set[str]:
    """Return the nodes with a session. Workers to which etcd does not respond count only if there
    are no others: they may list sessions that have ended."""
    reports = [worker for _, worker in workers]
    current = [worker for worker in reports if worker["etcd"]] or reports
    return {node for worker in current for node in worker.get("sessions", ())}


def state(report: Report) -> str:
    """Return the state of a group, from its owner's report."""
    if report["role"] == NEW:
        return REFUSING
    if report["closed"]:
        return MOVING
    if not report.get("accepts", True):
        return REFUSING
    return MISSING if report.get("responding", report["copies"]) < report["copies"] else COMPLETE


def _ownerless_state(owner: Member) -> str:
    """Return the state of a group that no responding node owns. As long as the owner has a session
    in etcd, it may be alive, even if its nsqd does not respond."""
    return UNKNOWN if owner.has_session and not owner.answers else OWNERLESS


# --- problems -----------------------------------------------------------------------------------

MENDED, SILENT_OWNER, TAKEN_OVER = "copies-mended", "copies-owner-silent", "copies-moving"
_CHECK_DISK = "check the disk; see docs/runbooks/damaged-copies.md"


def problems(found: Iterable[Group], workers: Workers) -> list[Problem]:
    """Return the problems of topics with copies: those of nodes, files and groups, at most
    one per group."""
    machines = len({node.rpartition(".")[0] for node in _sessions(workers)})
    return [
        *_of_etcd(workers),
        *(each for nsqd, worker in workers for each in _of_worker(nsqd, worker)),
        *_of_files(workers),
        *(each for group in found for each in _of_group(group, machines)),
    ]


def text_with_owner(problem: Problem) -> str:
    """Return a problem's text, with the owner of the group: several groups may have a topic."""
    place = problem.place
    owner = f" (owner: {place.node})" if place.group and place.node else ""
    return problem.text + owner


def _of_etcd(workers: Workers) -> Iterator[Problem]:
    away = [(nsqd, worker["node"]) for nsqd, worker in workers if not worker["etcd"]]
    label, advice = "no etcd", "see docs/runbooks/etcd-away.md"
    if away and len(away) == len(workers):
        yield Problem(
            *(Severity.ERROR, "copies-etcd-away", Place(), label),
            "etcd does not respond to any node: publishes and deliveries continue, except in groups"
            " that a lost node must leave; no group can get a new owner or a new member",
            advice,
        )
        return
    for nsqd, node in away:
        yield Problem(
            *(Severity.ERROR, "copies-etcd-away", Place(node=nsqd), label),
            f"etcd does not respond to {node_name(node, nsqd)}: it cannot take over groups",
            advice,
        )


def _of_worker(nsqd: str, worker: Report) -> Iterator[Problem]:
    place, name = Place(node=nsqd), f"node {node_name(worker['node'], nsqd)}"
    unregistered = len(worker.get("unregistered", ()))
    # A node that has started without etcd does not know what etcd has.
    is_known = unregistered and worker["etcd"]
    missing = f"etcd lacks {unregistered} of the node's groups" if is_known else ""
    if trouble := BROKEN.get(worker.get("registry", ""), missing):
        yield Problem(
            *(Severity.ERROR, "copies-registry", place, trouble),
            f"{name}: {trouble}; publishes are refused",
            "see docs/runbooks/etcd-replaced.md",
        )
    if not worker.get("ready", True):
        yield Problem(
            *(Severity.WARNING, "copies-not-ready", place, "groups not open"),
            f"{name} has not opened its groups yet",
            "until then, topics with copies cannot be used on it",
        )


def _of_files(workers: Workers) -> Iterator[Problem]:
    by_nsqd: dict[str, list[Report]] = defaultdict(list)
    for nsqd, worker in workers:
        by_nsqd[nsqd].append(worker)
    for nsqd, its in by_nsqd.items():
        place = Place(node=nsqd)
        if names := _files(its, "damaged"):
            text = f"nsqd {nsqd} has damaged copies, and no other responding copy has the damaged"
            text = f"{text} parts intact: {names}"
            kind, label = "copies-damaged", "damaged copies"
            yield Problem(Severity.ERROR, kind, place, label, text, _CHECK_DISK)
        if names := _files(its, "unreadable"):
            text = f"nsqd {nsqd} cannot read copies: {names}"
            kind, label = "copies-unreadable", "unreadable copies"
            yield Problem(Severity.ERROR, kind, place, label, text, _CHECK_DISK)
        if parts := sum(worker.get("mended", 0) for worker in its):
            text = f"nsqd {nsqd} has replaced {count(parts, 'damaged part')} of copies since its"
            advice = f"no message is lost: {_CHECK_DISK}"
            yield Problem(Severity.WARNING, MENDED, place, "mended copies", f"{text} start", advice)


def _files(workers: Iterable[Report], key: str) -> str:
    """Return the files that the reports list under `key`, by their paths in the directory of
    copies."""
    return listed(
        [
            f"{group['group']}/{path}"
            for worker in workers
            for group in worker["groups"]
            for path in group.get(key, ())
        ]
    )


def _of_group(group: Group, machines: int) -> Iterator[Problem]:
    topic = group.topics[0] if len(group.topics) == 1 else ""
    owner = "" if group.state == OWNERLESS else group.owner.name
    place = Place(topic=topic, node=owner, group=group.id)
    name = group.title
    if group.is_new:
        yield Problem(
            *(Severity.ERROR, "copies-refusing", place, group.state),
            f"{name}: publishes are refused until the group has been created",
            "the group is not in etcd yet",
        )
    elif group.state == UNKNOWN:
        yield Problem(
            *(Severity.WARNING, SILENT_OWNER, place, group.state),
            f"{name}: unknown, because the owner's nsqd ({group.owner.id}) was not queried or did"
            " not answer",
            "the owner still has a session in etcd, so no member takes over; it may accept"
            " publishes",
        )
    elif group.state == OWNERLESS:
        # If there are no files, there are no messages.
        severity = Severity.ERROR if group.bytes else Severity.NOTE
        yield Problem(severity, "copies-ownerless", place, group.state, *_ownerless(group, name))
    elif group.state == REFUSING:
        yield Problem(
            *(Severity.ERROR, "copies-refusing", place, group.state),
            f"{name}: {_too_few(group) or 'publishes are refused while the group changes owners'}",
            _how_to_accept(group, machines),
        )
    elif text := _too_few(group):
        yield Problem(
            *(Severity.WARNING, "copies-missing", place, group.state),
            f"{name}: {text}",
            _how_to_complete(group, machines),
        )
    elif group.state == MOVING:
        yield Problem(
            *(Severity.NOTE, TAKEN_OVER, place, group.state),
            f"{name}: {_fate(group)}",
            "this follows a takeover; if it persists, see docs/runbooks/lost-node.md",
        )


def _fate(group: Group) -> str:
    """Return what happens to a group that was taken over."""
    moving = "its messages are being moved to another log"
    return moving if group.topics else "the group is ending: no messages are left"


def _too_few(group: Group) -> str:
    """Return how many copies respond; empty if all do."""
    if group.responding is None or group.responding >= group.copies:
        return ""
    verb = "responds" if group.responding == 1 else "respond"
    text = f"{group.responding} of {group.copies} copies {verb}"
    if group.is_closed:
        text += f", {_fate(group)}"
    elif not group.accepts:
        text += ", publishes are refused"
    return text + (f"; joining {group.joining.full_name}" if group.joining.id else "")


def _how_to_accept(group: Group, machines: int) -> str:
    if group.responding is None or group.responding >= group.min_copies:
        return (
            "its owner is handing the group over, or a lost member cannot leave it until etcd"
            " responds: see docs/runbooks/etcd-away.md"
        )
    advice = f"at least {group.min_copies} must respond: see docs/runbooks/too-few-copies.md"
    return _more_machines(group, machines) or advice


def _how_to_complete(group: Group, machines: int) -> str:
    last = not group.is_closed and group.responding == group.min_copies
    return ("if one more fails, publishes are refused; " if last else "") + (
        _more_machines(group, machines)
        or "if this persists, check firewalls and the log; see docs/runbooks/lost-node.md"
    )


def _more_machines(group: Group, machines: int) -> str:
    if not machines or machines >= group.copies:
        return ""
    verb = "has" if machines == 1 else "have"
    return (
        f"only {count(machines, 'nsqd')} {verb} a session in etcd: start or add nsqds with the same"
        " --cluster, or lower copies"
    )


def _ownerless(group: Group, name: str) -> tuple[str, str]:
    """Return the text and advice for a group without an owner."""
    text = f"{name}: group {group.id} has no owner, so its messages are not delivered"
    advice = (
        "this is normal for about a second during a takeover; if it persists for 30 s (longer than"
        " --copies-lease), see docs/runbooks/lost-node.md"
    )
    if not any(each.is_whole for each in group.members):
        advice += "; no responding member has a complete copy, so all members must return"
    absent = [each.full_name for each in group.members if not each.has_session]
    back = [each.full_name for each in group.members if each.has_session]
    if not absent:
        return f"{text}; all members are back: one of them will take over", advice
    text += f"; absent: {', '.join(absent)}; back: {', '.join(back) or 'none'}"
    text += (
        ". If this persists for 30 s (longer than --copies-lease), and the absent nodes never"
        f" return: nsqcy copies force {group.id} --config=FILE"
    )
    return text, advice
