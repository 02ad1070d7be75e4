"""The core is killed after any number of file operations: acknowledged messages still exist.

NSQCY_RUNS=20 tries many more histories.
"""

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.io_faults import FaultyIoThread
from support.runs import runs, steps
from support.worker_core import MILLISECOND, RESPONSE, SECOND, Client, Core, Delivery, mpub

PROFILE = settings(max_examples=runs(40), stateful_step_count=steps(40))

CHANNELS = ["x", "y", "z"]
SIZES = [1, 30, 500, 6_000, 17_000, 200_000]
DELAYS = [1, 700, 5_000, 100_000]
STEPS = [1, 300, 1_000, 2_500, 11_000, 70_000]
JOURNAL_EVERY = 2000
LONG = 1000 * SECOND
FOREVER = 1 << 30
MANY = 500
pick = st.integers(0, 1000)
channel_names = st.sampled_from(CHANNELS)


class Consumer:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.held: list[Delivery] = []

    def receive(self, messages: list[Delivery]) -> None:
        """Hold messages; a message that timed out and was redelivered is held once."""
        again = {each.id for each in messages}
        self.held = [each for each in self.held if each.id not in again] + messages


class CrashMachine(RuleBasedStateMachine):
    """A single topic whose messages are on disk when they are acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="crash"))
        self.generation = 0
        self.number = 0
        self.attempted: dict[bytes, int] = {}  # the earliest due time
        self.owed: dict[str, set[bytes]] = {}  # accepted but not finished, by channel
        self.finished: dict[str, set[bytes]] = {}
        self.known: set[str] = set()  # channels in nsqd.dat
        self.young: set[str] = set()  # no message has been accepted since their creation
        self.deleted: set[str] = set()
        self.gone: set[str] = set()  # deleted, according to a journal
        self.emptied: dict[str, set[bytes]] = {}
        self.over: dict[str, set[bytes]] = {}  # finished or emptied, according to a journal
        self.consumers: dict[str, Consumer] = {}

    @initialize(
        budget=st.sampled_from([1 << 40, 300_000, 0]),
        file_bytes=st.sampled_from([100 << 20, 60_000]),
        durability=st.sampled_from(["memory", "os", "fsync"]),
        snapshot_budget=st.sampled_from([1, 4096]),
    )
    def begin(self, budget: int, file_bytes: int, durability: str, snapshot_budget: int) -> None:
        # Class memory keeps only overflowed messages, and the channels in nsqd.dat.
        self.keeps_channels = durability != "memory"
        self.settings: dict[str, Any] = {
            "mem_queue_size": 0 if durability == "memory" else 10000,
            "policies": Policies(TopicPolicy(durability)),
            "budget": budget,
            "snapshot_budget": snapshot_budget,
            "log_options": {
                "max_bytes_per_file": file_bytes,
                "sync_every": 2500,
                "sync_timeout": JOURNAL_EVERY * MILLISECOND,
            },
        }
        path = self.base / "0"
        path.mkdir()
        self.core = self.make(path)
        self.producer = self.core.client()
        self.core.create("t")
        self.create_channel("x")

    def make(self, path: Path, **at: int) -> Core:
        """Return a core without threads: the number of a call must not depend on timing."""
        io = FaultyIoThread(stepped=True)
        return Core(path, io=io, **at, **self.settings)

    # -- clients --

    def publish(self, bodies: list[bytes], delay: int = 0) -> None:
        due = self.core.wall + delay * MILLISECOND
        self.attempted.update(dict.fromkeys(bodies, due))
        if len(bodies) > 1:
            answer = self.producer.ask(mpub("t", bodies))
        else:
            answer = self.producer.publish("t", bodies[0], delay)
        if answer == (RESPONSE, b"OK"):
            for owed in self.owed.values():
                owed.update(bodies)
            if self.keeps_channels:
                for channel, emptied in self.emptied.items():
                    self.over[channel] |= emptied
                self.emptied.clear()
                self.young.clear()
                self.gone |= self.deleted
                self.deleted.clear()
        if self.producer.closed:
            self.producer = self.core.client()

    def body(self, size: int) -> bytes:
        self.number += 1
        return (b"%d:" % self.number).ljust(size, b".")

    @rule(size=st.sampled_from(SIZES), delay=st.sampled_from([0, *DELAYS]))
    def pub(self, size: int, delay: int) -> None:
        self.publish([self.body(size)], delay)

    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=8))
    def mpub(self, sizes: list[int]) -> None:
        self.publish([self.body(size) for size in sizes])

    @rule(size=st.sampled_from(SIZES[:4]))
    def mpub_many(self, size: int) -> None:
        self.publish([self.body(size) for _ in range(100)])

    @rule(channel=channel_names)
    def create_channel(self, channel: str) -> None:
        if channel not in self.owed:
            self.core.topic("t").channel(channel)
            self.young.add(channel)
            self.deleted.discard(channel)
            self.gone.discard(channel)
            self.owed[channel] = set()
            self.finished[channel] = set()
            self.over[channel] = set()

    @rule(channel=channel_names)
    def empty_channel(self, channel: str) -> None:
        """Removed messages do not reappear once another message has been published."""
        if channel in self.owed:
            self.core.topic("t").empty_channel(channel)
            self.emptied.setdefault(channel, set()).update(self.owed[channel])
            self.owed[channel].clear()
            if channel in self.consumers:
                self.consumers[channel].held.clear()

    @rule(channel=channel_names)
    def delete_channel(self, channel: str) -> None:
        if len(self.owed) > 1 and self.owed.pop(channel, None) is not None:
            self.core.topic("t").delete_channel(channel)
            self.consumers.pop(channel, None)
            self.emptied.pop(channel, None)
            self.known.discard(channel)
            self.young.discard(channel)
            self.deleted.add(channel)

    def consumer(self, channel: str) -> Consumer:
        if channel not in self.consumers:
            self.consumers[channel] = Consumer(self.core.client().subscribe("t", channel, MANY))
        return self.consumers[channel]

    @rule(channel=channel_names)
    def take(self, channel: str) -> None:
        if channel in self.owed:
            consumer = self.consumer(channel)
            self.core.settle()
            messages = consumer.client.messages()
            for message in messages:
                assert self.attempted[message.body] <= self.core.wall, f"{message} is early"
            consumer.receive(messages)

    def held(self, channel: str, at: int, count: int) -> list[Delivery]:
        """Remove and return some of the messages that the channel's consumer holds."""
        consumer = self.consumers.get(channel)
        if consumer is None or not consumer.held:
            return []
        at %= len(consumer.held)
        chosen = consumer.held[at : at + count]
        del consumer.held[at : at + count]
        return chosen

    @rule(channel=channel_names, at=pick, count=st.integers(1, MANY))
    def finish(self, channel: str, at: int, count: int) -> None:
        for message in self.held(channel, at, count):
            self.consumers[channel].client.finish(message.id)
            self.owed[channel].discard(message.body)
            self.finished[channel].add(message.body)

    @rule(channel=channel_names, at=pick, delay=st.sampled_from([0, *DELAYS]))
    def requeue(self, channel: str, at: int, delay: int) -> None:
        for message in self.held(channel, at, 3):
            self.consumers[channel].client.requeue(message.id, delay)

    def journalled(self) -> None:
        self.young.clear()
        for channel in self.owed:
            self.over[channel] |= self.finished[channel] | self.emptied.pop(channel, set())

    @rule(step=st.sampled_from(STEPS))
    def advance(self, step: int) -> None:
        self.core.advance(step * MILLISECOND)
        if step > JOURNAL_EVERY:
            self.journalled()
        for consumer in self.consumers.values():
            messages = consumer.client.messages()
            for message in messages:
                assert self.attempted[message.body] <= self.core.wall, f"{message} is early"
            consumer.receive(messages)

    # -- exits --

    def copy(self) -> Path:
        self.generation += 1
        path = self.base / str(self.generation)
        shutil.copytree(self.core.path, path)
        return path

    def started(self, path: Path) -> Core:
        core = self.make(path, now=9 * SECOND, wall=self.core.wall)
        names = self.known if self.keeps_channels else self.owed
        core.shard.load_topic(b"t", False, dict.fromkeys(names, False))
        core.settle()
        return core

    def restart(self, path: Path) -> None:
        core = self.started(path)
        self.core = core
        self.producer = core.client()
        self.consumers.clear()

    @rule(calls=st.integers(1, 12), step=st.sampled_from([0, *STEPS]), size=st.sampled_from(SIZES))
    def killed(self, calls: int, step: int, size: int) -> None:
        """Kill the process: from some file operation on, nothing reaches the disk."""
        self.core.io.fault("any", nth=calls, error=errno.ENOSPC, times=FOREVER)
        self.core.scheduler.now = self.core.now = self.core.now + step * MILLISECOND
        self.core.scheduler.wall = self.core.wall = self.core.wall + step * MILLISECOND
        self.publish([self.body(size)], 5000 if calls % 2 else 0)
        self.publish([self.body(size)])
        path = self.copy()
        # Changes that are not in a journal have not happened.
        self.emptied.clear()
        self.deleted.clear()
        for finished in self.finished.values():
            finished.clear()
        # Later actions of this process have no effect on the copy.
        self.core.io.clear_faults()
        self.core.close()
        self.restart(path)
        for channel in self.young - self.core.topic("t").channels.keys():
            self.young.remove(channel)
            del self.owed[channel]
        if not self.owed:
            self.create_channel("x")
        self.see()

    @rule()
    def exits(self) -> None:
        self.core.save()
        self.journalled()
        self.known = set(self.owed)
        self.deleted.clear()
        path = self.copy()
        shutil.rmtree(self.core.path)
        self.restart(path)
        self.see()

    def see(self) -> None:
        """Start a core from a copy; check that it finds every message that must be delivered, and
        no others."""
        probe = self.started(self.copy())
        found: dict[str, set[bytes]] = {}
        channels = probe.topic("t").channels.keys()
        assert not channels & self.gone
        for channel in channels | self.owed.keys():
            client = probe.client().subscribe("t", channel, MANY)
            found[channel] = set()
            for _ in range(200):
                probe.settle()
                messages = client.messages()
                for message in messages:
                    assert self.attempted[message.body] <= probe.wall, f"{message} is early"
                    client.finish(message.id)
                    found[channel].add(message.body)
                if not messages and probe.now > LONG:
                    break
                if not messages:
                    probe.advance(LONG)
        for channel, owed in self.owed.items():
            lost = owed - found[channel]
            assert not lost, f"{channel}: {sorted(body[:20] for body in lost)} of {len(owed)}"
            assert found[channel] <= self.attempted.keys()
            assert not found[channel] & self.over[channel], "finished or emptied long ago"
            counters = probe.counters("t", channel)
            assert (counters["depth"], counters["deferred_count"]) == (0, 0), counters
        # Class memory deletes files of finished or emptied messages before the journal shows it.
        missing = [line for line in probe.log.lines if "handed out are not on disk" in line]
        assert probe.log.lines == ([] if self.keeps_channels else missing)
        path = probe.path
        probe.save()
        assert probe.files() == []
        shutil.rmtree(path)

    def teardown(self) -> None:
        try:
            if hasattr(self, "core"):
                self.core.close()
        finally:
            shutil.rmtree(self.base)


@pytest.mark.parametrize("calls", range(1, 13))
def test_a_channel_emptied_right_before_a_checkpoint_stays_empty(calls: int) -> None:
    """Later records wait for the snapshot, although it would have been written anyway."""
    state = CrashMachine()
    try:
        state.begin(budget=1 << 40, file_bytes=100 << 20, durability="os", snapshot_budget=1)
        state.mpub([1])
        state.create_channel("y")
        state.take("x")
        state.empty_channel("x")
        state.killed(calls=calls, step=JOURNAL_EVERY + 500, size=1)
    finally:
        state.teardown()


TestCrashes = pytest.mark.slow(CrashMachine.TestCase)
TestCrashes.settings = settings(PROFILE, deadline=None, suppress_health_check=list(HealthCheck))
