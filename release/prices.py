"""Blocks with the price of each durability class and of copies, from docs/benchmarks.json."""

from loadtest.bench.chart import short
from loadtest.bench.markdown import table
from loadtest.bench.report import times
from loadtest.bench.results import alone, separate
from release.figures import conditions

CLASSES = ("memory", "os", "fsync")
COPIES = (("1 copy", "os"), ("2 copies", "os"), ("3 copies", "os"), ("3 copies, fsync", "fsync"))


def of_classes() -> str:
    rows = []
    for durability in CLASSES:
        row = alone(f"MPUB x200, 2 conn, {durability}", durability)
        cost = f"{row['daemon_us']:.2f} µs"
        rows.append([f"`{durability}`", f"{times(row['ratio'])} ×", cost])
    head = ["class", "messages per second, relative to `memory`", "CPU time per message"]
    waiting = alone("nsqcy x100, 16 waiting clients", "fsync")
    return table(head, rows) + (
        f"\n{conditions()}: one worker process, 200-byte messages, batches of 200 from two "
        "connections, with several batches in flight. The classes took turns; on its own, "
        f"`memory` needed {alone('MPUB x200, 2 conn')['daemon_us']:.2f} µs in the same run. "
        "With class `fsync`, 16 clients that each wait for a sync after every 100 messages "
        f"publish {short(waiting['rate'])} messages per second ({separate('synced')}).\n"
    )


def of_copies() -> str:
    rows = []
    for name, durability in COPIES:
        batches = alone(f"MPUB x200, 2 conn, {name}", durability)
        single = alone(f"PUB, wait for OK, 50 conn, {name}", durability)
        delays = [f"{single[each] / 1000:.1f} ms" for each in ("p50_us", "p99_us")]
        rates = [short(each["rate"]) for each in (batches, single)]
        cost = f"{batches['daemon_us']:.2f} µs"
        rows.append([f"{name.split(',')[0]}, `{durability}`", rates[0], cost, rates[1], *delays])
    head = ["copies, class", "batches of 200: messages per second", "CPU time per message"]
    head += ["one by one: messages per second", "median until `OK`", "99th percentile"]
    run = separate("copies")
    takeover = alone("takeover after kill -9, lease 3 s", "os")
    return table(head, rows) + (
        f"\n{conditions()}; the figures for copies are {run}. Three nsqds, each with one worker, "
        "and etcd share the cores and one disk, without a network in between, so compare the rows "
        "with each other only. "
        "Two connections send batches; 50 connections publish one by one, each waiting for its "
        "`OK`. After `kill -9` of the owner of "
        f"{takeover['messages']:,} messages, with a lease of 3 s, the first of them was delivered "
        f"after {takeover['first_s']:.1f} s and the last after {takeover['last_s']:.1f} s.\n"
    )
