"""The master: wires arbiter, acceptor, placement, control and metadata together.

Owns the order in which nsqd starts and ends, what a worker's death means for the others, and what
the master answers to workers. Speaks no client's protocol.

Start: sockets bound and workers started (by main); nsqd.dat read; all workers up; all topics
loaded; lookupds connected to; nsqd.dat written; accepting. End: listening sockets closed; workers
stop and save; nsqd.dat written; "NSQ: bye".

A worker's death: it gets no more connections, and those it had not taken go to others; the others
are told, and answer when they no longer touch its rings; the rings are reset; it is started again;
it loads its topics; the others are told that it is up; it gets connections.
"""

import faulthandler
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore

from nsqcy.errors import NotWritten, StartError
from nsqcy.logging import logger
from nsqcy.names import is_ephemeral
from nsqcy.net.listeners import Listener
from nsqcy.nsqd.lookup import protocol
from nsqcy.nsqd.lookup.channel_discovery import Seeding
from nsqcy.nsqd.lookup.registration import Lookup
from nsqcy.nsqd.master import metadata, policy_file, readiness
from nsqcy.nsqd.master.disk_guard import DiskGuard
from nsqcy.nsqd.master.drain import Drain, Remains, merged
from nsqcy.nsqd.master.launcher import Born, Launcher
from nsqcy.nsqd.master.placement import Placement
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.stats import statsd
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.stats.gathering import Gathering
from nsqcy.nsqd.stats.metrics import Metrics, Whole
from nsqcy.process import ancillary, arbiter, spawn
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.arbiter import Arbiter, describe
from nsqcy.process.control import Answer, CallTimeout, Channel, ChannelClosed, RemoteError, Request
from nsqcy.process.handoff import Accepted, Sender
from nsqcy.process.heartbeat import Slots
from nsqcy.process.service import Notifier
from nsqcy.process.watchdog import Watchdog
from nsqcy.util import debug

STOP_LIMIT = 600.0  # seconds workers may take to save before they are killed
KILL_LIMIT = 5.0
FORWARD_LIMIT = 60.0  # seconds a worker may take to answer another; callers set less
SHARE_LIMIT = 5.0  # seconds a worker may take to make its share of /stats
CHANGE_LIMIT = 5.0  # seconds workers may take to say that they know of a changed option
HEALTH_LIMIT = 2.0  # seconds they may take to say how they are; who asks does not wait for long
REMAINS_LIMIT = 5.0  # seconds they may take to count what is left
LOOKUPS_LIMIT = 5.0  # seconds lookupds may take to hear that nobody is to be sent here
INSPECT_LIMIT = 20.0  # seconds they may take to tell of themselves
HUNG_UP_LIMIT = 5.0  # seconds a worker may live without its control channel
NAG = 5.0  # seconds between complaints about a worker that does not answer
LAGGING = 2_000_000_000

CLEAN, FAILED = 0, 1


class Reread(NamedTuple):
    """What the configuration and the files it names say after a SIGHUP."""

    log_level: int
    tls: dict[str, Any] | None = None  # material of nsqcy.nsqd.worker.tls
    lookupds: tuple[str, ...] | None = None
    users: str | None = None  # the file of them


class Crewman:
    """The master's side of one worker process: its channels and how far it has come.

    It is the handler of its control channel and the acceptor's target.
    """

    def __init__(self, master: "Master", born: Born, slots: Slots) -> None:
        self.index = born.worker
        self.up = Event()
        self.told_peers = False  # it has been told which others are up
        self.ready = False  # and is one of them
        self.channel = Channel(born.control, self)
        self.sender = Sender(born.handoff, master.room, master.refused)
        self._master = master
        self._slots = slots
        self._beat = 0
        self._recent = 0  # handed over since the beat that last told the connections
        self.channel.start()

    def lagging(self) -> bool:
        return time.monotonic_ns() - self._slots.view(self.index).beat > LAGGING

    def load(self) -> int:
        slot = self._slots.view(self.index)
        if slot.beat != self._beat:
            self._beat = slot.beat
            self._recent = self.sender.pending
        return slot.connections + self._recent

    def send(self, item: Accepted) -> bool:
        if not self.sender.send(item):
            return False
        self._recent += 1
        return True

    def called(self, request: Request) -> Any:
        return self._master.called(self.index, request)

    def notified(self, request: Request) -> None:
        if request.method == "up" and request.to is None:
            self.up.set()
        else:
            self._master.notified(self.index, request)

    def hung_up(self, reason: str) -> None:
        self._master.hung_up(self)


class Master:
    """One nsqd. `run` lives until the end and gives the exit code.

    `reread` reads the configuration again; None if it is wrong now. `kept` is what was set for
    topics and channels over HTTP.
    """

    def __init__(
        self,
        launcher: Launcher,
        listeners: list[Listener],
        data_path: str,
        lines: logger.Log,
        reread: Callable[[], Reread | None] = lambda: None,
        notifier: Notifier | None = None,
        kept: policy_file.Kept | None = None,
    ) -> None:
        self._launcher = launcher
        self._slots = launcher.shared
        self._listeners = listeners
        self._data_path = data_path
        self._log = lines
        self._reread = reread
        self._placement = Placement(launcher.workers)
        self._picture = metadata.Picture()
        self._store = metadata.Store(self._picture, data_path, lines)
        self._crew: dict[int, Crewman] = {}
        self._arbiter = Arbiter(launcher.workers, self, lines)
        self._acceptor = Acceptor(listeners, lines, self._listener_failed)
        self._notifier = notifier or Notifier()
        self._watchdog = Watchdog(self._notifier, self._arbiter.unheard)
        self._gathering = Gathering(
            self._ask_shares,
            launcher.workers,
            launcher.context.get("started", 0),
            self._is_draining,
        )
        self._metrics = Metrics(
            self._ask_metrics,
            self._facts,
            data_path,
        )
        self._statsd: statsd.Pusher | None = None
        self._started = False
        self._ending = False
        self._booting: gevent.Greenlet | None = None
        self._done: AsyncResult = AsyncResult()
        # What the master itself does about an option that changes.
        self._on_change: dict[str, Callable[[Any], None]] = {"log_level": self._log_level_changed}
        self._lookup: Lookup | None = None
        self._seeding: Seeding | None = None
        self._configured_lookupds: list[str] = []
        self._guard: DiskGuard | None = None
        self._drain = Drain(self, lines)
        self._kept = kept or policy_file.Kept(data_path)
        self._keeping = BoundedSemaphore()
        if launcher.context.get("options"):  # toys have none
            options = NsqdOptions.restore(launcher.context["options"])
            self._prepare_lookup(options)
            if options.min_free_disk:
                self._guard = DiskGuard(data_path, options.min_free_disk, self._refuse, lines)

    def run(self, born: Iterable[Born]) -> int:
        """Live with the workers that `main` has started."""
        for each in born:
            self._crew[each.worker] = Crewman(self, each, self._slots)
            self._arbiter.born(each.worker, each.pid)
        self._arbiter.check_early_deaths()
        self._arbiter.start()
        self._watch_signals()
        self._notifier.status("starting")
        self._watchdog.prolong()
        self._booting = gevent.spawn(self._start)
        code: int = self._done.get()
        return code

    def workers(self) -> list[dict[str, object]]:
        """The state of each worker, for /ping, /stats and people."""
        return [self._describe(child) for child in self._arbiter.children]

    def gather(self, method: str, timeout: float, /, **args: Any) -> dict[int, Answer | Exception]:
        """Ask every worker there is at once; an answer or what went wrong, by worker."""
        asked = {
            index: gevent.spawn(_ask, man, method, timeout, args)
            for index, man in sorted(self._crew.items())
        }
        gevent.joinall(list(asked.values()))
        return {index: greenlet.value for index, greenlet in asked.items()}

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

    # -- start

    def _start(self) -> None:
        try:
            self._load_metadata()
            if self._seeding is not None and self._configured_lookupds:
                self._seeding.prepare()  # while the workers import what they need
            self._wait_for_all()
            self._load_all()
            if self._guard is not None:
                self._guard.start()
            if self._lookup is not None:
                self._lookup.set_addresses(self._configured_lookupds)
            self._persist_first()
        except StartError as error:
            self._abandon(str(error))
            return
        except Exception:
            self._abandon(f"failed to start - {traceback.format_exc()}")
            return
        self._started = True
        for listener in self._listeners:
            self._log.info(
                f"{listener.title}: listening on {listener.text}",
                event="listening",
                listener=listener.title,
                address=listener.text,
            )
        for man in self._crew.values():
            self._let_in(man)
        self._start_statsd()
        self._watchdog.serve(self._serving())

    def _prepare_lookup(self, options: NsqdOptions) -> None:
        self._lookup = Lookup(
            self._picture, protocol.identity(options), options.max_body_size, self._log
        )
        self._seeding = Seeding(self._lookup, options, self._log)
        self._configured_lookupds = list(options.lookupd_tcp_address)
        self._on_change["lookupd_tcp_address"] = self._lookup.set_addresses

    def _start_statsd(self) -> None:
        options = self._launcher.context.get("options")
        if options and options["statsd_address"]:
            self._statsd = statsd.Pusher(
                NsqdOptions.restore(options), self._gathering.whole, self._log
            )
            self._statsd.start()

    def _serving(self) -> str:
        where = ", ".join(f"{each.title} {each.text}" for each in self._listeners)
        what = "draining" if self._is_draining() else "serving"
        return f"{what} {where} with {self._launcher.workers} workers"

    def _load_metadata(self) -> None:
        loaded = metadata.load(self._data_path, self._log)
        self._picture.replace(loaded)
        for topic in sorted(self._picture):
            self._placement.place(topic)

    def _wait_for_all(self) -> None:
        for man in list(self._crew.values()):
            man.up.wait()

    def _load_all(self) -> None:
        loads = [gevent.spawn(self._load_quietly, man) for man in self._crew.values()]
        for greenlet in loads:
            error = greenlet.get()
            if error is not None:
                raise StartError(f"failed to load topics - {error}")

    def _load_quietly(self, man: Crewman) -> str | None:
        try:
            self._load(man)
        except (RemoteError, ChannelClosed) as error:
            return f"worker {man.index}: {error}"
        return None

    def _load(self, man: Crewman) -> None:
        """Have a worker load its topics; tells it all it has missed."""
        topics = [topic for topic in self._picture if self._placement.place(topic) == man.index]
        # At the start all come up together; later those that are not up yet say so themselves.
        peers = {
            index: self._slots.view(index).generation
            for index, other in self._crew.items()
            if index != man.index and (other.ready or not self._started)
        }
        man.told_peers = True
        man.channel.call(
            "load",
            None,
            topics=[self._picture.entry(topic) for topic in topics],
            table=self._placement.table(),
            peers=peers,
        )

    def _persist_first(self) -> None:
        try:
            self._store.persist()
        except OSError as error:
            raise StartError(f"failed to persist metadata - {error}") from None

    def _abandon(self, text: str) -> None:
        """Nothing has been served: nothing to save."""
        self._ending = True
        self._watchdog.stop()
        self._notifier.status(text)
        self._arbiter.halt()
        self._arbiter.signal_all(signal.SIGKILL)
        self._acceptor.close()
        self._arbiter.wait(KILL_LIMIT)
        self._log.fatal(text, event="failed")
        self._done.set(FAILED)

    # -- workers die and are born again (the arbiter's owner)

    def spawn(self, index: int) -> int:
        """Start a worker again."""
        born = self._launcher.launch(index)
        self._crew[index] = Crewman(self, born, self._slots)
        gevent.spawn(self._welcome, self._crew[index])
        return born.pid

    def last_beat(self, index: int) -> int:
        return self._slots.view(index).beat

    def exited(self, index: int, code: int) -> None:
        man = self._crew.pop(index, None)
        self._acceptor.remove(index)
        if man is None:
            return
        back = man.sender.close()
        man.channel.drain()  # its last words
        man.channel.close("the worker is gone")
        if self._ending:
            _close(back)
        elif not self._started:
            _close(back)
            gevent.spawn(self._start_failed, f"worker {index} {describe(code)}")
        else:
            self._acceptor.give(back)
            gevent.spawn(self._replace, index)

    def _start_failed(self, text: str) -> None:
        # A worker that answered before it died said more; let that be heard first.
        gevent.sleep(0.01)
        if self._ending:
            return
        if self._booting is not None:
            self._booting.kill(block=True)
        if not self._ending:
            self._abandon(f"failed to start - {text}")

    def _replace(self, index: int) -> None:
        its = {name for name, worker in self._placement.table().items() if worker == index}
        before = [pair for name in its for pair in self._picture.pairs(name)]
        for topic in self._picture.forget_ephemeral(its):
            self._placement.retire(topic)
        for topic, channel in before:
            if (topic, channel) not in self._picture.pairs(topic):
                self._tell_lookupds(protocol.UNREGISTER, topic, channel)
        knowing = [man for man in self._crew.values() if man.told_peers]
        gevent.joinall([gevent.spawn(self._peer_down, man, index) for man in knowing])
        self._slots.reset(index)
        self._arbiter.restart(index)

    def _peer_down(self, man: Crewman, index: int) -> None:
        """Until it answers or dies: as long as it may touch the rings they cannot be reset."""
        greenlet = gevent.spawn(_ask, man, "peer_down", None, {"worker": index})
        while greenlet.value is None:
            greenlet.join(NAG)
            if not greenlet.ready():
                self._log.warn(
                    f"worker {man.index}: has not let go of worker {index} yet", worker=man.index
                )

    def _welcome(self, man: Crewman) -> None:
        """Bring a worker that was started again to where the others are."""
        man.up.wait()
        error = self._load_quietly(man)
        if error is not None:
            self._log.error(
                f"failed to load topics - {error}", event="topics_not_loaded", worker=man.index
            )
            return  # it leaves by itself, and is started again
        if self._crew.get(man.index) is not man or self._ending:
            return
        generation = self._slots.view(man.index).generation
        for other in self._crew.values():
            if other is not man and other.told_peers:
                other.channel.notify("peer_up", worker=man.index, generation=generation)
        self._log.info(f"worker {man.index}: up again", event="worker_up", worker=man.index)
        self._let_in(man)

    def _let_in(self, man: Crewman) -> None:
        man.ready = True
        self._arbiter.on_up(man.index)
        self._acceptor.add(man.index, man)

    def hung_up(self, man: Crewman) -> None:
        """Its control channel broke: without it a worker is of no use."""
        gevent.spawn_later(HUNG_UP_LIMIT, self._dismiss, man)

    def _dismiss(self, man: Crewman) -> None:
        if self._crew.get(man.index) is man and not self._ending:
            self._arbiter.dismiss(man.index)

    # -- sockets

    def room(self) -> None:
        """A worker has taken sockets."""
        self._acceptor.resume()

    def refused(self, item: Accepted) -> None:
        """A worker can open no more files."""
        self._acceptor.retry_later(item)

    def _listener_failed(self, text: str) -> None:
        self._log.fatal(text, event="failed")
        gevent.spawn(self._stop, FAILED)

    # -- what workers say

    def called(self, index: int, request: Request) -> Any:
        if request.to is not None:
            return self._forward(request)
        args = request.args
        match request.method:
            case "place":
                return self._place(args["topic"])
            case "topic_created":
                changed = self._topic_created(index, **args)
            case "channel_created":
                changed = self._channel_created(**args)
            case "topic_deleted":
                changed = self._topic_deleted(args["topic"])
            case "channel_deleted":
                changed = self._picture.delete_channel(args["topic"], args["channel"])
                if changed:
                    self._tell_lookupds(protocol.UNREGISTER, **args)
            case "topic_paused":
                changed = self._picture.pause_topic(args["topic"], args["paused"])
            case "channel_paused":
                changed = self._picture.pause_channel(
                    args["topic"], args["channel"], args["paused"]
                )
            case "workers":
                return self.workers()
            case "live":
                return True
            case "reasons":
                return self.reasons()
            case "stats":
                return Answer(blob=self._gathering.page(Query(**args)))
            case "metrics":
                return self._metrics.page(**args)
            case "drain":
                return self._set_drain(args["on"], args["limit"])
            case "drain_state":
                return self._drain.state()
            case "inspect":
                return Answer(blob=self._inspect(args["what"]).encode(errors="replace"))
            case "change_option":
                self.change_option(args["name"], args["value"])
                return None
            case "set_policy":
                self.set_policy(args["name"], args["values"])
                return None
            case "forget_policies":
                self.forget_policies(args["topic"], args["channel"])
                return None
            case _:
                ancillary.close_all(request.fds)
                raise ValueError(f"the master has no method {request.method}")
        if changed and _is_durable(args):
            try:
                self._store.persist()
            except OSError:  # which is logged
                raise NotWritten from None
        return changed

    def notified(self, index: int, request: Request) -> None:
        if request.to is not None:
            man = self._crew.get(request.to)
            if man is None:
                ancillary.close_all(request.fds)
            else:
                man.channel.notify(
                    request.method, blob=request.blob, fds=request.fds, **request.args
                )
            return
        args = request.args
        match request.method:
            case "topic_created":
                changed = self._topic_created(index, **args)
            case "channel_created":
                changed = self._channel_created(**args)
            case _:
                ancillary.close_all(request.fds)
                self._log.error(f"worker {index}: the master has no method {request.method}")
                return
        if changed and _is_durable(args):
            self._store.persist_soon()

    def _topic_created(self, index: int, topic: str, held: bool = False) -> bool:
        """Whether it is new to us. `held`: it waits for the channels that lookupds know."""
        self._placement.place(topic)
        changed = self._picture.create_topic(topic)
        if changed:
            self._tell_lookupds(protocol.REGISTER, topic)
        if held:
            gevent.spawn(self._seed, index, topic)
        return changed

    def _channel_created(self, topic: str, channel: str) -> bool:
        changed = self._picture.create_channel(topic, channel)
        if changed:
            self._tell_lookupds(protocol.REGISTER, topic, channel)
        return changed

    def _topic_deleted(self, topic: str) -> bool:
        self._placement.retire(topic)
        for pair in self._picture.pairs(topic):
            self._tell_lookupds(protocol.UNREGISTER, *pair)
        return self._picture.delete_topic(topic)

    def _tell_lookupds(self, verb: str, topic: str, channel: str = "") -> None:
        if self._lookup is not None:
            self._lookup.change(protocol.Command(verb, topic, channel))

    def _seed(self, index: int, topic: str) -> None:
        channels: list[str] = []
        try:
            if self._seeding is not None:
                channels = self._seeding.channels(topic)
        finally:
            man = self._crew.get(index)
            if man is not None:
                man.channel.notify("seed", topic=topic, channels=channels)

    def _ask_shares(self, query: Query) -> list[Answer]:
        return list(self._ask_ready("share", SHARE_LIMIT, **query._asdict()).values())

    def _ask_metrics(self, sheet: int, compress: bool) -> dict[int, Answer]:
        return self._ask_ready("metrics", SHARE_LIMIT, (sheet,), compress=compress)

    def _ask_ready(
        self, method: str, timeout: float, fds: Sequence[int] = (), /, **args: Any
    ) -> dict[int, Answer]:
        """The answers of the workers that have loaded their topics and answer in time. Each is
        given its own of these descriptors."""
        asked = {
            index: gevent.spawn(_ask, man, method, timeout, args, [os.dup(fd) for fd in fds])
            for index, man in sorted(self._crew.items())
            if man.ready
        }
        gevent.joinall(list(asked.values()))
        answers = {index: each.value for index, each in asked.items()}
        for index, answer in answers.items():
            if isinstance(answer, RemoteError):  # a bug there
                self._log.error(f"worker {index}: {method}: {answer}", worker=index)
        return {index: each for index, each in answers.items() if isinstance(each, Answer)}

    def _facts(self) -> Whole:
        """What metrics tell beside the workers' shares."""
        peers = self._lookup.peers if self._lookup is not None else []
        return Whole(
            workers=self.workers(),
            lookupds={peer.name: peer.told for peer in peers},
            draining=self._is_draining(),
            disk_refuses=self._guard is not None and self._guard.refusal is not None,
            started=self._launcher.context["started"],
        )

    def _place(self, topic: str) -> int:
        known = self._placement.worker_of(topic) is not None
        worker = self._placement.place(topic)
        if not known:
            for man in self._crew.values():
                man.channel.notify("placed", topic=topic, worker=worker)
        return worker

    def _forward(self, request: Request) -> Answer:
        man = self._crew.get(request.to) if request.to is not None else None
        if man is None:
            ancillary.close_all(request.fds)
            raise ChannelClosed(f"worker {request.to} is not up")
        return man.channel.call(
            request.method, FORWARD_LIMIT, blob=request.blob, fds=request.fds, **request.args
        )

    # -- whether it is ready

    def reasons(self) -> list[str]:
        """Why nsqd is not ready for clients; nothing if it is. Waits for the workers."""
        if self._ending:
            return ["exiting"]
        asked = {
            man.index: gevent.spawn(_ask, man, "health", HEALTH_LIMIT, {})
            for man in self._crew.values()
            if man.ready
        }
        gevent.joinall(list(asked.values()))
        answers = {
            index: each.value.value if isinstance(each.value, Answer) else None
            for index, each in asked.items()
        }
        disk = self._guard.refusal if self._guard is not None else None
        found = readiness.reasons(self._launcher.workers, answers, disk, time.time_ns())
        return [self._drain.reason(), *found] if self._is_draining() else found

    def _refuse(self, reason: str | None) -> None:
        """Have every worker, and those that will be started, refuse what would be written."""
        self._launcher.context["refusal"] = reason
        for man in self._crew.values():
            man.channel.notify("refuse", reason=reason)

    # -- draining (drain.Surroundings)

    def _is_draining(self) -> bool:
        return self._drain.under_way

    def _set_drain(self, on: bool, limit: float | None) -> dict[str, Any]:
        if on and not self._ending:
            self._drain.begin(limit)
        elif not on:
            self._drain.cancel()
        if self._started and not self._ending:
            self._watchdog.serve(self._serving())
        return self._drain.state()

    def withdraw(self) -> None:
        """Have lookupds forget what is here."""
        if self._lookup is not None:
            self._lookup.withdraw(LOOKUPS_LIMIT)

    def restore(self) -> None:
        """Have them know it again."""
        if self._lookup is not None:
            self._lookup.restore(LOOKUPS_LIMIT)

    def refuse_publishes(self, refuse: bool) -> None:
        """Have every worker, and those that will be started, refuse all publishes."""
        self._launcher.context["draining"] = refuse
        self.gather("draining", CHANGE_LIMIT, draining=refuse)

    def remains(self) -> Remains | None:
        """What consumers are not done with; None while a worker has not loaded its topics."""
        crew = list(self._crew.values())
        if len(crew) < self._launcher.workers or not all(man.ready for man in crew):
            return None
        answers = self.gather("remains", REMAINS_LIMIT).values()
        parts = [each.value for each in answers if isinstance(each, Answer)]
        return merged(parts) if len(parts) == len(answers) else None

    def end(self, code: int) -> None:
        """Save and exit."""
        gevent.spawn(self._stop, code)

    # -- looking into it

    def _inspect(self, what: str) -> str:
        """What every process tells of itself."""
        told = [f"== master, pid {os.getpid()}\n{debug.tell(what)}"]
        for index, answer in self.gather("inspect", INSPECT_LIMIT, what=what).items():
            text = answer.blob.decode() if isinstance(answer, Answer) else f"{answer}\n"
            told.append(f"== worker {index}, pid {self._arbiter.children[index].pid}\n{text}")
        return "\n".join(told)

    # -- options that change

    def change_option(self, name: str, value: Any) -> None:
        """Change an option here, in every worker, and in those that will be started.

        Returns when all workers have it; one that does not answer will meet it before anything
        that is asked of it later.
        """
        self._launcher.context["options"][name] = value
        changed = self._on_change.get(name)
        if changed is not None:
            changed(value)
        self.gather("option_changed", CHANGE_LIMIT, name=name, value=value)

    # -- policies

    def set_policy(self, name: str, values: dict[str, Any] | None) -> None:
        """Set something for a topic, or for `topic/channel`, or take all of it back (None).

        Returns when it is on the disk and all workers have it. Raises NotWritten, and then nothing
        has changed.
        """
        with self._keeping:
            self._keep(self._kept.change(name, values), [name])

    def forget_policies(self, topic: str, channel: str) -> None:
        """Somebody has deleted a topic, or a channel of it: what was set for it goes too."""
        with self._keeping:
            name = f"{topic}/{channel}"
            names = [each for each in self._kept.names(topic) if not channel or each == name]
            kept = self._kept
            for each in names:
                kept = kept.change(each, None)
            if names:
                self._keep(kept, names)

    def _keep(self, kept: policy_file.Kept, names: list[str]) -> None:
        error: OSError | None = gevent.get_hub().threadpool.apply(kept.try_to_write)
        if error is not None:
            self._log.error(
                f"failed to persist policies - {error}", event="policies_failed", error=str(error)
            )
            raise NotWritten
        self._kept = kept
        context = self._launcher.context
        values = kept.values(NsqdOptions.restore(context["options"]))
        context["policies"]["set"] = values
        changed = {name: values.get(name, {}) for name in names}
        self.gather("policies_changed", CHANGE_LIMIT, changed=changed)

    def _log_level_changed(self, level: int) -> None:
        self._log.level = level
        self._launcher.context["log"]["level"] = level

    # -- signals and the end

    def _watch_signals(self) -> None:
        loop = gevent.get_hub().loop
        actions: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self._on_stop_signal,
            signal.SIGINT: self._on_stop_signal,
            signal.SIGHUP: self._on_hangup,
            signal.SIGQUIT: self._on_quit,
        }
        self._watchers = []
        for signum, action in actions.items():
            watcher = loop.signal(signum)
            watcher.start(action)
            self._watchers.append(watcher)
        faulthandler.enable()  # the SIGABRT of a service manager's watchdog leaves the stacks
        # After the watcher, whose handler it calls on: our stacks first, then the workers'.
        faulthandler.register(signal.SIGQUIT, all_threads=True, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)

    def _on_stop_signal(self) -> None:
        if not self._ending:
            gevent.spawn(self._stop, CLEAN)

    def _on_hangup(self) -> None:
        gevent.spawn(self._reread_settings)

    def _reread_settings(self) -> None:
        telling = self._started and not self._ending
        if telling:
            self._notifier.reloading()
        found = self._reread()
        if found is not None:
            self._adopt_settings(found)
        if telling:
            self._notifier.ready(self._serving())

    def _adopt_settings(self, found: Reread) -> None:
        self.change_option("log_level", found.log_level)
        # Those that were set by HTTP stay, unless the configuration has changed too.
        if found.lookupds is not None and list(found.lookupds) != self._configured_lookupds:
            self._configured_lookupds = list(found.lookupds)
            self.change_option("lookupd_tcp_address", self._configured_lookupds)
        if found.tls is not None:
            self._launcher.context["tls"] = found.tls
            material = json.dumps(found.tls).encode()
            for man in self._crew.values():
                man.channel.notify("tls", blob=material)
            self._log.info("TLS: the certificate files were read again", event="tls_reloaded")
        # One that starts to be asked who it is was not told so: that takes a restart.
        if found.users is not None and self._launcher.context.get("users") is not None:
            self._launcher.context["users"] = found.users
            for man in self._crew.values():
                man.channel.notify("users", blob=found.users.encode())
            self._log.info("AUTH: the file of users was read again", event="auth_file_reloaded")

    def _on_quit(self) -> None:
        self._arbiter.signal_all(signal.SIGQUIT)

    def _stop(self, code: int) -> None:
        if self._ending:
            return
        self._ending = True
        self._drain.stop()
        self._notifier.stopping("saving")
        self._watchdog.prolong()
        if self._booting is not None:
            self._booting.kill(block=True)
        try:
            self._acceptor.close()
            if self._statsd is not None:
                self._statsd.stop()
            if self._lookup is not None:
                self._lookup.close()
            if self._guard is not None:
                self._guard.stop()
            self._arbiter.halt()
            if not self._stop_workers():
                code = FAILED
            if self._started:
                self._store.persist()
        except Exception:
            self._log.error(
                f"failed to stop cleanly - {traceback.format_exc()}", event="stop_failed"
            )
            code = FAILED
        self._watchdog.stop()
        self._log.info("NSQ: bye", event="stopped")
        self._done.set(code)

    def _stop_workers(self) -> bool:
        """Whether all that were alive saved everything."""
        alive = [child for child in self._arbiter.children if child.pid]
        self._arbiter.signal_all(signal.SIGCONT)  # one that is stopped has things to save too
        for man in list(self._crew.values()):
            gevent.spawn(_ask, man, "stop", None, {})
        if not self._arbiter.wait(STOP_LIMIT):
            self._log.error(
                f"workers have not stopped within {STOP_LIMIT:g} s, killing them",
                event="workers_killed",
            )
            self._arbiter.signal_all(signal.SIGKILL)
            self._arbiter.wait(KILL_LIMIT)
        return all(child.last_exit == arbiter.CLEAN for child in alive)


def _ask(
    man: Crewman,
    method: str,
    timeout: float | None,
    args: dict[str, Any],
    fds: Sequence[int] = (),
) -> Answer | Exception:
    try:
        return man.channel.call(method, timeout, fds=fds, **args)
    except (CallTimeout, ChannelClosed, RemoteError) as error:
        return error


def _is_durable(args: dict[str, Any]) -> bool:
    return not is_ephemeral(args["topic"]) and not is_ephemeral(args.get("channel", ""))


def _close(items: list[Accepted]) -> None:
    for item in items:
        item.sock.close()
