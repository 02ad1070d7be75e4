"""A worker process: a fork of the starting master that calls `main`, or a program that the master
starts later: `python -m nsqcy.nsqd.worker.main BOOT-FD`.

Owns the process's lifecycle: its signals, its hub, its heartbeat, its two channels to the master,
and its exit. The engine, which is plugged in by name, serves the clients.

The worker exits when the master requests this, or when the master has exited. It ignores signals
for the whole process group (^C, a service manager's SIGTERM), which the master handles.
process/arbiter.py defines the exit codes.

A successor (nsqd/worker/succession.py) imports its modules and waits. It makes its engine once its
predecessor has handed over; until then, it does nothing that another process could notice. The
predecessor exits, or becomes a pump for its encrypted connections (nsqd/worker/pump.py).
"""

import _thread
import contextlib
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, Protocol

import gevent
from gevent.event import AsyncResult, Event

from nsqcy import formats
from nsqcy.errors import StartError
from nsqcy.ipc.core import Shared
from nsqcy.logging import events
from nsqcy.logging import logger as log
from nsqcy.nsqd import upgrade_steps
from nsqcy.nsqd.boot_memory import WorkerMemory
from nsqcy.nsqd.process_messages.reports import HandedOver, Kept, SuccessorWaits, TakenOver, Up
from nsqcy.nsqd.process_messages.to_worker import ProcessMessage, TakeOver
from nsqcy.nsqd.worker import pump
from nsqcy.nsqd.worker.master_link import MasterLink
from nsqcy.nsqd.worker.pump import Pumped
from nsqcy.nsqd.worker.succession import HandingOver, NotHandedOver, Parcel, TakingOver
from nsqcy.process import arbiter, oom_score, openfiles, shed, spawn
from nsqcy.process.control import Channel, Request
from nsqcy.process.handoff import Receiver
from nsqcy.process.heartbeat import Heartbeat
from nsqcy.util import garbage

# Less than the 5 s for which a starting nsqd waits for orphans to release the data-path lock.
ORPHAN_LIMIT = 4.0
REST_STEP = 0.001  # seconds between two checks


class Boot(NamedTuple):
    """A worker's boot data."""

    worker: int
    workers: int
    generation: int
    lock_fd: int  # the data-path lock, held until this process exits
    memory_fd: int  # of `shared`
    wake_fds: list[int]  # eventfds, one per worker, including this worker
    context: dict[str, Any]  # sent by the master to every worker
    shared: Shared
    log: log.Log
    master: MasterLink
    memory: WorkerMemory | None  # memfds for messages; None: only this process can use its memory
    parcels: list[Parcel] | None = None  # what the predecessor has handed over, if it has


class Engine(Protocol):
    """Serves clients. Each method runs on the hub's thread.

    Methods marked "waits" run in their own greenlet and may block it; the others must not block.
    The factory is `make(boot: Boot) -> Engine`, named in the boot data as "module:make". If the
    module has a function `prepare(boot)`, a successor calls it before it waits.
    """

    def load(
        self,
        topics: list[dict[str, Any]],
        table: dict[str, int],
        peers: dict[int, int],
    ) -> None:
        """Waits. Load these topics (`name`, `paused`, `channels`: `name`, `paused`). `table` is the
        placement of all topics; `peers` are the generations of the other workers that are up."""

    def adopt(self, fd: int, kind: str, peer: str, local: str) -> None:
        """Serve this socket ("tcp", "http" or "https"). The engine owns the descriptor."""

    def connections(self) -> int:
        """Return the number of connections; this is called at each heartbeat."""

    def placed(self, topic: str, worker: int) -> None:
        """Record the placement of a topic."""

    def peer_down(self, worker: int) -> None:
        """Waits. Another worker has crashed: close the streams to it. When this method returns,
        this worker no longer uses the rings of the crashed one, which are then reset."""

    def peer_up(self, worker: int, generation: int) -> None:
        """Called when another worker is up, with fresh rings of this generation."""

    def option_changed(self, name: str, value: Any) -> None:
        """Called when an option has changed; a new log level is already applied to the log."""

    def call(self, request: Request) -> Any:
        """Waits. Handle any other call or notification from the master or another worker; return a
        value or an Answer. The engine closes the request's descriptors."""

    def begin_rest(self) -> None:
        """Read nothing more from clients, and begin nothing that takes long. Raises NotHandedOver
        if this engine cannot be handed over. Waits briefly."""

    @property
    def rest_limit(self) -> float:
        """Maximum seconds until this engine is at rest."""

    def is_at_rest(self) -> bool:
        """Return whether everything outstanding is answered, and nothing is under way."""

    def end_rest(self) -> None:
        """Serve clients again."""

    def pack(self) -> Iterator[Parcel]:
        """End the last turn, so that the memory is as after a death, and return everything else
        that the successor needs. Must not switch to another greenlet. Changes nothing: `end_rest`
        may follow. A successor's engine finds this in `boot.parcels`, and continues with it at the
        end of `load`."""

    def pumped(self) -> list[Pumped]:
        """Return the connections whose TLS or codec only this process can continue, after `pack`,
        and once the successor has taken over. The engine must not be used any more."""

    def wind_down(self) -> None:
        """Answer the publishes that have been executed, execute no more, and end the connections of
        producers. Other workers still forward publishes to this one. Waits."""

    def stop(self) -> bool:
        """Close all sockets immediately and save everything; stop a `load` in progress. Return
        whether everything was saved. Waits."""


class Worker:
    """The control channel's handler, and the order of startup and shutdown."""

    def __init__(self, data: dict[str, Any], lines: log.Log) -> None:
        formats.check_numbers_in_use(data.get("formats"))
        fds = data["fds"]
        memory = WorkerMemory.from_json(data["memory"])
        for fd in (*fds.values(), *data["wake"], *(() if memory is None else memory.fds())):
            os.set_inheritable(fd, False)
        self.index = int(data["worker"])
        self._log = lines
        self._channel = Channel(_socket(fds["control"]), self)
        self._alive = fds["alive"]
        self._done: AsyncResult = AsyncResult()
        self._ending = False
        self._serving = 0  # calls in progress
        self._shared = Shared(fds["memory"], data["workers"])
        self._link = MasterLink(self._channel)
        self._boot = Boot(
            self.index,
            data["workers"],
            data["generation"],
            fds["lock"],
            fds["memory"],
            data["wake"],
            data["context"],
            self._shared,
            lines,
            self._link,
            memory,
        )
        self._handoff = fds["handoff"]
        self._engine_name = data["engine"]
        self._engine: Engine
        self._receiver: Receiver
        self._made = Event()  # the engine exists
        self._loaded = Event()  # the engine can serve other processes
        self._order: AsyncResult = AsyncResult()  # the arguments of `take_over`
        self._saves_without_master = False
        self._is_loading = False  # or has loaded
        self._was_loaded = Event()  # `load` has ended
        self._succession: socket.socket | None = None
        if "succession" in fds:
            upgrade_steps.reached("booting")
            os.set_inheritable(fds["succession"], False)
            self._succession = _socket(fds["succession"])
            engine_module = import_module(self._engine_name.partition(":")[0])
            if prepare := getattr(engine_module, "prepare", None):
                prepare(self._boot)
        else:
            self._make_engine(self._boot)
            self._loaded.set()

    def run(self) -> int:
        """Run; return the exit code."""
        if self._succession is None:
            self._heartbeat.start()
        pipe = gevent.get_hub().loop.io(self._alive, 1)
        pipe.start(gevent.spawn, self._end, arbiter.ORPHANED)
        _thread.start_new_thread(_outlive, (self._alive,))
        self._channel.start()
        if self._succession is None:
            self._link.notify(Up(self.index))
        else:
            upgrade_steps.reached("waiting")
            self._link.notify(SuccessorWaits(self.index))
            gevent.spawn(self._succeed, self._succession)
        code: int = self._done.get()
        pipe.stop()
        pipe.close()
        return code

    def _make_engine(self, boot: Boot) -> None:
        module, _, attribute = self._engine_name.partition(":")
        self._engine = getattr(import_module(module), attribute)(boot)
        self._heartbeat = Heartbeat(self._shared, self.index, self._engine.connections)
        self._receiver = Receiver(_socket(self._handoff), self._engine.adopt)
        self._made.set()

    # -- the hand-over

    def _succeed(self, sock: socket.socket) -> None:
        """Become the worker, once the predecessor has handed over."""
        try:
            parcels = TakingOver(sock).receive()
        except NotHandedOver:
            self._done.set(arbiter.CLEAN)
            return
        sock.close()
        upgrade_steps.reached("taken over")
        self._link.notify(TakenOver(self.index))
        context, _ = self._order.get()
        if self._saves_without_master:
            parcels = []  # no client is served any more
        try:
            self._make_engine(self._boot._replace(context=context, parcels=parcels))
        except Exception:
            events.worker_boot_failed(self._log, self.index, traceback.format_exc())
            self._done.set(arbiter.NOT_BOOTED)
            return
        if self._saves_without_master:
            self._save_without_master()
            return
        self._heartbeat.start()
        self._link.notify(Up(self.index))

    def take_over(self, context: dict[str, Any], topics: list[dict[str, Any]]) -> None:
        self._log.level = context["log"]["level"]
        self._order.set((context, topics))

    def _save_without_master(self) -> None:
        """Save what the predecessor has left in memory: the master has exited before it could have
        this successor load it."""
        if not self._is_loading:
            _, topics = self._order.get()
            with contextlib.suppress(Exception):
                self.load(topics, {}, {})
        self._was_loaded.wait()
        self._stop(arbiter.ORPHANED)

    def hand_over_to(self, fd: int) -> None:
        upgrade_steps.reached("resting")
        sock = socket.socket(fileno=fd)
        self._receiver.pause()
        try:
            self._rest()
            upgrade_steps.reached("at rest")
            handing_over = HandingOver(sock)
            handing_over.send(self._engine.pack())
            self._flush()
            upgrade_steps.reached("committing")
            self._check_master()
            # Freeing an object of the engine could free memory that the successor uses.
            gc.disable()
            handing_over.commit()
        except Exception as error:
            gc.enable()
            sock.close()
            if not isinstance(error, NotHandedOver):
                events.worker_hand_over_failed(self._log, self.index, traceback.format_exc())
            self._engine.end_rest()
            if not self._ending:
                self._receiver.start()
            self._link.notify(Kept(self.index, str(error) or type(error).__name__))
        else:
            self._leave()

    def _leave(self) -> NoReturn:
        """Exit, after the successor has become the worker; first pump what it cannot decode."""
        try:
            upgrade_steps.reached("handed over")
            pumped = self._engine.pumped()
            if pumped:
                self._link.notify(HandedOver(self.index))
                self._channel.flush()
                _set_name(f"nsqd-pump-{self.index}")
                shed.shed([self._alive, *(fd for each in pumped for fd in each[:2])])
                gc.enable()
                events.pump_begun(self._log, connections=len(pumped))
                pump.run(pumped, self._alive, self._log)
                events.pump_ended(self._log)
        except BaseException:
            events.pump_failed(self._log, traceback.format_exc())
        finally:
            os._exit(arbiter.HANDED_OVER)

    def _rest(self) -> None:
        """Return once nothing is under way. Raises NotHandedOver."""
        limit = self._engine.rest_limit
        deadline = time.monotonic() + limit
        self._engine.begin_rest()
        # One of the calls is this one.
        while self._serving > 1 or not (self._engine.is_at_rest() and self._channel.is_flushed):
            if self._ending or time.monotonic() >= deadline:
                raise NotHandedOver(f"requests have not ended within {limit:g} s")
            gevent.sleep(REST_STEP)

    def _check_master(self) -> None:
        """Raise NotHandedOver if the master has exited: a successor would exit as well, and lose
        what is only in memory. This process saves it."""
        pipe = select.poll()
        pipe.register(self._alive, select.POLLIN)
        if pipe.poll(0):
            raise NotHandedOver("the master has exited")

    def _flush(self) -> None:
        """Send the reports to the master that end the last turn. Raises NotHandedOver."""
        self._channel.flush()
        if not self._channel.is_flushed:
            raise NotHandedOver("the master does not read")

    # -- messages from the master, and from other workers through it

    def called(self, request: Request) -> Any:
        """Answer the master, or another worker through the master."""
        self._serving += 1
        try:
            if request.method == TakeOver.__name__:
                return ProcessMessage.decode(request).serve(self)
            self._made.wait()
            if request.method in ProcessMessage.kinds:
                return ProcessMessage.decode(request).serve(self)
            self._loaded.wait()
            return self._engine.call(request)
        finally:
            self._serving -= 1

    def notified(self, request: Request) -> None:
        """Handle a notification from the master."""
        self.called(request)

    def hung_up(self, reason: str) -> None:
        """Handle the control channel's end: the master has exited, or no longer uses this
        worker."""
        gevent.spawn(self._end, arbiter.ORPHANED)

    # -- to_worker.Process

    def load(
        self, topics: list[dict[str, Any]], table: dict[str, int], peers: dict[int, int]
    ) -> None:
        self._is_loading = True
        try:
            self._engine.load(topics, table, peers)
        except Exception:
            if not self._saves_without_master:
                # The answer contains only the error text; the log has the traceback.
                events.worker_load_failed(self._log, self.index, traceback.format_exc())
                gevent.spawn(self._done.set, arbiter.NOT_LOADED)
            raise
        finally:
            self._was_loaded.set()
        self._loaded.set()
        if not self._ending:
            self._receiver.start()

    def placed(self, topic: str, worker: int) -> None:
        self._engine.placed(topic, worker)

    def peer_up(self, worker: int, generation: int) -> None:
        self._engine.peer_up(worker, generation)

    def peer_down(self, worker: int) -> None:
        self._engine.peer_down(worker)

    def change_option(self, name: str, value: Any) -> None:
        if name == "log_level":
            self._log.level = value
        self._engine.option_changed(name, value)

    def wind_down(self) -> None:
        self._receiver.close()
        self._engine.wind_down()

    def stop(self) -> None:
        self._end(arbiter.CLEAN)

    # -- the end

    def _end(self, code: int) -> None:
        if self._ending:
            return
        self._ending = True
        if code != arbiter.ORPHANED or self._succession is None or self._loaded.is_set():
            self._stop(code)
            return
        self._saves_without_master = True
        if self._made.is_set():
            self._save_without_master()
        # Otherwise, `_succeed` continues.

    def _stop(self, code: int) -> None:
        self._receiver.close()
        try:
            if not self._engine.stop():
                code = arbiter.NOT_SAVED
        except Exception:
            events.worker_stop_failed(self._log, self.index, traceback.format_exc())
            code = arbiter.CRASHED
        # The answer to "stop" must be queued first, which happens when this greenlet returns.
        gevent.spawn(self._done.set, code)


def _socket(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _outlive(alive: int) -> None:
    """Runs in a thread: an orphan that cannot save in time must not hold the data path forever."""
    os.read(alive, 1)
    time.sleep(ORPHAN_LIMIT)
    os.kill(os.getpid(), signal.SIGKILL)


def _set_signals() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    for signum in spawn.BLOCKED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)


def _set_name(name: str) -> None:
    """Name this process for ps and top: a fork keeps the master's command line."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)


def _make_log(settings: dict[str, Any], worker: int) -> log.Log:
    return log.Log(
        settings["prefix"],
        settings["level"],
        settings["format"],
        context={"daemon": "nsqd", "worker": worker},
    )


def main(argv: list[str]) -> int:
    """Boot and run; return the exit code."""
    _set_signals()
    openfiles.raise_limit()
    oom_score.raise_above_parent()
    data = spawn.unpack(int(argv[1]))
    _set_name(f"nsqd-worker-{data['worker']}")
    lines = _make_log(data["context"]["log"], data["worker"])
    try:
        worker = Worker(data, lines)
    except Exception as error:
        reason = str(error) if isinstance(error, StartError) else traceback.format_exc()
        events.worker_boot_failed(lines, data["worker"], reason)
        return arbiter.NOT_BOOTED
    with garbage.bounded():
        return worker.run()


if __name__ == "__main__":
    try:
        status = main(sys.argv)
    except BaseException:
        traceback.print_exc()
        status = arbiter.CRASHED
    # Everything is saved, or cannot be saved, so finalisers are unnecessary.
    os._exit(status)
