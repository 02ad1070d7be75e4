"""A schedule: nodes, publishers and faults, drawn from a seed, and the checks at its end."""

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.ports import Limits
from nsqcy.copies.recall import Known
from simulation.clock import Clock
from simulation.disk import Disk, is_log, original
from simulation.network import REGISTRY, Network
from simulation.oracle import Oracle, Violation
from simulation.process import Process
from simulation.registry import Contents, Registry

LIMITS = Limits(
    lease=4.0,
    copy_timeout=3.0,
    fill_timeout=12.0,
    retry_interval=1.0,
    rejoin_delay=1.0,
    rejoin_delay_limit=4.0,
    damage_timeout=60.0,
    unclaimed_timeout=6.0,
    fill_bytes=3,
    fill_window=2,
)
STARTUP = 8.0
OLD = 6.0  # seconds after which data on a disk may be damaged
READ_FAULTS = {
    "once": (1.0, 0.0),
    "5 %": (0.05, 10.0),
    "30 %": (0.3, 3.0),
    "shortly": (1.0, 3.0),
    "for 60 s": (1.0, 60.0),
}  # probability that a read fails, and for how long
SETTLE_LIMIT = 400.0
REPAIR_AFTER = 120.0


class World:
    """Everything in one schedule."""

    def __init__(
        self,
        seed: int,
        *,
        verbose: bool = False,
        damages: bool = True,
        removals: bool = False,
        settle_limit: float = SETTLE_LIMIT,
    ) -> None:
        """
        damages: whether reads fail and files are damaged
        removals: whether files of stopped processes are removed or cut
        settle_limit: seconds after the last fault within which every group must settle
        """
        self.random = random = Random(seed)
        self.verbose = verbose
        self.damages = damages
        self.removals = removals
        self.settle_limit = settle_limit
        self.clock = Clock()
        self.numbers = itertools.count(1)
        self.limits = LIMITS
        self.copies = random.choice((2, 3, 3))
        self.min_copies = 2
        self.durability = random.choice(("memory", "os", "os", "fsync"))
        self.nodes = [f"n{number}" for number in range(random.choice((3, 3, 4, 5)))]
        self.network = Network(self.clock, random)
        self.network.late = random.choice((0.0, 0.01, 0.05))
        self.network.lost = random.choice((0.0, 0.05, 0.3))
        self._lost = self.network.lost
        self.registry = Registry(self.clock, LIMITS.lease)
        self.registry.changed = self._group_changed
        self.values: dict[str, Group] = {}
        """The latest value of each group, whether or not the registry still has it."""
        self.backup: Contents | None = None
        """A backup of the registry."""
        self.oracle = Oracle(self)
        self.disks = {node: Disk(self.clock, random, self.durability) for node in self.nodes}
        self.backups: dict[str, Any] = {}
        self.is_healed = False
        self.counts: dict[str, int] = {}
        self.proposals: list[tuple[Group | None, Group]] = []
        self.damaged: dict[str, float] = {}
        """When a node had its last fault."""

    def log(self, text: str, *values: Any) -> None:
        if self.verbose:
            print(f"{self.clock.now:8.3f} {text % values}")

    # -- the schedule

    def run(self) -> None:
        """Run the schedule. Raises Violation."""
        random, clock = self.random, self.clock
        for node in self.nodes:
            self._start(node)
        clock.run(STARTUP)
        duration = random.uniform(5.0, 25.0)
        for _ in range(random.randint(10, 60)):
            clock.after(random.uniform(0.0, duration), self._publish)
        faults = self._faults()
        for _ in range(random.randint(2, 10)):
            clock.after(random.uniform(0.0, duration), random.choice(faults))
        clock.run(STARTUP + duration)
        self._heal()
        repair_at = clock.now + REPAIR_AFTER
        while not self._is_settled():
            clock.run(clock.now + 2.0)
            if clock.now > repair_at:
                self._repair_all()
                repair_at = clock.now + REPAIR_AFTER
            if clock.now > STARTUP + duration + self.settle_limit:
                raise Violation(f"not settled: {self._unsettled()}; {self.oracle.lost()}")
        lost = self.oracle.lost()
        if lost:
            raise Violation(f"lost {lost}")

    def _publish(self) -> None:
        self._publish_to(self.random.choice(self.nodes))

    def _publish_to(self, node: str) -> None:
        process = self.network.processes.get(node)
        if process is None:
            return
        messages = [next(self.numbers) for _ in range(self.random.choice((1, 1, 2, 5)))]
        process.run(process.publish, messages, lambda answer: self._answered(messages, answer))

    def _answered(self, messages: list[int], answer: str) -> None:
        if answer == "refused":
            self.oracle.refused.update(messages)

    def _group_changed(self, old: Group | None, new: Group) -> None:
        self.log("registry: %s", new)
        if old is not None and old != self.values[old.id]:
            return  # the registry has been restored from a backup, which no node has detected yet
        self.values[new.id] = new
        self.oracle.group_changed(old, new)

    # -- nodes

    def _start(self, node: str) -> None:
        if node not in self.network.processes:
            self.log("%s: starts", node)
            self.network.processes[node] = Process(self, node, self.disks[node])

    def _stop(self, process: Process, *, silently: bool, restart: bool = True) -> None:
        process.end()
        self.network.process_ended(process, silently=silently)
        if restart:
            delay = self.random.choice((0.1, 1.0, 5.0, 15.0))
            self.clock.after(delay, self._start, process.node)

    def _kill_now(self, process: Process) -> None:
        if process.is_running:
            self.log("%s: killed", process.node)
            self.damaged[process.node] = self.clock.now
            self._stop(process, silently=False, restart=False)
            process.disk.kill()
            process.disk.slowness = 1.0
            self.clock.after(0.1, self._start, process.node)

    def _pause_for(self, process: Process, seconds: float) -> None:
        process.is_paused = True
        self.clock.after(seconds, process.resume)

    def _may_lose(self, node: str) -> bool:
        """Return whether every group keeps an intact copy without the node.

        Pending transactions count as well: one of them may remove the other members.
        """
        current = list(self.values.values())
        pending = [
            value
            for base, value in self.proposals
            if base is not None and self.values[base.id] == base
        ]
        remembered = list(self._remembered().values())
        for group in current + pending + remembered:
            if group.done or node not in group.members or not group.is_complete:
                continue
            if not any(
                self.oracle.is_intact(other, group.id) for other in group.members if other != node
            ):
                return False
        return True

    def _some_process(self) -> Process | None:
        processes = sorted(self.network.processes.values(), key=lambda each: each.node)
        return self.random.choice(processes) if processes else None

    # -- faults

    def _faults(self) -> list[Callable[[], None]]:
        """Return the kinds of fault in this schedule; a few kinds coincide more often than many."""
        kinds = [
            self._kill,
            self._lose_power,
            self._erase,
            self._roll_back,
            self._pause,
            self._partition,
            self._isolate_from_registry,
            self._stop_registry,
            self._slow_disk,
            self._hand_over,
            self._restart,
            self._cut_streams,
            self._kill_before_it_has_written,
            self._kill_while_it_fills,
            self._isolate_owner,
            self._slow_transactions,
            self._lose_one_after_the_other,
            self._damage_registry,
            self._damage_registry_and_lose_a_node,
            self._damage_registry_and_restart_all,
        ]
        if self.damages:
            kinds += [self._fail_reads, self._damage_one, self._damage_many, self._damage_and_hide]
        if self.removals:
            kinds += [self._remove_file, self._remove_file_of_owner, self._restart_all_without_file]
        if self.random.random() < 0.5:
            return kinds
        return self.random.sample(kinds, self.random.randint(1, 4))

    def _count(self, kind: str, node: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if node:
            self.damaged[node] = self.clock.now
        self.log("fault: %s %s", kind, node)

    def _kill(self) -> None:
        process = self._some_process()
        if process is None:
            return
        if self.durability == "memory" and not self._may_lose(process.node):
            return
        self._count("kill", process.node)
        self._stop(process, silently=False)
        process.disk.kill()

    def _restart(self) -> None:
        """Stop a process cleanly: everything is written, and its session remains."""
        process = self._some_process()
        if process is None or self.durability == "memory":
            return
        self._count("restart", process.node)
        self._stop(process, silently=False, restart=False)
        process.disk.kill()
        self.clock.after(0.5, self._start, process.node)

    def _lose_power(self) -> None:
        process = self._some_process()
        if process is not None:
            self._lose_power_of(process.node)

    def _erase(self) -> None:
        process = self._some_process()
        if process is None or not self._may_lose(process.node):
            return
        self._count("erase", process.node)
        self._stop(process, silently=self.random.random() < 0.5)
        process.disk.erase()

    def _roll_back(self) -> None:
        process = self._some_process()
        if process is None or not self._may_lose(process.node):
            return
        self._count("roll back", process.node)
        self._stop(process, silently=False)
        process.disk.kill()
        backup = self.backups.get(process.node)
        self.backups[process.node] = process.disk.backup()
        if backup is not None and self._is_noticed(process):
            process.disk.roll_back(backup)

    def _is_noticed(self, process: Process) -> bool:
        """Return whether a rolled-back disk would be noticed: the registry has the current name of
        the process, and the older disk does not."""
        revision, name = self.registry.contents.processes.get(process.node, (0, ""))
        return name == process.session and self.registry.counts(revision)

    def _pause(self) -> None:
        process = self._some_process()
        if process is not None:
            self._count("pause", process.node)
            self._pause_for(process, self.random.choice((0.5, 5.0, 12.0)))

    def _partition(self) -> None:
        first, second = self.random.sample(self.nodes, 2)
        self._count("partition", first)
        self.network.block(first, second)
        if self.random.random() < 0.5:
            self.network.block(second, first)
        self.clock.after(self.random.choice((1.0, 5.0, 12.0)), self.network.heal)

    def _isolate_from_registry(self) -> None:
        node = self.random.choice(self.nodes)
        self._count("isolate", node)
        self.network.block(node, REGISTRY)
        self.network.block(REGISTRY, node)
        if self.random.random() < 0.3:
            for other in self.nodes:
                if other != node:
                    self.network.block(node, other)
                    self.network.block(other, node)
        self.clock.after(self.random.choice((1.0, 5.0, 12.0)), self.network.heal)

    def _stop_registry(self) -> None:
        self._count("registry", "")
        self.registry.set_available(False)
        delay = self.random.choice((1.0, 5.0, 12.0))
        self.clock.after(delay, self.registry.set_available, True)

    def _damage_registry(self) -> None:
        """Make the registry lose its data, or replace its data with a backup or another cluster's
        data.

        Other programs may have increased its revision.
        """
        if self.durability == "memory":  # a repair would stop all processes, and lose their memory
            return
        if any(disk.is_rolled_back for disk in self.disks.values()):
            return  # a limitation: docs/REPLICATION.md
        kind = self.random.choice(("lost", "restored", "replaced"))
        old = self.registry.contents.revision
        revision = self.random.choice((0, old + 50))
        contents = Contents(revision)
        if kind == "restored":
            if self.backup is None:
                self.backup = self.registry.backup()
                self.clock.after(self.random.uniform(0.5, 10.0), self._restore_registry)
                return
            contents, self.backup = self.backup, None
            contents.revision = max(contents.revision, revision)
        if kind == "replaced":
            contents.identity = (1, Identity(f"other {self.nonce()}"))
            group = Group("other", 1, "x", "x/1", ("x", "y"), 2, 2, "n")
            contents.groups[group.id] = (1, group)
            contents.sessions["x/1"] = 0.0
            contents.revision += 1
        self._count(f"registry {kind}", "")
        self.registry.put(contents)

    def _restore_registry(self) -> None:
        is_unnoticed = any(disk.is_rolled_back for disk in self.disks.values())
        if self.backup is not None and not is_unnoticed:
            contents, self.backup = self.backup, None
            revision = self.random.choice((0, self.registry.contents.revision + 50))
            contents.revision = max(contents.revision, revision)
            self._count("registry restored", "")
            self.registry.put(contents)

    def _damage_registry_and_lose_a_node(self) -> None:
        self._damage_registry()
        fault = self.random.choice((self._kill, self._erase, self._lose_power))
        self.clock.after(self.random.uniform(0.0, 8.0), fault)

    def _damage_registry_and_restart_all(self) -> None:
        self._damage_registry()
        self.clock.after(self.random.uniform(0.0, 6.0), self._restart_all)

    def _restart_all(self) -> None:
        if self.durability == "memory":
            return
        for process in list(self.network.processes.values()):
            self._count("restart", process.node)
            self._stop(process, silently=False, restart=False)
            process.disk.kill()
            self.clock.after(self.random.uniform(0.5, 3.0), self._start, process.node)

    def _repair_all(self) -> None:
        """Run `nsqcy copies repair` on all nodes, if the registry lacks groups, or some nodes use a
        registry that others do not trust."""
        is_trusted = all(each.uses_registry for each in self.network.processes.values())
        if is_trusted and not any("is not registered" in each for each in self._unsettled()):
            return
        self._count("repair", "")
        for process in list(self.network.processes.values()):
            self._stop(process, silently=False, restart=False)
            process.disk.kill()
        for node, disk in self.disks.items():
            disk.repair()
            self._start(node)

    @property
    def is_registry_damaged(self) -> bool:
        """Whether the registry has ever lost values. Messages may be delivered again then."""
        return any(kind.startswith("registry ") for kind in self.counts)

    def nonce(self) -> str:
        return str(next(self.numbers))

    def _slow_disk(self) -> None:
        disk = self.disks[self.random.choice(self.nodes)]
        self._count("slow disk", "")
        disk.slowness = self.random.choice((20.0, 300.0, 3000.0))
        self.clock.after(self.random.uniform(1.0, 6.0), self._mend_disk, disk)

    def _mend_disk(self, disk: Disk) -> None:
        disk.slowness = 1.0

    def _fail_reads(self) -> None:
        """Make one read, some reads, or all reads fail on the disk of an owner, a holder or any
        node, at any time or while it is busy with its files."""
        group = self.random.choice([None, *self.values.values()])
        moment = self.random.choice(("", "", "starting", "filling", "taking over", "moving"))
        if group is None or group.done or len(group.members) < 2:
            node, moment = self.random.choice(self.nodes), ""
        elif moment in ("taking over", "moving"):
            node = self.random.choice([each for each in group.members if each != group.owner])
        else:
            node = self.random.choice(group.members)
        kind = self.random.choice(list(READ_FAULTS))
        self._count(f"reads fail {kind}" + (f" while {moment}" if moment else ""), "")
        match moment:
            case "starting":
                self._restart_node(node)
            case "filling":
                self._cut_streams()
            case "taking over":
                self._restart_later(group.owner)
            case "moving":
                self._drain(group.owner)
        self._fail_reads_of(self.disks[node], kind)

    def _fail_reads_of(self, disk: Disk, kind: str) -> None:
        """Make reads fail. A long fault may begin before the process reads, and may last to the
        end."""
        probability, duration = READ_FAULTS[kind]
        if not duration:
            disk.failing_reads += 1
            return
        disk.read_errors = probability
        disk.failing_until = max(disk.failing_until, self.clock.now + duration)
        self.clock.at(disk.failing_until, self._mend_reads, disk)

    def _mend_reads(self, disk: Disk) -> None:
        if self.clock.now >= disk.failing_until:
            disk.read_errors = 0.0

    def _restart_later(self, node: str) -> None:
        """Kill a process for long enough that another node takes over."""
        process = self.network.processes.get(node)
        if process is not None:
            self._kill_for_long(process)

    def _drain(self, node: str) -> None:
        """Hand a process's groups over, so another process moves their messages."""
        process = self.network.processes.get(node)
        if process is not None and not process.is_paused:
            process.hand_over()
            self.clock.after(self.random.uniform(3.0, 12.0), self._end_hand_over, process)

    def _restart_node(self, node: str) -> None:
        process = self.network.processes.get(node)
        if process is not None and self.durability != "memory":
            self._kill_now(process)

    def _remove_file(self) -> None:
        process = self._some_process()
        if process is not None:
            self._remove_file_of(process)

    def _remove_file_of_owner(self) -> None:
        groups = [each for each in self.values.values() if len(each.members) > 1 and not each.done]
        if groups:
            process = self.network.processes.get(self.random.choice(groups).owner)
            if process is not None:
                self._remove_file_of(process)

    def _remove_file_of(self, process: Process) -> None:
        """Stop a process, and remove a file of its disk before the next process starts."""
        if self.durability == "memory" or not self._may_lose(process.node):
            return
        self._count("remove", process.node)
        self._stop(process, silently=False, restart=False)
        process.disk.kill()
        self._remove_some_file(process.disk)
        self.clock.after(self.random.choice((0.5, 15.0)), self._start, process.node)

    def _restart_all_without_file(self) -> None:
        """Stop all processes, and remove a file of one disk before they start."""
        processes = list(self.network.processes.values())
        chosen = self._some_process()
        if self.durability == "memory" or chosen is None or not self._may_lose(chosen.node):
            return
        self._count("remove while all are stopped", chosen.node)
        for process in processes:
            self._stop(process, silently=False, restart=False)
            process.disk.kill()
            self.clock.after(self.random.uniform(0.5, 3.0), self._start, process.node)
        self._remove_some_file(chosen.disk)

    def _remove_some_file(self, disk: Disk) -> None:
        places = disk.places()
        if places:
            group_id, path, size = self.random.choice(places)
            disk.remove(group_id, path, size if self.random.random() < 0.5 else 0)

    def _damage_one(self) -> None:
        self._damage(1)

    def _damage_many(self) -> None:
        self._damage(10)

    def _damage(self, count: int) -> None:
        """Damage items on one disk, if every group keeps an intact copy without it."""
        node = self.random.choice(self.nodes)
        places = self.disks[node].places()
        if places:
            chosen = self.random.choices(places, k=count)
            self.clock.after(OLD, self._damage_now, node, chosen)

    def _damage_now(self, node: str, places: list[tuple[str, str, int]]) -> None:
        if self.is_healed or not self._may_lose(node):
            return
        self._count("damage", node)
        disk = self.disks[node]
        for group_id, path, index in places:
            if group_id in disk.images and self._is_elsewhere(node, group_id, path, index):
                disk.apply(group_id, ("damage", path, index, disk.life, self.clock.now))
        if self.random.random() < 0.3:
            self.clock.after(self.random.random(), self._restart_node, node)

    def _damage_and_hide(self) -> None:
        """Damage an owner's log while no other member can answer for a while."""
        groups = [each for each in self.values.values() if len(each.members) > 1 and not each.done]
        if not groups:
            return
        group = self.random.choice(groups)
        image = self.disks[group.owner].images.get(group.id)
        places = [
            (group.id, path, index)
            for path, items in (image.files.items() if image is not None else ())
            for index in range(1, len(items))
            if is_log(path)
        ]
        if places:
            chosen = self.random.choices(places, k=3)
            self.clock.after(OLD, self._damage_now, group.owner, chosen)
            self.clock.after(OLD, self._hide, group.id, group.owner)

    def _hide(self, group_id: str, node: str) -> None:
        """Block the answers of the other members of a group."""
        if self.is_healed:
            return
        kind = self.random.choice(("unreadable", "paused", "separated"))
        for other in self.values[group_id].members:
            process = self.network.processes.get(other)
            if other == node or process is None:
                continue
            if kind == "unreadable":
                self._fail_reads_of(self.disks[other], self.random.choice(("shortly", "for 60 s")))
            elif kind == "paused":
                self._pause_for(process, self.random.choice((1.0, 5.0)))
            else:
                self.network.block(node, other)
                self.network.block(other, node)
                self.clock.after(5.0, self.network.heal)

    def _is_elsewhere(self, node: str, group_id: str, path: str, index: int) -> bool:
        """Return whether another disk has an item of a log intact, even if not committed yet."""
        if not is_log(path):
            return True
        mine = self.disks[node].images[group_id].files.get(path, [])
        others = [
            disk.images[group_id].files.get(path, [])
            for other, disk in self.disks.items()
            if other != node and group_id in disk.images
        ]
        return index < len(mine) and any(
            items[index] == mine[index] and original(items[0]) == original(mine[0])
            for items in others
            if index < len(items)
        )

    def _hand_over(self) -> None:
        process = self._some_process()
        if process is None or process.is_paused:
            return
        self._count("hand over", process.node)
        self._drain(process.node)

    def _end_hand_over(self, process: Process) -> None:
        if process.is_running and (self.durability != "memory" or self._may_lose(process.node)):
            self._stop(process, silently=False)
            process.disk.kill()
        else:
            process.is_draining = False

    def _cut_streams(self) -> None:
        self._count("cut", "")
        for stream in list(self.network.streams):
            if self.random.random() < 0.5:
                self.network.cut(stream)

    def _kill_before_it_has_written(self) -> None:
        """Kill an owner whose holders have more than its own disk, and publish again afterwards."""
        process = self._some_process()
        if process is None or self.durability == "memory":
            return
        self._count("kill unwritten", process.node)
        process.disk.slowness = 1000.0
        other = self._some_process()
        for delay in (0.0, 0.2, 0.4, 2.0, 2.5, 3.0, 3.5, 4.0):
            self.clock.after(delay, self._publish_to, process.node)
        self.clock.after(0.5, self._kill_now, process)
        if other is not None and other is not process:
            self.clock.after(0.45, self._pause_for, other, self.random.choice((2.0, 4.0, 6.0)))

    def _kill_while_it_fills(self) -> None:
        """Kill an owner for a long time, after it has sent part of the data that a holder lacks."""
        process = self._some_process()
        if process is None or (self.durability == "memory" and not self._may_lose(process.node)):
            return
        self._count("kill filling", process.node)
        for _ in range(3):
            self._publish_to(process.node)
        for stream in list(self.network.streams):
            if stream.owner is process:
                self.network.cut(stream)
        self._watch_filling(process, self.clock.now + 1.0)

    def _watch_filling(self, process: Process, until: float) -> None:
        if not process.is_running or self.clock.now > until:
            return
        for group in process.worker.groups():
            owner = process.worker.owner(group.id)
            is_filling = owner and any(each.unacknowledged for each in owner.feeds.values())
            if is_filling and self.random.random() < 0.2:
                self._kill_for_long(process)
                return
        self.clock.after(0.001, self._watch_filling, process, until)

    def _kill_for_long(self, process: Process) -> None:
        if self.durability == "memory" and not self._may_lose(process.node):
            return
        self.log("%s: killed", process.node)
        self.damaged[process.node] = self.clock.now
        self._stop(process, silently=False, restart=False)
        process.disk.kill()
        self.clock.after(15.0, self._start, process.node)

    def _isolate_owner(self) -> None:
        """Cut an owner off from the registry and from some nodes, but not from all.

        The process that takes over may die during the cut.
        """
        node = self.random.choice(self.nodes)
        self._count("isolate owner", node)
        others = [REGISTRY, *(other for other in self.nodes if other != node)]
        for other in others[: self.random.randint(1, len(others) - 1)]:
            self.network.block(node, other)
            self.network.block(other, node)
        self.clock.after(self.random.choice((8.0, 14.0)), self.network.heal)
        if self.random.random() < 0.5:
            self.clock.after(self.random.uniform(7.0, 13.0), self._kill_successor, node)

    def _kill_successor(self, node: str) -> None:
        """Kill the process that has taken over a group of the node."""
        for group in self.values.values():
            process = self.network.processes.get(group.owner)
            if group.id.startswith(f"{node}-") and group.owner != node and process is not None:
                self._kill_for_long(process)
                return

    def _lose_one_after_the_other(self) -> None:
        """Cut an owner off from the registry while a member is filled again; then lose the others.

        The member may have claimed the group before it was filled.
        """
        nodes = self.random.sample(self.nodes, len(self.nodes))
        self._count("lose others", nodes[0])
        self.network.block(nodes[0], REGISTRY)
        self.network.block(REGISTRY, nodes[0])
        self.clock.after(14.0, self.network.heal)
        delay = LIMITS.lease + 0.5
        self.clock.after(delay, self._lose_power_of, nodes[1])
        delay += LIMITS.copy_timeout + self.random.uniform(1.0, 5.0)
        for node in (nodes[0], *nodes[2:]):
            self.clock.after(delay, self._lose_power_of, node)
            delay += self.random.uniform(0.1, 1.0)

    def _lose_power_of(self, node: str) -> None:
        process = self.network.processes.get(node)
        if process is not None and (self.durability == "fsync" or self._may_lose(node)):
            self._count("power", node)
            self._stop(process, silently=True)
            process.disk.lose_power()

    def _slow_transactions(self) -> None:
        """Lose or delay most requests to the registry, while members leave and join."""
        self._count("slow transactions", "")
        self.network.lost = 0.7
        self.clock.after(8.0, self._mend_transactions)
        for delay in (2.0, 4.0, 6.0, 8.0):
            self.clock.after(delay, self._cut_streams)

    def _mend_transactions(self) -> None:
        self.network.lost = 0.0 if self.is_healed else self._lost

    # -- the end

    def _heal(self) -> None:
        self.log("healed")
        self.is_healed = True
        self.network.lost = self.network.late = 0.0
        self.network.heal()
        self.registry.set_available(True)
        for disk in self.disks.values():
            disk.slowness = 1.0
        for process in list(self.network.processes.values()):
            process.resume()
        for node in self.nodes:
            self._start(node)

    def _is_settled(self) -> bool:
        return not self._unsettled() and not self.oracle.lost()

    def _remembered(self) -> dict[str, Group]:
        """Return the latest value of each group that any node remembers."""
        found: dict[str, Known] = {}
        for disk in self.disks.values():
            for group_id, known in disk.known.items():
                if group_id not in found or known.stamp > found[group_id].stamp:
                    found[group_id] = known
        return {group_id: known.group for group_id, known in found.items()}

    def _can_be_restored(self, group_id: str) -> bool:
        """Return whether a member remembers a group; otherwise, no node has ever acted on it."""
        group = self._remembered().get(group_id)
        return group is not None and any(
            group_id in self.disks[node].known for node in group.members
        )

    def _unsettled(self) -> list[str]:
        found = []
        for group in self.values.values():
            if group.done or not self._can_be_restored(group.id):
                continue
            revision, value = self.registry.groups.get(group.id, (-1, None))
            if value != group or not self.registry.counts(revision):
                found.append(f"{group.id} is not registered")
            elif group.closed:
                found.append(f"{group.id} is not drained")
            elif len(group.members) < group.copies:
                found.append(f"{group.id} has the members {group.members}")
            for node in group.members:
                image = self.disks[node].images.get(group.id)
                is_mendable = any(self.oracle.has_all(each, group.id) for each in group.members)
                if is_mendable and image is not None and image.is_damaged():
                    found.append(f"{node} has a damaged copy of {group.id}")
        for node, process in self.network.processes.items():
            for group in process.worker.groups():
                if process.worker.owner(group.id) and group.id not in process.logs:
                    found.append(f"{node} has not opened {group.id}")
            for log in process.logs.values():
                if log.in_flight or log.visible < len(log.records):
                    found.append(f"{node} has not delivered {log.group_id}")
        if len(self.network.processes) < len(self.nodes):
            found.append("a node is down")
        return found
