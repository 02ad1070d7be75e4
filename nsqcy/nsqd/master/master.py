"""The master: connects its parts, and starts and stops nsqd.

Owns the order of startup and shutdown, and the signals. The parts are worker_lifecycle, workers,
topic_registry, requests, policy_store, live_options, drain_control and diagnosis. The master speaks
no client protocol.

Start: sockets bound and workers started (by main); nsqd.dat read; all workers up; all topics
loaded; nsqlookupds connected; nsqd.dat written; accepting. Shutdown: listening sockets closed;
workers stop and save; nsqd.dat written; "NSQ: bye", followed only by a report of unsaved messages.
"""

import faulthandler
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gevent
from gevent.event import AsyncResult

from nsqcy.errors import StartError
from nsqcy.logging import events, logger
from nsqcy.net.listeners import Listener
from nsqcy.nsqd.master import policy_file
from nsqcy.nsqd.master.diagnosis import Diagnosis
from nsqcy.nsqd.master.disk_guard import DiskGuard
from nsqcy.nsqd.master.drain_effects import DrainControl
from nsqcy.nsqd.master.launcher import Born, Launcher
from nsqcy.nsqd.master.live_options import LiveOptions, Reread
from nsqcy.nsqd.master.lost_memory import LostMemory
from nsqcy.nsqd.master.master_state import State
from nsqcy.nsqd.master.policy_changes import PolicyStore
from nsqcy.nsqd.master.requests import WorkerRequests
from nsqcy.nsqd.master.rest import Rest
from nsqcy.nsqd.master.stalled_probes import StalledProbes
from nsqcy.nsqd.master.topic_registry import TopicRegistry
from nsqcy.nsqd.master.upgrade import Upgrade
from nsqcy.nsqd.master.worker_lifecycle import WorkerLifecycle
from nsqcy.nsqd.master.workers import Phase, Workers
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_messages.master_verbs import MasterSide
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.process_messages.to_worker import GetShare, RefusePublishes, WriteMetrics
from nsqcy.nsqd.stats import statsd
from nsqcy.nsqd.stats.metrics_shares import Metrics
from nsqcy.nsqd.stats.node_page import Whole
from nsqcy.nsqd.stats.stats_page import StatsPages
from nsqcy.process import spawn
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.ancillary import Keep
from nsqcy.process.control import Answer
from nsqcy.process.systemd import Notifier
from nsqcy.process.watchdog import Watchdog
from nsqcy.storage.write_failures import UNWRITABLE
from nsqcy.util import garbage
from nsqcy.util.slices import Turns

CLEAN, FAILED = 0, 1
LAST_WRITE_LIMIT = 10.0  # maximum seconds for writing nsqd.dat at exit


class Master:
    """One nsqd. `run` blocks until nsqd stops and returns the exit code.

    `reread` reloads the configuration and returns None if it is invalid. `saved` contains the
    policies that were set over HTTP. Without `argv`, nsqd's arguments, there are no upgrades.
    """

    def __init__(
        self,
        launcher: Launcher,
        listeners: list[Listener],
        data_path: str,
        lines: logger.Log,
        reread: Callable[[], Reread | None] = lambda: None,
        notifier: Notifier | None = None,
        saved: policy_file.SavedPolicies | None = None,
        argv: Sequence[str] | None = None,
    ) -> None:
        context = launcher.context
        options = NsqdOptions.restore(context["options"]) if context.get("options") else None
        count = launcher.workers
        self._launcher = launcher
        self._listeners = listeners
        self._log = lines
        self._reread = reread
        self._phase = Phase()
        self._workers = Workers(lines)
        give_way = Turns().wait
        self._topics = TopicRegistry(data_path, count, self._workers, options, lines, give_way)
        lookup = self._topics.lookup
        self._options = LiveOptions(context, self._workers, lookup, lines)
        self._guard: DiskGuard | None = None
        if options is not None and options.min_free_disk:
            self._guard = DiskGuard(data_path, options.min_free_disk, self._refuse, lines)
        self._drain = DrainControl(
            self._workers,
            count,
            context,
            lookup,
            self._phase,
            end=self._end,
            on_change=self._report_serving,
            log=lines,
        )
        self._stats = StatsPages(
            self._ask_shares,
            count,
            context.get("started", 0),
            lambda: self._drain.under_way,
            give_way,
        )
        self._policies = PolicyStore(
            saved or policy_file.SavedPolicies(data_path), self._workers, context, lines
        )
        self._metrics = Metrics(self._ask_metrics, self._facts, data_path)
        self._rereads = 0  # in progress
        self._probes = StalledProbes()
        self._acceptor = Acceptor(listeners, lines, self._listener_failed, self._probes)
        self._notifier = notifier or Notifier()
        self._upgrade = Upgrade(
            argv,
            launcher.shared_memory,
            Rest(self._rest, self._end_rest, self._workers, self._activity),
            self._dump,
            lambda: self._lifecycle.pumps,
            self._notifier,
            lines,
        )
        self._requests = WorkerRequests(
            self._workers,
            MasterSide(
                self._workers,
                launcher.memory,
                self._topics,
                self._stats,
                self._metrics,
                self._policies,
                self._options,
                self._drain,
                Diagnosis(self._workers, count, self._phase, self._drain, self._guard),
                self._reread_settings,
                self._upgrade,
            ),
            lines,
        )
        self._lifecycle = WorkerLifecycle(
            launcher,
            self._workers,
            self._topics,
            self._acceptor,
            self._requests,
            self._phase,
            self._start_failed,
            LostMemory(data_path, options.min_free_disk if options is not None else 0),
            lines,
        )
        self._watchdog = Watchdog(self._notifier, self._lifecycle.arbiter.unheard)
        self._statsd: statsd.Pusher | None = None
        if options is not None and options.statsd_address:
            self._statsd = statsd.Pusher(options, self._stats.whole, lines)
        self._booting: gevent.Greenlet | None = None
        self._done: AsyncResult = AsyncResult()

    def run(self, born: Iterable[Born]) -> int:
        """Run with the workers that `main` has started."""
        self._lifecycle.begin(born)
        self._watch_signals()
        self._notifier.status("starting")
        self._watchdog.prolong()
        self._booting = gevent.spawn(self._start)
        return self._run()

    def _run(self) -> int:
        with garbage.bounded():
            code: int = self._done.get()
        return code

    # -- start

    def _start(self) -> None:
        try:
            self._topics.load()
            if self._options.lookupds:
                self._topics.prepare_discovery()  # while the workers import their modules
            self._lifecycle.wait_for_all()
            self._lifecycle.load_all()
            self._policies.recall()
            if self._guard is not None:
                self._guard.start()
            self._options.connect_lookupds()
            self._persist_first()
        except StartError as error:
            self._abandon(str(error))
            return
        except Exception:
            self._abandon(f"failed to start - {traceback.format_exc()}")
            return
        self._phase.started = True
        for listener in self._listeners:
            events.listening(self._log, listener=listener.title, address=listener.text)
        self._lifecycle.let_in_all()
        if self._statsd is not None:
            self._statsd.start()
        self._report_serving()

    # -- rest, and the next version

    def _activity(self) -> str:
        """Return what would be lost if this process executed the next version now; empty if
        nothing."""
        if not self._phase.started or self._phase.ending:
            return "nsqd is exiting" if self._phase.ending else "nsqd is starting"
        if self._rereads:
            return "the configuration is being read"
        if self._policies.is_changing:
            return "policies are being changed"
        if self._probes.is_reading:
            return "new connections are being read"
        return self._lifecycle.activity or self._topics.activity

    def _rest(self) -> None:
        self._acceptor.rest()
        self._lifecycle.rest()
        if self._statsd is not None:
            self._statsd.rest()

    def _end_rest(self) -> None:
        self._lifecycle.end_rest()
        self._acceptor.end_rest()
        if self._phase.ending:
            return
        if self._statsd is not None:
            self._statsd.start()
        self._report_serving()

    def _dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state of all parts for the next version."""
        return {
            "listeners": [listener.dump(keep) for listener in self._listeners],
            "launcher": self._launcher.dump(keep),
            "acceptor": self._acceptor.dump(keep),
            "lifecycle": self._lifecycle.dump(keep),
            "topics": self._topics.dump(keep),
            "policies": self._policies.dump(),
            "options": self._options.dump(),
            "drain": self._drain.dump(),
            "disk_refusal": None if self._guard is None else self._guard.refusal,
            "metrics": self._metrics.dump(),
            "statsd": None if self._statsd is None else self._statsd.dump(),
            "upgrade": self._upgrade.dump(),
        }

    def restore(self, state: State) -> None:
        """Continue with the state of another version, which was in this process before. Touches
        nothing until `resume`: all of it happens when the hub runs."""
        parts = state.parts
        self._phase.started = True
        self._acceptor.restore(parts["acceptor"])
        self._topics.restore(parts["topics"])
        self._options.restore(parts["options"])
        self._policies.restore()
        self._drain.take_over(parts["drain"])
        if self._guard is not None:
            self._guard.restore(parts["disk_refusal"])
        self._metrics.restore(parts["metrics"])
        if self._statsd is not None:
            self._statsd.restore(parts["statsd"])
            self._statsd.start()
        self._upgrade.restore(parts["upgrade"], state)
        self._lifecycle.restore(parts["lifecycle"], state)

    def resume(self, found: Reread) -> int:
        """Run after `restore`, with the configuration as it is now."""
        self._watch_signals()
        self._acceptor.end_rest()
        self._report_serving()
        self._upgrade.resume(self._lifecycle)
        gevent.spawn(self._adopt, found)
        return self._run()

    def _report_serving(self) -> None:
        self._watchdog.serve(self._serving())

    def _serving(self) -> str:
        where = ", ".join(f"{each.title} {each.text}" for each in self._listeners)
        what = "draining" if self._drain.under_way else "serving"
        return f"{what} {where} with {self._launcher.workers} workers"

    def _persist_first(self) -> None:
        """Write nsqd.dat, unless the disk permits no writes, so that nsqd can still be drained.
        The store logs the error and retries."""
        try:
            self._topics.persist()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise StartError(f"failed to persist metadata - {error}") from None

    def _persist_last(self) -> bool:
        """Write nsqd.dat; return whether the disk has responded. Raises OSError."""
        with gevent.Timeout(LAST_WRITE_LIMIT, False):
            self._topics.persist()
            return True
        path, error = "nsqd.dat", f"no response for {LAST_WRITE_LIMIT:g} s"
        events.metadata_failed(self._log, path=path, error=error)
        return False

    def _start_failed(self, text: str) -> None:
        # If a worker reported its error before it exited, that report is more precise, so wait for
        # it first.
        gevent.sleep(0.01)
        if self._phase.ending:
            return
        if self._booting is not None:
            self._booting.kill(block=True)
        if not self._phase.ending:
            self._abandon(f"failed to start - {text}")

    def _abandon(self, text: str) -> None:
        """Exit without saving, because no client was served."""
        self._phase.ending = True
        self._watchdog.stop()
        self._notifier.status(text)
        self._lifecycle.kill()
        events.failed(self._log, text)
        self._done.set(FAILED)

    # -- interfaces for the parts

    def _listener_failed(self, text: str) -> None:
        events.failed(self._log, text)
        self._end(FAILED)

    def _refuse(self, reason: str | None) -> None:
        """Have every worker, including workers that start later, reject publishes that must be
        written to disk."""
        self._launcher.context["refusal"] = reason
        self._workers.notify(RefusePublishes(reason))

    def _ask_shares(self, query: Query, buffer: int) -> dict[int, Answer]:
        return self._workers.ask_ready(GetShare(query, (buffer,)))

    def _ask_metrics(self, buffer: int, compress: bool) -> dict[int, dict[str, Any]]:
        return self._workers.ask_ready(WriteMetrics(compress, (buffer,)))

    def _facts(self) -> Whole:
        """Return the master's own share of the metrics."""
        lookup = self._topics.lookup
        return Whole(
            workers=self._lifecycle.describe(),
            lookupds={} if lookup is None else {peer.name: peer.told for peer in lookup.peers},
            draining=self._drain.under_way,
            disk_refuses=self._guard is not None and self._guard.refusal is not None,
            started=self._launcher.context["started"],
            certificate_expires=_expiry(self._launcher.context["tls"]),
            accept_pauses=self._acceptor.pauses,
            upgrades=self._upgrade.results,
        )

    # -- signals and shutdown

    def _watch_signals(self) -> None:
        loop = gevent.get_hub().loop
        actions: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self._on_stop_signal,
            signal.SIGINT: self._on_stop_signal,
            signal.SIGHUP: self._on_hangup,
            signal.SIGQUIT: self._on_quit,
            signal.SIGUSR2: self._upgrade.begin,
        }
        self._watchers = []
        for signum, action in actions.items():
            watcher = loop.signal(signum)
            watcher.start(action)
            self._watchers.append(watcher)
        faulthandler.enable()  # on SIGABRT from a service manager's watchdog, print the stacks
        # Registered after the watcher, because it calls the watcher's handler: the master's stacks
        # come first, then the workers'.
        faulthandler.register(signal.SIGQUIT, all_threads=True, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*spawn.BLOCKED, signal.SIGQUIT))

    def _on_stop_signal(self) -> None:
        if not self._phase.ending:
            self._end(CLEAN)

    def _on_hangup(self) -> None:
        gevent.spawn(self._reread_settings)

    def _reread_settings(self) -> bool:
        """Return whether the configuration is valid; if not, it stays unchanged."""
        reporting = self._phase.started and not self._phase.ending
        if reporting:
            self._notifier.reloading()
        found = self._reread()
        if found is not None:
            self._adopt(found)
        if reporting:
            self._notifier.ready(self._serving())
        return found is not None

    def _adopt(self, found: Reread) -> None:
        self._rereads += 1
        try:
            self._options.adopt(found)
        finally:
            self._rereads -= 1

    def _on_quit(self) -> None:
        self._lifecycle.arbiter.signal_all(signal.SIGQUIT)

    def _end(self, code: int) -> None:
        """Save and exit."""
        gevent.spawn(self._stop, code)

    def _stop(self, code: int) -> None:
        if self._phase.ending:
            return
        self._phase.ending = True
        problems: list[str] = []
        self._drain.stop()
        self._notifier.stopping("saving")
        self._watchdog.prolong()
        if self._booting is not None:
            self._booting.kill(block=True)
        try:
            self._acceptor.close()
            if self._statsd is not None:
                self._statsd.stop()
            if self._topics.lookup is not None:
                self._topics.lookup.close()
            if self._guard is not None:
                self._guard.stop()
            self._lifecycle.arbiter.halt()
            problems += self._lifecycle.stop()
            if self._phase.started and not self._persist_last():
                problems.append("nsqd.dat is not written")
        except OSError as error:  # the store has logged the error
            problems.append(f"nsqd.dat is not written: {error.strerror}")
        except Exception:
            events.stop_failed(self._log, traceback.format_exc())
            problems.append("failed to stop cleanly")
        self._watchdog.stop()
        # Another signal while the interpreter exits would change the exit status.
        for signum in spawn.BLOCKED:
            signal.signal(signum, signal.SIG_IGN)
        events.stopped(self._log)
        if problems:
            code = FAILED
            text = "; ".join(problems)
            events.not_saved(self._log, error=text)
        self._done.set(code)


def _expiry(material: Mapping[str, Any] | None) -> int | None:
    """Return when nsqd's certificate expires; None without TLS."""
    if material is None:
        return None
    from nsqcy.util import pem_files  # slow to import

    return pem_files.expiry(material["certificate"])
