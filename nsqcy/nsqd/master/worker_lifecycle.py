"""Starting, stopping and replacing workers.

Owns the consequences of a worker's crash, which are, in this order: the worker receives no more
connections, and the connections that it had not accepted are passed to other workers; the other
workers are notified, and answer when they no longer touch its rings; the rings are reset; the
worker is restarted and loads its topics; the other workers are notified that it is up; and it
receives connections.

A running worker can be replaced in place: it hands over to a successor, and its clients do not
notice. This module carries out the steps that master/replacement decides on.

At the end, a worker that has left messages in memory is started once more, so that it restores and
saves them.
"""

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.event import Event

from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.exit_report import describe as describe_unsaved
from nsqcy.nsqd.master.copies_wait import await_copies
from nsqcy.nsqd.master.launcher import Born, Launcher
from nsqcy.nsqd.master.lost_memory import LostMemory
from nsqcy.nsqd.master.master_state import State
from nsqcy.nsqd.master.replacement import KEPT, LOST, Replacement
from nsqcy.nsqd.master.topic_registry import TopicRegistry
from nsqcy.nsqd.master.way_back import WayBack
from nsqcy.nsqd.master.workers import Phase, Requests, WorkerHandle, Workers
from nsqcy.nsqd.process_messages.to_worker import (
    HandOverTo,
    Load,
    PeerDown,
    PeerUp,
    Stop,
    TakeOver,
    WindDown,
)
from nsqcy.nsqd.reading_marks import WHOLE_TOPIC, Mark
from nsqcy.process import arbiter, heartbeat
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.ancillary import Keep
from nsqcy.process.arbiter import Arbiter, Child, describe
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError
from nsqcy.process.handoff import Accepted

STOP_LIMIT = 600.0  # maximum seconds for workers to save before they are killed
UP_LIMIT = 30.0  # maximum seconds for a worker to come up after a failed replacement
UP_LOOK = 0.05  # seconds
KILL_LIMIT = 5.0  # maximum seconds for a killed worker to exit
PUMP_LIMIT = 5.0  # maximum seconds for a pump to send its last output before it is killed
LOOK = 1.0  # seconds between checks of the workers that have not exited yet
HUNG_UP_LIMIT = 5.0  # maximum seconds that a worker may outlive its control channel
NAG = 5.0  # seconds between log lines about a worker that does not answer
SAVING_STARTS = 3  # maximum starts of a worker to save what it has left in memory, at the end
START_PAUSE = 0.5  # seconds after a failed attempt to create a process, at the end


class WorkerLifecycle:
    """Starts, loads, replaces and stops the workers; the arbiter's owner."""

    def __init__(
        self,
        launcher: Launcher,
        workers: Workers,
        topics: TopicRegistry,
        acceptor: Acceptor,
        requests: Requests,
        phase: Phase,
        on_start_failed: Callable[[str], None],
        lost_memory: LostMemory,
        log: Lines,
    ) -> None:
        """on_start_failed: called once when a worker exits before nsqd serves clients; may
        block."""
        self._launcher = launcher
        self._slots = launcher.shared
        self._memory = launcher.memory
        self._lost_memory = lost_memory
        self._exits: dict[int, gevent.Greenlet] = {}
        """By worker, what follows its latest exit."""
        self._of_previous_version: set[int] = set()
        """Process ids of the workers that run the previous version."""
        self._way_back = WayBack()
        self._unrestored: set[int] = set()
        """Workers that exited, as requested, before they had restored their memory."""
        self._workers = workers
        self._topics = topics
        self._acceptor = acceptor
        self._requests = requests
        self._phase = phase
        self._on_start_failed = on_start_failed
        self._log = log
        self._follows_up = Event()  # cleared while the master rests
        self._follows_up.set()
        self.arbiter = Arbiter(launcher.workers, self, log)

    def begin(self, born: Iterable[Born]) -> None:
        """Adopt the workers that `main` has started."""
        for each in born:
            self._workers.add(self._handle(each))
            self.arbiter.born(each.worker, each.pid)
        self.arbiter.check_early_deaths()
        self.arbiter.start()

    # -- rest, and the master's next version

    def rest(self) -> None:
        """Begin nothing with a worker that exits from now on, until `end_rest`."""
        self._follows_up.clear()

    def end_rest(self) -> None:
        self._follows_up.set()

    @property
    def activity(self) -> str:
        """Return what an upgrade would interrupt now; empty if nothing."""
        for child in self.arbiter.children:
            handle = self._workers.get(child.index)
            if child.pid and (handle is None or not handle.ready or handle.channel.closed):
                return f"worker {child.index} is not up"
            exit = self._exits.get(child.index)
            if not child.pid and (exit is None or not exit.ready()):
                return f"worker {child.index} has just exited"
        return ""

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the master's next version."""
        handles = [handle.dump(keep) for handle in self._workers]
        return {
            "children": self.arbiter.dump(),
            "pumps": self.arbiter.dump_pumps(),
            "handles": handles,
            "previous": self._way_back.dump(),
        }

    def restore(self, dumped: dict[str, Any], state: State) -> None:
        """Continue with the workers of the previous version. Call it before the hub runs."""
        self._way_back.restore(dumped.get("previous"), state)
        for each in dumped["handles"]:
            control, handoff = (
                socket.socket(fileno=each[name]["fd"]) for name in ("control", "handoff")
            )
            handle = self._handle(Born(each["worker"], each["pid"], control, handoff))
            handle.restore(each)
            self._workers.add(handle)
            self._of_previous_version.add(handle.pid)
            self._acceptor.add(handle.index, handle)
        self.arbiter.restore(dumped["children"])
        self.arbiter.restore_pumps(dumped.get("pumps", ()))
        self.arbiter.check_early_deaths()
        self.arbiter.start()

    def of_previous_version(self) -> list[int]:
        """Return the workers that run the previous version."""
        return sorted(each.index for each in self._workers if each.pid in self._of_previous_version)

    def comes_up(self, index: int) -> bool:
        """Wait until a worker is up; return False if that takes too long."""
        deadline = time.monotonic() + UP_LIMIT
        while (handle := self._workers.get(index)) is None or not handle.ready:
            if time.monotonic() >= deadline or self._phase.ending:
                return False
            gevent.sleep(UP_LOOK)
        return True

    def has_way_back(self, index: int) -> bool:
        """Return whether the previous version follows, because this one has failed repeatedly."""
        return self._way_back.is_used(index)

    def forget_previous_version(self) -> None:
        """Handle the end of an upgrade: all workers run this version."""
        self._way_back.forget()

    def await_copies(self) -> None:
        """Wait for a limited time until the copies of topics on other machines have caught up."""
        if self._launcher.context.get("copies"):
            await_copies(self._workers, self._log)

    @property
    def pumps(self) -> int:
        """Number of replaced workers that stay for their encrypted connections."""
        return len(self.arbiter.pumps)

    def describe(self) -> list[dict[str, object]]:
        """Return the state of each worker, for /metrics."""
        return [self._describe(child) for child in self.arbiter.children]

    def wait_for_all(self) -> None:
        """Return once all workers are up."""
        for handle in self._workers:
            handle.up.wait()

    def load_all(self) -> None:
        """Have all workers load their topics. Raises StartError."""
        loads = [gevent.spawn(self._load_quietly, each) for each in self._workers]
        for greenlet in loads:
            error = greenlet.get()
            if error is not None:
                raise StartError(f"failed to load topics - {error}")

    def let_in_all(self) -> None:
        """Assign connections to every worker from now on."""
        for handle in self._workers:
            self._let_in(handle)

    def stop(self) -> list[str]:
        """Stop all workers; return the messages that they have not saved, with reasons. Empty if
        they have saved everything."""
        for replacement in list(self._workers.replacements.values()):
            replacement.cancel("nsqd stops")
            replacement.ended.wait()
        children = self.arbiter.children
        running = [child for child in children if child.pid]
        self.arbiter.signal_all(signal.SIGCONT)  # a suspended process must save as well
        # These have no clients: they are down, or load their topics.
        unrestored = [child for child in children if self._memory.is_left(child.index)]
        for child in unrestored:
            self.arbiter.expect_heartbeats(child.index)
        stops = {child.index: gevent.spawn(self._stop, child) for child in unrestored}
        # Do this before any other worker stops: a worker answers its producers with the help of the
        # others.
        for index, answer in self._workers.gather_ready(WindDown()).items():
            if isinstance(answer, CallTimeout) and self._memory.is_used(index):
                # If it hangs, it is aborted, and a new process saves its messages.
                self.arbiter.expect_heartbeats(index)
        for child in running:
            if child.index not in stops:
                stops[child.index] = gevent.spawn(self._stop, child)
        if not self._await_exits(stops):
            gevent.killall(list(stops.values()))
            self.arbiter.signal_all(signal.SIGKILL)
            self.arbiter.wait(KILL_LIMIT)
        self._end_pumps()
        return self._problems([*running, *(each for each in unrestored if each not in running)])

    def _end_pumps(self) -> None:
        """End the pumps, now that the sessions of their connections have ended."""
        if not self.arbiter.end_pumps(signal.SIGTERM, PUMP_LIMIT):
            self.arbiter.end_pumps(signal.SIGKILL, KILL_LIMIT)

    def _stop(self, child: Child) -> None:
        """Have a worker save and exit. If it is down, or dies, and has left messages in memory,
        start it first, so that it restores them."""
        starts = 0
        while True:
            handle = self._workers.get(child.index)
            if handle is None:
                if child.index in self._exits:
                    self._exits[child.index].join()
                if not self._saves_after_start(child) or starts == SAVING_STARTS:
                    return
                starts += 1
                if not self.arbiter.revive(child.index):
                    gevent.sleep(START_PAUSE)
                continue
            if child.state == arbiter.UP:  # it may hang
                self._await_heartbeat(handle)
            if self._memory.is_left(child.index):
                handle.settled.wait()
            self.arbiter.stopping(child.index)
            handle.ask(Stop())
            handle.gone.wait()

    def _saves_after_start(self, child: Child) -> bool:
        """Return whether a new process of a worker would save what this one has not saved."""
        # Before nsqd serves clients, everything is on disk. A worker that reports unsaved messages
        # would not be able to write them after another start either.
        reported = child.index in self._workers.unsaved or child.last_exit == arbiter.NOT_SAVED
        return self._phase.started and not reported and self._memory.is_left(child.index)

    def _await_heartbeat(self, handle: WorkerHandle) -> None:
        """Return once the worker has sent another heartbeat, or has exited."""
        last = self._slots.view(handle.index).beat
        while not handle.gone.is_set() and self._slots.view(handle.index).beat == last:
            handle.gone.wait(heartbeat.PERIOD)

    def _await_exits(self, stops: dict[int, gevent.Greenlet]) -> bool:
        """Wait until the workers have saved and exited; return False if some do not exit."""
        deadline = time.monotonic() + STOP_LIMIT
        while True:
            gevent.joinall(list(stops.values()), LOOK)
            left = {index for index, stop in stops.items() if not stop.ready()}
            if not left:
                return True
            if left <= self._workers.unsaved.keys():
                # If the kernel permits, workers exit right after they have reported unsaved
                # messages.
                return self.arbiter.wait(KILL_LIMIT)
            if time.monotonic() >= deadline:
                events.workers_killed(self._log, STOP_LIMIT)
                return False

    def _problems(self, children: list[Child]) -> list[str]:
        unsaved: Counter[str] = Counter()
        for reported in self._workers.unsaved.values():
            unsaved.update(reported)
        found = [describe_unsaved(unsaved)] if unsaved else []
        for child in children:
            if child.pid:
                found.append(
                    f"worker {child.index} (pid {child.pid}) does not exit, because the "
                    "kernel waits for the disk"
                )
            elif child.index in self._unrestored:
                found.append(
                    f"worker {child.index} exited before it had restored the messages that its "
                    "predecessor left in memory"
                )
            elif child.last_exit != arbiter.CLEAN and child.index not in self._workers.unsaved:
                text = f"worker {child.index} {describe(child.last_exit or 0)}"
                if self._memory.is_left(child.index):
                    text += ", and the messages that it had only in memory are lost"
                found.append(text)
        return found

    # -- replacements of running workers

    def replace_in_place(self, index: int) -> None:
        """Replace a running worker by a new process, which takes over its topics and connections.
        Returns once it serves. Raises StartError if the worker serves on instead, or has died."""
        old = self._workers.get(index)
        if old is None or not old.ready or self._phase.ending:
            raise StartError(f"worker {index} is not up")
        if index in self._workers.replacements:
            raise StartError(f"worker {index} is being replaced already")
        new, steps = self._start_successor(old)
        # The hub has not run since the start, so that nothing has been reported yet.
        replacement = self._workers.replacements[index] = Replacement(steps)
        try:
            outcome = replacement.run()
            steps.close()
            if outcome in (KEPT, LOST):
                self._drop_successor(old, new)
            del self._workers.replacements[index]
            if outcome == LOST and replacement.exit_code is not None:
                self.arbiter.retire(index)
                self.arbiter.on_exit(index, replacement.exit_code)
        finally:
            replacement.ended.set()
        if outcome in (KEPT, LOST):
            events.worker_not_replaced(self._log, worker=index, reason=replacement.reason)
            raise StartError(f"worker {index} is not replaced - {replacement.reason}")
        new.settled.wait()
        if self._workers.get(index) is not new:
            raise StartError(f"worker {index} died after it was replaced")
        events.worker_replaced(self._log, worker=index)

    def _start_successor(self, old: WorkerHandle) -> tuple[WorkerHandle, "_Steps"]:
        """Start the successor of a worker. Raises StartError."""
        index = old.index
        try:
            started = self._launcher.launch_successor(index)
        except OSError as error:
            text = f"worker {index}: cannot start a successor: {error.strerror}"
            raise StartError(text) from None
        if started is None:
            raise StartError(f"worker {index}: a successor would not find its messages in memory")
        new = self._handle(started.born)
        self.arbiter.successor_born(index, new.pid)
        return new, _Steps(self, old, new, started.succession)

    def begin_hand_over(
        self, old: WorkerHandle, new: WorkerHandle, succession: socket.socket
    ) -> None:
        """Have a worker hand over to its successor."""
        self._acceptor.remove(old.index)
        topics = self._topics.topics_of(old.index)
        TakeOver(self._launcher.context, topics).notify(new.channel)
        HandOverTo((succession.detach(),)).notify(old.channel)
        old.channel.withhold()

    def promote(self, old: WorkerHandle, new: WorkerHandle) -> None:
        """Use the successor as the worker."""
        self._memory.succeeded(old.index)
        self.arbiter.promote(old.index)
        new.knows_peers = new.ready = True
        self._workers.add(new)
        new.channel.take_over(old.channel)
        self._retire(old)
        gevent.spawn(self._let_in_successor, new)

    def _let_in_successor(self, handle: WorkerHandle) -> None:
        # The call waits in the worker until its engine exists. Clients wait as well.
        error = self._load_quietly(handle)
        if error is not None:
            events.topics_not_loaded(self._log, error, worker=handle.index)
        elif self._workers.get(handle.index) is handle and not self._phase.ending:
            self._let_in(handle)

    def _drop_successor(self, old: WorkerHandle, new: WorkerHandle) -> None:
        """Use the worker as before, after its successor has ended without taking over."""
        self.arbiter.drop_successor(old.index)
        self._memory.not_succeeded(old.index)
        new.sender.close()
        new.channel.close("the successor has exited")
        old.channel.release()
        if self._workers.get(old.index) is old and not self._phase.ending:
            self._acceptor.add(old.index, old)

    def left_successor(self, index: int, code: int) -> None:
        self._workers.replacements[index].left(code)

    def successor_exited(self, index: int, code: int) -> None:
        if _failed(code):
            self._way_back.failed(index)
        self._workers.replacements[index].successor_left(code)

    def kill(self) -> None:
        """Kill all workers, because no client was served."""
        self.arbiter.halt()
        self.arbiter.signal_all(signal.SIGKILL)
        self._acceptor.close()
        self.arbiter.wait(KILL_LIMIT)

    def hung_up(self, handle: WorkerHandle) -> None:
        """Replace a worker that lost its control channel, without which it is useless."""
        gevent.spawn_later(HUNG_UP_LIMIT, self._dismiss, handle)

    # -- the arbiter's owner

    def spawn(self, index: int) -> int:
        """Restart a worker."""
        previous = self._way_back.choose(index)
        try:
            born = self._launcher.launch(index, previous)
        except OSError:
            self._way_back.failed(index)
            raise
        if previous is not None:
            self._of_previous_version.add(born.pid)
            events.worker_went_back(self._log, python=previous.command[0], worker=index)
        handle = self._handle(born)
        self._workers.add(handle)
        gevent.spawn(self._welcome, handle)
        return born.pid

    def last_beat(self, index: int) -> int:
        return self._slots.view(index).beat

    def exited(self, index: int, code: int) -> None:
        handle = self._workers.remove(index)
        self._acceptor.remove(index)
        if handle is None:
            return
        if _failed(code) and not handle.settled.is_set():
            self._way_back.failed(index)
        self._retire(handle)
        # A greenlet, because each of its last messages has one, which must run first.
        self._exits[index] = gevent.spawn(self._follow_up, index, code)

    def _retire(self, handle: WorkerHandle) -> None:
        """Use the process behind a handle no more."""
        back = handle.sender.close()
        handle.channel.drain()  # read its last messages
        handle.channel.close("the worker has exited")
        handle.settled.set()
        handle.gone.set()
        if self._phase.started and not self._phase.ending:
            self._acceptor.give(back)
        else:
            _close(back)

    def _follow_up(self, index: int, code: int) -> None:
        """Handle a worker's exit, after its last messages."""
        self._follows_up.wait()
        left_out = self._release_memory(index, code)
        if self._phase.ending:
            self._leave_out(index, left_out)
        elif not self._phase.started:
            self._on_start_failed(f"worker {index} {describe(code)}")
        else:
            self._replace(index, left_out)

    def _release_memory(self, index: int, code: int) -> Mark | None:
        """Close what no replacement of a worker needs. If the worker died while it restored
        something, return what the replacement will leave out."""
        if code == arbiter.CLEAN:
            if self._memory.is_left(index):
                self._unrestored.add(index)
            self._memory.finished(index)
            return None
        return self._memory.exited(index, crashed=_failed(code))

    def _replace(self, index: int, left_out: Mark | None) -> None:
        self._topics.worker_died(index)
        knowing = [handle for handle in self._workers if handle.knows_peers]
        gevent.joinall([gevent.spawn(self._peer_down, handle, index) for handle in knowing])
        self._slots.reset(index)
        self._leave_out(index, left_out)
        self.arbiter.restart(index)

    def _leave_out(self, index: int, part: Mark | None) -> None:
        """Report the part of its memory that a worker will leave out. If it is a whole topic, keep
        the memory in files first."""
        if part is None:
            return
        is_topic = part.block == WHOLE_TOPIC
        what = "the topic" if is_topic else f"block {part.block}"
        events.memory_left_out(self._log, what, worker=index, topic=part.topic)
        sources = self._memory.contents(index)
        if not is_topic or not sources:
            return
        try:
            path = self._lost_memory.keep(index, sources)
        except OSError as error:
            events.memory_not_kept(self._log, worker=index, error=error.strerror or str(error))
            return
        self._memory.kept(index)
        events.memory_kept(self._log, worker=index, path=path)

    def _peer_down(self, handle: WorkerHandle, index: int) -> None:
        """Wait until the worker answers or exits, because the rings cannot be reset while it may
        touch them."""
        greenlet = gevent.spawn(handle.ask, PeerDown(index))
        while not greenlet.ready():
            greenlet.join(NAG)
            if not greenlet.ready():
                self._log.warn(
                    f"worker {handle.index}: has not disconnected from worker {index} yet",
                    worker=handle.index,
                )

    def _welcome(self, handle: WorkerHandle) -> None:
        """Bring a restarted worker up to date with the other workers."""
        handle.up.wait()
        error = self._load_quietly(handle)
        if error is not None:
            events.topics_not_loaded(self._log, error, worker=handle.index)
            return  # the worker exits on its own and is restarted
        if self._workers.get(handle.index) is not handle or self._phase.ending:
            return
        peer_up = PeerUp(handle.index, self._slots.view(handle.index).generation)
        for other in self._workers:
            if other is not handle and other.knows_peers:
                peer_up.notify(other.channel)
        events.worker_up(self._log, worker=handle.index)
        self._let_in(handle)

    def _let_in(self, handle: WorkerHandle) -> None:
        handle.ready = True
        self.arbiter.on_up(handle.index)
        self._acceptor.add(handle.index, handle)

    def _dismiss(self, handle: WorkerHandle) -> None:
        if self._workers.get(handle.index) is handle and not self._phase.ending:
            self.arbiter.dismiss(handle.index)

    # -- loading

    def _load_quietly(self, handle: WorkerHandle) -> str | None:
        try:
            self._load(handle)
        except (RemoteError, ChannelClosed) as error:
            return f"worker {handle.index}: {error}"  # the worker exits on its own
        handle.settled.set()
        if handle.pid not in self._of_previous_version:
            self._way_back.came_up(handle.index)
        return None

    def _load(self, handle: WorkerHandle) -> None:
        """Have a worker load its topics, with the current placement and peers."""
        # At startup, all workers come up together. Later, a worker that is not up yet is announced
        # once it is up. At the end, a worker only saves: the others may not know that its
        # predecessor has died, and its rings may not be reset.
        peers = {
            other.index: self._slots.view(other.index).generation
            for other in self._workers
            if other.index != handle.index
            and (other.ready or not self._phase.started)
            and not self._phase.ending
        }
        handle.knows_peers = True
        topics, table = self._topics.topics_of(handle.index), self._topics.placement.table()
        Load(topics, table, peers).send(handle.channel)

    def _handle(self, born: Born) -> WorkerHandle:
        return WorkerHandle(born, self._slots, self._acceptor, self._requests, self.hung_up)

    def _describe(self, child: arbiter.Child) -> dict[str, object]:
        slot = self._slots.view(child.index)
        return {
            "worker": child.index,
            "pid": child.pid,
            "state": child.state,
            "generation": slot.generation,
            "restarts": child.restarts,
            "last_exit": child.last_exit,
            "connections": slot.connections,
            "busy": slot.busy,
        }


class _Steps:
    """`replacement.Steps` for one worker and its successor."""

    def __init__(
        self,
        lifecycle: WorkerLifecycle,
        old: WorkerHandle,
        new: WorkerHandle,
        succession: socket.socket,
    ) -> None:
        self._lifecycle = lifecycle
        self._old = old
        self._new = new
        self._succession = succession

    def begin_hand_over(self) -> None:
        self._lifecycle.begin_hand_over(self._old, self._new, self._succession)

    def promote(self) -> None:
        self._lifecycle.promote(self._old, self._new)

    def end_successor(self) -> None:
        self._lifecycle.arbiter.dismiss_successor(self._old.index)

    def close(self) -> None:
        self._succession.close()


def _failed(code: int) -> bool:
    """Return whether the worker itself was the reason of its exit. A worker that crashes because of
    what it reads does not end with SIGKILL: an operator or the kernel has sent it."""
    others = (arbiter.CLEAN, arbiter.ORPHANED, arbiter.NOT_SAVED, -signal.SIGKILL)
    return code not in others


def _close(items: list[Accepted]) -> None:
    for item in items:
        item.sock.close()
