"""Cost of /stats for other clients: delivery latency with and without a client that polls it.

    PYTHONPATH=. python loadtest/stats.py [--workers 1 3] [--topics 1000] [--channels 3]
        [--clients 1000] [--rounds 3] [--seconds 10] [--every 1.0]

Windows with and without polling alternate in one nsqd with these topics, channels and subscribed
clients. A producer publishes on a schedule, and a consumer records how late each message is.
"""

import argparse
import http.client
import json
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtest.bench import daemon, load
from loadtest.bench.daemon import Address, Daemon

SIZE = 200
CROWDS = 2  # processes that run the clients
TOPIC = "measured"


def crowd(
    address: Address, places: list[tuple[str, str]], team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Clients that each subscribe to one channel and answer heartbeats until they are killed."""
    poll = select.epoll()
    socks = {}
    for topic, channel in places:
        sock = load.consumer(address, topic, channel, 0)
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)

    def run() -> load.Report:
        while True:
            for fd, _ in poll.poll():
                if not socks[fd].recv(4096):
                    raise RuntimeError("a client was disconnected")
                socks[fd].sendall(b"NOP\n")

    return run


@contextmanager
def inhabited(nsqd: Daemon, args: argparse.Namespace) -> Iterator[None]:
    """Topics, channels and clients, for the duration of the context."""
    assert nsqd.http is not None
    link = http.client.HTTPConnection(*nsqd.http)
    # The clients' processes are forked here: the thread that reads the log must be idle.
    link.request("PUT", "/config/log_level", b"warn")
    link.getresponse().read()
    for topic in range(args.topics):
        paths = [f"/topic/create?topic=topic{topic:04d}"]
        paths += [
            f"/channel/create?topic=topic{topic:04d}&channel=channel{channel}"
            for channel in range(args.channels)
        ]
        for path in paths:
            link.request("POST", path)
            link.getresponse().read()
    link.close()
    places = [(f"topic{n % args.topics:04d}", "channel0") for n in range(args.clients)]
    with load.Team(CROWDS) as team:
        for index in range(CROWDS):
            team.add(crowd, nsqd.tcp, places[index::CROWDS])
        team.ready()
        team.go()
        yield


class Poller(threading.Thread):
    """Requests /stats at an interval, until it is stopped."""

    def __init__(self, address: Address, path: str, every: float) -> None:
        super().__init__(daemon=True)
        self._seconds: list[float] = []
        self._size = 0
        self._address, self._path, self._every = address, path, every
        self._halt = threading.Event()

    def run(self) -> None:
        link = http.client.HTTPConnection(*self._address)
        due = time.monotonic()
        while not self._halt.wait(max(0.0, due - time.monotonic())):
            start = time.monotonic()
            link.request("GET", self._path)
            self._size = len(link.getresponse().read())
            self._seconds.append(time.monotonic() - start)
            due += self._every

    def stop(self) -> tuple[int, list[float]]:
        """Return the size of the last response, and the duration of each request."""
        self._halt.set()
        self.join()
        return self._size, self._seconds


def window(
    nsqd: Daemon, rate: int, seconds: float, begin: Callable[[], object] = lambda: None
) -> list[int]:
    """Deliver messages on a schedule; return the time from publish to consumer for each, in ns."""
    count = int(rate * seconds)
    with load.Team(2) as team:
        team.add(load.finishing, nsqd.tcp, TOPIC, 100, count, slice(0, 1), SIZE)
        team.add(load.paced, nsqd.tcp, TOPIC, SIZE, rate, count)
        team.ready()
        begin()
        latencies: list[int] = team.run()[0]["latencies"]
        return latencies


def show(name: str, latencies: list[int], cpu: float, seconds: float) -> None:
    ordered = sorted(latencies)
    p50, p99, p999 = (ordered[int(len(ordered) * q)] / 1e6 for q in (0.5, 0.99, 0.999))
    print(
        f"  {name}: p50 {p50:6.3f} ms, p99 {p99:6.3f} ms, p99.9 {p999:6.3f} ms,"
        f" max {ordered[-1] / 1e6:6.3f} ms, nsqd's CPU {cpu / seconds:.1%}",
        flush=True,
    )


def measure(workers: int, args: argparse.Namespace) -> None:
    with daemon.private(workers) as nsqd, inhabited(nsqd, args):
        assert nsqd.http is not None
        window(nsqd, args.rate, 1)
        found: dict[str, list[int]] = {"quiet": [], "polled": []}
        cpu = dict.fromkeys(found, 0.0)
        size, times = 0, list[float]()
        for _ in range(args.rounds):
            for name, latencies in found.items():
                before = nsqd.cpu_seconds()
                if name == "quiet":
                    latencies += window(nsqd, args.rate, args.seconds)
                else:
                    poller = Poller(nsqd.http, args.path, args.every)
                    latencies += window(nsqd, args.rate, args.seconds, poller.start)
                    size, seconds = poller.stop()
                    times += seconds
                cpu[name] += nsqd.cpu_seconds() - before
        for name, latencies in found.items():
            show(f"{name:6}", latencies, cpu[name], args.rounds * args.seconds)
        times.sort()
        print(
            f"  one {args.path}: {size} bytes, median {times[len(times) // 2] * 1e3:.1f} ms,"
            f" max {times[-1] * 1e3:.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two requests")
    parser.add_argument("--rate", type=int, default=1000, help="messages per second")
    parser.add_argument("--path", default="/stats?format=json")
    args = parser.parse_args()
    settings = {name: value for name, value in vars(args).items() if name != "workers"}
    print(json.dumps(settings))
    for workers in args.workers:
        print(f"{workers} worker{'s' * (workers > 1)}", flush=True)
        measure(workers, args)


if __name__ == "__main__":
    main()
