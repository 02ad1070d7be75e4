"""Takeovers by other nsqds, and an outage of etcd, as clients see them."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support.client_libraries import LIBRARIES, absent
from support.copied_nsqds import POLL, CopiedNsqds
from support.copies_backlog import Backlog, Receivers
from support.copies_faults import Faults
from support.copies_load import TOPIC, CopiesLoad
from support.etcd_process import needs_etcd
from support.private_network import needs_namespaces

PATIENCE = 120.0  # seconds within which everything must be delivered

pytestmark = [pytest.mark.ours, needs_etcd, needs_namespaces]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CopiedNsqds]:
    with CopiedNsqds(tmp_path) as cluster:
        yield cluster


def arrives_from_the_others(cluster: CopiedNsqds, count: int, patience: float) -> None:
    """Check that a backlog survives the loss of its node, which never returns."""
    lost, *others = cluster.nodes
    backlog = Backlog(count)
    backlog.publish(lost)
    lost.kill_all()
    with Receivers(backlog, others) as receivers:
        try:
            eventually(lambda: not receivers.lack(), patience, interval=POLL)
        except AssertionError:
            raise AssertionError(f"missing: {receivers.lack()}; {cluster.gaps()}") from None
    assert receivers.early == [] and receivers.unexpected == []
    print(
        f"{count} messages: first after {receivers.first:.1f} s, last after {receivers.last:.1f} s,"
        f" delivered again: {dict(receivers.again)}"
    )


@pytest.mark.parametrize("count", [20_000])
def test_a_backlog_survives_its_node(cluster: CopiedNsqds, count: int) -> None:
    arrives_from_the_others(cluster, count, PATIENCE)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [1_000_000])
def test_a_large_backlog_survives_its_node(cluster: CopiedNsqds, count: int) -> None:
    arrives_from_the_others(cluster, count, 10 * PATIENCE)


def test_a_rolling_restart_under_load(cluster: CopiedNsqds) -> None:
    with CopiesLoad(cluster) as load:
        for node in cluster.nodes:
            node.restart()
            cluster.await_sync()
            load.goes_on()
        print(load.verify())


def test_everything_goes_on_without_etcd(cluster: CopiedNsqds) -> None:
    """New topics work as well. Once etcd is back, the cluster recovers without intervention."""
    (member,) = cluster.etcd.members
    with CopiesLoad(cluster) as load:
        member.kill()
        for node in cluster.nodes:
            eventually(
                lambda node=node: not any(each["etcd"] for each in node.copies()), interval=POLL
            )
        load.goes_on()
        load.delivers()
        for node in cluster.nodes:
            node.web.pub(f"{TOPIC}_new", b"1")
        cluster.etcd.restart(member)
        cluster.await_sync()
        load.goes_on()
        print(load.verify())


def test_other_client_libraries_follow_a_takeover(cluster: CopiedNsqds) -> None:
    libraries = [each for each in LIBRARIES if not absent(each)]
    with CopiesLoad(cluster, (), libraries) as load:
        load.delivers()
        Faults(cluster, load, random.Random(0)).apply(["kill_for_long"])
        print(libraries, load.verify())
