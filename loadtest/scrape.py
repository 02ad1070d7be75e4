"""Cost of a /metrics scrape: CPU time of all nsqd processes, and delivery latency.

    PYTHONPATH=. python -m loadtest.scrape [--workers 1 3] [--topics 1000] [--channels 3]
        [--clients 0] [--rounds 3] [--seconds 10] [--every 1.0] [--rate 1000] [--scrapes 20]

First, scrapes run one after another, with Prometheus's request headers (OpenMetrics, compressed)
and as plain text. Then windows with and without a scraper alternate in one nsqd, while a producer
publishes on a schedule and a consumer records how late each message is. Every topic has finished
messages, so that each has its histogram.
"""

import argparse
import http.client
import json
import statistics
import threading
import time

from loadtest.bench import daemon
from loadtest.bench.daemon import Address, Daemon
from loadtest.stats import inhabited, show, window
from nsqcy.client import Consumer, Producer

PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.6",
    "Accept-Encoding": "gzip",
}
PLAIN = {"Accept-Encoding": "identity"}


def scrape(link: http.client.HTTPConnection, headers: dict[str, str]) -> tuple[float, int]:
    """Return the duration of a scrape, and the size of its body as received."""
    start = time.monotonic()
    link.request("GET", "/metrics", headers=headers)
    answer = link.getresponse()
    size = len(answer.read())
    assert answer.status == 200
    return time.monotonic() - start, size


class Scraper(threading.Thread):
    """Scrapes at an interval, until it is stopped."""

    def __init__(self, address: Address, headers: dict[str, str], every: float) -> None:
        super().__init__(daemon=True)
        self._link = http.client.HTTPConnection(*address)
        self._headers, self._every = headers, every
        self._halt = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self._halt.wait(max(0.0, due - time.monotonic())):
            scrape(self._link, self._headers)
            due += self._every

    def stop(self) -> None:
        self._halt.set()
        self.join()


def use(nsqd: Daemon, topics: int) -> None:
    """Finish a message in each topic."""
    place = "{}:{}".format(*nsqd.tcp)
    with Producer(place) as producer:
        for number in range(topics):
            producer.publish(f"topic{number:04d}", bytes(100))
    for number in range(topics):
        with Consumer(f"topic{number:04d}", "channel0", place) as consumer:
            consumer.get().finish()


def costs(nsqd: Daemon, count: int) -> None:
    """Return the CPU time for consecutive scrapes."""
    assert nsqd.http is not None
    link = http.client.HTTPConnection(*nsqd.http)
    for name, headers in (("Prometheus", PROMETHEUS), ("plain text", PLAIN)):
        scrape(link, headers)
        before = nsqd.cpu_seconds()
        found = [scrape(link, headers) for _ in range(count)]
        cpu = (nsqd.cpu_seconds() - before) / count
        took = statistics.median(seconds for seconds, _ in found)
        print(
            f"  {name}: {cpu * 1e3:5.1f} ms of CPU a scrape, {found[-1][1]} bytes,"
            f" answered in {took * 1e3:.1f} ms",
            flush=True,
        )


def measure(workers: int, args: argparse.Namespace) -> None:
    with daemon.private(workers) as nsqd, inhabited(nsqd, args):
        assert nsqd.http is not None
        use(nsqd, args.topics)
        costs(nsqd, args.scrapes)
        window(nsqd, args.rate, 1)
        found: dict[str, list[int]] = {"quiet": [], "scraped": []}
        cpu = dict.fromkeys(found, 0.0)
        for _ in range(args.rounds):
            for name, latencies in found.items():
                scraper = Scraper(nsqd.http, PROMETHEUS, args.every)
                before = nsqd.cpu_seconds()
                latencies += window(
                    nsqd,
                    args.rate,
                    args.seconds,
                    scraper.start if name == "scraped" else lambda: None,
                )
                if name == "scraped":
                    scraper.stop()
                cpu[name] += nsqd.cpu_seconds() - before
        for name, latencies in found.items():
            show(f"{name:7}", latencies, cpu[name], args.rounds * args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two scrapes")
    parser.add_argument("--rate", type=int, default=1000, help="messages per second")
    parser.add_argument("--scrapes", type=int, default=20, help="one after the other")
    args = parser.parse_args()
    print(json.dumps({name: value for name, value in vars(args).items() if name != "workers"}))
    for workers in args.workers:
        print(f"{workers} worker{'s' * (workers > 1)}", flush=True)
        measure(workers, args)


if __name__ == "__main__":
    main()
