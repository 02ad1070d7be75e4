"""Workers' reports to the master about themselves and their topics.

A report is one class: its fields are the sent data, and `run` is the master's action. Changes are
sent as notifications, in the order in which they were made; nsqd.dat is written soon afterwards.
`SaveNames` returns once nsqd.dat contains them. Workers import this module, so it imports no part
of the master.
"""

from typing import ClassVar

from nsqcy.nsqd.process_calls import Call, Result
from nsqcy.nsqd.process_messages.master_verbs import MasterSide

PLACE_TIMEOUT = 5.0
REPORT_TIMEOUT = 30.0
SAVE_TIMEOUT = 4.0  # seconds: the master writes and syncs nsqd.dat before it answers


class WorkerReport(Call[MasterSide, Result]):
    """A worker's message to the master."""

    timeout: ClassVar[float] = REPORT_TIMEOUT


class Up(WorkerReport[None]):
    """The worker has booted and can load topics."""

    worker: int

    def run(self, target: MasterSide) -> None:
        target.workers.on_up(self.worker)


class Restored(WorkerReport[None]):
    """The worker has restored everything that its predecessor has left in memory."""

    worker: int

    def run(self, target: MasterSide) -> None:
        target.memory.restored(self.worker)


class SuccessorWaits(WorkerReport[None]):
    """A successor has imported its modules, and waits for its predecessor to hand over."""

    worker: int

    def run(self, target: MasterSide) -> None:
        replacement = target.workers.replacements.get(self.worker)
        if replacement is not None:
            replacement.successor_waits()


class TakenOver(WorkerReport[None]):
    """A successor is the worker from now on."""

    worker: int

    def run(self, target: MasterSide) -> None:
        replacement = target.workers.replacements.get(self.worker)
        if replacement is not None:
            replacement.taken_over()


class HandedOver(WorkerReport[None]):
    """The worker has handed over to its successor, and stays as a pump."""

    worker: int

    def run(self, target: MasterSide) -> None:
        replacement = target.workers.replacements.get(self.worker)
        if replacement is not None:
            replacement.handed_over()


class Kept(WorkerReport[None]):
    """The worker has not handed over to its successor, and serves on."""

    worker: int
    reason: str

    def run(self, target: MasterSide) -> None:
        replacement = target.workers.replacements.get(self.worker)
        if replacement is not None:
            replacement.kept(self.reason)


class Place(WorkerReport[int]):
    """Return a topic's owner. If the topic is new, the master places it."""

    timeout: ClassVar[float] = PLACE_TIMEOUT
    topic: str

    def run(self, target: MasterSide) -> int:
        return target.topics.place(self.topic)


class TopicCreated(WorkerReport[None]):
    """Report that one of the worker's topics exists. is_held: answer with `Announced`, and with
    `EndHold`, which contains the topic's channels."""

    worker: int
    topic: str
    is_held: bool

    def run(self, target: MasterSide) -> None:
        changed = target.topics.topic_created(self.topic)
        if self.is_held:
            target.topics.introduce(self.worker, self.topic)
        if changed:
            target.topics.save_soon(self.topic)


class ChannelCreated(WorkerReport[None]):
    """Report that a channel exists in one of the worker's topics."""

    topic: str
    channel: str

    def run(self, target: MasterSide) -> None:
        if target.topics.channel_created(self.topic, self.channel):
            target.topics.save_soon(self.topic, self.channel)


class TopicDeleted(WorkerReport[None]):
    """A topic was deleted."""

    topic: str

    def run(self, target: MasterSide) -> None:
        if target.topics.topic_deleted(self.topic):
            target.topics.save_now(self.topic)


class ChannelDeleted(WorkerReport[None]):
    """A channel was deleted."""

    topic: str
    channel: str

    def run(self, target: MasterSide) -> None:
        if target.topics.channel_deleted(self.topic, self.channel):
            target.topics.save_now(self.topic, self.channel)


class PoliciesRecalled(WorkerReport[None]):
    """The journals of the worker's topics have policies that are missing from the saved
    policies."""

    def run(self, target: MasterSide) -> None:
        target.policies.recalled()


class TopicPaused(WorkerReport[None]):
    """A topic was paused or unpaused."""

    topic: str
    paused: bool

    def run(self, target: MasterSide) -> None:
        if target.topics.known_topics.pause_topic(self.topic, self.paused):
            target.topics.save_now(self.topic)


class ChannelPaused(WorkerReport[None]):
    """A channel was paused or unpaused."""

    topic: str
    channel: str
    paused: bool

    def run(self, target: MasterSide) -> None:
        if target.topics.known_topics.pause_channel(self.topic, self.channel, self.paused):
            target.topics.save_now(self.topic, self.channel)


class NotSaved(WorkerReport[None]):
    """The worker is exiting, and these messages are not on disk, by topic: see `Shard.unsaved`."""

    worker: int
    topics: dict[str, int]

    def run(self, target: MasterSide) -> None:
        target.workers.unsaved[self.worker] = self.topics


class SaveNames(WorkerReport[None]):
    """Return once nsqd.dat contains every change reported so far. Raises NotWritten."""

    timeout: ClassVar[float] = SAVE_TIMEOUT

    def run(self, target: MasterSide) -> None:
        target.topics.save()


class AwaitRegistration(WorkerReport[None]):
    """Return once nsqlookupds list every topic and channel reported so far, or do not answer."""

    def run(self, target: MasterSide) -> None:
        target.topics.await_registration()
