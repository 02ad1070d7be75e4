"""The engine of a worker: its topics and sessions, its HTTP side, and its line to the rest of nsqd.

Wires the compiled parts (shard, home, loop, mesh) to the process around them: control messages in,
events out, requests about topics run where the topic lives. Holds no state of its own but that
wiring.
"""

import functools
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gevent
from gevent import Greenlet
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

from nsqcy import NSQ_VERSION
from nsqcy.base.ids import IdSource
from nsqcy.base.quantile import Percentiles
from nsqcy.broker.events import Events
from nsqcy.broker.policies import Policies
from nsqcy.broker.scheduler_state import SchedulerState
from nsqcy.broker.topic import Shard, Topic
from nsqcy.config.options import TLS_REQUIRED, Value
from nsqcy.http.server import HttpServer, Make
from nsqcy.ipc.mesh import Mesh, Stream, StreamEnd
from nsqcy.ipc.quota import QuotaTable
from nsqcy.ipc.ring import Shared
from nsqcy.logging.logger import Log
from nsqcy.names import EVENTS_TOPIC
from nsqcy.nsqd.http import policy_values
from nsqcy.nsqd.http.api import Api, tls_required
from nsqcy.nsqd.http.backend import Cancelled, Message, Outcome, Peeked, Redriven, Sought, Upcoming
from nsqcy.nsqd.master.drain import Remains, Rest, summed
from nsqcy.nsqd.options import TOPOLOGY_AWARE_CONSUMPTION, NsqdOptions
from nsqcy.nsqd.stats import forms as stats
from nsqcy.nsqd.stats import gathering, metrics, metrics_buffer
from nsqcy.nsqd.stats.coalescer import Rounds
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.worker import peek as peeking
from nsqcy.nsqd.worker.live_objects import Census
from nsqcy.nsqd.worker.main import Boot
from nsqcy.nsqd.worker.negotiate import negotiate
from nsqcy.nsqd.worker.positions import Place
from nsqcy.nsqd.worker.slices import Turns
from nsqcy.process.control import (
    Answer,
    CallTimeout,
    ChannelClosed,
    RemoteError,
    Request,
    is_unreachable,
)
from nsqcy.protocol.session import COUNTED, Home, Session
from nsqcy.server.metrics import Exposition
from nsqcy.server.publisher import NO_ROOM, Publisher, TopicSink
from nsqcy.server.transport import Loop, accept_move, accept_socket, accept_stream
from nsqcy.storage.block_pool import BlockPool
from nsqcy.storage.io import IoThread
from nsqcy.util import debug, procfs

if TYPE_CHECKING:
    from nsqcy.nsqd.auth.users import FileUsers
    from nsqcy.nsqd.worker import tls

READING = 0.002  # seconds between two looks whether a block of a log was read
WRITING_MOST = 4.0  # seconds until it is said that a write has not come to an end
PEEKING_MOST = 4.0  # and that messages could not be read
PEEKS_MOST = 8  # at a time: each may hold some megabytes
ASK_TIMEOUT = 5.0  # seconds another worker may take to answer
NO_ANSWER = "the master does not answer"
GATHER_TIMEOUT = 15.0  # and the master, for a round under way and the next one
SECOND = 1_000_000_000
HOLD_MOST = 60 * SECOND  # a new topic waits for its channels; longer than the master ever takes


class Streams(Mesh):
    """The mesh of a worker: streams that others open lead to sessions here."""

    home: Home
    log: Log

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        return accept_stream(self.home, stream, hello)

    def on_error(self, stream: Stream | None, error: BaseException) -> None:
        self.log.error(f"stream: {type(error).__name__}: {error}")

    def on_broken(self, peer: int, reason: str) -> None:
        self.log.error(
            f"ring of worker {peer} is broken: {reason}",
            event="ring_broken",
            peer=peer,
            error=reason,
        )


class Herald:
    """Tells the master, in order and from a greenlet of its own, what happened to topics.

    Events come from the end of a turn, where nothing may wait or spawn.
    """

    def __init__(self, tell: Callable[[str, str, str | None], None]) -> None:
        self._tell = tell
        self._events: deque[tuple[str, str, str | None]] = deque()
        self._running: Greenlet | None = None
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._start)

    def __call__(self, kind: str, topic: str, channel: str | None) -> None:
        self._events.append((kind, topic, channel))
        self._wake.send()

    def _start(self) -> None:
        if not self._running:
            self._running = gevent.spawn(self._run)

    def _run(self) -> None:
        while self._events:
            self._tell(*self._events.popleft())

    def finish(self) -> None:
        """Returns when all has been told that has happened until now."""
        self._wake.stop()
        self._wake.close()
        if self._running:
            self._running.join()
        self._run()


def _handshakes(loop: Any, material: dict[str, Any] | None) -> "tls.Handshakes | None":
    """TLS, if there is a certificate."""
    if material is None:
        return None
    from nsqcy.nsqd.worker import tls

    context, _ = tls.make_context(tls.Material(**material))
    return tls.Handshakes(loop, context)


def _https(handshakes: "tls.Handshakes | None") -> Make | None:
    """What makes HTTPS connections, if there is a certificate."""
    if handshakes is None:
        return None
    from nsqcy.nsqd.http.https import HttpsConnection  # it imports OpenSSL too

    return functools.partial(HttpsConnection, handshakes=handshakes)


def _users(options: NsqdOptions, text: str | None, table: QuotaTable) -> "FileUsers | None":
    """The users, if there is a file of them."""
    if text is None:
        return None
    from nsqcy.nsqd.auth.users import FileUsers  # few nsqds have one

    return FileUsers(options.auth_file, text, table)


def _events(options: NsqdOptions) -> Events | None:
    return Events(options.events_sample) if options.events else None


class Engine:
    """What `worker.Engine` asks for, and what HTTP's `Backend` asks for."""

    def __init__(self, boot: Boot) -> None:
        self._index = boot.worker
        self._workers = boot.workers
        self._log = boot.log
        self._master = boot.master
        self._options = options = NsqdOptions.restore(boot.context["options"])
        self._listeners = boot.context["listeners"]
        self._started = boot.context["started"]
        self._master_pid = boot.context["master"]
        self._profiler = debug.Profiler()
        self._peers: set[int] = set()
        shared = boot.shared
        assert isinstance(shared, Shared)  # toys have their own, but no engine of this kind
        self._shared = shared
        self._herald = Herald(self._report)
        hub = gevent.get_hub()
        self._store = store = BlockPool(options.memory_bytes)
        agenda = SchedulerState(
            store,
            mem_queue_size=options.mem_queue_size,
            max_msg_timeout=options.max_msg_timeout,
            topology_aware=TOPOLOGY_AWARE_CONSUMPTION in options.enable_experiment,
            percentiles=Percentiles(
                options.e2e_processing_latency_percentile,
                options.e2e_processing_latency_window_time,
            ),
            events=_events(options),
            seed=self._started ^ self._index,
        )
        self._io = IoThread()
        self._shard = Shard(
            agenda=agenda,
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
        self._shard.log_hold_max_bytes = options.log_hold_max_bytes
        self._shard.log_cursor_expiry = options.log_cursor_expiry
        self._shard.set_refusal(boot.context["refusal"])
        self._shard.set_draining(boot.context["draining"])
        self._hold_new_topics()
        quotas = QuotaTable(shared.quotas, boot.worker)
        self._users = _users(options, boot.context["users"], quotas)
        mesh = Streams(shared, boot.worker, boot.wake_fds) if boot.workers > 1 else None
        self._home = Home(
            shard=self._shard,
            mesh=mesh,
            index=boot.worker,
            options=options,
            negotiate=negotiate,
            ask_placement=self._ask_placement,
            move=self._move if mesh is not None and options.move_sessions else None,
            auth=self._authorizer(boot.log),
            log=boot.log,
        )
        self._publisher = Publisher(self._home)
        agenda.publish_once = self._publisher.publish_once
        self._events = agenda.events
        if self._events is not None:
            self._events.publish = self._publish_events
        self._handshakes = _handshakes(hub.loop, boot.context["tls"])
        self._loop = Loop(self._home, hub, self._handshakes)
        if mesh is not None:
            mesh.home = self._home
            mesh.log = boot.log
            self._loop.watch(boot.wake_fds[boot.worker], self._loop.on_woken)
        gate = None if self._users is None else self._users.gate(boot.log)
        self._http = HttpServer(hub.loop, Api(self, options, boot.log, gate))
        if options.tls_required == TLS_REQUIRED:
            self._http.tls_only = tls_required(self._port("https"))
        self._https = _https(self._handshakes)
        self._turns = Turns()
        self._stopped = False
        self._pages = Rounds(self._page)
        self._peeks = BoundedSemaphore(PEEKS_MOST)
        self._peeked = hub.loop.async_()
        self._peeked.start(lambda: None)
        self._asked: deque[bytes] = deque()
        self._asking = hub.loop.async_()
        self._asking.start(self._spawn_placements)
        self._movers: deque[tuple[Session, int]] = deque()
        self._moving = hub.loop.async_()
        self._moving.start(self._spawn_moves)
        self._loop.start()
        self._census = None
        if COUNTED:
            self._census = Census(f"worker {self._index}", self._home, store, boot.log)

    # -- the life of the worker

    def load(
        self, topics: list[dict[str, Any]], table: dict[str, int], peers: dict[int, int]
    ) -> None:
        self._loop.enter()
        for name, worker in table.items():
            self._home.placed(name.encode(), worker)
        for topic in topics:
            channels = {each["name"]: each["paused"] for each in topic["channels"]}
            self._shard.load_topic(topic["name"].encode(), topic["paused"], channels)
            gevent.sleep(0)  # to beat: thousands of topics, or a log to scan, take their time
            if self._stopped:  # what was not taken up stays as it is on disk
                return
            self._loop.enter()
        debug.free()  # journals of many messages are taken apart in memory
        self._count_topics()
        for peer, generation in peers.items():
            self.peer_up(peer, generation)

    def adopt(self, fd: int, kind: str, peer: str, local: str) -> None:
        self._loop.enter()
        if kind == "tcp":
            self._log.info(f"TCP: new client({peer})", event="client_connected", client=peer)
            accept_socket(self._loop, fd, peer)
        else:
            make = self._https if kind == "https" else None
            self._http.adopt(socket.socket(fileno=fd), peer, make)

    def connections(self) -> int:
        return self._home.connections() + self._http.connections

    def placed(self, topic: str, worker: int) -> None:
        self._loop.enter()
        key = topic.encode()
        self._home.placed(key, worker)
        self._publisher.placed(key)

    def peer_down(self, worker: int) -> None:
        self._loop.enter()
        self._peers.discard(worker)
        self._home.peer_down(worker)

    def peer_up(self, worker: int, generation: int) -> None:
        self._loop.enter()
        self._peers.add(worker)
        self._home.peer_up(worker, generation)

    def option_changed(self, name: str, value: Any) -> None:
        self._options.change(name, tuple(value) if isinstance(value, list) else value)
        if name == "lookupd_tcp_address":
            self._hold_new_topics()

    def _hold_new_topics(self) -> None:
        """Where there are lookupds, a topic waits for the channels that they know it to have."""
        self._shard.hold_new = HOLD_MOST if self._options.lookupd_tcp_address else 0

    def _on_event(self, kind: str, topic: str, channel: str | None) -> None:
        if channel is None:
            self._count_topics()
        self._herald(kind, topic, channel)

    def _count_topics(self) -> None:
        self._shared.set_topics(self._index, len(self._shard.topics))

    def _has_room(self) -> bool:
        """For one more topic. Workers that look at the same moment may each find the last room."""
        return self._shared.topics() < self._options.max_topics

    def stop(self) -> None:
        self._stopped = True
        self._loop.enter()
        self._loop.stop()
        self._http.close()
        self._home.close_sessions()
        if self._handshakes is not None:
            self._handshakes.close()
        self._shard.save()
        self._io.close()
        if self._census is not None:
            self._census.tell()
        self._herald.finish()  # nsqd.dat is to have what was answered

    def _renew_tls(self, request: Request) -> None:
        """The certificate files have been read again: new handshakes use them."""
        from nsqcy.nsqd.worker import tls

        if self._handshakes is not None:
            material = tls.Material(**json.loads(request.blob))
            self._handshakes.context, _ = tls.make_context(material)

    # -- authorization

    def _authorizer(self, log: Log) -> Any:
        """Who knows what clients may do; None if all may everything, and then nothing of it is
        imported."""
        servers = None
        if self._options.auth_http_address:
            from nsqcy.nsqd.auth.client import Authorizer

            servers = Authorizer(self._options, lambda: self._loop.enter(), log)
        if self._users is None:
            return servers
        return self._users.authorizer(servers, lambda: self._loop.enter(), log)

    def _renew_users(self, request: Request) -> None:
        """The file of users has been read again, and found good."""
        if self._users is not None:
            self._users.renew(request.blob.decode())
            self._loop.enter()
            self._home.quotas_changed()
            self._http.unlearn()

    # -- placement

    def _ask_placement(self, key: bytes) -> None:
        self._asked.append(key)
        self._asking.send()

    def _spawn_placements(self) -> None:
        while self._asked:
            gevent.spawn(self._place, self._asked.popleft().decode())

    def _place(self, topic: str) -> int:
        """Ask the master who owns a topic, until it answers."""
        while True:
            try:
                worker = self._master.place(topic)
            except CallTimeout:
                continue
            self.placed(topic, worker)
            return worker

    # -- sessions move to the owner of their topic

    def _move(self, session: Session, owner: int) -> None:
        self._movers.append((session, owner))
        self._moving.send()

    def _spawn_moves(self) -> None:
        while self._movers:
            gevent.spawn(self._move_out, *self._movers.popleft())

    def _move_out(self, session: Session, owner: int) -> None:
        """Hand a session to another worker, through the master; it goes on here if that says no."""
        if session.closed:
            return
        state, unread, unsent = session.pack()
        fd = os.dup(session.fileno())
        try:
            self._master.ask(
                owner,
                "adopt_session",
                ASK_TIMEOUT,
                blob=unread + unsent,
                fds=(fd,),
                state=state,
                unread=len(unread),
            )
        except (CallTimeout, ChannelClosed, RemoteError) as error:
            self._loop.enter()
            if is_unreachable(error):
                # Whether it had it, and has executed what it brought along, cannot be known.
                session.leave()
            else:
                session.stay()
        else:
            self._loop.enter()
            session.leave()

    def _adopt_session(self, request: Request) -> None:
        self._loop.enter()
        unread = request.args["unread"]
        accept_move(
            self._loop,
            request.fds[0],
            request.args["state"],
            request.blob[:unread],
            request.blob[unread:],
        )

    # -- what the master is told

    def _report(self, kind: str, topic: str, channel: str | None) -> None:
        try:
            self._tell(kind, topic, channel)
        except (CallTimeout, ChannelClosed, RemoteError) as error:
            self._log.error(f"the master was not told of {kind} {topic} {channel}: {error}")

    def _tell(self, kind: str, topic: str, channel: str | None) -> None:
        match kind:
            case "topic_created":
                self._log.info(f"TOPIC({topic}): created", event="topic_created", topic=topic)
                found = self._shard.topic(topic.encode())
                self._master.topic_created(topic, found is not None and found.held)
            case "topic_deleted":
                self._log.info(f"TOPIC({topic}): deleting", event="topic_deleted", topic=topic)
                self._master.topic_deleted(topic)
            case "channel_created":
                self._log.info(
                    f"TOPIC({topic}): new channel({channel})",
                    event="channel_created",
                    topic=topic,
                    channel=channel,
                )
                self._master.channel_created(topic, channel or "")
            case "channel_deleted":
                self._log.info(
                    f"TOPIC({topic}): deleting channel {channel}",
                    event="channel_deleted",
                    topic=topic,
                    channel=channel,
                )
                self._master.channel_deleted(topic, channel or "")

    # -- requests about one topic run where it lives

    def call(self, request: Request) -> Any:
        if request.method == "adopt_session":
            return self._adopt_session(request)
        if request.method == "tls":
            return self._renew_tls(request)
        if request.method == "users":
            return self._renew_users(request)
        if request.method == "metrics":
            return self._metrics_share(request)
        return getattr(self, f"on_{request.method}")(**request.args)

    def _at_owner(self, topic: str, method: str, /, **args: Any) -> Any:
        """Run a method at the owner of a topic; None if nobody owns it."""
        owner = self._home.owner(topic.encode())
        if owner is None:
            return None
        if owner == self._index:
            return getattr(self, f"on_{method}")(topic=topic, **args)
        return self._master.ask(owner, method, ASK_TIMEOUT, topic=topic, **args).value

    def _topic(self, name: str) -> Topic | None:
        self._loop.enter()
        return self._shard.topic(name.encode())

    def on_create_topic(self, topic: str) -> bool:
        is_new = self._topic(topic) is None
        found = self._shard.topic(topic.encode(), create=True)
        if found is None:
            return False
        if is_new and found.durability != "memory":
            self._master.save_topic(topic)
        return True

    def on_seed(self, topic: str, channels: list[str]) -> None:
        """All lookupds there are have told which channels a new topic is to have."""
        found = self._topic(topic)
        if found is not None and found.held:
            for channel in channels:
                found.channel(channel)
            found.end_hold()

    def on_delete_topic(self, topic: str) -> bool:
        self._loop.enter()
        return self._shard.delete_topic(topic.encode())

    def on_empty_topic(self, topic: str) -> bool:
        found = self._topic(topic)
        if found is None:
            return False
        found.empty()
        return True

    def on_pause_topic(self, topic: str, paused: bool) -> bool:
        found = self._topic(topic)
        if found is None:
            return False
        found.pause(paused)
        self._master.topic_paused(topic, paused)
        return True

    def on_create_channel(self, topic: str, channel: str) -> Outcome:
        found = self._topic(topic)
        if found is None:
            return "TOPIC_NOT_FOUND"
        is_new = channel not in found.channels
        found.channel(channel)
        if is_new:
            self._save_channel(found, channel)
        return "ok"

    def _save_channel(self, found: Topic, channel: str) -> None:
        """What was answered stays, even if all of nsqd is killed at once after that."""
        if found.durability != "memory":
            self._master.save_channel(found.name, channel)

    def on_seek_channel(
        self, topic: str, channel: str, seq: int, time: int | None, create: bool
    ) -> Sought:
        found, seq = self._find_place(topic, seq, time)
        if found is None:
            return "TOPIC_NOT_FOUND"
        if create == (channel in found.channels):
            return "CHANNEL_EXISTS" if create else "CHANNEL_NOT_FOUND"
        if create:
            found.channel(channel)
        begin = found.seek(channel, seq)
        if create:
            self._save_channel(found, channel)
        return begin

    def _find_place(self, topic: str, seq: int, time: int | None) -> tuple[Topic | None, int]:
        """The topic, if there is one, and a place in its log as a sequence number."""
        found = self._topic(topic)
        while found is not None and time is not None:
            there = found.seq_at(time)
            if there is not None:
                return found, there
            gevent.sleep(READING)
            found = self._topic(topic)
        return found, seq

    def on_redrive(self, topic: str, channel: str, limit: int) -> Redriven:
        found = self._topic(topic)
        if found is None:
            return "TOPIC_NOT_FOUND"
        if channel not in found.channels:
            return "CHANNEL_NOT_FOUND"
        return found.channels[channel].redrive(limit)

    def on_deferred(
        self, topic: str, channel: str, limit: int, after: Sequence[int] | None
    ) -> Upcoming:
        found = self._topic(topic)
        if found is None:
            return "TOPIC_NOT_FOUND"
        if channel not in found.channels:
            return "CHANNEL_NOT_FOUND"
        upcoming = found.channels[channel].upcoming(limit, (after[0], after[1]) if after else None)
        last = upcoming[-1][0] if len(upcoming) == limit else None
        return {
            "deferred": [
                {
                    "id": f"{id:016x}" if id else None,
                    "seq": seq,
                    "due": due,
                    "attempts": attempts,
                    "size": size or None,
                }
                for _, seq, due, id, attempts, size in upcoming
            ],
            "next": f"{last[0]}.{last[1]}" if last else None,
        }

    def on_peek(self, topic: str, channel: str, look: Sequence[Any]) -> Answer:
        state, count, start, size = look
        wanted = peeking.Look(state, count, start and (start[0], start[1]), size)
        try:
            with gevent.Timeout(PEEKING_MOST), self._peeks:
                return self._peek(topic, channel, wanted)
        except gevent.Timeout:
            return Answer("NOT_READ")

    def _peek(self, topic: str, channel: str, look: peeking.Look) -> Answer:
        found = self._topic(topic)
        if found is None:
            return Answer("TOPIC_NOT_FOUND")
        if channel and channel not in found.channels:
            return Answer("CHANNEL_NOT_FOUND")
        read: AsyncResult[str | None] = AsyncResult()

        def told(problem: str | None) -> None:
            read.set(problem)
            self._peeked.send()  # at the end of a turn nothing else keeps the loop from waiting

        after = peeking.after(look)
        peek = found.peek(channel, look.state, look.most, after, look.body_most, told)
        try:
            problem = read.get()
        finally:
            peek.cancel()
        return Answer("NOT_READ") if problem else Answer(blob=peeking.page(look, peek))

    def on_cancel_message(self, topic: str, channel: str, id: int) -> Cancelled:
        found = self._topic(topic)
        if found is None:
            return "TOPIC_NOT_FOUND"
        if channel not in found.channels:
            return "CHANNEL_NOT_FOUND"
        written: AsyncResult[str | None] = AsyncResult()
        if not found.cancel(channel, id, written.set):
            return "MESSAGE_NOT_FOUND"
        try:
            return "ok" if written.get(timeout=WRITING_MOST) is None else "NOT_WRITTEN"
        except gevent.Timeout:
            return "NOT_WRITTEN"

    def on_topic_log(self, topic: str, at: Sequence[int | None] | None) -> dict[str, Any] | None:
        seq, time = at or (0, None)
        found, seq = self._find_place(topic, seq or 0, time)
        if found is None:
            return None
        facts = found.log_facts()
        if at is not None:
            facts["at"] = min(max(seq, facts["first_seq"]), facts["fanout_seq"])
        return facts

    def on_find_channel(self, topic: str, channel: str) -> Outcome:
        return self._on_channel(topic, channel, lambda found: None)

    def on_delete_channel(self, topic: str, channel: str) -> Outcome:
        return self._on_channel(topic, channel, lambda found: found.delete_channel(channel))

    def on_empty_channel(self, topic: str, channel: str) -> Outcome:
        return self._on_channel(topic, channel, lambda found: found.empty_channel(channel))

    def on_pause_channel(self, topic: str, channel: str, paused: bool) -> Outcome:
        def pause(found: Topic) -> None:
            found.pause_channel(channel, paused)
            self._master.channel_paused(topic, channel, paused)

        return self._on_channel(topic, channel, pause)

    def _on_channel(self, topic: str, channel: str, act: Callable[[Topic], object]) -> Outcome:
        found = self._topic(topic)
        if found is None:
            return "TOPIC_NOT_FOUND"
        if channel not in found.channels:
            return "CHANNEL_NOT_FOUND"
        act(found)
        return "ok"

    # -- what HTTP asks (backend.Backend)

    def publish(
        self,
        topic: str,
        bodies: Sequence[Message],
        delay_ms: int,
        durability: str,
        done: Callable[[str | None], None],
        headers: bytes = b"",
    ) -> None:
        if not bodies:
            gevent.spawn(self._publish_nothing, topic, done)
            return
        self._loop.enter()
        self._publisher.publish(topic.encode(), bodies, delay_ms, durability, done, headers)

    def _publish_events(self, lines: list[bytes], done: Callable[[str | None], None]) -> None:
        """At the end of a turn."""
        self._publisher.publish(EVENTS_TOPIC.encode(), lines, 0, "memory", done)

    def sink(self, topic: str, headers: bytes = b"") -> TopicSink:
        return self._publisher.sink(topic.encode(), self._loop.enter, headers)

    def _publish_nothing(self, topic: str, done: Callable[[str | None], None]) -> None:
        """Only create the topic, wherever it is to live: there is no command to send its owner."""
        try:
            created = self.create_topic(topic)
        except (CallTimeout, ChannelClosed, RemoteError) as error:
            done(str(error))
            return
        done(None if created else NO_ROOM)

    def create_topic(self, name: str) -> bool:
        if self._home.owner(name.encode()) is None:
            self._place(name)
        return bool(self._at_owner(name, "create_topic"))

    def delete_topic(self, name: str) -> bool:
        if not self._at_owner(name, "delete_topic"):
            return False
        self._master.forget_policies(name)
        return True

    def empty_topic(self, name: str) -> bool:
        return bool(self._at_owner(name, "empty_topic"))

    def pause_topic(self, name: str, paused: bool) -> bool:
        return bool(self._at_owner(name, "pause_topic", paused=paused))

    def create_channel(self, topic: str, channel: str) -> Outcome:
        return self._at_owner(topic, "create_channel", channel=channel) or "TOPIC_NOT_FOUND"

    def find_channel(self, topic: str, channel: str) -> Outcome:
        return self._at_owner(topic, "find_channel", channel=channel) or "TOPIC_NOT_FOUND"

    def seek_channel(self, topic: str, channel: str, place: Place, *, create: bool) -> Sought:
        found = self._at_owner(
            topic, "seek_channel", channel=channel, create=create, **place._asdict()
        )
        return "TOPIC_NOT_FOUND" if found is None else found

    def redrive(self, topic: str, channel: str, limit: int) -> Redriven:
        found: Redriven | None = self._at_owner(topic, "redrive", channel=channel, limit=limit)
        return "TOPIC_NOT_FOUND" if found is None else found

    def deferred(
        self, topic: str, channel: str, limit: int, after: tuple[int, int] | None
    ) -> Upcoming:
        found: Upcoming | None = self._at_owner(
            topic, "deferred", channel=channel, limit=limit, after=after
        )
        return "TOPIC_NOT_FOUND" if found is None else found

    def peek(self, topic: str, channel: str, look: peeking.Look) -> Peeked:
        owner = self._home.owner(topic.encode())
        if owner is None:
            return "TOPIC_NOT_FOUND"
        if owner == self._index:
            found = self.on_peek(topic, channel, look)
        else:
            args: dict[str, Any] = {"topic": topic, "channel": channel, "look": look}
            found = self._master.ask(owner, "peek", ASK_TIMEOUT, **args)
        refused: Peeked | None = found.value
        return refused or found.blob

    def cancel_message(self, topic: str, channel: str, id: int) -> Cancelled:
        found: Cancelled | None = self._at_owner(topic, "cancel_message", channel=channel, id=id)
        return found or "TOPIC_NOT_FOUND"

    def topic_log(self, topic: str, at: Place | None) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._at_owner(topic, "topic_log", at=at)
        return found

    def delete_channel(self, topic: str, channel: str) -> Outcome:
        outcome: Outcome | None = self._at_owner(topic, "delete_channel", channel=channel)
        if outcome == "ok":
            self._master.forget_policies(topic, channel)
        return outcome or "TOPIC_NOT_FOUND"

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        policies = self._shard.policies
        assert policies is not None
        return policy_values.view(policies, self._options, topic, channel)

    def set_policy(self, topic: str, channel: str, values: dict[str, Any] | None) -> None:
        name = f"{topic}/{channel}" if channel else topic
        if values is not None:
            policy_values.read_all(name, values, self._options)
        self._master.set_policy(name, values)

    def on_policies_changed(self, changed: dict[str, dict[str, Any]]) -> None:
        """What is set for these topics, and for these of `topic/channel`."""
        self._loop.enter()
        policies = self._shard.policies
        assert policies is not None
        for name, values in changed.items():
            policies.set(name, values)
            self._shard.policies_changed(name)

    def empty_channel(self, topic: str, channel: str) -> Outcome:
        return self._at_owner(topic, "empty_channel", channel=channel) or "TOPIC_NOT_FOUND"

    def pause_channel(self, topic: str, channel: str, paused: bool) -> Outcome:
        return (
            self._at_owner(topic, "pause_channel", channel=channel, paused=paused)
            or "TOPIC_NOT_FOUND"
        )

    def stats(self, query: Query) -> bytes:
        return self._pages.ask(query)

    def _page(self, query: Query) -> bytes:
        return self._master.ask(None, "stats", GATHER_TIMEOUT, **query._asdict()).blob

    def on_share(self, **query: Any) -> Answer:
        """This worker's share of /stats."""
        asked = Query(**query)
        self._give_way()
        walk = gathering.Walk(asked, self._give_way, time.time_ns())
        topics = self._topics(asked.topic)
        return gathering.pack(
            walk.topics(topics),
            walk.producers(self._home.producers()),
            known=bool(topics),
            health=gathering.Health(self._shard.health, self._shard.health_at),
            memory=stats.process_memory(),
            events=self._event_counts(),
        )

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, bytearray]:
        found = self._master.ask(
            None, "metrics", GATHER_TIMEOUT, accept=accept, accept_encoding=accept_encoding
        )
        content_type, is_compressed = found.value
        (sheet,) = found.fds
        try:
            page = metrics_buffer.read(sheet, found.blob, self._give_way)
        finally:
            os.close(sheet)
        return content_type, is_compressed, page

    def _metrics_share(self, request: Request) -> dict[str, Any]:
        """This worker's share of /metrics, written on the sheet that comes with the request."""
        (sheet,) = request.fds
        try:
            return self._write_metrics(
                metrics_buffer.Writer(sheet, self._index + 1), **request.args
            )
        finally:
            os.close(sheet)

    def _write_metrics(self, writer: metrics_buffer.Writer, compress: bool) -> dict[str, Any]:
        most = -(-self._options.metrics_max_series // self._workers)
        lines = Exposition(self._shard, most, *metrics.NAMES)
        figures = {
            "tcp": self._home.connections(),
            "http": self._http.connections,
            "turns": self._loop.turn_times(),
            "syncs": self._io.sync_times(),
            "failing": int(self._shard.health != "OK"),
            "topics": len(self._shard.topics),
            "memory": self._store.resident_bytes,
            "memory_limit": self._store.budget,
            "events": self._event_counts(),
            "quotas": [] if self._users is None else self._users.quotas_told(),
        }
        return metrics.share(lines, figures, writer, compress, self._give_way)

    def _event_counts(self) -> dict[str, int] | None:
        if self._events is None:
            return None
        return {"published": self._events.published, "dropped": self._events.dropped}

    def _topics(self, name: str) -> list[Topic]:
        if not name:
            return list(self._shard.topics.values())
        found = self._shard.topic(name.encode("utf-8", "surrogateescape"))
        return [found] if found is not None else []

    def _give_way(self) -> None:
        """Let a turn pass; then numbers are right again."""
        self._turns.wait()
        self._loop.enter()
        self._shard.settle()

    def command_line(self) -> str:
        return procfs.command_line(self._master_pid)

    def inspect(self, what: str) -> str:
        return self._master.inspect(what)

    def on_inspect(self, what: str) -> Answer:
        text = debug.tell(what)
        if what == "memory":
            text += debug.table(self._counters())
        return Answer(blob=text.encode(errors="replace"))

    def _counters(self) -> dict[str, int]:
        store = self._store
        return {
            "message bytes in memory": store.resident_bytes,
            "message bytes allowed": store.budget,
            "arenas": store.arenas,
            "blocks": store.blocks,
            "entries": store.entries,
            "deferred messages": store.deferred,
            "topics": len(self._shard.topics),
            "TCP connections": self._home.connections(),
            "HTTP connections": self._http.connections,
            "bytes of unfinished HTTP requests": self._http.held,
        }

    def profile(self, seconds: int) -> str:
        return self._profiler.profile(seconds)

    def change_option(self, name: str, value: Value) -> None:
        self._master.change_option(name, value)

    def health(self) -> str:
        return gathering.overall_health(self._gather("health"), self._workers)

    def on_health(self) -> dict[str, Any]:
        """The outcome of this worker's latest write to a log, and when it was."""
        return {"health": self._shard.health, "health_at": self._shard.health_at}

    def _gather(self, method: str, **args: Any) -> list[Any]:
        """Ask every worker that is up, this one too."""
        asked = [
            gevent.spawn(self._ask_quietly, peer, method, args) for peer in sorted(self._peers)
        ]
        own = getattr(self, f"on_{method}")(**args)
        gevent.joinall(asked)
        return [own, *(each.value for each in asked if each.value is not None)]

    def _ask_quietly(self, peer: int, method: str, args: dict[str, Any]) -> Any:
        try:
            return self._master.ask(peer, method, ASK_TIMEOUT, **args).value
        except (CallTimeout, ChannelClosed, RemoteError):
            return None

    def reasons(self) -> list[str]:
        try:
            return self._master.reasons()
        except (CallTimeout, ChannelClosed):
            return [NO_ANSWER]

    def live(self) -> str | None:
        try:
            self._master.live()
        except (CallTimeout, ChannelClosed):
            return NO_ANSWER
        return None

    def on_refuse(self, reason: str | None) -> None:
        """What would have to be written may not be, or may be again (None)."""
        self._shard.set_refusal(reason)

    def drain(self, on: bool, limit: float | None) -> dict[str, Any]:
        return self._master.drain(on, limit)

    def drain_state(self) -> dict[str, Any]:
        return self._master.drain_state()

    def on_draining(self, draining: bool) -> None:
        """No publish is accepted from now on, or all are again."""
        self._loop.enter()
        self._shard.set_draining(draining)

    def on_remains(self) -> Remains:
        """What consumers of this worker's topics are not done with."""
        self._give_way()
        return summed(self._rests())

    def _rests(self) -> Iterator[Rest]:
        slices = gathering.Slices(self._give_way)
        for topic in list(self._shard.topics.values()):
            slices.step()
            if not topic.gone:
                yield from (Rest(topic.name, *each) for each in topic.remains())

    def info(self) -> dict[str, Any]:
        options = self._options
        return {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self._port("http"),
            "tcp_port": self._port("tcp"),
            "start_time": self._started // SECOND,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
        }

    def _port(self, kind: str) -> int:
        listener = self._listeners.get(kind)
        return int(listener["port"]) if listener else 0
