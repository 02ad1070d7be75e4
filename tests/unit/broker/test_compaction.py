"""Stragglers: a few remaining messages do not prevent most memory and disk space from being
freed."""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsqcy.base.core import IdSource
from nsqcy.broker.core import Shard
from nsqcy.channels.core import SchedulerState
from nsqcy.config import loader
from nsqcy.nsqd.options import NSQD, resolve
from nsqcy.nsqd.worker.negotiate import negotiate
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import BytesTransport, Publisher
from nsqcy.storage.core import BlockPool, IoThread, MemoryRange
from support.worker_core import MEMFD

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
MESSAGES = 20_000
KEPT = 500  # one in 500 messages is deferred for an hour


class Lines(list[str]):
    """Log that records its lines."""

    def info(self, text: str, /, **fields: object) -> None:
        self.append(text)

    debug = warn = error = fatal = info


class Worker:
    """A worker's core on a data path, with its own clock."""

    def __init__(self, path: Path, now: int, mem_queue_size: int) -> None:
        options = resolve(loader.load(NSQD, ["--msg-timeout=1h", "--max-msg-timeout=2h"]))
        self.now = now
        self.pool = BlockPool(1 << 30, MemoryRange(memfd=MEMFD), MemoryRange(memfd=MEMFD))
        self.io = IoThread()
        self.lines = Lines()
        scheduler = SchedulerState(
            self.pool, mem_queue_size=mem_queue_size, max_msg_timeout=options.max_msg_timeout
        )
        self.shard = Shard(
            scheduler=scheduler,
            ids=IdSource(bytearray(8), 1),
            io=self.io,
            data_path=str(path),
            log_options={"max_bytes_per_file": 500_000},
            log=self.lines,
        )
        self.manager = SessionManager(
            shard=self.shard,
            mesh=None,
            index=0,
            options=options,
            negotiate=negotiate,
            ask_placement=lambda key: None,
            log=self.lines,
        )
        self.publisher = Publisher(self.manager)
        self.turn()

    def turn(self, passed: int = 0) -> None:
        """Run an event-loop iteration `passed` ns later, and process the completions of the
        disk."""
        self.now += passed
        self.manager.run_turn(self.now, self.now)
        self.io.drain_now()
        self.manager.run_turn(self.now, self.now)

    def close(self) -> None:
        self.shard.save()
        self.io.close()


def messages(received: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (id, number) for each message frame."""
    at = 0
    while at < len(received):
        size, kind = struct.unpack_from(">ii", received, at)
        if kind == 2:
            yield received[at + 18 : at + 34], int(received[at + 34 : at + 4 + size])
        at += 4 + size


def consume(worker: Worker) -> list[int]:
    """Consume everything; defer one message in KEPT and finish the rest. Return the deferred
    numbers."""
    client = BytesTransport(worker.manager)
    client.feed(b"  V2SUB t c\nRDY 2500\n")
    taken = 0
    deferred = []
    while taken < MESSAGES:
        worker.turn()
        answers = []
        for id, number in messages(client.sent()):
            taken += 1
            if number % KEPT == 0:
                deferred.append(number)
                answers.append(b"REQ %s 3600000\n" % id)
            else:
                answers.append(b"FIN %s\n" % id)
        client.feed(b"".join(answers))
    client.end()
    worker.turn()
    return deferred


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("t.topic/*"))


@pytest.mark.parametrize("lost", [False, True], ids=["sound journal", "lost journal"])
@pytest.mark.parametrize("mem_queue_size", [100, 1_000_000], ids=["disk", "memory"])
def test_few_deferred_messages_keep_little(tmp_path: Path, mem_queue_size: int, lost: bool) -> None:
    worker = Worker(tmp_path, 1000 * SECOND, mem_queue_size)
    worker.publisher.publish(b"t", [], 0, "memory", lambda error: None)
    worker.shard.topic(b"t").channel("c")
    outcomes: list[str | None] = []
    for first in range(0, MESSAGES, 200):
        bodies = [b"%0200d" % number for number in range(first, first + 200)]
        worker.publisher.publish(b"t", bodies, 0, "memory", outcomes.append)
        worker.turn()
    assert outcomes == [None] * (MESSAGES // 200)
    before = SimpleNamespace(memory=worker.pool.resident_bytes, disk=on_disk(tmp_path))
    assert before.memory > MESSAGES * 200

    deferred = consume(worker)
    for _ in range(20):
        worker.turn(passed=SECOND + 1)
    assert worker.pool.resident_bytes <= 2 * 262144
    # The segment that is being written and the journal remain.
    assert on_disk(tmp_path) <= 600_000
    assert before.disk == 0 or before.disk > MESSAGES * 200
    worker.close()

    if lost:
        (tmp_path / "t.topic" / "journal").unlink()
    again = Worker(tmp_path, worker.now, mem_queue_size)
    again.shard.load_topic(b"t", False, {"c": False})
    counters = again.shard.topic(b"t").channels["c"].counters()
    if lost:
        # Finished and deferred states are unknown, so everything that still exists is redelivered.
        assert counters["depth"] >= len(deferred)
    else:
        assert counters["deferred_count"] == len(deferred)
        again.turn(passed=HOUR)
    client = BytesTransport(again.manager)
    client.feed(b"  V2SUB t c\nRDY 2500\n")
    for _ in range(5):
        again.turn()
    found = sorted(number for _, number in messages(client.sent()))
    assert set(deferred) <= set(found) if lost else deferred == found
    again.close()
