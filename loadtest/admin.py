"""Cost of an nsqadmin page with many topics, and of nsqadmin's history.

    PYTHONPATH=. python loadtest/admin.py [--nodes 10] [--topics 500] [--channels 2] [--pages 10]
        [--samples 4] [--interval 10s]

Scripted nsqds and an nsqlookupd respond from a separate process, so that only nsqadmin is measured.
Prints the time and CPU time per page, the number of requests per page to each nsqd, the CPU time
per sample, and the memory of all samples. With 10 nsqds and 500 topics, a page should take less
than 300 ms.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import psutil

from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.testing import Daemon, Option
from nsqcy.testing.http_requests import Web

LIMIT = 300  # ms
START = time.monotonic()


class Nsqadmin(Daemon):
    table = NSQADMIN
    module = "nsqcy.nsqadmin.main"

    def _defaults(self) -> dict[str, Option]:
        return {"http_address": "127.0.0.1:0", "history_interval": "0s"}

    @property
    def web(self) -> Web:
        return Web(int(self.http_address.rpartition(":")[2]))


def channel(number: int, beat: int) -> dict[str, Any]:
    return {
        "channel_name": f"channel{number}",
        "depth": 12,
        "backend_depth": 0,
        "in_flight_count": 3,
        "deferred_count": 0,
        "message_count": 1_000_000 + beat,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": 2,
        "clients": [],
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        "zone_local_msg_count": 0,
        "region_local_msg_count": 0,
        "global_msg_count": 99,
    }


def stats(topics: int, channels: int, beat: int) -> bytes:
    every = [
        {
            "topic_name": f"orders.{number:05d}",
            "channels": [channel(each, beat) for each in range(channels)],
            "depth": 0,
            "backend_depth": 0,
            "message_count": 1_000_000 + beat,
            "message_bytes": 1_000_000_000,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        for number in range(topics)
    ]
    page = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": every}
    return json.dumps(page, separators=(",", ":")).encode()


def cluster(args: argparse.Namespace, told: Connection) -> None:
    """Serve an nsqlookupd and nsqds until the process is terminated. Sends the address of the
    nsqlookupd and then, on request, the number of queries to each nsqd."""
    asked: Counter[int] = Counter()
    pages = [stats(args.topics, args.channels, 1000 * beat) for beat in range(20)]

    class Nsqd(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[self.server.server_port] += 1
            reply(self, pages[int(time.monotonic() - START) % len(pages)])

        def log_message(self, *_: object) -> None:
            pass

    class Lookupd(Nsqd):
        def do_GET(self) -> None:
            names = [f"orders.{number:05d}" for number in range(args.topics)]
            if urlsplit(self.path).path == "/topics":
                reply(self, json.dumps({"topics": names}).encode())
                return
            producers = [
                {
                    "broadcast_address": "127.0.0.1",
                    "hostname": f"host{number}",
                    "tcp_port": each.server_port,
                    "http_port": each.server_port,
                    "version": "1.3.0",
                    "topics": names,
                    "tombstones": [False] * len(names),
                }
                for number, each in enumerate(servers)
            ]
            reply(self, json.dumps({"producers": producers}).encode())

    servers = [serve(Nsqd) for _ in range(args.nodes)]
    told.send(serve(Lookupd).server_port)
    while told.recv():
        told.send(dict(asked))
        asked.clear()


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    import threading

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def cpu(process: psutil.Process) -> float:
    """Milliseconds elapsed so far."""
    times = process.cpu_times()
    return 1000 * float(times.user + times.system)


def measure_pages(admin: Nsqadmin, ask: Connection, args: argparse.Namespace) -> bool:
    process = psutil.Process(admin.process.pid)
    admin.web.get("/topics")
    ask.send(True)
    ask.recv()
    before, waits, size = cpu(process), [], 0
    for _ in range(args.pages):
        begun = time.monotonic()
        size = len(admin.web.get("/topics").body)
        waits.append(1000 * (time.monotonic() - begun))
    used = (cpu(process) - before) / args.pages
    ask.send(True)
    asked = {count / args.pages for count in ask.recv().values()}
    print(
        f"a page: {used:.0f} ms of CPU, {min(waits):.0f} to {max(waits):.0f} ms until it is there,"
        f" {size >> 10} KiB; each nsqd is asked {asked} times"
    )
    return used < LIMIT and asked == {1.0}


def measure_samples(admin: Nsqadmin, args: argparse.Namespace) -> None:
    process = psutil.Process(admin.process.pid)
    step = parse_duration(args.interval) / SECOND
    time.sleep(1.5 * step)  # the first sample creates all rings
    before = cpu(process)
    time.sleep(args.samples * step)
    used = (cpu(process) - before) / args.samples
    kept = admin.web.get("/api/history").json()
    print(
        f"a sample: {used:.0f} ms of CPU, {used / step / 10:.1f} % of a core;"
        f" {kept['series']} series, {kept['bytes'] / 1e6:.1f} MB;"
        f" the process has {process.memory_info().rss / 1e6:.0f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--interval", default="10s")
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    upstream = multiprocessing.Process(target=cluster, args=(args, there), daemon=True)
    upstream.start()
    lookupd = f"127.0.0.1:{here.recv()}"
    print(f"{args.nodes} nsqds with {args.topics} topics of {args.channels} channels")
    with Nsqadmin(lookupd_http_address=lookupd) as admin:
        is_kept = measure_pages(admin, here, args)
    if args.samples:
        with Nsqadmin(lookupd_http_address=lookupd, history_interval=args.interval) as admin:
            measure_samples(admin, args)
            here.send(True)
            here.recv()
            measure_pages(admin, here, args)
    upstream.kill()
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
