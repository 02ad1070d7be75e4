"""Publishing once, beside a slow model: any history of publishes, failures, restarts and kills.

NSQCY_RUNS=20 tries many more histories.
"""

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.server.core import Publisher
from nsqcy.storage.io_faults import FaultyIoThread
from nsqcy.testing.wire_client import sized
from support.runs import runs, steps
from support.worker_core import RESPONSE, SECOND, Core, mpub

PROFILE = settings(max_examples=runs(30), stateful_step_count=steps(40), deadline=None)

OK = (RESPONSE, b"OK")
WINDOW = 60 * SECOND
ids = st.one_of(st.none(), st.integers(0, 12))


class Model:
    """The ids that count: when each was last kept."""

    def __init__(self) -> None:
        self.window = WINDOW
        self.known: dict[int, int] = {}

    def counts(self, id: int, now: int) -> bool:
        return self.window > 0 and id in self.known and abs(now - self.known[id]) < self.window

    def publish(self, published: list[int | None], now: int) -> int:
        """Return how many messages are kept."""
        kept = 0
        for id in published:
            if id is not None and self.window:
                if self.counts(id, now):
                    continue
                self.known[id] = now
            kept += 1
        return kept


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="once"))
        self.lives = 0
        self.model = Model()

    @initialize(
        durability=st.sampled_from(["os", "fsync"]),
        file_bytes=st.sampled_from([100 << 20, 2000]),
        snapshot_budget=st.sampled_from([1, 4096]),
    )
    def begin(self, durability: str, file_bytes: int, snapshot_budget: int) -> None:
        self.durability = durability
        self.options: dict[str, Any] = {
            "snapshot_budget": snapshot_budget,
            "log_options": {
                "max_bytes_per_file": file_bytes,
                "sync_every": 2500,
                "sync_timeout": 2 * SECOND,
            },
        }
        path = self.base / "0"
        path.mkdir()
        self.core = self.make(path)
        self.core.create("t").channel("c")

    def make(self, path: Path, **at: int) -> Core:
        policies = Policies(self.policy())
        io = FaultyIoThread(stepped=True)
        return Core(path, io=io, policies=policies, **at, **self.options)

    def policy(self) -> TopicPolicy:
        return TopicPolicy(self.durability, dedup_window=self.model.window, dedup_id="json:/id")

    def topic(self) -> Any:
        return self.core.create("t")

    def counts(self) -> tuple[int, int]:
        counters = self.topic().counters()
        return counters["message_count"], counters.get("duplicates", 0)

    def expect(self, published: list[int | None], before: tuple[int, int]) -> None:
        kept = self.model.publish(published, self.core.wall)
        messages, duplicates = self.counts()
        assert messages - before[0] == kept
        assert duplicates - before[1] == len(published) - kept

    # -- publishes --

    @rule(id=ids, delay=st.sampled_from([0, 0, 1000, 30_000]))
    def pub(self, id: int | None, delay: int) -> None:
        before = self.counts()
        assert self.core.client().publish("t", body(id), delay) == OK
        self.expect([id], before)

    @rule(published=st.lists(ids, min_size=1, max_size=6))
    def mpub(self, published: list[int | None]) -> None:
        before = self.counts()
        assert self.core.client().ask(mpub("t", [body(id) for id in published])) == OK
        self.expect(published, before)

    @rule(published=st.lists(ids, min_size=1, max_size=3))
    def http(self, published: list[int | None]) -> None:
        before = self.counts()
        answers: list[str | None] = []
        bodies = [body(id) for id in published]
        Publisher(self.core.manager).publish(b"t", bodies, 0, "memory", answers.append)
        self.core.settle()
        assert answers == [None]
        self.expect(published, before)

    @rule(first=st.lists(ids, min_size=1, max_size=3), second=st.lists(ids, min_size=1, max_size=3))
    def two_at_once(self, first: list[int | None], second: list[int | None]) -> None:
        """The second publish arrives before the first is on disk."""
        before = self.counts()
        clients = [self.core.client(), self.core.client()]
        for client, published in zip(clients, (first, second), strict=True):
            client.send(mpub("t", [body(id) for id in published]))
        self.core.settle()
        assert [client.answer() for client in clients] == [OK, OK]
        self.expect(first + second, before)

    @rule(
        first=st.lists(ids, min_size=1, max_size=3),
        second=ids,
        call=st.sampled_from(["pwrite", "fdatasync"]),
    )
    def refused(self, first: list[int | None], second: int | None, call: str) -> None:
        """The disk fails; a publish that may repeat the first has the same outcome."""
        before = self.counts()
        counted = second is not None and self.model.counts(second, self.core.wall)
        self.core.io.fault(call, error=errno.EIO)
        clients = [self.core.client(), self.core.client()]
        clients[0].send(mpub("t", [body(id) for id in first]))
        clients[1].send(b"PUB t\n", sized(body(second)))
        self.core.settle()
        answers = [client.answer() for client in clients]
        self.core.io.clear_faults()
        accepted = [answer == OK for answer in answers]
        if counted:
            assert accepted[1]
        elif self.model.window and second is not None and second in first:
            assert accepted[0] == accepted[1]
        published = first * accepted[0] + [second] * accepted[1]
        kept = self.model.publish(published, self.core.wall)
        assert self.counts()[0] - before[0] == kept

    # -- everything else --

    @rule(seconds=st.sampled_from([1, 3, 10, 59, 60, 200]))
    def wait(self, seconds: int) -> None:
        self.core.advance(seconds * SECOND)

    @rule()
    def consume(self) -> None:
        client = self.core.client().subscribe("t", "c", 2500)
        self.core.settle()
        for message in client.messages():
            client.finish(message.id)
        client.send(b"CLS\n")
        self.core.settle()
        client.transport.end()

    @rule()
    def empty(self) -> None:
        self.topic().empty_channel("c")
        self.topic().empty()
        self.core.settle()

    @rule()
    def delete(self) -> None:
        self.core.shard.delete_topic(b"t")
        self.core.settle()
        self.core.create("t").channel("c")
        self.topic().set_policy(self.policy())
        self.model.known.clear()

    @rule(window=st.sampled_from([0, WINDOW]))
    def set_window(self, window: int) -> None:
        self.model.window = window
        self.topic().set_policy(self.policy())
        self.core.settle()
        if not window:
            self.model.known.clear()

    @rule(steps=st.integers(0, 30))
    def kill(self, steps: int) -> None:
        """A kill after any number of file operations."""
        for _ in range(steps):
            self.core.manager.run_turn(self.core.now, self.core.wall)
            self.core.io.step_now()
        self.lives += 1
        path = self.base / str(self.lives)
        shutil.copytree(self.core.path, path)
        at = {"now": self.core.now + SECOND, "wall": self.core.wall}
        self.core.close()
        self.restart(path, at)

    @rule()
    def exit(self) -> None:
        at = {"now": self.core.now + SECOND, "wall": self.core.wall}
        self.core.save()
        self.restart(self.core.path, at)

    def restart(self, path: Path, at: dict[str, int]) -> None:
        self.core = self.make(path, **at)
        self.core.load_all()
        self.core.create("t").channel("c")
        self.core.settle()

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.core.close()
        shutil.rmtree(self.base)


def body(id: int | None) -> bytes:
    return b"{}" if id is None else b'{"id":%d}' % id


TestOnce = Machine.TestCase
TestOnce.settings = settings(PROFILE, suppress_health_check=list(HealthCheck))
