"""Starting, stopping and replacing workers.

Owns the consequences of a worker's crash, which are, in this order: the worker receives no more
connections, and the connections that it had not accepted are passed to other workers; the other
workers are notified, and answer when they no longer touch its rings; the rings are reset; the
worker is restarted and loads its topics; the other workers are notified that it is up; and it
receives connections.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable

import gevent

from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.exit_report import describe as describe_unsaved
from nsqcy.nsqd.master.launcher import Born, Launcher
from nsqcy.nsqd.master.topic_registry import TopicRegistry
from nsqcy.nsqd.master.workers import Phase, Requests, WorkerHandle, Workers
from nsqcy.nsqd.process_messages.to_worker import Load, PeerDown, PeerUp, Stop, WindDown
from nsqcy.process import arbiter
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.arbiter import Arbiter, Child, describe
from nsqcy.process.control import ChannelClosed, RemoteError
from nsqcy.process.handoff import Accepted

STOP_LIMIT = 600.0  # maximum seconds for workers to save before they are killed
KILL_LIMIT = 5.0  # maximum seconds for a killed worker to exit
LOOK = 1.0  # seconds between checks of the workers that have not exited yet
HUNG_UP_LIMIT = 5.0  # maximum seconds that a worker may outlive its control channel
NAG = 5.0  # seconds between log lines about a worker that does not answer


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
        log: Lines,
    ) -> None:
        """on_start_failed: called once when a worker exits before nsqd serves clients; may
        block."""
        self._launcher = launcher
        self._slots = launcher.shared
        self._workers = workers
        self._topics = topics
        self._acceptor = acceptor
        self._requests = requests
        self._phase = phase
        self._on_start_failed = on_start_failed
        self._log = log
        self.arbiter = Arbiter(launcher.workers, self, log)

    def begin(self, born: Iterable[Born]) -> None:
        """Adopt the workers that `main` has started."""
        for each in born:
            self._workers.add(self._handle(each))
            self.arbiter.born(each.worker, each.pid)
        self.arbiter.check_early_deaths()
        self.arbiter.start()

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
        alive = [child for child in self.arbiter.children if child.pid]
        self.arbiter.signal_all(signal.SIGCONT)  # a suspended process must save as well
        # Do this before any worker stops: a worker answers its producers with the help of the
        # others.
        self._workers.gather_ready(WindDown())
        for handle in self._workers:
            gevent.spawn(handle.ask, Stop())
        if not self._await_exits():
            self.arbiter.signal_all(signal.SIGKILL)
            self.arbiter.wait(KILL_LIMIT)
        return self._problems(alive)

    def _await_exits(self) -> bool:
        """Wait until the workers have saved and exited; return False if some do not exit."""
        deadline = time.monotonic() + STOP_LIMIT
        while not self.arbiter.wait(LOOK):
            left = {child.index for child in self.arbiter.children if child.pid}
            if left <= self._workers.unsaved.keys():
                # If the kernel permits, workers exit right after they have reported unsaved
                # messages.
                return self.arbiter.wait(KILL_LIMIT)
            if time.monotonic() >= deadline:
                events.workers_killed(self._log, STOP_LIMIT)
                return False
        return True

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
            elif child.last_exit != arbiter.CLEAN and child.index not in self._workers.unsaved:
                found.append(f"worker {child.index} {describe(child.last_exit or 0)}")
        return found

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
        born = self._launcher.launch(index)
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
        back = handle.sender.close()
        handle.channel.drain()  # read its last messages
        handle.channel.close("the worker has exited")
        if self._phase.ending:
            _close(back)
        elif not self._phase.started:
            _close(back)
            gevent.spawn(self._on_start_failed, f"worker {index} {describe(code)}")
        else:
            self._acceptor.give(back)
            gevent.spawn(self._replace, index)

    def _replace(self, index: int) -> None:
        self._topics.worker_died(index)
        knowing = [handle for handle in self._workers if handle.knows_peers]
        gevent.joinall([gevent.spawn(self._peer_down, handle, index) for handle in knowing])
        self._slots.reset(index)
        self.arbiter.restart(index)

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
            return f"worker {handle.index}: {error}"
        return None

    def _load(self, handle: WorkerHandle) -> None:
        """Have a worker load its topics, with the current placement and peers."""
        # At startup, all workers come up together. Later, a worker that is not up yet is announced
        # once it is up.
        peers = {
            other.index: self._slots.view(other.index).generation
            for other in self._workers
            if other.index != handle.index and (other.ready or not self._phase.started)
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


def _close(items: list[Accepted]) -> None:
    for item in items:
        item.sock.close()
