"""Runbooks for copies, typed on three hosts with one etcd."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import psutil
import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support.etcd_process import Etcd, needs_etcd
from support.simulated_host import Host, blocks

pytestmark = [needs_etcd, pytest.mark.ours]

POLICY = "\n[topic orders]\ncopies = 3\n"


@pytest.fixture
def hosts(tmp_path: Path, etcd: Etcd) -> Iterator[list[Host]]:
    """Three hosts, each with a running nsqd whose topic has all of its copies."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    hosts = [
        Host(
            tmp_path / str(number),
            1,
            f"--etcd-endpoints={etcd.members[0].client_url}",
            "--copies-address=127.0.0.1:0",
            f"--copies-secret-file={secret}",
            "--copies-lease=3s",
            "--copies-timeout=3s",
            "--broadcast-address=127.0.0.1",
            f"--node-id={number}",
        )
        for number in range(3)
    ]
    try:
        for host in hosts:
            host.names["http://etcd-1.example.com:2379"] = etcd.members[0].client_url
            for number, other in enumerate(hosts, 1):
                host.names[f"nsqd-{number}.example.com:4151"] = f"127.0.0.1:{other.web.port}"
            with (host.path / "etc/nsqcy/nsqd.ini").open("a") as file:
                file.write(POLICY)
            host.type("systemctl start nsqd")
        eventually(lambda: all(sums(host, "missing") == 0 for host in hosts), timeout=30)
        yield hosts
    finally:
        for host in hosts:
            host.end()


def sums(host: Host, name: str) -> float:
    """Return the sum of a metric over all workers."""
    lines = host.web.get("/metrics").body.decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"nsqd_copies_{name}{{")
    )


class Page:
    """The blocks of a runbook, run one after another on any host."""

    def __init__(self, name: str, count: int) -> None:
        self._rest = blocks(name)
        assert len(self._rest) == count

    def __call__(self, host: Host, *, failing: bool = False) -> str:
        """Type the next block."""
        return host.type(self._rest.pop(0), failing=failing)


def test_a_lost_node(hosts: list[Host]) -> None:
    first, _, lost = hosts
    assert lost.web.post("/pub?topic=orders", b"x").status == 200
    for host in hosts:
        host.names["TOPIC"] = "orders"
    lost.kill()
    eventually(lambda: sums(first, "missing") > 0, timeout=30)
    type_next = Page("lost-node", 5)
    seen = type_next(first, failing=True)
    assert "lacks copies" in seen and "exit code 1" in seen
    assert '"responding":2' in type_next(first)
    assert '"id"' in type_next(first)
    type_next(lost)
    eventually(lambda: all(sums(host, "missing") == 0 for host in hosts), timeout=30)
    seen = type_next(first)
    assert 'nsqd_copies_takeovers_total{worker="0"}' in seen
    depths = [int(each) for each in re.findall(r"\[orders +\] depth: (\d+)", seen)]
    assert sum(depths) == 1, seen


def test_damaged_copies(hosts: list[Host]) -> None:
    first = hosts[0]
    type_next = Page("damaged-copies", 2)
    shown = type_next(first)
    assert '"damaged":[]' in shown and 'nsqd_copies_mended_total{worker="0"} 0.0' in shown
    type_next(first)


def test_etcd_away(hosts: list[Host], etcd: Etcd) -> None:
    host = hosts[0]
    (member,) = etcd.members
    member.kill()
    eventually(lambda: sums(host, "etcd_up") == 0, timeout=30)
    type_next = Page("etcd-away", 2)
    assert "etcd does not respond" in type_next(host, failing=True)
    assert host.web.post("/pub?topic=orders", b"x").status == 200
    etcd.restart(member)
    eventually(lambda: sums(host, "etcd_up") == 1, timeout=30)
    assert type_next(host).count("/nsqcy/default/sessions/") >= 3


def test_etcd_away_and_a_lost_node(hosts: list[Host], etcd: Etcd) -> None:
    """Without etcd, the lost node cannot leave its groups. Publishes must not wait for it."""
    first, _, lost = hosts
    assert publish(first) == b"OK"
    (member,) = etcd.members
    member.kill()
    lost.kill()
    with futures.ThreadPoolExecutor() as threads:
        pending = threads.submit(publish, first)
        eventually(lambda: sums(first, "short_groups") == 1, timeout=60)
        assert b"TOO_FEW_COPIES a lost node is still a member" in publish(first)
        assert pending.result() == b""
    seen = first.type("nsqcy doctor --host=false --nsqd-http-address=127.0.0.1:4151", failing=True)
    assert "publishes are refused" in seen and "etcd-away.md" in seen
    etcd.restart(member)
    eventually(lambda: publish(first) == b"OK", timeout=60)


def test_etcd_replaced(hosts: list[Host], etcd: Etcd) -> None:
    """One of the hosts is lost at the same time as the data of etcd."""
    *others, lost = hosts
    assert lost.web.post("/pub?topic=orders", b"x").status == 200
    for host in hosts:
        host.kill()
    etcd.erase()
    for host in others:
        host.type("systemctl start nsqd")
    eventually(lambda: all(sums(host, "unregistered_groups") for host in others), timeout=30)
    assert b"groups of copies missing" in others[0].web.get("/ping").body
    types = [Page("etcd-replaced", 4) for _ in others]
    for host, type_next in zip(others, types, strict=True):
        assert '"unregistered":["' in type_next(host)
    for host, type_next in zip(others, types, strict=True):
        assert "etcd will be accepted" in type_next(host)
    for host, type_next in zip(others, types, strict=True):
        type_next(host)
    eventually(lambda: sum(topic_depth(host) for host in others) == 1, timeout=90)
    for host, type_next in zip(others, types, strict=True):
        eventually(lambda host=host: host.web.get("/ready").status == 200, timeout=30)
        assert "OK" in type_next(host)


def topic_depth(host: Host) -> int:
    topic = host.web.topic("orders")
    return topic["depth"] if topic is not None else 0


def publish(host: Host) -> bytes:
    """Return the response, or an empty one if nsqd closed the connection because the publish's
    outcome was unknown."""
    try:
        return host.web.post("/pub?topic=orders", b"x").body
    except ConnectionError:
        return b""


def test_too_few_copies(hosts: list[Host]) -> None:
    host, *others = hosts
    assert host.web.post("/pub?topic=orders", b"x").status == 200
    for other in others:
        other.kill()
    eventually(lambda: sums(host, "short_groups") > 0, timeout=30)
    eventually(lambda: b"TOO_FEW_COPIES" in publish(host), timeout=30)
    type_next = Page("too-few-copies", 4)
    assert '"min_copies"' in type_next(host)
    type_next(host)
    eventually(lambda: publish(host) == b"OK", timeout=30)
    assert '"min_copies":1' in type_next(host)
    for other in others:
        other.type("systemctl start nsqd")
    eventually(lambda: sums(host, "missing") == 0, timeout=30)
    type_next(host)
    # On a busy machine, the restart takes longer than the lease, and another host takes over.
    eventually(lambda: sum(topic_depth(each) for each in hosts) >= 2, timeout=60)


def test_handing_over(hosts: list[Host]) -> None:
    """docs/runbooks/drain.md: other machines have the messages when nsqd exits."""
    host, *others = hosts
    host.web.create("orders", "billing")
    for number in range(20):
        assert host.web.post("/pub?topic=orders", b"%d" % number).status == 200
    assert host.web.put("/config/drain?hand_over=true", b"true").status == 200
    eventually(lambda: "all copied topics have been handed over" in host.log(), timeout=30)
    eventually(lambda: sum(depth(other) for other in others) == 20, timeout=30)


def test_a_hand_over_redelivers_nothing_that_was_finished(hosts: list[Host]) -> None:
    host, *others = hosts
    host.web.create("orders", "billing")
    bodies = b"\n".join(b"%d" % number for number in range(300))
    assert host.web.post("/mpub?topic=orders", bodies).status == 200
    with Conn(("127.0.0.1", host.tcp_port)) as consumer:
        consumer.sub("orders", "billing", 200)
        messages = consumer.messages(200)
        consumer.rdy(0)
        for message in messages:
            consumer.fin(message)
        consumer.barrier()
    eventually(lambda: depth(host) == 100)
    assert host.web.put("/config/drain?hand_over=true", b"true").status == 200
    eventually(lambda: "all copied topics have been handed over" in host.log(), timeout=30)
    eventually(lambda: sum(depth(other) for other in others) == 100, timeout=30)


def depth(host: Host) -> int:
    """Return the depth of the channel, which may not exist on the host."""
    topic = host.web.topic("orders")
    channels = topic["channels"] if topic is not None else []
    return sum(channel["depth"] for channel in channels)


def test_upgrades_in_place(hosts: list[Host], etcd: Etcd) -> None:
    """Up on all hosts and back on one, with connected clients; a worker is killed in between."""
    host = hosts[0]
    for each in hosts:
        file = each.path / "etc/nsqcy/nsqd.ini"
        endpoint = f"[nsqd]\netcd_endpoints = {etcd.members[0].client_url}\n"
        file.write_text(file.read_text().replace("[nsqd]\n", endpoint, 1))
    host.web.create("orders", "billing")
    with (
        Conn(("127.0.0.1", host.tcp_port)) as producer,
        Conn(("127.0.0.1", host.tcp_port)) as consumer,
    ):
        for conn in (producer, consumer):
            conn.negotiate(heartbeat_interval=60_000)
        consumer.sub("orders", "billing", 1)
        pages = [Page("upgrade-in-place", 6) for _ in hosts]
        for each, type_next in zip(hosts, pages, strict=True):
            assert "all groups have all of their copies" in type_next(each)
            type_next(each)
        for each, type_next in zip(hosts, pages, strict=True):
            assert type_next(each).splitlines()[-1].startswith("done: ")
            assert '"error":""' in type_next(each)
            assert each.web.get("/upgrade").json()["version"] == "0.2.0"
            assert "nsqcy 0.2.0" in each.type("nsqcy --version")
            producer.pub("orders", b"up")
            consumer.fin(consumer.message())
        assert pages[0](host).splitlines()[-1].startswith("done: ")
        assert host.web.get("/upgrade").json()["version"] == "0.1.0"
        assert '"under_way":false' in pages[0](host)
        producer.pub("orders", b"back")
        consumer.fin(consumer.message())
    (worker,) = workers(hosts[1])
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: workers(hosts[1]) not in ([worker], []), timeout=30)
    for _ in range(2):  # back, and verify
        pages[1](hosts[1])
    assert publish(hosts[1]) == b"OK"


def workers(host: Host) -> list[int]:
    """Return the process ids of a host's workers."""
    pid = int((host.path / "nsqd.pid").read_text())
    return [child.pid for child in psutil.Process(pid).children()]
