"""Queries and publishers before and after another nsqd takes over a topic, with real nsqds and
etcd, without a JVM."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from nsqcy.spark.errors import DataLoss, Unreachable
from nsqcy.storage.core import parse_journal
from nsqcy.storage.journal import replay, unpack_entries
from nsqcy.testing import Nsqd, Option
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn
from nsqcy.testing.wire_client import batch as packed
from support.etcd_process import Etcd, needs_etcd
from support.spark_engine import Checkpoint, Crash, Engine
from support.spark_sinks import write
from support.spark_sources import batch, rows, stream

pytestmark = [pytest.mark.ours, pytest.mark.slow, needs_etcd]

BUDGET = 60.0  # seconds until the cluster must have handled a failure
SHORT, LONG = "3s", "60s"  # leases: only the first nsqd's lease ends during a test

CONFIG = """\
[nsqd]
etcd_endpoints = {etcd}
copies_timeout = 3s
sync_timeout = 100ms
retention_time = 1h

[topic *]
copies = 2
"""


class Node(Nsqd):
    """An nsqd with copies, whose addresses stay the same when it is restarted."""

    def _defaults(self) -> dict[str, Option]:
        return super()._defaults() | {"copies_address": self._free_address()}

    @property
    def web(self) -> Web:
        return Web(int(self.http_address.rpartition(":")[2]))

    def connect(self) -> Conn:
        host, _, port = self.tcp_address.rpartition(":")
        return Conn((host, int(port)))

    def lacks(self, nodes: int) -> list[Any]:
        """Return the conditions that are not met until this node sees all the others, and its
        groups are complete."""
        try:
            (worker,) = self.web.get("/copies").json()["workers"]
        except (OSError, HTTPException, ValueError) as error:
            return [error]
        found: list[Any] = [] if worker["ready"] and worker["etcd"] else ["not ready"]
        if len(worker["sessions"]) != nodes:
            found.append(worker["sessions"])
        present = worker["sessions"]
        return found + [group for group in worker["groups"] if not is_complete(group, present)]


def is_complete(group: dict[str, Any], present: list[str]) -> bool:
    if group["closed"] or group["role"] == "new" or group["owner"] not in present:
        return False
    if group["role"] != "owner":
        return True
    has_all = len(group["members"]) == group["responding"] == group["copies"]
    return has_all and bool(group["accepts"]) and not group["waiting"]


def await_complete(nodes: list[Node]) -> None:
    """Wait until exactly these nodes run, all takeovers are over, and no copy is missing."""
    try:
        eventually(lambda: not any(node.lacks(len(nodes)) for node in nodes), BUDGET, interval=0.1)
    except AssertionError:
        lack = [node.lacks(len(nodes)) for node in nodes]
        raise AssertionError(f"the cluster is not complete: {lack}") from None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    config = tmp_path_factory.mktemp("copies") / "nsqd.ini"
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd())
        config.write_text(CONFIG.format(etcd=etcd.members[0].client_url))
        nodes = [Node(config=config, copies_lease=lease) for lease in (SHORT, LONG, LONG)]
        for node in nodes:
            stack.callback(node.close)
            node.start()
        yield nodes


@pytest.fixture
def nodes(cluster: list[Node]) -> list[Node]:
    """Three nsqds that replicate messages. The others take over from the first one soon after
    it has been killed."""
    for node in cluster:
        if not node.alive:
            node.start()
    await_complete(cluster)
    return cluster


def lose(nodes: list[Node]) -> None:
    """Kill the first nsqd, and wait until the others have taken over everything."""
    nodes[0].kill()
    await_complete(nodes[1:])


def given(nodes: list[Node], topic: str, **options: str) -> dict[str, str]:
    addresses = ",".join(node.tcp_address for node in nodes)
    return {"topic": topic, "nsqdTcpAddresses": addresses} | options


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in found)


# -- reading

READ = {0, 1, 2, 3, 4, 5}
"""Messages that the slow queries read before the takeover."""
UNSEEN = 10
"""The last message, published after the last trigger of every query."""
FINISHED = {0, 1, 2, 6, UNSEEN}
MOVED = [3, 4, 5, 7, 8, 9]
"""Messages that the channel still needs."""


def query(options: dict[str, str], checkpoint: Checkpoint, **more: str) -> Engine:
    given = {"startingOffsets": "earliest"} | options | more
    return Engine(lambda: stream(given, "nsqd", "log_id", "seq", "body"), checkpoint)


def finish(nodes: list[Node], topic: str) -> None:
    """Finish some messages; wait until the journals of both copies contain this."""
    with nodes[0].connect() as conn:
        for message in conn.sub(topic, "billing", rdy=20).messages(UNSEEN + 1):
            if int(message.body) in FINISHED:
                conn.fin(message)
        left = {number + 1 for number in MOVED}
        eventually(lambda: unfinished(nodes, topic) == [left, left], BUDGET)


def unfinished(nodes: list[Node], topic: str) -> list[set[int] | None]:
    """Return the seqs of unfinished messages in each copy's journal; None if the journal does not
    know of all deliveries."""
    found: list[set[int] | None] = []
    for node in nodes:
        for journal in Path(node.data_path).glob(f"copies/*/*/{topic}.topic/journal"):
            state = replay(parse_journal(journal.read_bytes())[0])
            (channel,) = state.channels if state is not None and state.channels else (None,)
            if channel is None or channel.cursor != UNSEEN + 2:
                found.append(None)
            else:
                found.append({entry.seq for entry in unpack_entries(channel.entries)})
    return found


def test_a_query_reads_moved_messages_as_new_rows(nodes: list[Node], topic: str) -> None:
    lost, *others = nodes
    everywhere, elsewhere = given(nodes, topic), given(others, topic)
    true, false = {"failOnDataLoss": "true"}, {"failOnDataLoss": "false"}
    slow = {"maxOffsetsPerTrigger": str(len(READ))}
    lost.web.create(topic, "billing")
    lost.web.mpub(topic, [b"%d" % number for number in range(UNSEEN)])
    strict, tolerant = (query(everywhere | slow, Checkpoint(), **each) for each in (true, false))
    for engine in (strict, tolerant):
        engine.trigger()
        assert set(numbers(engine.checkpoint.rows)) == READ
    complete = query(everywhere, Checkpoint())
    complete.run()
    assert numbers(complete.checkpoint.rows) == list(range(UNSEEN))
    planned = query(everywhere, Checkpoint())
    with pytest.raises(Crash):
        planned.trigger(crash="plan")
    planned.close()
    (old_log,) = {row["log_id"] for row in strict.checkpoint.rows}
    lost.web.pub(topic, b"%d" % UNSEEN)
    finish(nodes, topic)
    lose(nodes)

    # An nsqd that does not respond may come back, so queries continue with the others.
    moved = rows(batch(elsewhere))
    assert numbers(moved) == MOVED
    for engine in (strict, tolerant, complete):
        before = len(engine.checkpoint.rows)
        engine.run()
        new = engine.checkpoint.rows[before:]
        assert numbers(new) == MOVED
        assert {row["nsqd"] for row in new} <= {node.tcp_address for node in others}
        assert old_log not in {row["log_id"] for row in new}
    again = query(everywhere, copy.deepcopy(strict.checkpoint))
    again.run()
    assert again.checkpoint.rows == strict.checkpoint.rows
    again.close()
    # A query whose unfinished batch includes rows of the old log cannot restart.
    for each in (true, false):
        with pytest.raises(Unreachable, match=f"{old_log}.* cannot be read: .*; no answer from"):
            query(everywhere, planned.checkpoint, **each)

    # If its options no longer list the lost nsqd, a query treats the unread rows as lost.
    is_lost = f"rows are lost: topic '{topic}', log {old_log} is on none of"
    with pytest.raises(DataLoss, match=is_lost):
        query(elsewhere, copy.deepcopy(strict.checkpoint), **true).run()
    with pytest.raises(DataLoss, match=is_lost):
        query(elsewhere, copy.deepcopy(planned.checkpoint), **true)
    again = query(elsewhere, copy.deepcopy(tolerant.checkpoint), **false)
    again.run()
    assert again.checkpoint.rows == tolerant.checkpoint.rows
    again.close()
    again = query(elsewhere, planned.checkpoint, **false)
    again.run()
    assert numbers(again.checkpoint.rows) == MOVED
    again.close()

    # Once the nsqd is back, a running query also treats the rows as lost, because the log is new.
    lost.start()
    with pytest.raises(DataLoss, match=is_lost):
        eventually(strict.trigger, BUDGET)
    for engine in (tolerant, complete):
        eventually(engine.trigger, BUDGET)
    assert numbers(tolerant.checkpoint.rows) == sorted([*READ, *MOVED])
    # This query had read every row that it knew of, so it does not report the lost row.
    assert numbers(complete.checkpoint.rows) == sorted([*range(UNSEEN), *MOVED])
    for engine in (strict, tolerant, complete):
        engine.close()


# -- publishing

ROWS = [b"row %d" % number for number in range(100)]
CHUNK = [b"message %d" % number for number in range(10)]


def save(node: Node, topic: str) -> None:
    """Publish rows in several chunks, as a batch query with a fixed producer name does."""
    write(given([node], topic, producerId="job", batchBytes="200"), {"body": ROWS})


def send(node: Node, topic: str) -> None:
    with node.connect() as conn:
        conn.negotiate(topic_log=True)
        conn.send(f"LOG_PUB {topic} producer 1 0 1\n".encode(), packed(CHUNK))
        conn.expect_ok()


def published(nodes: list[Node], topic: str) -> Counter[bytes]:
    return Counter(row["body"] for row in rows(batch(given(nodes, topic))))


def times(count: int) -> Counter[bytes]:
    return Counter(dict.fromkeys([*ROWS, *CHUNK], count))


def test_a_chunk_is_published_twice_after_a_takeover(nodes: list[Node], topic: str) -> None:
    lost, other, _ = nodes
    for _ in range(2):
        save(lost, topic)
        send(lost, topic)
    assert published(nodes, topic) == times(1)
    lose(nodes)
    assert published(nodes[1:], topic) == times(1)
    send(other, topic)
    lost.start()
    await_complete(nodes)
    save(lost, topic)
    assert published(nodes, topic) == times(2)


def test_a_restart_within_the_lease_changes_nothing(nodes: list[Node], topic: str) -> None:
    node = nodes[1]
    save(node, topic)
    reader = query(given(nodes, topic), Checkpoint())
    reader.run()
    send(node, topic)
    (before,) = {row["log_id"] for row in reader.checkpoint.rows}
    node.kill()
    node.start()
    await_complete(nodes)
    save(node, topic)
    send(node, topic)
    eventually(reader.trigger, BUDGET)
    found = reader.checkpoint.rows
    assert Counter(row["body"] for row in found) == times(1)
    assert {row["log_id"] for row in found} == {before}
    reader.close()
