"""Streams between processes, and requests to the registry: delayed, lost, cut, or blocked in one
direction."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from simulation.clock import Clock

if TYPE_CHECKING:
    from simulation.process import Process

REGISTRY = "registry"


class Stream:
    """A connection that the owner of a group has opened to a holder."""

    __slots__ = ("cut", "group_id", "holder", "last", "owner", "waiting")

    def __init__(self, owner: "Process", holder: "Process", group_id: str) -> None:
        self.owner = owner
        self.holder = holder
        self.group_id = group_id
        self.last = [0.0, 0.0]
        """Times at which the last messages arrive: at the holder, and at the owner."""
        self.waiting: list[list[Any]] = [[], []]
        """Messages in each direction that a partition is holding up."""
        self.cut = False


class Network:
    """Links between nodes; each link may be blocked in one direction."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.processes: dict[str, Process] = {}
        """The running process of each node."""
        self.streams: dict[Stream, None] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.latency = 0.002
        self.late = 0.0
        """Probability that a message or request takes much longer."""
        self.lost = 0.0
        """Probability that a request or its answer is lost."""

    def delay(self) -> float:
        random = self.random
        if self.late and random.random() < self.late:
            return random.uniform(0.1, 4.0)
        return random.expovariate(1 / self.latency)

    # -- streams

    def open(self, owner: "Process", node: str, group_id: str) -> None:
        self.clock.after(self.delay(), self._open, owner, node, group_id)

    def _open(self, owner: "Process", node: str, group_id: str) -> None:
        holder = self.processes.get(node)
        if not owner.is_running:
            return
        if (
            holder is None
            or (owner.node, node) in self.blocked
            or (node, owner.node) in self.blocked
        ):
            self.clock.after(self.delay(), owner.run, owner.open_failed, node, group_id)
            return
        stream = Stream(owner, holder, group_id)
        self.streams[stream] = None
        owner.run(owner.open_succeeded, stream)

    def send(self, stream: Stream, to_holder: bool, message: Any) -> None:
        direction = 0 if to_holder else 1
        if stream.cut:
            return
        source, target = (
            (stream.owner, stream.holder) if to_holder else (stream.holder, stream.owner)
        )
        if (source.node, target.node) in self.blocked or stream.waiting[direction]:
            stream.waiting[direction].append(message)
            return
        at = max(self.clock.now + self.delay(), stream.last[direction])
        stream.last[direction] = at
        self.clock.at(at, self._arrive, stream, to_holder, message)

    def _arrive(self, stream: Stream, to_holder: bool, message: Any) -> None:
        target = stream.holder if to_holder else stream.owner
        if not stream.cut:
            target.run(target.received, stream, to_holder, message)

    def cut(self, stream: Stream) -> None:
        """End a stream; each end is notified after its own delay."""
        if stream.cut:
            return
        stream.cut = True
        self.streams.pop(stream, None)
        self.clock.after(self.delay(), stream.owner.run, stream.owner.stream_ended, stream)
        self.clock.after(self.delay(), stream.holder.run, stream.holder.stream_ended, stream)

    def process_ended(self, process: "Process", *, silently: bool) -> None:
        """End a process's streams; after a loss of power, its peers detect nothing."""
        self.processes.pop(process.node, None)
        for stream in [each for each in self.streams if process in (each.owner, each.holder)]:
            if silently:
                stream.cut = True
                self.streams.pop(stream, None)
            else:
                self.cut(stream)

    # -- partitions

    def block(self, source: str, target: str) -> None:
        self.blocked.add((source, target))

    def heal(self) -> None:
        self.blocked.clear()
        for stream in list(self.streams):
            if not any(stream.waiting):
                continue
            if self.random.random() < 0.5:
                self.cut(stream)
                continue
            for direction in (0, 1):
                messages, stream.waiting[direction] = stream.waiting[direction], []
                for message in messages:
                    self.send(stream, direction == 0, message)

    # -- the registry

    def request(
        self, process: "Process", call: Callable[[], Any], answer: Callable[[Any], None] | None
    ) -> None:
        """Call the registry once, with a delay, or not at all; the answer may be lost in any
        case."""
        delay = self.delay()
        if self.lost and self.random.random() < self.lost:
            if self.random.random() < 0.5:
                return
            delay, answer = delay + self.random.uniform(0.0, 8.0), None
        self.clock.after(delay, self._call, process, call, answer)

    def _call(
        self, process: "Process", call: Callable[[], Any], answer: Callable[[Any], None] | None
    ) -> None:
        if (process.node, REGISTRY) in self.blocked or not process.registry.is_available:
            if self.random.random() < 0.5:
                delay = self.random.uniform(0.5, 8.0)
                self.clock.after(delay, self._call, process, call, None)
            return
        result = call()
        if answer is not None and (REGISTRY, process.node) not in self.blocked:
            self.clock.after(self.delay(), process.run, answer, result)
