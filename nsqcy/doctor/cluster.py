"""Cluster checks: pure functions of a cluster's facts, and their table.

The first two checks report daemons that do not answer; the other checks judge their responses.
"""

from collections import Counter
from collections.abc import Iterator

from nsqcy.cluster import problems
from nsqcy.cluster.problems import NodeState
from nsqcy.doctor.checks import Check
from nsqcy.doctor.facts import MAX_LOGS, Cluster, Nsqd, Offset
from nsqcy.doctor.findings import Finding, error, from_problem, note, several, warning

APART = 2.0  # maximum seconds between clocks
FAR_APART = 30.0
DAY = 86_400.0
_HANGS = (
    "do not start it again while it runs: a worker may be stopped or hung; see"
    " docs/runbooks/worker-restarted.md"
)
_LOST = (
    "start it again with its data path, which may contain messages; see"
    " docs/runbooks/nsqd-down.md and, for topics with copies, docs/runbooks/lost-node.md. If it was"
    " removed on purpose, nsqlookupd forgets it after an hour"
)
LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")


# --- reachability -------------------------------------------------------------------------------


def lookupds(cluster: Cluster) -> Iterator[Finding]:
    for each in cluster.lookupds:
        text = f"nsqlookupd {each.address} does not answer: {each.error}"
        if each.error and each.assumed:
            yield note(text, "if it runs elsewhere, set --lookupd-http-address")
        elif each.error:
            yield error(text, "start it, or check the address and firewalls")


def nsqds(cluster: Cluster) -> Iterator[Finding]:
    for each in cluster.nsqds:
        if each.error:
            yield _silent(each, cluster)
        door = each.door
        if door and door.error and not each.error:
            text = f"nsqd {each.name} answers over HTTP, but not to clients at {door.address}"
            yield error(f"{text}: {door.error}", _reach(each))
    if not cluster.nsqds:
        advice = "set --nsqd-http-address, or check the nsqds' --lookupd-tcp-address"
        yield note("no nsqd found", advice)


def _silent(nsqd: Nsqd, cluster: Cluster) -> Finding:
    if nsqd.hangs:
        return error(f"nsqd {nsqd.name} hangs: {nsqd.hangs}", _HANGS)
    if nsqd.left and (nsqd.door is None or nsqd.door.error):
        text = f"nsqd {nsqd.name} is lost: it was registered with nsqlookupd {nsqd.left}"
        return error(f"{text}, and does not answer: {nsqd.error}", _LOST)
    if nsqd.assumed:
        text = f"nsqd {nsqd.address} does not answer: {nsqd.error}"
        return note(text, "if it runs elsewhere, set --nsqd-http-address")
    if not nsqd.lookupds:
        text = f"nsqd {nsqd.address} does not answer: {nsqd.error}"
        return error(text, "start it, or check the address and firewalls")
    who = f"announced by {several(nsqd.lookupds)}"
    text = f"nsqd {nsqd.name}, {who}, does not answer: {nsqd.error}"
    if nsqd.door and not nsqd.door.error:
        port = nsqd.node.http_port
        advice = (
            f"its TCP port is reachable: also open HTTP port {port}, or set --broadcast-http-port"
        )
        return error(text, advice)
    elsewhere = [
        each.address
        for each in cluster.alive
        if each.node.tcp_port == nsqd.node.tcp_port and each.node.hostname == nsqd.node.hostname
    ]
    if elsewhere and nsqd.node.hostname:
        text += f" (an nsqd on the same host answers at {several(elsewhere)})"
    return error(text, _reach(nsqd))


def _reach(nsqd: Nsqd) -> str:
    """Return advice for an nsqd that is unreachable at its announced address."""
    address = nsqd.node.broadcast_address
    if address.startswith(LOOPBACK):
        return f"{address} is local to each machine: set --broadcast-address to a reachable address"
    return (
        f"start it if it is down; otherwise check that {address} is its --broadcast-address,"
        " resolves, and is reachable from this host"
    )


def registration(cluster: Cluster) -> Iterator[Finding]:
    """Find nsqds that cannot register, and nsqds and topics that are unknown to all nsqlookupds."""
    for nsqd in cluster.alive:
        state = NodeState(nsqd.name, unregistered=nsqd.unregistered)
        yield from map(from_problem, problems.of_node(state))
    if not cluster.answering:
        return
    announced = {each.address for lookupd in cluster.answering for each in lookupd.producers}
    for nsqd in cluster.alive:
        if nsqd.draining:
            continue  # it has unregistered, so that no program finds it
        if nsqd.node.address not in announced:
            text = f"nsqd {nsqd.name} is not announced by any nsqlookupd: consumers cannot find it"
            yield error(text, "check its --lookupd-tcp-address, and its log for LOOKUPD")
            continue
        known = {
            topic
            for lookupd in cluster.answering
            for each in lookupd.producers
            if each.address == nsqd.node.address
            for topic in each.topics
        }
        missing = set(nsqd.names) - known
        if missing:
            text = f"no nsqlookupd announces these topics of nsqd {nsqd.name}: {several(missing)}"
            advice = (
                "if this persists, check nsqd's log for LOOKUPD; a restart registers the topics"
            )
            yield warning(text, f"{advice} again")


# --- agreement ----------------------------------------------------------------------------------


def versions(cluster: Cluster) -> Iterator[Finding]:
    for daemon, pairs in (
        ("nsqlookupd", [(each.version, each.address) for each in cluster.answering]),
        ("nsqd", [(each.node.version, each.name) for each in cluster.alive]),
    ):
        count = Counter(version for version, _ in pairs)
        if len(count) < 2:
            continue
        maximum = count.most_common(1)[0][0]
        others = several(
            f"{name} runs {version or 'an unknown version'}"
            for version, name in pairs
            if version != maximum
        )
        most = maximum or "an unknown version"
        text = f"{daemon}s run {len(count)} versions: most run {most}, {others}"
        yield warning(
            text, "run the same version everywhere: clients can only use the features of the oldest"
        )


def agreement(cluster: Cluster) -> Iterator[Finding]:
    """Find differences between nsqlookupds."""
    answering = cluster.answering
    if len(answering) < 2:
        return
    every = {each.address: each.tcp_address for one in answering for each in one.producers}
    topics = frozenset().union(*(each.topics for each in answering))
    for lookupd in answering:
        has = {each.address for each in lookupd.producers}
        if lacking := [name for address, name in every.items() if address not in has]:
            text = f"nsqlookupd {lookupd.address} does not list nsqd {several(lacking)}"
            advice = "add this nsqlookupd to the --lookupd-tcp-address of these nsqds"
            yield error(text, f"{advice}; check their logs")
        if missing := topics - lookupd.topics:
            which = several(missing)
            text = f"nsqlookupd {lookupd.address} lacks topics that other nsqlookupds have: {which}"
            yield warning(
                text,
                "nsqds register the topics that they have; create other topics on every nsqlookupd",
            )
    yield from _tombstones(cluster)


def _tombstones(cluster: Cluster) -> Iterator[Finding]:
    states: dict[tuple[str, str], set[bool]] = {}
    for lookupd in cluster.answering:
        for each in lookupd.producers:
            for topic, tombstoned in each.topics.items():
                states.setdefault((topic, each.tcp_address), set()).add(tombstoned)
    torn = [f"{topic} of {nsqd}" for (topic, nsqd), seen in states.items() if len(seen) > 1]
    if torn:
        text = f"only some nsqlookupds have a tombstone for {several(torn)}"
        yield warning(text, "set the tombstone on all nsqlookupds, or wait until it expires")


def clocks(cluster: Cluster) -> Iterator[Finding]:
    """Compare each clock with ours, and all clocks with each other."""
    told = [(each.address, each.offset) for each in cluster.answering]
    told += [(each.name, each.offset) for each in cluster.alive]
    known = [(name, each) for name, each in told if each is not None]
    for name, each in known:
        if _surely(each) > APART:
            way = "ahead of" if each.seconds > 0 else "behind"
            say = error if _surely(each) > FAR_APART else warning
            text = f"the clock of {name} is {abs(each.seconds):.0f} s {way} this machine's clock"
            yield say(
                text,
                "synchronise both: the timestamps and due times of messages depend "
                "on each node's clock",
            )
    if len(known) < 2:
        return
    first = min(known, key=lambda pair: pair[1].seconds)
    last = max(known, key=lambda pair: pair[1].seconds)
    apart = last[1].seconds - first[1].seconds - first[1].within - last[1].within
    if apart > APART:
        text = f"node clocks differ: {last[0]} is at least {apart:.0f} s ahead of {first[0]}"
        yield warning(text, "run chrony or systemd-timesyncd on every node")


def _surely(offset: Offset) -> float:
    """Return the minimum offset, given the uncertainty from the response time."""
    return abs(offset.seconds) - offset.within


def certificates(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        door = nsqd.door
        if door and door.tls_error:
            text = f"the certificate of {door.address} could not be read: {door.tls_error}"
            yield note(
                text,
                "the port may require a client certificate; check the certificate file with"
                " openssl x509 -enddate -in FILE",
            )
        where = ((door.address, door.expires),) if door else ()
        for address, expires in (*where, (nsqd.address, nsqd.expires)):
            if expires is not None:
                what = nsqd.name if address == nsqd.name else f"{nsqd.name}, at {address},"
                yield from _expiry(what, (expires - cluster.now) / DAY)


def _expiry(what: str, days: float) -> Iterator[Finding]:
    for each in problems.of_node(NodeState(what, certificate_days=days)):
        yield from_problem(each)


def copied_disks(cluster: Cluster) -> Iterator[Finding]:
    """Find nsqds that have the same log. An nsqd that answers at two addresses is one instance."""
    first: dict[tuple[str, str], Nsqd] = {}
    reported: set[tuple[str, str]] = set()
    for nsqd in cluster.alive:
        for topic, log_id in nsqd.logs.items():
            other = first.setdefault((topic, log_id), nsqd)
            both = (other.name, nsqd.name)
            if _instance(other) == _instance(nsqd) or both in reported:
                continue
            reported.add(both)
            text = f"nsqd {other.name} and nsqd {nsqd.name} both have log {log_id} of topic {topic}"
            yield error(
                f"{text}: one of them runs on a copy of the other's data path",
                "stop one of them: a second nsqd needs its own --data-path, initially empty",
            )


def _instance(nsqd: Nsqd) -> str:
    return nsqd.door.instance if nsqd.door else ""


_ADVICE = {
    "has been unreadable since": "no message is lost: check the disk, and "
    "docs/runbooks/unreadable-topic.md",
    "does not answer": "the worker may be stopped or hung: check the state of its process, and see"
    " docs/runbooks/worker-restarted.md",
    "is being restarted": "check the log to find out why the worker died; see"
    " docs/runbooks/worker-restarted.md",
    "disk hangs": "publishes that must be written are refused until the disk responds: look for "
    "its device in the kernel log (dmesg), and see docs/runbooks/slow-syncs.md",
    "bytes are free on disk": "--min-free-disk refuses publishes that must be written: free disk"
    " space, and see docs/runbooks/disk-full.md",
    "no space left": "publishes that must be written are refused: free disk space, and see "
    "docs/runbooks/disk-full.md",
    "read-only file system": "publishes that must be written are refused: look for the reason in "
    "the kernel log (dmesg), and remount the file system read-write",
    "too many open files": "raise the limit on open files (LimitNOFILE=), or close connections",
}
"""Advice by a substring of the reason why an nsqd is not ready or is unhealthy."""


def _advice(reason: str, otherwise: str) -> str:
    return next((advice for part, advice in _ADVICE.items() if part in reason), otherwise)


def health(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        if nsqd.draining:  # on request, and therefore not ready
            text = f"nsqd {nsqd.name} is draining: it refuses publishes"
            yield note(text, "it exits when consumers have emptied it")
        elif nsqd.unready:
            advice = _advice(nsqd.unready, "check its log; /ready shows when it has recovered")
            yield error(f"nsqd {nsqd.name} is not ready: {nsqd.unready}", advice)
            continue
        if nsqd.health != "OK":
            advice = _advice(nsqd.health, "check the disk; nsqd's log lists the failed writes")
            yield error(f"nsqd {nsqd.name} is unhealthy: {nsqd.health}", advice)


CHECKS = (
    Check(
        "lookupds",
        "nsqlookupds that do not answer, or whose response is invalid",
        "the given nsqlookupds answer",
        lookupds,
        lambda cluster: cluster.lookupds,
    ),
    Check(
        "nsqds",
        "nsqds that do not answer HTTP requests or clients at their announced or given address,"
        " for example because of an unreachable `--broadcast-address`; lost nsqds, which had"
        " topics and were registered with nsqlookupd until at most an hour ago; nsqds that hang",
        "all nsqds answer at their announced addresses",
        nsqds,
    ),
    Check(
        "registration",
        "nsqds that cannot register with one of their nsqlookupds; nsqds and topics that no"
        " nsqlookupd announces",
        "every nsqd and topic is announced",
        registration,
        lambda cluster: cluster.alive,
    ),
    Check(
        "agreement",
        "nsqlookupds that do not list an nsqd, topics or tombstones that other nsqlookupds list",
        "all nsqlookupds agree",
        agreement,
        lambda cluster: len(cluster.answering) > 1,
    ),
    Check(
        "versions",
        "daemons that run different versions",
        "all daemons of a kind run the same version",
        versions,
        lambda cluster: cluster.answering or cluster.alive,
    ),
    Check(
        "clocks",
        f"nodes whose clock differs by more than {APART:.0f} s from this host's or another node's,"
        f" according to the Date header of their responses (an error above {FAR_APART:.0f} s)",
        "all clocks agree, within the precision of the measurement",
        clocks,
        lambda cluster: cluster.answering or cluster.alive,
    ),
    Check(
        "certificates",
        "certificates of TCP and HTTPS ports that expire within"
        f" {problems.CERTIFICATE_DAYS} days, or have expired",
        "no certificate expires soon",
        certificates,
        lambda cluster: cluster.alive,
    ),
    Check(
        "health",
        "nsqds that are not ready, unhealthy (a write has failed), or draining",
        "/ready and /stats of all nsqds report no failure",
        health,
        lambda cluster: cluster.alive,
    ),
    Check(
        "copied-disks",
        "nsqds that run on copies of one data path: they have the same log of a topic, among up to"
        f" {MAX_LOGS} topics that several nsqds have",
        "every nsqd has its own data path",
        copied_disks,
        lambda cluster: len(cluster.alive) > 1,
    ),
)
