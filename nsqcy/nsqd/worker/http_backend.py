"""A worker's HTTP backend: `nsqd.http.backend.Backend` on top of topics, rings and the master.

Routes each request to the process that answers it: the topic's owner, the master, or every worker.
Does not depend on HTTP routes.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from nsqcy import NSQ_VERSION
from nsqcy.config.publish_limits import PublishLimits, limits_of
from nsqcy.errors import NotWritten
from nsqcy.nsqd.http import policy_values
from nsqcy.nsqd.http.backend import Message
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_calls import Refused, Result
from nsqcy.nsqd.process_messages.master_verbs import (
    GetMetrics,
    GetReasons,
    GetStats,
    Inspect,
    Live,
    MasterVerb,
)
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.process_messages.to_worker import GetPeerHealth
from nsqcy.nsqd.process_messages.topic_verbs import CreateTopic, TopicVerb
from nsqcy.nsqd.stats import page_buffer, stats_page
from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.nsqd.worker.main import Boot
from nsqcy.nsqd.worker.placement_requests import PlacementRequests
from nsqcy.nsqd.worker.topic_owner import TopicOwner
from nsqcy.process.control import Answer, CallTimeout, ChannelClosed, RemoteError
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import NO_ROOM, BodyBatch, Publisher, TopicSink
from nsqcy.util import debug, procfs

NO_ANSWER = "the master does not answer"
SECOND = 1_000_000_000


class HttpBackend:
    """One worker's `backend.Backend`."""

    def __init__(
        self,
        boot: Boot,
        options: NsqdOptions,
        owned: TopicOwner,
        manager: SessionManager,
        publisher: Publisher,
        placements: PlacementRequests,
        peers: set[int],
        *,
        enter: Callable[[], None],
        give_way: Callable[[], None],
    ) -> None:
        """peers: the other workers that are up; the caller keeps it current."""
        self._index = boot.worker
        self._workers = boot.workers
        self._master = boot.master
        self._listeners = boot.context["listeners"]
        self._started = boot.context["started"]
        self._master_pid = boot.context["master"]
        self._options = options
        self._owned = owned
        self._manager = manager
        self._publisher = publisher
        self._placements = placements
        self._peers = peers
        self._enter = enter
        self._give_way = give_way
        self._profiler = debug.Profiler()
        self._pages = RequestCoalescer(self._page)

    # -- publishing

    def publish(
        self,
        topic: str,
        bodies: Sequence[Message] | BodyBatch,
        delay_ms: int,
        durability: str,
        done: Callable[[str | None], None],
        headers: bytes = b"",
    ) -> None:
        if not bodies:
            gevent.spawn(self._publish_nothing, topic, done)
            return
        self._enter()
        self._publisher.publish(topic.encode(), bodies, delay_ms, durability, done, headers)

    def limits_of(self, topic: str) -> PublishLimits:
        return limits_of(topic, self._options, self._owned.shard.policies)

    def sink(self, topic: str, headers: bytes = b"") -> TopicSink:
        return self._publisher.sink(topic.encode(), self._enter, headers)

    def _publish_nothing(self, topic: str, done: Callable[[str | None], None]) -> None:
        """Only create the topic, from any worker: there is no publish command to send to its
        owner."""
        try:
            self.at_owner(CreateTopic(topic))
        except Refused:
            done(NO_ROOM)
        except (CallTimeout, ChannelClosed, NotWritten, RemoteError) as error:
            done(str(error))
        else:
            done(None)

    # -- topics and channels

    def at_owner(self, verb: TopicVerb[Result]) -> Result:
        """Run a verb in its topic's owner. Raises Refused."""
        topic = verb.topic.encode()
        if verb.creates and self._manager.owner(topic) is None:
            self._placements.place(verb.topic)
        owner = self._manager.owner(topic)
        if owner is None:
            raise Refused("TOPIC_NOT_FOUND")
        if owner == self._index:
            return verb.run(self._owned)
        return self._master.ask(owner, verb)

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        policies = self._owned.shard.policies
        assert policies is not None
        return policy_values.view(policies, self._options, topic, channel)

    # -- all of nsqd

    def at_master(self, verb: MasterVerb[Result]) -> Result:
        """Run a verb in the master."""
        return self._master.call(verb)

    def stats(self, query: Query) -> memoryview:
        return self._pages.ask(query)

    def _page(self, query: Query) -> memoryview:
        return self._read(self.at_master(GetStats(query)))

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, memoryview]:
        found = self.at_master(GetMetrics(accept, accept_encoding))
        content_type, is_compressed = found.value
        return content_type, is_compressed, self._read(found)

    def _read(self, planned: Answer) -> memoryview:
        """Return the page with this plan."""
        (buffer,) = planned.fds
        size = 0
        try:
            page = page_buffer.read(buffer, planned.blob, self._give_way)
            size = len(page)
            return page
        finally:
            page_buffer.close(buffer, size)

    def info(self) -> dict[str, Any]:
        options = self._options
        return {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.port("http"),
            "tcp_port": self.port("tcp"),
            "start_time": self._started // SECOND,
            "max_heartbeat_interval": options.max_heartbeat_interval,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout,
            "max_deflate_level": options.max_deflate_level,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
        }

    def health(self) -> str:
        """Return the combined health of all workers, including this worker."""
        asked = [gevent.spawn(self._peer_health, peer) for peer in sorted(self._peers)]
        own = self._owned.health()
        gevent.joinall(asked)
        values = [each.value for each in asked if each.value is not None]
        return stats_page.overall_health([own, *values], self._workers)

    def _peer_health(self, peer: int) -> Any:
        try:
            return self._master.ask(peer, GetPeerHealth())
        except (CallTimeout, ChannelClosed, RemoteError):
            return None

    def reasons(self) -> list[str]:
        try:
            return self.at_master(GetReasons())
        except (CallTimeout, ChannelClosed):
            return [NO_ANSWER]

    def live(self) -> str | None:
        try:
            self.at_master(Live())
        except (CallTimeout, ChannelClosed):
            return NO_ANSWER
        return None

    # -- inspection (pprof.Inspected)

    def command_line(self) -> str:
        return procfs.command_line(self._master_pid)

    def inspect(self, what: str) -> str:
        return self.at_master(Inspect(what)).decode()

    def profile(self, seconds: int) -> str:
        return self._profiler.profile(seconds)

    def port(self, kind: str) -> int:
        """Return the port of a listener ("tcp", "http", "https"); 0 if there is none."""
        listener = self._listeners.get(kind)
        return int(listener["port"]) if listener else 0
