"""The checks of a cluster: pure functions of what was asked of it, and the table of them.

Whoever did not answer is told of once, by the first two checks; the others judge what was answered.
"""

from collections import Counter
from collections.abc import Iterator

from nsqcy.doctor.checks import Check
from nsqcy.doctor.facts import Cluster, Nsqd, Offset
from nsqcy.doctor.findings import Finding, note, problem, several, warning

APART = 2.0  # seconds between clocks
FAR_APART = 30.0
DAY = 86_400.0
EXPIRES_SOON = 30  # days
LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")


# --- who answers --------------------------------------------------------------------------------


def lookupds(cluster: Cluster) -> Iterator[Finding]:
    for each in cluster.lookupds:
        text = f"nsqlookupd {each.address} does not answer: {each.error}"
        if each.error and each.assumed:
            yield note(text, "if there is one elsewhere, name it with --lookupd-http-address")
        elif each.error:
            yield problem(text, "start it, or see what is between: a firewall, an old address")


def nsqds(cluster: Cluster) -> Iterator[Finding]:
    for each in cluster.nsqds:
        if each.error:
            yield _silent(each, cluster)
        door = each.door
        if door and door.error and not each.error:
            text = f"nsqd {each.name} answers over HTTP, but not clients at {door.address}"
            yield problem(f"{text}: {door.error}", _reach(each))
    if not cluster.nsqds:
        yield note("there is no nsqd", "name one with --nsqd-http-address")


def _silent(nsqd: Nsqd, cluster: Cluster) -> Finding:
    if nsqd.assumed:
        text = f"nsqd {nsqd.address} does not answer: {nsqd.error}"
        return note(text, "if there is one elsewhere, name it with --nsqd-http-address")
    if not nsqd.lookupds:
        text = f"nsqd {nsqd.address} does not answer: {nsqd.error}"
        return problem(text, "start it, or see what is between: a firewall, an old address")
    who = f"announced by {several(nsqd.lookupds)}"
    text = f"nsqd {nsqd.name}, {who}, does not answer: {nsqd.error}"
    if nsqd.door and not nsqd.door.error:
        port = nsqd.node.http_port
        return problem(text, f"clients reach it; open HTTP port {port}, or --broadcast-http-port")
    elsewhere = [
        each.address
        for each in cluster.alive
        if each.node.tcp_port == nsqd.node.tcp_port and each.node.hostname == nsqd.node.hostname
    ]
    if elsewhere and nsqd.node.hostname:
        text += f" (one of its host answers at {several(elsewhere)})"
    return problem(text, _reach(nsqd))


def _reach(nsqd: Nsqd) -> str:
    """What to do about an nsqd that cannot be reached where it is announced."""
    address = nsqd.node.broadcast_address
    if address.startswith(LOOPBACK):
        return (
            f"every machine has its own {address}: give it a --broadcast-address to be reached at"
        )
    return (
        f"if it is down start it; else see that {address} is its --broadcast-address, and is"
        " resolved and reached from here"
    )


def registration(cluster: Cluster) -> Iterator[Finding]:
    """What nsqlookupds do not know of the nsqds that answer."""
    if not cluster.answering:
        return
    announced = {each.address for lookupd in cluster.answering for each in lookupd.producers}
    for nsqd in cluster.alive:
        if nsqd.node.address not in announced:
            text = f"nsqd {nsqd.name} is announced by no nsqlookupd: consumers do not find it"
            yield problem(text, "see its --lookupd-tcp-address, and its log for LOOKUPD")
            continue
        known = {
            topic
            for lookupd in cluster.answering
            for each in lookupd.producers
            if each.address == nsqd.node.address
            for topic in each.topics
        }
        missing = {topic.name for topic in nsqd.topics} - known
        if missing:
            text = f"nsqd {nsqd.name} has topics that no nsqlookupd knows it by: {several(missing)}"
            yield warning(text, "if it stays so see its log for LOOKUPD; a restart registers anew")


# --- who agrees ---------------------------------------------------------------------------------


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
            f"{name} has {version or 'none'}" for version, name in pairs if version != maximum
        )
        text = f"{daemon}s are of {len(count)} versions: most have {maximum or 'none'}, {others}"
        yield warning(text, "bring all to one version; clients use what the oldest can")


def agreement(cluster: Cluster) -> Iterator[Finding]:
    """Where nsqlookupds differ."""
    answering = cluster.answering
    if len(answering) < 2:
        return
    every = {each.address: each.tcp_address for one in answering for each in one.producers}
    topics = frozenset().union(*(each.topics for each in answering))
    for lookupd in answering:
        has = {each.address for each in lookupd.producers}
        if lacking := [name for address, name in every.items() if address not in has]:
            text = f"nsqlookupd {lookupd.address} lacks nsqd {several(lacking)}"
            yield problem(text, "give those nsqds its --lookupd-tcp-address too; see their logs")
        if missing := topics - lookupd.topics:
            text = f"nsqlookupd {lookupd.address} lacks topics that others have: {several(missing)}"
            yield warning(
                text, "it learns them from nsqds; topics made by hand must be made at each"
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
        yield warning(text, "tombstone it at all of them, or wait until the one is over")


def clocks(cluster: Cluster) -> Iterator[Finding]:
    """Each against ours, and all against each other."""
    told = [(each.address, each.offset) for each in cluster.answering]
    told += [(each.name, each.offset) for each in cluster.alive]
    known = [(name, each) for name, each in told if each is not None]
    for name, each in known:
        if _surely(each) > APART:
            way = "ahead of" if each.seconds > 0 else "behind"
            say = problem if _surely(each) > FAR_APART else warning
            text = f"the clock of {name} is {abs(each.seconds):.0f} s {way} that of this machine"
            yield say(text, "synchronise both: message times and due times are by each one's clock")
    if len(known) < 2:
        return
    first = min(known, key=lambda pair: pair[1].seconds)
    last = max(known, key=lambda pair: pair[1].seconds)
    apart = last[1].seconds - first[1].seconds - first[1].within - last[1].within
    if apart > APART:
        text = f"clocks of nodes are apart: {last[0]} is {apart:.0f} s or more ahead of {first[0]}"
        yield warning(text, "run chrony or systemd-timesyncd on each")


def _surely(offset: Offset) -> float:
    """How far it is off at least, whatever the answer took."""
    return abs(offset.seconds) - offset.within


def certificates(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        door = nsqd.door
        if door and door.tls_error:
            text = f"the certificate of {door.address} cannot be seen: {door.tls_error}"
            yield note(
                text, "it may want a certificate of ours; openssl x509 -enddate -in its file"
            )
        where = ((door.address, door.expires),) if door else ()
        for address, expires in (*where, (nsqd.address, nsqd.expires)):
            if expires is not None:
                yield from _expiry(address, (expires - cluster.now) / DAY)


def _expiry(address: str, days: float) -> Iterator[Finding]:
    advice = "put a new one in place of the file and send nsqd SIGHUP"
    if days < 0:
        yield problem(f"the certificate of {address} ended {-days:.0f} days ago", advice)
    elif days < EXPIRES_SOON:
        yield warning(f"the certificate of {address} ends in {days:.0f} days", advice)


def health(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        if nsqd.unready:
            advice = "see its log; /ready says when it is over"
            yield problem(f"nsqd {nsqd.name} is not ready: {nsqd.unready}", advice)
        elif nsqd.health != "OK":
            advice = "what it failed to write is in its log: see to the disk"
            yield problem(f"nsqd {nsqd.name} is not well: {nsqd.health}", advice)
        if nsqd.draining:
            text = f"nsqd {nsqd.name} is draining: it takes no publishes"
            yield note(text, "it ends when consumers have emptied it")


CHECKS = (
    Check(
        "lookupds",
        "nsqlookupds that do not answer, or answer what cannot be read",
        "all answer",
        lookupds,
        lambda cluster: cluster.lookupds,
    ),
    Check(
        "nsqds",
        "nsqds that are announced or named and do not answer there, over HTTP and to clients: a"
        " `--broadcast-address` that cannot be reached",
        "all answer where they are announced",
        nsqds,
    ),
    Check(
        "registration",
        "nsqds that no nsqlookupd announces; topics of theirs that none does",
        "every nsqd and topic is announced",
        registration,
        lambda cluster: cluster.answering and cluster.alive,
    ),
    Check(
        "agreement",
        "nsqlookupds that lack an nsqd, topics or tombstones that others have",
        "all nsqlookupds say the same",
        agreement,
        lambda cluster: len(cluster.answering) > 1,
    ),
    Check(
        "versions",
        "daemons of several versions",
        "there is one of each daemon",
        versions,
        lambda cluster: cluster.answering or cluster.alive,
    ),
    Check(
        "clocks",
        f"nodes whose clock is more than {APART:.0f} s from ours or from another's, by the Date of"
        f" their answers (a problem from {FAR_APART:.0f} s)",
        "no clock is off by more than an answer takes",
        clocks,
        lambda cluster: cluster.answering or cluster.alive,
    ),
    Check(
        "certificates",
        f"certificates of TCP and HTTPS ports that end within {EXPIRES_SOON} days, or have ended",
        "none ends soon",
        certificates,
        lambda cluster: cluster.alive,
    ),
    Check(
        "health",
        "nsqds that are not ready or not well (a disk that is full or fails), or draining",
        "all are ready",
        health,
        lambda cluster: cluster.alive,
    ),
)
