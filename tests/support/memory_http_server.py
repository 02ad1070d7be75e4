"""An HTTP server on top of an in-memory backend, in its own process.

Prints the port that it listens on (or the path, if one was given), then serves until stdin ends.
`--slow` answers publishes in a later turn. Used by the tests and by the load test.
"""

import argparse
import errno
import functools
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gevent
import gevent.event
from gevent import get_hub

from nsqcy.config.publish_limits import PublishLimits, publish_limits
from nsqcy.errors import NotWritten
from nsqcy.http.server import HttpServer, Timeouts
from nsqcy.nsqd.http.api import Api, tls_required
from nsqcy.nsqd.http.backend import UNKNOWN, Done, Message
from nsqcy.nsqd.http.https import HttpsConnection
from nsqcy.nsqd.options import NSQD, NsqdOptions
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages import topic_verbs as verbs
from nsqcy.nsqd.process_messages.master_verbs import ChangeOption, ForgetPolicies, MasterVerb
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import stats_formats as stats
from nsqcy.nsqd.tls import HANDSHAKE_LIMIT, Handshakes, Material, make_context
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError
from nsqcy.server.core import separators
from nsqcy.util import debug
from nsqcy.util.gotext import json_bytes

START_TIME = 1_700_000_000
INFO = {
    "version": "1.3.0",
    "broadcast_address": "host",
    "hostname": "host",
    "http_port": 4151,
    "tcp_port": 4150,
    "start_time": START_TIME,
    "max_heartbeat_interval": 60000000000,
    "max_output_buffer_size": 65536,
    "max_output_buffer_timeout": 30000000000,
    "max_deflate_level": 6,
    "topology_zone": "",
    "topology_region": "",
}


OPTIONS = NsqdOptions(NSQD.defaults()).replace(
    max_msg_size=1000, max_body_size=5000, max_input_bytes=1 << 20
)


profiler = debug.Profiler()


class StderrLog:
    def _write(self, level: str, msg: str) -> None:
        print(f"{level}: {msg}", file=sys.stderr, flush=True)

    def debug(self, msg: str, **_: object) -> None:
        self._write("DEBUG", msg)

    def info(self, msg: str, **_: object) -> None:
        self._write("INFO", msg)

    def warn(self, msg: str, **_: object) -> None:
        self._write("WARNING", msg)

    def error(self, msg: str, **_: object) -> None:
        self._write("ERROR", msg)


FAILURES = {
    "unwritten": NotWritten(),
    "unwritten-there": RemoteError("NOT_WRITTEN"),
    "gone": ChannelClosed("the peer is gone"),
    "gone-there": RemoteError("the peer is gone", unreachable=True),
    "silent": CallTimeout("pause: no answer within 5 s"),
    "short": OSError(errno.EMFILE, "Too many open files"),
    "short-there": RemoteError("Too many open files"),
    "wrong": RemoteError("a bug"),
}


class MemoryBackend:
    """Topics as dicts. A publish to `fail` fails; the outcome of one to `unknown` is unknown.
    `boom` raises, `late-boom` after `done`.
    Pausing a topic of FAILURES raises the error listed there."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow
        self.topics: dict[str, dict[str, Any]] = {}
        self.unhealthy = ""

    def publish(
        self,
        topic: str,
        bodies: Sequence[Message],
        delay_ms: int,
        durability: str,
        done: Done,
        headers: bytes = b"",
    ) -> None:
        if topic == "late-boom":
            done(None)
        if topic in ("boom", "late-boom"):
            raise RuntimeError("boom")
        failed = {"fail": "disk full", "unknown": UNKNOWN}.get(topic)
        if failed is None:
            self.create_topic(topic)
            found = self.topics[topic]
            # /stats shows the published messages as extra keys of the topic.
            if found["message_count"] < 50:
                found["bodies"] += [bytes(b).decode("latin-1") for b in bodies]
            found["delay_ms"] = delay_ms
            found["durability"] = durability
            found["message_count"] += len(bodies)
            found["message_bytes"] += sum(map(len, bodies))
        if self.slow:
            gevent.spawn(done, failed)
        else:
            done(failed)

    def limits_of(self, topic: str) -> PublishLimits:
        return publish_limits(OPTIONS)

    def sink(self, topic: str, headers: bytes = b"") -> None:
        """Return None, so that every publish uses the general path."""

    def create_topic(self, name: str) -> None:
        self.topics.setdefault(
            name,
            {
                "topic_name": name,
                "channels": {},
                "depth": 0,
                "backend_depth": 0,
                "message_count": 0,
                "message_bytes": 0,
                "paused": False,
                "bodies": [],
                "delay_ms": 0,
            },
        )

    def at_owner(self, verb: verbs.TopicVerb[Any]) -> None:
        name = verb.topic
        if isinstance(verb, verbs.PauseTopic) and name in FAILURES:
            raise FAILURES[name]
        if isinstance(verb, verbs.CreateTopic):
            self.create_topic(name)
            return
        if name not in self.topics:
            raise Refused("TOPIC_NOT_FOUND")
        channels = self.topics[name]["channels"]
        match verb:
            case verbs.DeleteTopic():
                del self.topics[name]
            case verbs.PauseTopic():
                self.topics[name]["paused"] = verb.paused
            case verbs.CreateChannel():
                channels.setdefault(verb.channel, {"paused": False})
            case verbs.EmptyTopic():
                pass
            case verbs.DeleteChannel() | verbs.EmptyChannel() | verbs.PauseChannel():
                if verb.channel not in channels:
                    raise Refused("CHANNEL_NOT_FOUND")
                if isinstance(verb, verbs.DeleteChannel):
                    del channels[verb.channel]
                elif isinstance(verb, verbs.PauseChannel):
                    channels[verb.channel]["paused"] = verb.paused
            case _:
                raise NotImplementedError(verb)

    def at_master(self, verb: MasterVerb[Any]) -> None:
        match verb:
            case ChangeOption():
                OPTIONS.change(verb.name, verb.value)
            case ForgetPolicies():
                pass
            case _:
                raise NotImplementedError(verb)

    def stats(self, query: Query) -> bytes:
        topics = [it for name, it in sorted(self.topics.items()) if query.topic in ("", name)]
        pieces = [
            json_bytes(shown_topic(it, query)) if query.json else text_topic(it)
            for it in topics
            if not query.channel or query.channel in it["channels"]
        ]
        start, middle, end = stats.frame(
            query,
            stats.Head(self.health(), START_TIME * 10**9, time.time_ns()),
            stats.process_memory() if query.include_mem else None,
            None,
            is_known=bool(topics) or not query.topic,
            has_topics=bool(pieces),
            has_producers=False,
        )
        separator, _ = separators(query.json)
        return b"".join([start, separator.join(pieces), middle, end])

    def command_line(self) -> str:
        return "\0".join(sys.argv)

    def inspect(self, what: str) -> str:
        return debug.tell(what)

    def profile(self, seconds: int) -> str:
        return profiler.profile(seconds)

    def health(self) -> str:
        if "sick" in self.topics:
            return "NOK - open x.dat: no such file or directory"
        if "panic" in self.topics:
            raise RuntimeError("nobody answers")
        return "OK"

    def reasons(self) -> list[str]:
        return ["one", "two"] if "sick" in self.topics else []

    def live(self) -> str | None:
        return "it is dead" if "dead" in self.topics else None

    def info(self) -> dict[str, Any]:
        return INFO


_LATENCY = {"e2e_processing_latency": {"count": 0, "percentiles": None}}
_QUEUE_KEYS = ("depth", "backend_depth", "in_flight_count", "deferred_count")


def shown_topic(state: dict[str, Any], query: Query) -> dict[str, Any]:
    """Return a topic in the form of /stats."""
    numbers = dict.fromkeys((*_QUEUE_KEYS, "message_count", "requeue_count", "timeout_count"), 0)
    clients: list[Any] | None = [] if query.include_clients else None
    channels = [
        {"channel_name": name, **numbers, "client_count": 0, "clients": clients, **channel}
        | _LATENCY
        for name, channel in sorted(state["channels"].items())
        if query.channel in ("", name)
    ]
    return state | {"channels": channels} | _LATENCY


def text_topic(state: dict[str, Any]) -> bytes:
    return f"   [{state['topic_name']:<15}]".encode()


def secure_context(folder: Path, policy: str) -> Any:
    certificate = (folder / "server.pem").read_text()
    key = (folder / "server.key").read_text()
    return make_context(Material(certificate, key, "", policy, 0x0301, False))[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unix", default="")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--peer", default="")
    parser.add_argument("--debug-remote", action="store_true")
    parser.add_argument("--tls", default="", help="a folder with server.pem and server.key")
    parser.add_argument("--tls-only", action="store_true")
    parser.add_argument("--policy", default="")
    parser.add_argument("--handshake-limit", type=float, default=HANDSHAKE_LIMIT)
    parser.add_argument("--profiler", default=debug.PROFILER)
    parser.add_argument("--send-buffer", type=int, default=0)
    parser.add_argument("--timeouts", type=float, nargs=5, default=[600, 60, 60, 5, 5])
    args = parser.parse_args()

    debug.PROFILER = args.profiler
    family = socket.AF_UNIX if args.unix else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(args.unix or ("127.0.0.1", 0))
    listener.listen(512)
    listener.setblocking(False)

    loop = get_hub().loop
    options = OPTIONS.replace(debug_remote=args.debug_remote)
    api = Api(MemoryBackend(args.slow), options, StderrLog())
    timeouts = Timeouts(*args.timeouts) if args.timeouts else None
    server = HttpServer(loop, api, timeouts=timeouts, send_buffer=args.send_buffer)

    make = None
    if args.tls:
        handshakes = Handshakes(loop, secure_context(Path(args.tls), args.policy))
        handshakes.limit = args.handshake_limit
        make = functools.partial(HttpsConnection, handshakes=handshakes)
    if args.tls_only:
        server.tls_only = tls_required(4152)

    def accept() -> None:
        sock, address = listener.accept()
        peer = "@" if args.unix else f"{address[0]}:{address[1]}"
        server.adopt(sock, args.peer or peer, make)

    accepting = loop.io(listener.fileno(), 1)
    accepting.start(accept)
    print(args.unix or listener.getsockname()[1], flush=True)

    stdin = loop.io(sys.stdin.fileno(), 1)
    ended = gevent.event.Event()
    stdin.start(ended.set)
    ended.wait()
    server.close()
    os._exit(0 if server.connections == 0 else 1)


if __name__ == "__main__":
    main()
