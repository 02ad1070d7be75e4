"""Random programs for a core on a recorded disk, and the conditions that must hold after every cut.

A program publishes, consumes, creates, deletes, empties, pauses, waits, restarts and crashes. The
I/O thread's operations run one by one, so the set of answered commands is known for each moment.
Moments are counted in calls: moment n is when n calls have been made. A later cut does not
undo the effects of an answered command.
"""

import errno
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.core import scan_segment
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import walk
from support.recorded_disk import RecordedDisk
from support.worker_core import EPOCH, ERROR, RESPONSE, SECOND, Client, Core, Delivery, mpub

POLICIES = Policies(TopicPolicy(), [("f*", {"durability": "fsync"}), ("o*", {"durability": "os"})])
TOPICS = ["f0", "f0", "f1", "f2", "o0", "m0"]
CHANNELS = ["a", "b", "c"]
READY = 2500
LANES = ["writes", "awaited", "background"]
CHECKPOINT = 4 * SECOND  # longer than a journal may lag
SAFE_FLIGHT = 40 * SECOND  # shorter than a message's timeout
MAX_DEFERRED = 90 * SECOND


@dataclass(eq=False)
class Message:
    topic: str
    body: bytes
    sent: int
    due: int = 0  # wall-clock time of the earliest delivery
    acked: int | None = None
    dropped: int | None = None  # moment when the topic's own backlog was emptied
    given: int | None = None  # moment when a channel received the message
    # moment from which no channel may deliver the message, because of an answered deletion
    gone: int | None = None


@dataclass
class Known:
    """State of a message in a channel, according to a journal on disk."""

    moment: int
    finished: bool
    attempts: int
    due: int


@dataclass(eq=False)
class Owed:
    """Message that a channel must deliver."""

    since: int
    finished: int | None = None
    attempts: int = 0
    due: int = 0
    known: list[Known] = field(default_factory=list)


@dataclass(eq=False)
class Pause:
    """A request to pause or resume a channel."""

    paused: bool
    sent: int
    answered: int | None = None


@dataclass(eq=False)
class Group:
    """A channel, from its creation to its deletion."""

    topic: str
    name: str
    made: int
    number: int
    gone: int | None = None
    deleted: int | None = None  # moment when its deletion was answered
    emptied: int = -1
    # messages dropped by answered empty commands
    dropped: dict[bytes, int] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    owed: dict[bytes, Owed] = field(default_factory=dict)
    client: Client | None = None
    flight: list[tuple[Delivery, int]] = field(default_factory=list)  # deliveries and their times

    def is_there(self, moment: int) -> bool:
        return self.made <= moment and (self.gone is None or self.gone > moment)

    def is_deleted(self, moment: int) -> bool:
        """Return whether the deletion has been answered."""
        return self.deleted is not None and self.deleted <= moment

    def last_pause(self, moment: int) -> Pause | None:
        return next((each for each in reversed(self.pauses) if each.sent <= moment), None)


class Program:
    """A core, the commands that it received, and its answers."""

    policies = POLICIES

    def __init__(self, path: Path, seed: int, *, big: bool = False, faults: bool = False) -> None:
        self.chance = Random(seed)
        self.path = path
        self.big = big
        self.faults = faults
        self.messages: dict[bytes, Message] = {}
        self.groups: list[Group] = []
        self.waiting: dict[str, list[list[Message]]] = {}
        self.publishers: dict[str, Client] = {}
        self.base = 0  # the moment at which the current record begins
        self.noted: dict[str, dict[str, bool]] = {}  # the metadata ...
        self.noted_at = 0  # ... at this moment
        self.generations = 0
        self.lives = 0
        self.saved = False  # whether there was a clean exit
        self.log_options = {
            "max_bytes_per_file": 300_000 if big else self.chance.choice([400, 2000, 9000]),
            "sync_every": 2500,
            "sync_timeout": 2 * SECOND,
        }
        self.names: dict[tuple[bytes, int], bytes] = {}  # body of each acknowledged log_id and seq
        self.memory = self.chance.choice([0, 3, 10000])
        self.start(self.folder())

    # ---- the core ----

    def folder(self) -> Path:
        self.generations += 1
        return self.path / f"data{self.generations}"

    def start(self, folder: Path, wall: int = EPOCH) -> None:
        folder.mkdir(exist_ok=True)
        self.disk = RecordedDisk(folder)
        self.core = self.load(folder, self.noted, wall)

    def load(self, folder: Path, metadata: dict[str, dict[str, bool]], wall: int) -> Core:
        """Return a core that has loaded the content of a directory, at a random monotonic time."""
        io = FaultyIoThread(stepped=True)
        io.record()
        assert io.open_file_system(str(folder))
        core = Core(
            folder,
            io=io,
            wall=wall,
            now=self.chance.randrange(1, 5000) * SECOND,
            policies=self.policies,
            mem_queue_size=self.memory,
            log_options=self.log_options,
        )
        shares_from = self.chance.choice([0, 1, 5])  # an exit syncs many files at once
        core.shard.shares_syncs_from = lambda: shares_from
        if self.faults and self.chance.random() < 0.5:
            self.break_reads(io, ["pread", "fstat"])
        for each in sorted(folder.glob("*.topic")):
            name = each.name.removesuffix(".topic")
            core.shard.load_or_wait(name.encode(), False, metadata.get(name, {}))
        while core.shard.unreadable():
            core.advance(6 * SECOND)
        io.clear_faults()
        for name in metadata.keys() - {key.decode() for key in core.shard.topics}:
            core.shard.load_topic(name.encode(), False, metadata[name])
        return core

    @property
    def now(self) -> int:
        return self.base + len(self.disk.calls)

    def step(self) -> bool:
        """Run one operation of the I/O thread and process its effects; return whether work
        remains."""
        core = self.core
        core.manager.run_turn(core.now, core.wall)
        done = any(core.io.step_now(lane) for lane in self.chance.sample(LANES, len(LANES)))
        self.disk.take(core.io.recorded())
        core.io.poll_now()
        due = core.manager.run_turn(core.now, core.wall)
        self.look()
        return done or due <= core.now

    def settle(self) -> None:
        for _ in range(5000):
            if not self.step() and not self.core.io.outstanding:
                return
        raise AssertionError("the core does not become idle")

    def look(self) -> None:
        for topic, client in list(self.publishers.items()):
            while self.waiting[topic] and (answer := client.answer()):
                if answer[0] == ERROR:
                    # Earlier unanswered publishes may or may not have been stored.
                    self.waiting[topic] = []
                    del self.publishers[topic]
                    break
                assert answer == (RESPONSE, b"OK")
                self.acknowledged(self.waiting[topic].pop(0))
        for group in self.alive():
            if group.client is not None:
                for delivery in group.client.messages():
                    self.delivered(group, delivery)

    def acknowledged(self, batch: list[Message]) -> None:
        for message in batch:
            message.acked = self.now
            for group in self.groups:
                # Part of a batch may reach a channel that is deleted before the rest is written.
                if group.topic == message.topic and group.is_there(message.sent):
                    message.given = self.now
            for group in self.alive(message.topic):
                message.given = self.now
                if group.made <= message.sent and group.emptied < message.sent:
                    group.owed[message.body] = Owed(self.now)

    def delivered(self, group: Group, delivery: Delivery) -> None:
        message = self.messages[delivery.body]
        assert message.topic == group.topic
        assert self.core.wall >= message.due
        owed = group.owed.get(delivery.body)
        if owed is not None:
            judge(owed, delivery, self.core.wall, self.now)
            owed.attempts = delivery.attempts
            owed.due = 0
        group.flight.append((delivery, self.core.now))

    def alive(self, topic: str | None = None) -> list[Group]:
        return [g for g in self.groups if g.gone is None and topic in (None, g.topic)]

    # ---- actions of a program ----

    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        """Return the possible actions with their weights."""
        return [
            (self.publish, 30),
            (self.consume, 14),
            (self.finish, 14),
            (self.requeue, 6),
            (self.create_channel, 8),
            (self.delete_channel, 2),
            (self.empty_channel, 1),
            (self.empty_topic, 1),
            (self.delete_topic, 1),
            (self.pause, 1),
            (self.pause_channel, 2),
            (self.advance, 7),
            (self.restart, 2),
            (self.crash, 2),
            (self.break_disk, 4 if self.faults else 0),
        ]

    def run(self, actions: int) -> None:
        kinds = self.kinds()
        if self.big:
            self.leave_few()
        for _ in range(actions):
            (act,) = self.chance.choices([k for k, _ in kinds], [w for _, w in kinds])
            act()
            if self.chance.random() < 0.4:
                self.settle()
            else:
                for _ in range(self.chance.choice([0, 1, 1, 2, 3, 5])):
                    self.step()

    def leave_few(self) -> None:
        """Publish large messages and finish most of them, so the rest is worth a compaction."""
        self.make_group("f0", "a")
        for _ in range(self.chance.choice([20, 30])):
            self.publish()
        self.settle()
        self.consume()
        self.finish()
        self.advance()

    def body(self, topic: str) -> bytes:
        size = self.chance.choice([0, 0, 5, 80, 700]) if not self.big else 30_000
        return b"%s/%d/" % (topic.encode(), len(self.messages)) + b"." * size

    def publish(self) -> None:
        topic = self.chance.choice(TOPICS if not self.big else TOPICS[:1])
        client = self.publishers.get(topic)
        if client is None:
            client = self.publishers[topic] = self.core.client()
            self.waiting[topic] = []
        kind = self.chance.choice(["PUB", "PUB", "DPUB", "MPUB"]) if not self.big else "MPUB"
        count = 1 if kind != "MPUB" else self.chance.choice([60, 3] if self.big else [2, 5, 30])
        delay = self.chance.choice([1, 700, 5000, 60_000]) if kind == "DPUB" else 0
        batch = []
        for _ in range(count):
            body = self.body(topic)
            due = self.core.wall + delay * 1_000_000 if delay else 0
            batch.append(Message(topic, body, self.now, due))
            self.messages[body] = batch[-1]
        self.waiting[topic].append(batch)
        if kind == "MPUB":
            client.send(mpub(topic, [each.body for each in batch]))
        else:
            argument = f" {delay}" if delay else ""
            size = struct.pack(">i", len(batch[0].body))
            client.send(f"{kind} {topic}{argument}\n".encode(), size, batch[0].body)

    def create_channel(self) -> None:
        topic = self.chance.choice(TOPICS if not self.big else TOPICS[:1])
        name = self.chance.choice(CHANNELS)
        if all(group.name != name for group in self.alive(topic)):
            self.make_group(topic, name)

    def make_group(self, topic: str, name: str) -> None:
        first = not self.alive(topic)
        self.core.create(topic).channel(name)
        group = Group(topic, name, self.now, len(self.groups))
        self.groups.append(group)
        for message in self.messages.values():
            if (
                first
                and message.topic == topic
                and message.acked is not None
                and message.dropped is None
                and message.given is None
            ):
                message.given = self.now
                group.owed[message.body] = Owed(self.now)

    def some_group(self) -> Group | None:
        return self.chance.choice(self.alive() or [None])

    def consume(self) -> None:
        group = self.some_group()
        if group is None:
            return
        if group.client is None:
            group.client = self.core.client().subscribe(group.topic, group.name)
        group.client.ready(READY if self.big else self.chance.choice([1, 3, 50]))
        self.settle()
        group.client.ready(0)
        self.look()

    def held(self, group: Group | None) -> list[Delivery]:
        """Return messages in flight that will not time out soon, and forget them."""
        if group is None:
            return []
        recent = [each for each in group.flight if self.core.now - each[1] < SAFE_FLIGHT]
        group.flight = recent
        chosen = [each for each in recent if self.chance.random() < (0.9 if self.big else 0.5)]
        group.flight = [each for each in recent if each not in chosen]
        return [delivery for delivery, _ in chosen]

    def finish(self) -> None:
        group = self.some_group()
        for delivery in self.held(group):
            assert group is not None and group.client is not None
            group.client.finish(delivery.id)
            if delivery.body in group.owed:
                self.done(group.owed[delivery.body])

    def requeue(self) -> None:
        group = self.some_group()
        for delivery in self.held(group):
            assert group is not None and group.client is not None
            delay = self.chance.choice([0, 0, 1000, 60_000])
            group.client.requeue(delivery.id, delay)
            if delivery.body in group.owed and delay:
                group.owed[delivery.body].due = self.core.wall + delay * 1_000_000

    def answered(self, note: Callable[[], None]) -> Callable[[str | None], None]:
        """Return a callback that calls `note` if the command succeeds before the next end of this
        process."""
        life = self.lives

        def done(reason: str | None) -> None:
            if reason is None and life == self.lives:
                note()

        return done

    def delete_channel(self) -> None:
        group = self.some_group()
        if group is not None:
            done = self.answered(lambda: self.deleted([group]))
            self.core.topic(group.topic).delete_channel(group.name, done)
            group.gone = self.now

    def deleted(self, groups: list[Group]) -> None:
        for group in groups:
            group.deleted = self.now

    def delete_topic(self) -> None:
        topic = self.chance.choice(TOPICS)
        groups = self.alive(topic)
        messages = [each for each in self.messages.values() if each.topic == topic]
        acked = [each for each in messages if each.acked is not None]
        for group in groups:
            group.gone = self.now

        def note() -> None:
            self.deleted(groups)
            self.forbid(acked)

        self.core.shard.delete_topic(topic.encode(), self.answered(note))
        for message in messages:
            self.drop(message)
        self.publishers.pop(topic, None)
        self.waiting.pop(topic, None)

    def forbid(self, messages: list[Message]) -> None:
        for message in messages:
            message.gone = self.now

    def empty_channel(self) -> None:
        group = self.some_group()
        if group is not None:
            paused = self.core.topic(group.topic).paused
            bodies = [] if paused else list(group.owed)

            def note() -> None:
                group.dropped |= dict.fromkeys(bodies, self.now)

            self.core.topic(group.topic).empty_channel(group.name, self.answered(note))
            group.emptied = self.now
            group.flight = []
            if self.core.topic(group.topic).paused:
                group.owed.clear()  # the program cannot know which of them the channel had received
            for owed in group.owed.values():
                self.done(owed)

    def empty_topic(self) -> None:
        topic = self.core.topic(self.chance.choice(TOPICS))
        if topic is None:
            return
        messages = [
            each
            for each in self.messages.values()
            if each.topic == topic.name and each.given is None
        ]
        acked = [each for each in messages if each.acked is not None and each.dropped is None]
        topic.empty(self.answered(lambda: self.forbid(acked)))
        for message in messages:
            self.drop(message)
        if topic.paused:
            for group in self.alive(topic.name):
                group.owed.clear()

    def drop(self, message: Message) -> None:
        if message.dropped is None:
            message.dropped = self.now

    def done(self, owed: Owed) -> None:
        if owed.finished is None:
            owed.finished = self.now

    def pause(self) -> None:
        topic = self.core.topic(self.chance.choice(TOPICS))
        if topic is not None:
            topic.pause(not topic.paused)

    def pause_channel(self) -> None:
        group = self.some_group()
        if group is not None:
            pause = Pause(not self.core.topic(group.topic).channels[group.name].paused, self.now)
            group.pauses.append(pause)

            def note() -> None:
                pause.answered = self.now

            self.core.topic(group.topic).pause_channel(
                group.name, pause.paused, self.answered(note)
            )

    def advance(self) -> None:
        ns = self.chance.choice([1, 1000, CHECKPOINT // 1_000_000, 70_000]) * 1_000_000
        self.core.now += ns
        self.core.wall += ns
        if ns >= CHECKPOINT:
            self.settle()
            self.core.now += SECOND
            self.core.wall += SECOND
            self.settle()
            if self.core.shard.host.health == "OK" and not self.faults:
                self.checkpoint()
        else:
            self.core.manager.run_turn(self.core.now, self.core.wall)  # deliver at the current time

    def checkpoint(self) -> None:
        """Record the state that the journals on disk now contain."""
        for group in self.alive():
            for owed in group.owed.values():
                due = owed.due if owed.due > self.core.wall else 0
                finished = owed.finished is not None
                owed.known.append(Known(self.now, finished, owed.attempts, due))

    def break_reads(self, io: FaultyIoThread, calls: list[str]) -> None:
        """Make reads fail for a while."""
        call = self.chance.choice(calls)
        errors = [errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE]
        nth, times = self.chance.randint(1, 6), self.chance.choice([1, 3, 10])
        if call == "pread" and self.chance.random() < 0.2:
            io.fault(call, nth, short=0, times=times)
        else:
            io.fault(call, nth, self.chance.choice(errors), times=times)

    def break_disk(self) -> None:
        """Make the disk fail for a while. Nothing that is already on it is lost."""
        call = self.chance.choice(["pwrite", "fdatasync", "fsync", "rename", "open", "pread"])
        error = self.chance.choice([errno.EIO, errno.ENOSPC])
        if call in ("open", "pread"):
            self.break_reads(self.core.io, [call])
            return
        self.core.io.fault(call, self.chance.randint(1, 4), error, times=self.chance.choice([1, 3]))

    # ---- ends and starts ----

    def restart(self) -> None:
        self.settle()
        self.core.io.clear_faults()
        self.disconnect()
        self.lives += 1
        self.saved = True
        self.core.save()
        self.disk.take(self.core.io.recorded())
        self.begin(self.disk.root, keep=True)
        self.checkpoint()

    def crash(self) -> None:
        """Lose power, or kill all processes."""
        self.lives += 1
        folder = self.folder()
        before = self.disk
        power = self.chance.random() < 0.5
        if power:
            before.lose_power(len(before.calls), folder, self.chance)
        else:
            before.kill(len(before.calls), folder)
        self.name_messages(folder, self.now)
        self.forget("om" if power else "m")
        self.go_back()
        self.disconnect()
        self.core.io.clear_faults()
        self.core.close()
        shutil.rmtree(before.root)
        self.begin(folder, keep=not power)

    def forget(self, classes: str) -> None:
        """Drop all expectations for topics with these durability classes."""
        for message in self.messages.values():
            if message.topic[0] in classes:
                self.drop(message)
                message.gone = None
        for group in self.groups:
            if group.topic[0] in classes:
                group.owed.clear()
                group.dropped.clear()
                group.pauses.clear()
                group.deleted = None

    def go_back(self) -> None:
        """Drop expectations about changes since the last journal on disk: they may or may not
        survive."""
        for group in self.groups:
            for body, owed in list(group.owed.items()):
                last = owed.known[-1] if owed.known else Known(0, False, 0, 0)
                if owed.finished is not None and not last.finished:
                    del group.owed[body]
                owed.attempts, owed.due = last.attempts, last.due

    def disconnect(self) -> None:
        """Forget all connections: unanswered commands may or may not have been executed."""
        self.waiting.clear()
        self.publishers.clear()
        for group in self.groups:
            group.client = None
            group.flight = []

    def begin(self, folder: Path, keep: bool) -> None:
        self.noted, self.noted_at = self.metadata(self.now), self.now
        calls, before = self.disk.calls, self.disk.before
        self.start(folder, self.core.wall + self.chance.choice([0, 1, 30]) * SECOND)
        if keep:
            self.disk.calls, self.disk.before = calls, before
        else:
            self.base += len(calls) + 1
        self.settle()
        problems(self.core)
        for topic in self.core.shard.topics.values():
            # A deletion may be lost if it was not answered.
            for name in list(topic.channels):
                if all(group.name != name for group in self.alive(topic.name)):
                    assert not self.is_deleted(topic.name, name, self.now), (topic.name, name)
                    topic.delete_channel(name)
        for group in self.alive():
            self.core.create(group.topic).channel(group.name)
        self.settle()

    def last_group(self, topic: str, name: str, moment: int) -> Group | None:
        """Return the last channel of that name."""
        for group in reversed(self.groups):
            if (group.topic, group.name) == (topic, name) and group.made <= moment:
                return group
        return None

    def is_deleted(self, topic: str, name: str, moment: int) -> bool:
        """Return whether the deletion of the last channel of that name has been answered."""
        group = self.last_group(topic, name, moment)
        return group is not None and group.is_deleted(moment)

    def metadata(self, moment: int) -> dict[str, dict[str, bool]]:
        """Return the channels at that moment, and whether they are paused."""
        found: dict[str, dict[str, bool]] = {}
        for group in self.groups:
            if group.is_there(moment):
                pause = group.last_pause(moment)
                found.setdefault(group.topic, {})[group.name] = pause is not None and pause.paused
        return found

    def corrected(
        self, noted: dict[str, dict[str, bool]], moment: int
    ) -> dict[str, dict[str, bool]]:
        """Return earlier metadata with the changes that have been answered since."""
        found = {
            topic: {
                name: paused
                for name, paused in channels.items()
                if not self.is_deleted(topic, name, moment)
            }
            for topic, channels in noted.items()
        }
        for group in self.groups:
            pause = group.last_pause(moment)
            if (
                pause is not None
                and pause.answered is not None
                and pause.answered <= moment
                and group.name in found.get(group.topic, {})
            ):
                found[group.topic][group.name] = pause.paused
        return {topic: channels for topic, channels in found.items() if channels}

    def close(self) -> None:
        self.core.io.clear_faults()
        self.core.close()
        shutil.rmtree(self.disk.root)

    # ---- conditions after a cut ----

    def image_after(self, cut: int, *, power: bool) -> Path:
        """Return the disk's content after the first `cut` calls of the record, followed by a power
        loss or a kill."""
        image = self.path / "image"
        if power:
            self.disk.lose_power(cut, image, self.chance)
        else:
            self.disk.kill(cut, image, self.chance)
        return image

    def check(self, cut: int, classes: str, *, power: bool) -> None:
        """Check the conditions after a start from the state after `cut` calls (see image_after)."""
        image = self.image_after(cut, power=power)
        moment = self.base + cut
        self.name_messages(image, moment)
        now = self.metadata(moment)
        # Metadata noted after that moment did not exist yet.
        noted = self.corrected(self.noted, moment) if self.noted_at <= moment else now
        # The journals also contain the channels, but a clean exit removes those of empty topics.
        metadata = self.chance.choice([noted, now] if self.saved else [noted, now, {}])
        core = self.load(image, metadata, self.core.wall + self.chance.choice([0, 30]) * SECOND)
        core.settle()
        problems(core)
        try:
            Checked(self, core, moment, classes, metadata).run()
            core.close()
        finally:
            shutil.rmtree(image)

    def name_messages(self, folder: Path, moment: int) -> None:
        """Check that a log_id and a seq always identify the same message."""
        for path in folder.glob("f*.topic/*.seg"):
            data = path.read_bytes()
            for _, _, _, _, at, size in scan_segment(data)[0]:
                for one in walk(data[at : at + size]):
                    acked = self.messages[one.message.body].acked
                    if acked is not None and acked <= moment:
                        name = (data[16:32], one.message.seq)
                        assert self.names.setdefault(name, one.message.body) == one.message.body


class Checked:
    """A core started after a cut, and the messages that it delivers."""

    def __init__(
        self,
        program: Program,
        core: Core,
        moment: int,
        classes: str,
        metadata: dict[str, dict[str, bool]],
    ) -> None:
        self.program = program
        self.core = core
        self.moment = moment
        self.classes = classes
        self.metadata = metadata
        self.got: dict[tuple[str, str], dict[bytes, Delivery]] = {}
        self.clients: dict[tuple[str, str], Client] = {}

    def run(self) -> None:
        self.no_deleted_channel_is_back()
        self.no_pause_is_undone()
        for group in self.groups():
            self.core.create(group.topic).channel(group.name)
        for topic in {each.topic for each in self.program.messages.values()}:
            if not self.core.create(topic).channels:
                self.core.create(topic).channel("late")
        for topic in list(self.core.shard.topics.values()):
            topic.pause(False)
            for name in topic.channels:
                topic.pause_channel(name, False)
                self.clients[topic.name, name] = self.core.client().subscribe(topic.name, name)
                self.got[topic.name, name] = {}
        self.deliver()
        self.nothing_is_lost()
        self.nothing_dropped_is_back()
        self.nothing_is_left()

    def groups(self) -> list[Group]:
        return [group for group in self.program.groups if group.is_there(self.moment)]

    def promised(self, topic: str) -> bool:
        return topic[0] in self.classes

    def acknowledged(self, message: Message) -> bool:
        return message.acked is not None and message.acked <= self.moment

    def no_deleted_channel_is_back(self) -> None:
        """Check that a deleted channel does not return once its deletion was answered, or a later
        publish was acknowledged."""
        for topic in self.core.shard.topics.values():
            for name in topic.channels:
                assert not self.promised(topic.name) or not self.program.is_deleted(
                    topic.name, name, self.moment
                ), f"{topic.name}/{name} is back"
        there = {(group.topic, group.name) for group in self.groups()}
        for group in self.program.groups:
            topic = self.core.topic(group.topic)
            if (
                group.gone is None
                or group.gone > self.moment
                or not self.promised(group.topic)
                or (group.topic, group.name) in there
                or group is not self.program.last_group(group.topic, group.name, self.moment)
                or group.name in self.metadata.get(group.topic, {})
                or topic is None
            ):
                continue
            followed = any(
                message.topic == group.topic
                and message.sent >= group.gone
                and self.acknowledged(message)
                and message.dropped is None
                for message in self.program.messages.values()
            )
            assert not (followed and group.name in topic.channels), group

    def no_pause_is_undone(self) -> None:
        for group in self.groups():
            topic = self.core.topic(group.topic)
            pause = group.last_pause(self.moment)
            if (
                self.promised(group.topic)
                and pause is not None
                and pause.answered is not None
                and pause.answered <= self.moment
            ):
                assert topic is not None and group.name in topic.channels, group
                assert topic.channels[group.name].paused == pause.paused, group

    def nothing_dropped_is_back(self) -> None:
        """Check that messages dropped by an answered command are not delivered."""
        for (topic, name), bodies in self.got.items():
            if not self.promised(topic):
                continue
            for body in bodies:
                gone = self.program.messages[body].gone
                assert gone is None or gone > self.moment, f"{topic} got {body[:20]!r} back"
                for group in self.groups():
                    if (group.topic, group.name) == (topic, name):
                        assert group.dropped.get(body, self.moment + 1) > self.moment, (
                            f"{topic}/{name} got {body[:20]!r} back"
                        )

    def deliver(self) -> None:
        for client in self.clients.values():
            client.ready(READY)
        self.core.settle()
        for _ in range(2 + MAX_DEFERRED // (5 * SECOND)):
            while self.collect():
                self.core.settle()
            self.core.advance(5 * SECOND)
        while self.collect():
            self.core.settle()

    def collect(self) -> bool:
        some = False
        for (topic, name), client in self.clients.items():
            for delivery in client.messages():
                some = True
                message = self.program.messages[delivery.body]
                assert message.topic == topic
                assert self.core.wall >= message.due, "delivered before its due time"
                assert delivery.attempts >= 1
                self.got[topic, name].setdefault(delivery.body, delivery)
                client.finish(delivery.id)
                self.judge(topic, name, delivery)
        return some

    def judge(self, topic: str, name: str, delivery: Delivery) -> None:
        for group in self.groups():
            if (group.topic, group.name) == (topic, name) and self.promised(topic):
                owed = group.owed.get(delivery.body)
                if owed is not None:
                    judge(owed, delivery, self.core.wall, self.moment)

    def nothing_is_lost(self) -> None:
        for group in self.groups():
            if not self.promised(group.topic):
                continue
            for body, owed in group.owed.items():
                if owed.since > self.moment:
                    continue
                if owed.finished is None or owed.finished > self.moment:
                    got = self.got[group.topic, group.name]
                    assert body in got, f"{group.topic}/{group.name} lost {body[:20]!r}"
        for message in self.program.messages.values():
            if (
                self.promised(message.topic)
                and self.acknowledged(message)
                and (message.dropped is None or message.dropped > self.moment)
                and (message.given is None or message.given > self.moment)
            ):
                assert any(
                    message.body in bodies
                    for (topic, _), bodies in self.got.items()
                    if topic == message.topic
                ), f"{message.topic} lost {message.body[:20]!r}"

    def nothing_is_left(self) -> None:
        for topic, name in self.clients:
            shown = self.core.counters(topic, name)
            held = [shown[key] for key in ("depth", "in_flight_count", "deferred_count")]
            assert held == [0, 0, 0], (topic, name, held)


def judge(owed: Owed, delivery: Delivery, wall: int, moment: int) -> None:
    """Check that a delivery continues from the state of the last journal on disk."""
    known = [each for each in owed.known if each.moment <= moment]
    if known:
        last = known[-1]
        assert not last.finished, f"delivered after a FIN: {delivery}"
        assert delivery.attempts > last.attempts, f"too few attempts: {delivery}"
        assert wall >= last.due, f"delivered before its requeue delay has passed: {delivery}"


def problems(core: Core) -> None:
    """Check that the log reports only damage (`FILE at OFFSET: what`), messages that are not on
    disk, and reads that failed for a while."""
    for line in core.log.lines:
        if line.startswith("TOPIC(") and (" cannot read " in line or " reads succeed " in line):
            continue
        if line.startswith("TOPIC(") and " are not on disk: " in line:
            continue
        assert ".topic/" in line and " at " in line, line


def run_all(run: Callable[..., None], path: Path, numbers: range, **kind: bool) -> None:
    """Call `run` for each of these numbers, with separate directories; a failure shows the
    program."""
    for number in numbers:
        try:
            run(path / "-".join([str(number), *kind]), number, **kind)
        except BaseException as error:
            error.add_note(f"program {number} {kind}")
            raise
