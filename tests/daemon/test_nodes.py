"""docs/runbooks/install.md and add-remove-node.md: one node is installed and joins, and another one
leaves, under load."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.client import Consumer
from nsqcy.testing.http_requests import eventually
from support.delivery_tally import PoolPublisher, Tally
from support.distribution_files import ROOT
from support.simulated_cluster import Cluster
from support.simulated_host import SHELL, BareHost, blocks

pytestmark = pytest.mark.ours

TOPIC, CHANNEL = "orders", "billing"
POLL = 0.3  # seconds between queries to nsqlookupds
SLICE = 20  # messages


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 1, 1) as cluster:
        yield cluster


def install(host: BareHost) -> None:
    package, configure, look, start, verify = blocks("install")
    (units,) = [
        block
        for block in SHELL.findall((ROOT / "docs/INSTALL.md").read_text())
        if "sysusers" in block
    ]
    host.type(package)
    host.type(units)
    for unit in ("nsqd", "nsqlookupd", "nsqadmin"):
        assert f"[{unit}]" in (host.path / f"etc/nsqcy/{unit}.ini").read_text()
        assert (host.path / f"etc/systemd/system/{unit}.service").exists()
        assert (host.path / f"etc/default/{unit}").exists()
    assert host.called() == {"systemd-sysusers nsqcy.conf", "systemd-tmpfiles --create nsqcy.conf"}
    assert all(
        (host.path / f"etc/{kind}.d/nsqcy.conf").exists() for kind in ("sysusers", "tmpfiles")
    )
    assert "options set: 2" in host.type(configure)
    assert "data-path: " in host.type(look, failing=True)
    host.type(start)
    seen = host.type(verify)
    assert seen.count("} 1.0\nnsqd_lookupd_connected") == 2, seen
    assert seen.endswith("OK\nhello\n")
    eventually(lambda: host.web.topic("first#ephemeral") is None)


def test_one_comes_and_one_goes(cluster: Cluster) -> None:
    (old,) = cluster.nodes
    old.web.create(TOPIC, CHANNEL)
    tally = Tally()
    lookupds = [each.http_address for each in cluster.lookups]
    found = {"lookupd_http_addresses": lookupds, "lookupd_poll_interval": POLL}
    consumer = Consumer(
        TOPIC,
        CHANNEL,
        **found,
        max_in_flight=50,
        message_handler=lambda message: tally.receives(CHANNEL, message.body),
    )
    consumer.start()
    publisher = PoolPublisher(tally, "p", TOPIC, **found)
    publisher.start()
    try:
        new = cluster.bare_host()
        install(new)
        make_topics, wait, verify, drain, gone, disable = blocks("add-remove-node")
        new.type(make_topics)
        assert f'{{topic="{TOPIC}",channel="{CHANNEL}"}} 1\n' in new.type(wait)
        eventually(lambda: new.web.counts(TOPIC)["message_count"] > SLICE)
        assert f'nsqd_topic_messages_total{{topic="{TOPIC}"}}' in new.type(verify)

        old.type(drain)
        assert old.log().rstrip().endswith("NSQ: bye")
        checked = old.type(gone)
        assert "unreadable parts: 0" in checked
        assert not re.search(r"(depth|deferred) [1-9]", checked), checked
        assert [each.nodes() for each in cluster.lookups] == [{new.tcp_port}] * 2
        old.type(disable)
        goal = publisher.accepted + SLICE
        eventually(lambda: publisher.accepted > goal or publisher.error)
        publisher.end()
        assert publisher.error is None
        eventually(lambda: not tally.lost(CHANNEL))
        account = tally.account(CHANNEL)
        assert (account.unexpected, account.duplicates) == (0, 0)
    finally:
        publisher.end()
        consumer.close(graceful=False)
