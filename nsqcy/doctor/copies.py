"""Checks of topics with copies on other machines: a host's options, and a cluster's responses. Pure
functions of facts, and their tables."""

from collections import Counter
from collections.abc import Iterator

from nsqcy.cluster.copies import (
    SILENT_OWNER,
    Group,
    Member,
    Workers,
    groups,
    problems,
    text_with_owner,
)
from nsqcy.cluster.problems import by_severity
from nsqcy.cluster.problems import count as number
from nsqcy.doctor.checks import Check
from nsqcy.doctor.cluster import LOOPBACK
from nsqcy.doctor.facts import Cluster, CopiesOptions, Host
from nsqcy.doctor.findings import Finding, error, from_problem, warning

ENDPOINTS = 3
"""Minimum number of etcd members for etcd to survive the loss of one."""


def options(host: Host) -> Iterator[Finding]:
    copies = host.wanted.copies
    assert copies is not None
    yield from _etcd(copies)
    if copies.advertised.startswith(LOOPBACK) and not all(
        each.startswith(LOOPBACK) for each in copies.etcd_hosts
    ):
        text = f"other nsqds cannot reach this nsqd at {copies.advertised} for copies"
        yield error(text, "set --copies-broadcast-address, or --broadcast-address")
    if not copies.protected:
        text = "any client that can reach the port for copies can read and replace them"
        yield warning(text, "set --copies-secret-file or --copies-tls-cert, and use a firewall")


def _etcd(copies: CopiesOptions) -> Iterator[Finding]:
    hosts = set(copies.etcd_hosts)
    if len(copies.etcd_hosts) < ENDPOINTS:
        text = f"--etcd-endpoints names fewer than {ENDPOINTS} etcd members"
        advice = "run etcd on three hosts: without etcd, no machine can take over from another"
        yield warning(text, advice)
    elif len(hosts) == 1:
        text = f"all etcd endpoints are on one host: {hosts.pop()}"
        yield warning(text, "run the etcd members on different hosts")


def state(cluster: Cluster) -> Iterator[Finding]:
    workers = _reports(cluster)
    for member, count in lost_members(cluster):
        text = f"node {member.full_name} is lost: it has copies of {number(count, 'group')}, and no"
        yield error(
            f"{text} session in etcd",
            "if its nsqd has ended, start it, with its data path if that exists; see "
            "docs/runbooks/lost-node.md. If its nsqd runs, see docs/runbooks/worker-restarted.md",
        )
    for each in by_severity(problems(groups(workers), workers)):
        if each.kind != SILENT_OWNER:  # doctor may query only one of several nsqds
            yield from_problem(each._replace(text=text_with_owner(each)))


def lost_members(cluster: Cluster) -> list[tuple[Member, int]]:
    """Return the nodes that have copies, and neither answer nor have a session in etcd, with the
    number of their groups."""
    count = Counter(
        member
        for group in copied_groups(cluster)
        for member in group.members
        if not member.answers and not member.has_session
    )
    return sorted(count.items())


def copied_groups(cluster: Cluster) -> list[Group]:
    return groups(_reports(cluster))


def _reports(cluster: Cluster) -> Workers:
    return [(nsqd.name, worker) for nsqd in cluster.alive for worker in nsqd.copies]


OF_HOST = (
    Check(
        "copies-options",
        f"with `--etcd-endpoints`: fewer than {ENDPOINTS} endpoints, or all of them on one host; a"
        " loopback address announced to other machines; neither a secret nor TLS",
        "the options for copies are complete",
        options,
        lambda host: host.wanted.copies,
    ),
)
OF_CLUSTER = (
    Check(
        "copies",
        "problems of topics with copies, as in `nsqcy copies status` and nsqadmin: groups without"
        " an owner, lost members, more copies than nsqds, missing, damaged or unreadable copies,"
        " refused publishes, nsqds that cannot reach etcd or have not opened their groups, an etcd"
        " that has lost data or contains another cluster's data",
        "no copies are missing",
        state,
        lambda cluster: any(each.copies for each in cluster.alive),
    ),
)
