"""A million deferred messages: due within 30 days and kept across a kill -9, and due within a
minute.

    PYTHONPATH=. python -m loadtest.deferred [--count 1000000] [--size 100] [--memory 67108864]

Prints the memory per message, the duration and result of a restart after a kill, and the lateness
of messages that become due within a minute while journal snapshots are written.
"""

import argparse
import json
import random
import statistics
import struct
import time
import urllib.request
from typing import Any

from loadtest.bench import load
from loadtest.bench.scenarios.later import dpub, shuffled
from loadtest.bench.speed import READY, percentiles
from loadtest.nsqd import Nsqd
from nsqcy.testing.wire_client import RESPONSE

MONTH_MS = 30 * 24 * 3600 * 1000
AHEAD = 200
PAGE = 1000
SETTLED = 3.0  # seconds of idleness before memory is measured


def get(daemon: Nsqd, path: str) -> Any:
    with urllib.request.urlopen(f"http://{daemon.http_address}{path}") as answer:
        return json.loads(answer.read())


def count(daemon: Nsqd, topic: str) -> int:
    found = get(daemon, f"/stats?format=json&topic={topic}")["topics"]
    return sum(each["deferred_count"] for each in found[0]["channels"]) if found else 0


def publish(daemon: Nsqd, topic: str, delays: list[int], size: int) -> float:
    """Return the duration in seconds."""
    conn = daemon.connect(timeout=120)
    body = struct.pack(">i", size) + bytes(size)
    start = time.monotonic()
    for begin in range(0, len(delays), AHEAD):
        some = delays[begin : begin + AHEAD]
        conn.send(*(b"DPUB %s %d\n%b" % (topic.encode(), delay, body) for delay in some))
        for _ in some:
            assert conn.frame() == (RESPONSE, b"OK")
    return time.monotonic() - start


def listing(daemon: Nsqd, topic: str) -> list[tuple[int, int]]:
    """Return (seq, due) of every deferred message."""
    found, after = [], ""
    while after is not None:
        page = get(
            daemon,
            f"/channel/deferred?topic={topic}&channel=c&limit={PAGE}"
            + (f"&after={after}" if after else ""),
        )
        found += [(each["seq"], each["due"]) for each in page["deferred"]]
        after = page["next"]
    return found


def over_a_month(daemon: Nsqd, messages: int, size: int) -> None:
    daemon.web.create("month", "c")
    publish(daemon, "month", [MONTH_MS] * PAGE, size)
    listing(daemon, "month")
    daemon.web.post("/channel/empty?topic=month&channel=c")
    daemon.crash()
    time.sleep(SETTLED)
    before = daemon.pss()
    chance = random.Random(1)
    # None of the messages is due while this runs.
    delays = [chance.randrange(3600_000, MONTH_MS) for _ in range(messages)]
    seconds = publish(daemon, "month", delays, size)
    time.sleep(SETTLED)
    print(f"published {messages:,} in {seconds:.1f} s ({messages / seconds:,.0f}/s);", end=" ")
    print(f"{(daemon.pss() - before) / messages:.1f} bytes of memory each, bodies included")
    start = time.monotonic()
    known = listing(daemon, "month")
    print(f"listed in {time.monotonic() - start:.1f} s, {PAGE} a page")
    assert len(known) == messages and len({seq for seq, _ in known}) == messages
    time.sleep(SETTLED + 2.0 * (1 + messages / 100_000))  # until the journal is written
    for again in ("", ", once more"):
        start = time.monotonic()
        daemon.crash()
        while (found := count(daemon, "month")) != messages:
            assert time.monotonic() - start < 60, f"{found} of {messages}"
            time.sleep(0.02)
        seconds = time.monotonic() - start
        time.sleep(SETTLED)
        each = (daemon.pss() - before) / messages
        print(f"kill -9{again}: all there after {seconds:.2f} s; {each:.1f} bytes each")
    after = listing(daemon, "month")
    assert [seq for seq, _ in after] == [seq for seq, _ in known]
    moved = [abs(one - other) for (_, one), (_, other) in zip(known, after, strict=True)]
    print(f"due times moved by at most {max(moved) / 1e6:.3f} ms")
    daemon.web.post("/channel/empty?topic=month&channel=c")


def over_a_minute(daemon: Nsqd, messages: int, size: int, *, killed: bool) -> None:
    topic = f"minute{int(killed)}"
    daemon.web.create(topic, "bench")
    address = "127.0.0.1", daemon.tcp_port
    lead = messages / 10_000
    body = max(size, load.STAMPS.size)
    began = time.monotonic()
    with load.Team(1) as publishing:
        delays = shuffled(messages, 60 * messages / 1_000_000, lead)
        publishing.add(dpub, address, [topic], body, delays)
        publishing.ready()
        publishing.run()
    took = time.monotonic() - began
    assert took < lead, f"the first was due before the last was published: {took:.0f} s"
    if killed:
        time.sleep(min(5.0, lead - took - 10))
        daemon.crash()
        address = "127.0.0.1", daemon.tcp_port
    with load.Team(1) as consuming:
        consuming.add(load.finishing, address, topic, READY, messages, slice(0, 1), body)
        consuming.ready()
        (report,) = consuming.run()
    late = report["since_due"]
    found = percentiles(late)
    told = ", ".join(f"{name} {us / 1000:.2f}" for name, us in found.items())
    early = sum(ns < 0 for ns in late)
    print(f"due over a minute{', after a kill -9' if killed else ''}: ms late: {told},", end=" ")
    print(f"mean {statistics.fmean(late) / 1e6:.2f}; early: {early} of {len(late):,}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--memory", type=int, default=64 << 20, help="bytes for bodies")
    parser.add_argument("--only", choices=["month", "minute", "killed"])
    args = parser.parse_args()
    with Nsqd(
        log_level="info",
        durability="os",
        memory_bytes=args.memory,
        max_defer_timeout="744h",
    ) as daemon:
        if args.only in (None, "month"):
            over_a_month(daemon, args.count, args.size)
        if args.only in (None, "minute"):
            over_a_minute(daemon, args.count, args.size, killed=False)
        if args.only in (None, "killed"):
            over_a_minute(daemon, args.count, args.size, killed=True)


if __name__ == "__main__":
    main()
