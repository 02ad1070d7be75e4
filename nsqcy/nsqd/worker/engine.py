"""A worker's engine: connects its topics, sessions and HTTP to the process around them.

Owns the order in which the parts start and stop, and which part handles a control message. The
parts are topic_verbs, http_backend, worker_stats, session_migration, whole_handover and
metadata_notifier.
"""

import functools
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from nsqcy.base.core import IdSource, Percentiles
from nsqcy.broker.core import Shard
from nsqcy.channels.core import Events, SchedulerState
from nsqcy.config.options import TLS_REQUIRED
from nsqcy.config.policies import Policies, Version
from nsqcy.http.server import HttpServer, Make
from nsqcy.ipc.core import Mesh, QuotaTable, Stream, StreamEnd
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.names import EVENTS_TOPIC
from nsqcy.nsqd import process_calls
from nsqcy.nsqd.exit_report import SHOWN, describe
from nsqcy.nsqd.http.api import Api, tls_required
from nsqcy.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions
from nsqcy.nsqd.process_messages.drain_remainder import Remains
from nsqcy.nsqd.process_messages.reports import NotSaved, Restored
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.process_messages.to_worker import EngineMessage
from nsqcy.nsqd.process_messages.topic_verbs import TopicVerb
from nsqcy.nsqd.worker.disk_watch import DiskWatch, ExitWatch
from nsqcy.nsqd.worker.http_backend import HttpBackend
from nsqcy.nsqd.worker.left_memories import LeftMemories
from nsqcy.nsqd.worker.live_objects import LiveObjects
from nsqcy.nsqd.worker.main import Boot
from nsqcy.nsqd.worker.metadata_notifier import MasterNotices, MetadataNotifier
from nsqcy.nsqd.worker.negotiate import Identity, negotiate
from nsqcy.nsqd.worker.placement_requests import PlacementRequests
from nsqcy.nsqd.worker.pump import Pumped
from nsqcy.nsqd.worker.rate_sampler import RateSampler
from nsqcy.nsqd.worker.session_handover import SessionMigration
from nsqcy.nsqd.worker.succession import NotHandedOver, Parcel
from nsqcy.nsqd.worker.topic_owner import TopicOwner
from nsqcy.nsqd.worker.upgrade_drain import UpgradeDrain
from nsqcy.nsqd.worker.whole_handover import WholeHandover, counters_in, in_flight_in
from nsqcy.nsqd.worker.worker_stats import WorkerStats
from nsqcy.process.control import Answer, Request
from nsqcy.protocol.core import COUNTED, Session, SessionManager
from nsqcy.server.core import Loop, Publisher, accept_socket, accept_stream
from nsqcy.storage import shared_sync
from nsqcy.storage.core import IoThread
from nsqcy.storage.write_probe import WriteProbe
from nsqcy.util import debug, garbage
from nsqcy.util.slices import Turns

if TYPE_CHECKING:
    from nsqcy.nsqd import tls
    from nsqcy.nsqd.auth.users import FileUsers
    from nsqcy.nsqd.copies.worker_copies import Copies

HOLD_LIMIT = 60_000_000_000
"""Time that a new topic waits for its channels, in ns: longer than the master can take."""
REST_LIMIT = 1.0
"""Maximum seconds to answer what is outstanding before a hand-over."""
COPIES_REST_LIMIT = 3.0
"""The same for a worker with copies: other machines must have all changes."""
COPIES = "copies"
"""Kind of the parcel with what the copies of topics on other machines need."""
DRAIN_EVERY = 1.0
"""Seconds between checks of the pumped connections."""
LOAD_TURN = 0.005
"""Seconds for which topics are loaded before other work runs."""
WIND_DOWN_LIMIT = 2.0
"""Seconds for producers to get their answers and close their connections when nsqd exits."""


class Streams(Mesh):
    """A worker's mesh: accepts the streams that other workers open to this worker's sessions."""

    manager: SessionManager
    log: Log

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        return accept_stream(self.manager, stream, hello)

    def on_error(self, stream: Stream | None, error: BaseException) -> None:
        self.log.error(f"stream: {type(error).__name__}: {error}")

    def on_broken(self, peer: int, reason: str) -> None:
        events.ring_broken(self.log, peer=peer, error=reason)


def _handshakes(loop: Any, material: dict[str, Any] | None) -> "tls.Handshakes | None":
    """Return the handshake queue, if there is a certificate."""
    if material is None:
        return None
    from nsqcy.nsqd import tls

    context, _ = tls.make_context(tls.Material(**material))
    return tls.Handshakes(loop, context)


def _https(handshakes: "tls.Handshakes | None") -> Make | None:
    """Return the factory for HTTPS connections, if there is a certificate."""
    if handshakes is None:
        return None
    from nsqcy.nsqd.http.https import HttpsConnection  # this also imports OpenSSL

    return functools.partial(HttpsConnection, handshakes=handshakes)


def _users(options: NsqdOptions, text: str | None, table: QuotaTable) -> "FileUsers | None":
    """Return the users, if there is a users file."""
    if text is None:
        return None
    from nsqcy.nsqd.auth.users import FileUsers  # few nsqds have a users file

    return FileUsers(options.auth_file, text, table)


def _events(options: NsqdOptions) -> Events | None:
    return Events(options.events_sample) if options.events else None


def prepare(boot: Boot) -> None:
    """Import what only some engines need, so that a successor takes less time to take over."""
    if boot.context["copies"]:
        from nsqcy.nsqd.copies import worker_copies  # noqa: F401


class Engine:
    """`worker.main.Engine`: connects all parts of one worker."""

    def __init__(self, boot: Boot) -> None:
        self._index = boot.worker
        self._started = boot.context["started"]
        self._log = boot.log
        self._master = boot.master
        self._options = options = NsqdOptions.restore(boot.context["options"])
        self._memory = LeftMemories(boot.memory, boot.log)
        self._peers: set[int] = set()
        shared = self._shared = boot.shared
        notices = MasterNotices(boot.worker, boot.master, self._is_held, boot.log)
        self._notifier = MetadataNotifier(notices.send)
        hub = gevent.get_hub()
        self._pool = pool = self._memory.make_pool(options.memory_bytes)
        scheduler = SchedulerState(
            pool,
            mem_queue_size=options.mem_queue_size,
            max_msg_timeout=options.max_msg_timeout,
            topology_aware=TOPOLOGY_AWARE_CONSUMPTION in options.enable_experiment,
            percentiles=Percentiles(
                options.e2e_processing_latency_percentile,
                options.e2e_processing_latency_window_time,
            ),
            events=_events(options),
            seed=self._started ^ self._index,
            key_index_bytes=options.key_index_bytes,
        )
        self._io = IoThread()
        self._shard = Shard(
            scheduler=scheduler,
            ids=IdSource(shared.lease_word, options.node_id),
            io=self._io,
            data_path=options.data_path,
            log_options={
                "max_bytes_per_file": options.max_bytes_per_file,
                "sync_every": options.sync_every,
                "sync_timeout": options.sync_timeout,
            },
            policies=Policies.from_json(boot.context["policies"]),
            has_room=self._has_room if options.max_topics else None,
            on_event=self._on_event,
            log=boot.log,
        )
        self._parcels = boot.parcels
        self._memory.inherit(self._shard, taken_over=boot.parcels is not None)
        path = options.data_path
        if shared_sync.is_reliable(path) and self._io.open_file_system(path):
            self._shard.shares_syncs_from = shared_sync.count
        self._shard.host.probe = self._probe = WriteProbe(
            self._io, options.data_path, self._index, self._shard.host.set_health, boot.log
        )
        self._shard.on_loaded = self._loaded_late
        self._shard.host.log_hold_max_bytes = options.log_hold_max_bytes
        self._shard.host.log_cursor_expiry = options.log_cursor_expiry
        self._shard.set_refusal(boot.context["refusal"])
        self._shard.set_draining(boot.context["draining"])
        self._hold_new_topics()
        quotas = QuotaTable(shared.quotas, boot.worker)
        self._users = _users(options, boot.context["users"], quotas)
        mesh = Streams(shared, boot.worker, boot.wake_fds) if boot.workers > 1 else None
        placements = PlacementRequests(boot.master, self.placed)
        self._manager = SessionManager(
            shard=self._shard,
            mesh=mesh,
            index=boot.worker,
            options=options,
            negotiate=self._negotiate,
            ask_placement=placements.begin,
            migrate=self._migrate if mesh is not None and options.move_sessions else None,
            auth=self._authorizer(boot.log),
            log=boot.log,
        )
        self._publisher = Publisher(self._manager)
        scheduler.publish_once = self._publisher.publish_once
        if scheduler.events is not None:
            scheduler.events.publish = self._publish_events
        self._handshakes = _handshakes(hub.loop, boot.context["tls"])
        self._loop = Loop(self._manager, hub, self._handshakes)
        if mesh is not None:
            mesh.manager = self._manager
            mesh.log = boot.log
            self._loop.watch(boot.wake_fds[boot.worker], self._loop.on_woken)
        self._migration = SessionMigration(self._loop, boot.master)
        self._turns = Turns()
        self._disk = DiskWatch(
            self._shard, self._io, options.hung_disk_timeout, self._loop.enter, boot.log
        )
        self._owned = TopicOwner(self._shard, self._loop.enter, boot.master, self._notifier.flush)
        backend = HttpBackend(
            boot,
            options,
            self._owned,
            self._manager,
            self._publisher,
            placements,
            self._peers,
            enter=self._loop.enter,
            give_way=self._give_way,
        )
        gate = None if self._users is None else self._users.gate(boot.log)
        self._http = HttpServer(hub.loop, Api(backend, options, boot.log, gate))
        if options.tls_required == TLS_REQUIRED:
            self._http.tls_only = tls_required(backend.port("https"))
        self._https = _https(self._handshakes)
        self._copies = self._make_copies(boot, backend)
        self._manager.gated = self._copies is not None
        self._rate_sampler = RateSampler(self._shard, self._give_way)
        self._stats = WorkerStats(
            self._shard,
            self._manager,
            self._http,
            self._loop,
            self._io,
            options=options,
            workers=boot.workers,
            events=scheduler.events,
            users=self._users,
            copies=self._copies,
            sampler=self._rate_sampler,
            give_way=self._give_way,
        )
        self._drain = UpgradeDrain(options.upgrade_drain)
        self._drain_timer = hub.loop.timer(DRAIN_EVERY, DRAIN_EVERY)
        self._handover = WholeHandover(
            self._loop,
            self._manager,
            mesh,
            self._http,
            self._https,
            self._io,
            self._drain,
            boot.log,
        )
        self._stopped = False
        if self._parcels is None:
            self._loop.start()
        else:
            self._handover.restore_streams(self._parcels)
        self._live_objects = None
        if COUNTED:
            self._live_objects = LiveObjects(f"worker {self._index}", self._manager, pool, boot.log)

    # -- the worker's lifecycle

    def load(
        self, topics: list[dict[str, Any]], table: dict[str, int], peers: dict[int, int]
    ) -> None:
        with garbage.paused():
            self._load_topics(topics)
        if self._stopped:  # topics that are not loaded stay on disk unchanged
            return
        self._restore_rest()
        for name, worker in table.items():
            if self._may_use(name, worker):
                self._manager.placed(name.encode(), worker)
        debug.free()  # free the memory used for parsing large journals
        self._probe.look()
        self._count_topics()
        for peer, generation in peers.items():
            self.peer_up(peer, generation)
        is_successor = self._parcels is not None
        if self._parcels is not None:
            self._handover.restore_clients(self._parcels)
            self._parcels = None
            self._loop.start()
            if len(self._drain):
                self._drain_timer.start(self._end_pumped)
        self._rate_sampler.start()
        if self._copies is not None and not is_successor:
            self._copies.wait()

    def _end_pumped(self) -> None:
        """Close the pumped connections that are due."""
        self._loop.enter()
        count = self._drain.look(time.monotonic_ns())
        if count:
            events.pumped_clients_closed(self._log, clients=count)
        if not len(self._drain):
            self._drain_timer.stop()

    def _load_topics(self, topics: list[dict[str, Any]]) -> None:
        self._loop.enter()
        entered = time.monotonic()
        for topic in topics:
            channels = {each["name"]: each["paused"] for each in topic["channels"]}
            if self._copies is not None and self._copies.topics.is_copied(topic["name"]):
                self._copies.topics.load(topic["name"], topic["paused"], channels)
            else:
                self._shard.load_or_wait(topic["name"].encode(), topic["paused"], channels)
            # let the heartbeat run: loading many topics, or scanning a log, takes time
            if time.monotonic() - entered >= LOAD_TURN:
                gevent.sleep(0)
                if self._stopped:
                    return
                self._loop.enter()
                entered = time.monotonic()

    def _restore_rest(self) -> None:
        """Restore the topics that only a dead predecessor knew, because the master had not received
        its report yet. Then let the master forget the predecessor's memory, before a client is
        served."""
        if not self._memory.is_shared:
            return
        for key in self._shard.left_topics:
            if not self._shard.is_unloaded(key):
                self._loop.enter()
                self._shard.load_topic(key, False, {})
                self._on_event("topic_created", key.decode(), None)
        self._keep_budget()
        self._loop.enter()
        self._shard.settle()
        self._memory.report()
        self._master.call(Restored(self._index))
        self._loop.enter()
        self._shard.end_inheritance()

    def _keep_budget(self) -> None:
        """Write messages to disk until the rest fits into --memory-bytes."""
        before = 0
        while self._pool.budget < self._pool.resident_bytes != before:
            before = self._pool.resident_bytes
            self._loop.enter()
            self._shard.settle()
            self._io.drain_now()
            gevent.sleep(0)

    def adopt(self, fd: int, kind: str, peer: str, local: str) -> None:
        self._loop.enter()
        if kind == "tcp":
            events.client_connected(self._log, client=peer)
            accept_socket(self._loop, fd, peer)
        else:
            make = self._https if kind == "https" else None
            self._http.adopt(socket.socket(fileno=fd), peer, make)

    def connections(self) -> int:
        return self._manager.connections() + self._http.connections

    def placed(self, topic: str, worker: int) -> None:
        self._loop.enter()
        if self._may_use(topic, worker):
            self._place(topic.encode(), worker)

    def _may_use(self, topic: str, worker: int) -> bool:
        """Return whether sessions may already use a topic. If not, they wait for `_place`, as they
        do for the topic's placement."""
        copies = self._copies
        if worker != self._index:
            return True
        if self._shard.is_unloaded(topic.encode()):
            return False
        return copies is None or copies.topics.may_use(topic)

    def _loaded_late(self, key: bytes) -> None:
        self._count_topics()
        self._place(key, self._index)

    def _place(self, key: bytes, worker: int) -> None:
        self._manager.placed(key, worker)
        self._publisher.placed(key)

    def peer_down(self, worker: int) -> None:
        self._loop.enter()
        self._peers.discard(worker)
        self._manager.peer_down(worker)

    def peer_up(self, worker: int, generation: int) -> None:
        self._loop.enter()
        self._peers.add(worker)
        self._manager.peer_up(worker, generation)

    def option_changed(self, name: str, value: Any) -> None:
        self._options.change(name, tuple(value) if isinstance(value, list) else value)
        if name == "lookupd_tcp_address":
            self._hold_new_topics()

    def _hold_new_topics(self) -> None:
        """If nsqlookupds are configured, make new topics wait for the channels that nsqlookupds
        list, and their publishers wait until nsqlookupds list the topic."""
        self._shard.hold_new = HOLD_LIMIT if self._options.lookupd_tcp_address else 0
        self._shard.announce_new = bool(self._options.lookupd_tcp_address)

    def _is_held(self, topic: str) -> bool:
        found = self._shard.topic(topic.encode())
        return found is not None and found.held

    def _on_event(self, kind: str, topic: str, channel: str | None) -> None:
        if channel is None:
            self._count_topics()
        self._notifier(kind, topic, channel)

    def _count_topics(self) -> None:
        self._shared.set_topics(self._index, len(self._shard.topics))

    def _publish_events(self, lines: list[bytes], done: Callable[[str | None], None]) -> None:
        """Publish events. Called at the end of a turn."""
        self._publisher.publish(EVENTS_TOPIC.encode(), lines, 0, "memory", done)

    def _migrate(self, session: Session, owner: int) -> None:
        self._migration.begin(session, owner)

    def _has_room(self) -> bool:
        """Return whether one more topic is allowed. Workers that check at the same time may all
        find the last free slot."""
        return self._shared.topics() < self._options.max_topics

    # -- the hand-over to a successor

    def begin_rest(self) -> None:
        copies = self._copies
        if copies is not None and (obstacle := copies.obstacle_to_rest()):
            raise NotHandedOver(obstacle)
        self._handover.begin_rest()
        if copies is not None:
            self._loop.enter()
            copies.begin_rest()

    @property
    def rest_limit(self) -> float:
        return REST_LIMIT if self._copies is None else COPIES_REST_LIMIT

    def is_at_rest(self) -> bool:
        # The journals of copied topics are written once nothing finishes a message any more.
        return self._handover.is_at_rest() and (self._copies is None or self._copies.is_at_rest())

    def end_rest(self) -> None:
        self._handover.end_rest()
        if self._copies is not None:
            self._copies.end_rest()

    def pack(self) -> Iterator[Parcel]:
        yield from self._handover.pack()
        if self._copies is not None:
            left = self._copies.as_predecessor()
            yield Parcel(COPIES, {"lease": left.lease}, b"", (left.listener_fd,))
        self._notifier.flush()

    def pumped(self) -> list[Pumped]:
        return self._handover.pumped()

    def wind_down(self) -> None:
        self._loop.enter()
        left = Event()
        self._manager.wind_down(left.set)
        deadline = time.monotonic() + WIND_DOWN_LIMIT
        self._http.wind_down(WIND_DOWN_LIMIT)
        left.wait(max(0.0, deadline - time.monotonic()))

    def stop(self) -> bool:
        self._stopped = True
        self._rate_sampler.stop()
        self._drain_timer.stop()
        self._drain_timer.close()
        self._loop.enter()
        self._loop.stop()
        self._http.close()
        self._manager.close_sessions()
        if self._handshakes is not None:
            self._handshakes.close()
        if self._copies is not None:
            self._copies.stop_waiting()
        self._disk.stop()
        exit_watch = ExitWatch(
            self._index,
            self._io,
            self._disk.hung,
            2 * self._options.hung_disk_timeout,
            self._shard.unsaved,
            self._report_unsaved,
            self._log,
        )
        exit_watch.start()
        unsaved = self._shard.save()
        if self._copies is not None:
            self._copies.stop()
        self._io.close()
        exit_watch.stop()
        if self._live_objects is not None:
            self._live_objects.tell()
        self._notifier.finish()  # the master is about to write nsqd.dat
        if unsaved:
            self._report_unsaved(unsaved)
        return not unsaved

    def _report_unsaved(self, unsaved: dict[str, int]) -> None:
        """Log the messages that are not on disk, and report them to the master, which repeats them
        in its last line. May run in a thread while the hub waits for the disk."""
        events.exit_unsaved(
            self._log,
            self._index,
            describe(unsaved),
            messages=sum(unsaved.values()),
            topics=", ".join(sorted(unsaved)[:SHOWN]),
        )
        self._master.notify(NotSaved(self._index, unsaved))

    # -- copies

    def _make_copies(self, boot: Boot, backend: HttpBackend) -> "Copies | None":
        """Return the copies of topics on other machines; None if etcd is not configured."""
        if not self._options.etcd_endpoints:
            return None
        from nsqcy.nsqd.copies.host import NO_PREDECESSOR, Predecessor
        from nsqcy.nsqd.copies.worker_copies import Copies

        predecessor = NO_PREDECESSOR
        for each in boot.parcels or ():
            if each.kind == COPIES:
                predecessor = Predecessor(each.fds[0], each.state["lease"])
        copies = Copies(
            self._index,
            self._options,
            boot.context["copies"],
            self._shard,
            self._loop.enter,
            self._loop.before_poll,
            backend.at_owner,
            lambda key: self._place(key, self._index),
            self._end_gate,
            boot.log,
            predecessor,
        )
        if boot.parcels is not None:
            copies.topics.inherit(in_flight_in(boot.parcels), counters_in(boot.parcels))
        return copies

    def _end_gate(self) -> None:
        """From now on, topics with copies can be used."""
        self._manager.gated = False

    # -- authorization

    def _negotiate(self, body: bytes, options: NsqdOptions, session: Any) -> Identity:
        assert self._shard.policies is not None
        longest = self._shard.policies.longest_timeout
        return negotiate(body, options, session, longest, self._started)

    def _authorizer(self, log: Log) -> Any:
        """Return the authorizer. If every client may do everything, return None and import no auth
        module."""
        servers = None
        if self._options.auth_http_address:
            from nsqcy.nsqd.auth.client import Authorizer

            servers = Authorizer(self._options, lambda: self._loop.enter(), log)
        if self._users is None:
            return servers
        return self._users.authorizer(servers, lambda: self._loop.enter(), log)

    # -- control messages from the master and other workers (to_worker.Engine)

    def call(self, request: Request) -> Any:
        if self._copies is not None and request.method in TopicVerb.kinds:
            self._copies.await_usable(str(request.args["topic"]))
        return process_calls.serve(request, (EngineMessage, self), (TopicVerb, self._owned))

    def adopt_session(self, fd: int, state: dict[str, Any], unread: bytes, unsent: bytes) -> None:
        self._migration.adopt(fd, state, unread, unsent)

    def renew_tls(self, material: dict[str, Any]) -> None:
        """Use this certificate for new handshakes."""
        from nsqcy.nsqd import tls

        if self._handshakes is not None:
            self._handshakes.context, _ = tls.make_context(tls.Material(**material))

    def renew_users(self, text: str) -> None:
        if self._users is not None:
            self._users.renew(text)
            self._loop.enter()
            self._manager.quotas_changed()
            self._http.unlearn()

    def announced(self, topic: str) -> None:
        found = self._owned.find(topic)
        if found is not None:
            found.announced()

    def end_hold(self, topic: str, channels: list[str]) -> None:
        found = self._owned.find(topic)
        if found is not None and found.held:
            for channel in channels:
                found.channel(channel)
            found.end_hold()

    def policies_changed(self, changed: dict[str, dict[str, Any]], version: Version) -> None:
        self._loop.enter()
        policies = self._shard.policies
        assert policies is not None
        policies.version = version
        for name, values in changed.items():
            policies.set(name, values)
            self._shard.policies_changed(name)

    def take_recalled_policies(self) -> dict[str, dict[str, Any]]:
        policies = self._shard.policies
        assert policies is not None
        recalled, policies.recalled = policies.recalled, {}
        return recalled

    def refuse_publishes(self, reason: str | None) -> None:
        self._shard.set_refusal(reason)

    def set_draining(self, draining: bool) -> None:
        self._loop.enter()
        self._shard.set_draining(draining)

    def share(self, query: Query, buffer: int) -> Answer:
        return self._stats.share(query, buffer)

    def metrics(self, buffer: int, compress: bool) -> dict[str, Any]:
        return self._stats.metrics(buffer, compress)

    def figures(self) -> dict[str, Any]:
        return self._stats.figures()

    def remains(self) -> Remains:
        return self._stats.remains()

    def inspect(self, what: str) -> bytes:
        return self._stats.inspect(what)

    def health(self) -> dict[str, Any]:
        return self._owned.health()

    def copies(self) -> dict[str, Any] | None:
        return None if self._copies is None else self._copies.status()

    def hand_over(self, on: bool) -> int:
        if self._copies is None:
            return 0
        self._loop.enter()
        return self._copies.hand_over() if on else self._copies.keep()

    def _give_way(self) -> None:
        """Let one event-loop iteration pass; when this returns, the counts are exact."""
        self._turns.wait()
        self._loop.enter()
        self._shard.settle()
