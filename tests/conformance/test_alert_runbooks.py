"""The runbooks that alerts link to: their commands, run on a host that has the problem.

The log, in JSON lines, shows what happened in the meantime.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.logging.events import EVENTS
from nsqcy.logging.logger import MESSAGE
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support.nsqlookupd_process import Lookupd
from support.simulated_host import Host, blocks

pytestmark = pytest.mark.ours

DIED = {"time": "", "level": "warn", "msg": "worker 0: killed by signal 9", "daemon": "nsqd"}
HAPPENED = {"started", "listening", "closing", "stopped", "client_connected", "client_error"}
HAPPENED |= {"topic_created", "topic_deleted", "channel_created", "drain_begins", "drain_cancelled"}
HAPPENED |= {"http_request", "lookupd_lost", "lookupd_removed", "lookupd_connected"}


class Page:
    """The blocks of a runbook, run one after another."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._blocks = iter(blocks(name))

    def type(self, what: str, *, failing: bool = False) -> str:
        """Run the next block, which must contain `what`, and return its output."""
        block = next(self._blocks)
        assert what in block
        return self._host.type(block, failing=failing)

    def ends(self) -> None:
        assert list(self._blocks) == []


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Host whose nsqd is running."""
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    host = Host(tmp_path, 1, "--log-format=json")
    try:
        host.type("systemctl start nsqd")
        yield host
    finally:
        host.end()


def test_what_alerts_lead_to(host: Host) -> None:
    """All hosts share one nsqd, because starting one takes a while; it is killed at the end."""
    backlog(host)
    refused_publishes(host)
    full_disk(host)
    slow_syncs(host)
    forgotten_ids(host)
    blocked_keys(host)
    restarted_worker(host)
    lost_lookupd(host)
    busy_worker(host)
    more_workers(host)
    capacity(host)
    drain(host)
    crash(host)
    events_in_the_log(host)


def connect(host: Host) -> Conn:
    return Conn(("127.0.0.1", host.web.get("/info").json()["tcp_port"]))


def backlog(host: Host) -> None:
    page = Page(host, "backlog")
    host.web.create("orders", "billing", "audit")
    host.web.mpub("orders", [b"one", b"two"])
    consumer = connect(host)
    consumer.sub("orders", "billing", 1)
    consumer.message()
    host.web.do("pause", "orders", "billing")
    seen = page.type("doctor", failing=True)
    assert "orders/audit has no consumer" in seen
    assert re.search(r"\*P \[billing +\] depth: 1 .* inflt: 1 ", seen)
    assert '"state":"in_flight","messages":[{' in seen
    assert '"falling_behind":' in page.type("include_mem=false")
    page.type("unpause")
    page.type("rate=500")
    consumer.close()
    page.type("empty")
    host.web.await_counts("orders", "billing", depth=0, in_flight_count=0)
    assert 'depth{topic="orders",channel="billing"} 0' in page.type("/metrics")
    page.ends()


def refused_publishes(host: Host) -> None:
    page = Page(host, "publishes-refused")
    host.web.put("/topic/config?topic=orders", b'{"max_depth": 1}')
    refused = host.web.post("/pub?topic=orders", b"three")
    assert refused.status == 503
    assert b"is full (max-depth 1)" in refused.body
    seen = page.type("/ready")
    assert '"max_depth":{"value":1,"from":"http"}' in seen
    assert '"ledger":' in seen
    page.type("max_depth")
    page.type("drain")
    seen = page.type("/ready")
    assert seen.startswith("OK\n") and 'nsqd_topic_messages_total{topic="orders"} 2' in seen
    page.ends()


def full_disk(host: Host) -> None:
    page = Page(host, "disk-full")
    host.web.pub("orders", b"on disk", durability="os")
    seen = page.type("df -h")
    assert "orders.topic" in seen
    assert 'nsqd_topic_disk_bytes{topic="orders"}' in seen
    page.type("retention_time")
    page.type("empty")
    host.web.await_counts("orders", "billing", depth=0)
    assert page.type("/ready").split() == ["OK"]
    assert page.type("topic=TOPIC").split() == ["200"]
    host.web.do("empty", "orders")
    page.ends()


def slow_syncs(host: Host) -> None:
    page = Page(host, "slow-syncs")
    seen = page.type("doctor", failing=True)
    assert '_count{lane="awaited",worker="0"}' in seen
    assert "disk-latency: " in seen
    page.type("durability")
    topic = host.web.topic("orders")
    assert topic is not None and topic["durability"] == "os"
    assert '_sum{lane="awaited",worker="0"}' in page.type("awaited")
    page.ends()


def forgotten_ids(host: Host) -> None:
    page = Page(host, "dedup-ids")
    policy = {"dedup_window": "1h", "dedup_id": "json:/id", "dedup_ids": 2}
    host.web.put("/topic/config?topic=orders", json.dumps(policy).encode())
    for number in range(5):
        host.web.pub("orders", b'{"id":%d}' % number)
    seen = page.type("dedup_ids")
    assert 'nsqd_topic_dedup_ids_early_total{topic="orders"} 3' in seen
    assert 'nsqd_topic_dedup_ids{topic="orders"} 2' in seen
    page.type("dedup_ids")
    found = host.web.get("/topic/config?topic=orders").json()
    assert found["config"]["dedup_ids"]["value"] == 20_000_000
    assert 'early_total{topic="orders"} 3' in page.type("early_total")
    page.ends()
    host.web.delete("/topic/config?topic=orders")
    host.web.do("empty", "orders")


def blocked_keys(host: Host) -> None:
    page = Page(host, "blocked-keys")
    host.web.create("orders", "billing")
    host.web.do("empty", "orders")
    host.web.do("empty", "orders", "billing")
    host.web.put("/channel/config?topic=orders&channel=billing", b'{"order": "key"}')
    for _ in range(3):
        host.web.pub("orders", b"x", headers={"X-Nsq-key": "KEY"})
    consumer = connect(host)
    consumer.sub("orders", "billing", 1)
    consumer.message()
    assert re.search(r"^KEY +2 +1 +\S+ +127", page.type("--blocked"), re.MULTILINE)
    page.type("empty")
    page.type("pause")
    host.web.pub("orders", b"x", headers={"X-Nsq-key": "KEY"})
    assert re.search(r"^KEY +1 +1 +\S+ +yes", page.type("--key=KEY"), re.MULTILINE)
    page.ends()
    consumer.close()
    host.web.delete("/channel/config?topic=orders&channel=billing")
    host.web.do("empty", "orders", "billing")


def restarted_worker(host: Host) -> None:
    page = Page(host, "worker-restarted")
    with (host.path / "nsqd.log").open("a") as log:
        log.write(json.dumps(DIED) + "\n")
    seen = page.type("journalctl")
    assert 'nsqd_worker_restarts_total{worker="0"} 0' in seen
    assert "killed by signal 9" in seen
    assert "nsqd" in page.type("ps -eo")
    page.type("true")
    assert host.web.get("/config/drain").json()["draining"]
    page.type("false")
    seen = page.type("nsqd_worker_(up|restarts_total)")
    assert 'nsqd_worker_up{worker="0"} 1' in seen
    assert 'nsqd_worker_restarts_total{worker="0"} 0' in seen
    page.ends()


def lost_lookupd(host: Host) -> None:
    page = Page(host, "lost-lookupd")
    host.web.put("/config/nsqlookupd_tcp_addresses", b'["127.0.0.1:1"]')
    with Lookupd() as lookupd:
        host.ports |= {":4160": lookupd.tcp_port, ":4161": lookupd.web.port}
        seen = page.type("/ping", failing=True)
        assert '"producers":[]' in seen
        assert 'nsqd_lookupd_connected{lookupd="127.0.0.1:1"} 0' in seen
        page.type("nsqlookupd_tcp_addresses")
        eventually(lookupd.nodes)
        assert '"producers":[{' in page.type("/lookup")
    page.ends()


def busy_worker(host: Host) -> None:
    page = Page(host, "busy-worker")
    assert 'nsqd_topic_messages_total{topic="orders"}' in page.type("/metrics").splitlines()[-1]
    page.type("systemctl")
    assert 'nsqd_worker_up{worker="0"} 1' in page.type("nsqd_worker_up")
    page.ends()


def more_workers(host: Host) -> None:
    page = Page(host, "scale-workers")
    before = page.type("turn_duration")
    assert before.count('nsqd_turn_duration_seconds_sum{worker="0"}') == 2
    assert "valid for nsqd; options set: 1" in page.type("workers =", failing=True)
    page.type("systemctl restart")
    after = page.type("/ready")
    for worker in "01":
        assert f'nsqd_worker_up{{worker="{worker}"}} 1' in after
        assert f'nsqd_topics{{worker="{worker}"}} ' in after
    page.ends()


def capacity(host: Host) -> None:
    page = Page(host, "capacity")
    assert 'nsqd_topic_message_bytes_total{topic="orders"}' in page.type("/metrics")
    assert "disk-latency: " in page.type("doctor")
    assert "nsqds and 1 spare nsqd, each with\n" in page.type("capacity")
    assert json.loads(page.type("--json"))["nsqds"] > 0
    assert 'nsqd_turn_duration_seconds_sum{worker="1"}' in page.type("/metrics")
    page.ends()


def drain(host: Host) -> None:
    page = Page(host, "drain")
    assert '"depth":' in page.type("drain")
    seen = page.type("true")
    assert '"draining":true' in seen and "draining" in seen.splitlines()[-1]
    page.type("false")
    host.web.do("empty", "orders", "audit")
    host.web.do("empty", "orders", "billing")
    assert host.web.put("/config/drain", b"true").status == 200
    seen = page.type("is-active")
    assert "nothing is left" in seen and "bye" in seen
    page.ends()
    host.type("systemctl start nsqd")


def crash(host: Host) -> None:
    page = Page(host, "nsqd-down")
    host.web.pub("orders", b"kept", durability="os")
    host.kill()
    page.type("config check", failing=True)
    assert "exit code 1" in page.type("data check", failing=True)
    page.type("cp -a")
    page.type("systemctl start")
    host.web.await_counts("orders", "audit", depth=1)
    assert 'nsqd_worker_up{worker="0"} 1' in page.type("/ready")
    page.ends()


def events_in_the_log(host: Host) -> None:
    host.web.create("unused")
    host.web.do("delete", "unused")
    with connect(host) as mistaken:
        mistaken.command("NOPE")
        mistaken.expect_error("E_INVALID invalid command NOPE")
    lines = [json.loads(line) for line in host.log().splitlines()]
    assert {line["daemon"] for line in lines} == {"nsqd"}
    found = {line.get("event"): line for line in lines}
    assert found.keys() - {event.name for event in EVENTS} <= {None, MESSAGE}
    assert found.keys() >= HAPPENED, HAPPENED - found.keys()
    assert found["channel_created"].items() >= {"worker": 0, "topic": "orders"}.items()
    assert "worker" not in found["started"]
