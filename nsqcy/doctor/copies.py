"""Checks of topics with copies on other machines: a host's options, and a cluster's responses. Pure
functions of facts, and their tables."""

from collections.abc import Iterator

from nsqcy.doctor.checks import Check
from nsqcy.doctor.cluster import LOOPBACK
from nsqcy.doctor.facts import Cluster, Copies, CopiesOptions, Host, Nsqd
from nsqcy.doctor.findings import Finding, error, several, warning

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
        advice = "run etcd on three hosts: without etcd, no machine can take over from another one"
        yield warning(text, advice)
    elif len(hosts) == 1:
        text = f"all etcd endpoints are on one host: {hosts.pop()}"
        yield warning(text, "run the etcd members on different hosts")


def state(cluster: Cluster) -> Iterator[Finding]:
    for nsqd in cluster.alive:
        if nsqd.copies is not None:
            yield from _of_nsqd(nsqd)


def _of_nsqd(nsqd: Nsqd) -> Iterator[Finding]:
    copies = nsqd.copies
    assert copies is not None
    yield from _files(nsqd.name, copies)
    if not copies.etcd:
        text = f"nsqd {nsqd.name} cannot reach etcd: no machine can take over or be replaced"
        yield error(text, "see docs/runbooks/etcd-away.md")
        return
    if copies.trouble:
        text = f"nsqd {nsqd.name} refuses publishes to topics with copies: {copies.trouble}"
        yield error(text, "see docs/runbooks/etcd-replaced.md")
        return
    wanted = max((each.copies for each in copies.owned), default=0)
    if copies.machines < wanted:
        text = (
            f"nsqd {nsqd.name} has topics with {wanted} copies, but only {copies.machines} nsqds"
            " have a session in etcd"
        )
        yield warning(text, "start or add nsqds with the same --cluster, or lower copies")
    refusing = [_names(each.topics) for each in copies.owned if each.accepts is False]
    if refusing:
        text = f"nsqd {nsqd.name} refuses publishes because copies are missing: "
        yield error(text + several(refusing), "see docs/runbooks/too-few-copies.md")
    missing = [
        _names(each.topics)
        for each in copies.owned
        if each.responding < each.copies <= copies.machines and each.accepts is not False
    ]
    if missing:
        text = f"nsqd {nsqd.name} lacks copies of these topics: {several(missing)}"
        advice = "if this persists, check firewalls and the log; see docs/runbooks/lost-node.md"
        yield warning(text, advice)


def _files(name: str, copies: Copies) -> Iterator[Finding]:
    advice = "check the disk; see docs/runbooks/damaged-copies.md"
    if copies.damaged:
        text = f"copies on nsqd {name} are damaged where no other copy is intact: "
        yield error(text + several(copies.damaged), advice)
    if copies.unreadable:
        yield error(f"nsqd {name} cannot read copies: {several(copies.unreadable)}", advice)
    if copies.mended:
        text = f"nsqd {name} has replaced {copies.mended} damaged parts of copies since its start"
        yield warning(text, f"no message is lost: {advice}")


def _names(topics: tuple[str, ...]) -> str:
    return several(topics) or "a group without topics"


OF_HOST = (
    Check(
        "copies-options",
        f"with `--etcd-endpoints`: fewer than {ENDPOINTS} endpoints, or all on one host; a loopback"
        " address announced to other machines; neither a secret nor TLS",
        "the options for copies are complete",
        options,
        lambda host: host.wanted.copies,
    ),
)
OF_CLUSTER = (
    Check(
        "copies",
        "topics with copies: more copies than nsqds, missing copies, damaged or unreadable ones,"
        " refused publishes, nsqds that cannot reach etcd, an etcd that has lost data or contains"
        " another cluster's",
        "no copies are missing",
        state,
        lambda cluster: any(each.copies is not None for each in cluster.alive),
    ),
)
