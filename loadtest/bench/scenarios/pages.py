"""Cost of an nsqadmin page with many topics, and of a sample for nsqadmin's history.

Scripted nsqds and an nsqlookupd respond from a separate process, so that only nsqadmin is measured.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon, parse_address
from loadtest.bench.scenarios.beside import polling
from loadtest.bench.speed import Result, Settings, measure, percentiles, told
from loadtest.daemons import Nsqadmin
from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.testing.ports import Ports

CLUSTERS = ((10, 500, 2), (50, 500, 3))  # nsqds, topics, channels of each topic
PAGES = 10
INTERVAL = "5s"
SAMPLES = 4
ANSWERS = 20  # /stats answers of each nsqd; the counters grow from one to the next


def pages(settings: Settings) -> Iterator[Result]:
    for nodes, many, channels in CLUSTERS:
        topics = settings.some(many, 5)
        size = f"{nodes} nsqds, {topics} topics of {channels} channels"
        with Ports() as ports, load.Team(1) as upstream:
            lookupd, *nsqds = (("127.0.0.1", ports.take()) for _ in range(nodes + 1))
            upstream.add(serving, lookupd, nsqds, topics, channels)
            upstream.ready()
            address = f"{lookupd[0]}:{lookupd[1]}"
            with Nsqadmin(lookupd_http_address=address) as admin:
                for _ in settings.rounds():
                    yield page(admin, size)
            with Nsqadmin(lookupd_http_address=address, history_interval=INTERVAL) as admin:
                yield sample(admin, size, settings.some(SAMPLES))


def page(admin: Nsqadmin, size: str) -> Result:
    nsqadmin = watched(admin)
    with load.Team(1) as team:
        team.add(polling, nsqadmin.http, "/topics", {}, 0.0, PAGES, 1)
        result, (report,) = measure(f"a page of {size}", nsqadmin, team)
    took = told("ms:", percentiles(report["took"]), 1e3, 0)
    result.note = f"{report['size'] >> 10} KiB, {took}"
    return result


def sample(admin: Nsqadmin, size: str, count: int) -> Result:
    nsqadmin = watched(admin)
    step = parse_duration(INTERVAL) / SECOND
    time.sleep(1.5 * step)  # the first sample creates all rings
    before = nsqadmin.cpu_seconds()
    time.sleep(count * step)
    used = nsqadmin.cpu_seconds() - before
    kept = admin.web.get("/api/history").json()
    result = Result(f"a sample of {size}", count, count * step, used, 0.0)
    result.pss = nsqadmin.memory()["Pss"]
    result.note = f"{kept['series']:,} series, {kept['bytes'] / 1e6:.1f} MB"
    return result


def watched(admin: Nsqadmin) -> Daemon:
    address = parse_address(admin.http_address)
    return Daemon(address, address, admin.process.pid)


# -- the cluster


def serving(
    lookupd: Address,
    nsqds: list[Address],
    topics: int,
    channels: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """An nsqlookupd and nsqds that respond until the process is killed."""
    names = [f"orders.{number:05d}" for number in range(topics)]
    stats = [answer(names, channels, 1000 * beat) for beat in range(ANSWERS)]
    registered = json.dumps({"producers": [producer(each, names) for each in nsqds]}).encode()
    known = json.dumps({"topics": names}).encode()

    class Nsqd(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(stats[int(time.monotonic()) % ANSWERS])

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Lookupd(Nsqd):
        def do_GET(self) -> None:
            self.answer(known if urlsplit(self.path).path == "/topics" else registered)

    for address, handler in ((lookupd, Lookupd), *((each, Nsqd) for each in nsqds)):
        server = ThreadingHTTPServer(address, handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return lambda: {"messages": 0}


def producer(address: Address, topics: list[str]) -> dict[str, Any]:
    host, port = address
    return {
        "broadcast_address": host,
        "hostname": f"host{port}",
        "tcp_port": port,
        "http_port": port,
        "version": "1.3.0",
        "topics": topics,
        "tombstones": [False] * len(topics),
    }


def answer(topics: list[str], channels: int, beat: int) -> bytes:
    """Return an answer to /stats whose counters grow with `beat`."""
    latency = {"count": 0, "percentiles": None}
    counters = {"message_count": 1_000_000 + beat, "paused": False, "backend_depth": 0}
    counters |= {"e2e_processing_latency": latency}
    state = {"depth": 12, "in_flight_count": 3, "deferred_count": 0, "requeue_count": 1}
    state |= {"timeout_count": 0, "client_count": 2, "clients": []}
    state |= {"zone_local_msg_count": 0, "region_local_msg_count": 0, "global_msg_count": 99}
    every = [counters | state | {"channel_name": f"channel{each}"} for each in range(channels)]
    topic = counters | {"channels": every, "depth": 0, "message_bytes": 1_000_000_000}
    page = {"version": "1.3.0", "health": "OK", "start_time": 1}
    page |= {"topics": [topic | {"topic_name": name} for name in topics]}
    return json.dumps(page, separators=(",", ":")).encode()
