"""Channels with rules for keys beside plain ones: deliveries, limits, a key that stands still,
memory, publishing once, and restarts."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from loadtest.bench import keyed_load, load
from loadtest.bench.daemon import Daemon, NotOffered, Private
from loadtest.bench.keyed_load import KEYS, UNIQUE, fill, headers, keyed, timed, unique, working
from loadtest.bench.scenarios.durable import on_disk
from loadtest.bench.scenarios.many import SETTLE, warmed_up
from loadtest.bench.speed import (
    BATCH,
    READY,
    Result,
    Settings,
    consume,
    measure,
    percentiles,
    told,
    touch_memory,
)

RULES: dict[str, dict[str, Any]] = {"plain": {}, "order": {"order": "key"}, "fair": {"fair": True}}
WAITING, TAKEN = 3_000_000, 500_000  # messages on disk, and how many of them are consumed
ARRIVING = 500_000
OTHER_KEYS = 1_000
FEW, PILE = 200, 1_000_000  # messages of the key that stands still
HOLD = 0.0495  # seconds for a message; with the delay of a wake-up, 20 a second
WORKERS = 62
OTHERS = 99  # keys with 10 messages a second each
FLOOD = 1_000_000
SECONDS = 6.0
IDS, WITHOUT_IDS = 10_000_000, 1_000_000
ID_BYTES, CHECKPOINT = 24, 15.0  # bytes of an id in a file, and maximum seconds until it is there
RESTARTED = 2_000_000
CALM = 0.02  # CPU seconds in a tenth of a second
STILL = b"still"


def keys(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("it has no keys")
    failed = []
    for _ in settings.rounds():
        for part in PARTS:
            try:
                yield from part(settings)
            except Exception as error:  # the other parts still run
                failed.append(f"{part.__name__}: {(str(error).splitlines() or [repr(error)])[-1]}")
    if failed:
        raise RuntimeError("; ".join(failed))


# -- policies


def put(nsqd: Daemon, path: str, values: dict[str, Any], **query: str) -> None:
    answer = nsqd.web.put(f"/{path}/config", json.dumps(values).encode(), **query)
    if answer.status != 200:
        raise RuntimeError(f"{path} {values}: {answer}")


def prepare(nsqd: Daemon, topic: str, rules: dict[str, Any], **of_topic: Any) -> None:
    """Create a channel with these rules."""
    if of_topic:
        put(nsqd, "topic", of_topic, topic=topic)
    if rules:
        put(nsqd, "channel", rules, topic=topic, channel="bench")
    nsqd.web.create(topic, "bench")


def beside_plain(result: Result, plain: Result) -> Result:
    cpu, rate = result.daemon_us / plain.daemon_us, result.rate / plain.rate
    result.figures |= {"cpu_ratio": cpu, "ratio": rate}
    result.order = "cpu_ratio"
    result.note = f"{cpu:.2f} x the CPU, {rate:.2f} x the rate"
    return result


# -- deliveries


def in_memory(settings: Settings) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    with settings.nsqd() as nsqd:
        warmed_up(settings, nsqd)
        plain: Result | None = None
        for kind, rules in RULES.items():
            with settings.topic(nsqd) as topic:
                prepare(nsqd, topic, rules)
                published = fill(settings, nsqd, topic, messages, f"MPUB x200, keys, {kind}")
                yield published
                name = f"SUB+FIN, {KEYS:,} keys, {kind}"
                result = consume(nsqd, topic, messages, name)
                plain = plain or result
                yield beside_plain(result, plain)
                nsqd.web.do("delete", topic)


def from_disk(settings: Settings) -> Iterator[Result]:
    messages, taken = settings.count(WAITING), settings.count(TAKEN)
    with settings.nsqd(mem_queue_size=10_000, memory_bytes=32 << 20) as nsqd:
        plain: Result | None = None
        for kind, rules in RULES.items():
            with settings.topic(nsqd) as topic:
                prepare(nsqd, topic, rules)
                fill(settings, nsqd, topic, messages)
                name = f"SUB+FIN from disk, {messages:,} waiting, {kind}"
                result = consume(nsqd, topic, taken, name)
                plain = plain or result
                result = beside_plain(result, plain)
                result.durability, result.order = "overflow", "ratio"
                yield result
                nsqd.web.do("delete", topic)


# -- limits


def limits(settings: Settings) -> Iterator[Result]:
    """Twice as many consumers as the load needs: a limit protects the others from a flood."""
    calm: Result | None = None
    for flooded in (False, True):
        with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
            prepare(nsqd, topic, {"in_flight_per_key": 2 * WORKERS // 10})
            if flooded:
                flood(settings, nsqd, topic)
            name = "in_flight_per_key, others to FIN" + (", a flood" if flooded else "")
            result, report = tenants(settings, nsqd, topic, name, 2 * WORKERS)
        found = percentiles(report["finished"])
        calm = calm or result
        result.figures |= {f"{each}_us": us for each, us in found.items()}
        result.figures["ratio"] = found["p99"] / calm.figures["p99_us"]
        result.order = "ratio"
        result.note = told("ms to FIN:", found, 1000, 1)
        yield result


def flood(settings: Settings, nsqd: Daemon, topic: str) -> int:
    """Publish the messages of one key; return their number."""
    messages = settings.count(FLOOD)
    command = load.mpub(topic, [keyed(b"flood", timed(settings.size))] * BATCH)
    with load.Team(1) as team:
        team.add(keyed_load.pipelined, nsqd.tcp, command, BATCH, messages // BATCH, 8)
        measure("", nsqd, team)
    return messages


def tenants(
    settings: Settings, nsqd: Daemon, topic: str, name: str, workers: int
) -> tuple[Result, load.Report]:
    """Other keys with 10 messages a second each, and consumers that take a while for each."""
    from loadtest.bench.peers.drivers import Nsq

    seconds = max(2.0, settings.seconds(SECONDS))
    body = timed(settings.size)
    commands = [load.pub(topic, keyed(b"other%02d" % each, body)) for each in range(OTHERS)]
    with load.Team(2) as team:
        make = partial(Nsq().consumer, nsqd.tcp, topic, 1)
        team.add(working, make, workers, HOLD, seconds)
        rate = OTHERS * 10
        count = int(rate * (seconds - 0.5))
        team.add(keyed_load.paced, lambda: (keyed_load.producer(nsqd.tcp), commands), rate, count)
        result, reports = measure(name, nsqd, team, slice(0, 1))
    return result, reports[0]


# -- a key that stands still


def still(settings: Settings) -> Iterator[Result]:
    """Others arrive while one key's message stays in flight."""
    moving: Result | None = None
    # A key that stands still keeps the messages after it in memory. The cost of obtaining memory
    # from the host must not be measured.
    touch_memory(3 * settings.count(PILE) * settings.size)
    for pile in (-1, FEW, settings.count(PILE)):
        with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
            prepare(nsqd, topic, {"order": "key", "msg_timeout": "15m"})
            name = f"{OTHER_KEYS:,} keys, order"
            if pile >= 0:
                name += f", one {'with many messages ' * (pile > FEW)}stands still"
                command = load.mpub(topic, [keyed(STILL, settings.body)] * BATCH)
                with load.Team(1) as team:
                    commands = max(1, pile // BATCH)
                    team.add(keyed_load.pipelined, nsqd.tcp, command, BATCH, commands, 8)
                    measure("", nsqd, team)
                stuck = load.consumer(nsqd.tcp, topic, "bench", 1)
                load.frame(stuck)
            result = through(settings, nsqd, topic, name)
            moving = moving or result
            beside = beside_plain(result, moving)
            beside.order = "ratio"
            if pile > 0:
                beside.note += f"; {pile:,} messages of the key"
            yield beside
            if pile >= 0:
                stuck.close()


def through(settings: Settings, nsqd: Daemon, topic: str, name: str) -> Result:
    messages = settings.count(ARRIVING) // 2000 * 2000 or 2000
    with load.Team(4) as team:
        for _ in range(2):
            team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
        keyed_load.add_filling(team, nsqd.tcp, topic, messages, settings.size, OTHER_KEYS)
        return measure(name, nsqd, team, slice(0, 2))[0]


# -- memory


def memory(settings: Settings) -> Iterator[Result]:
    """Compare the memory of channels with and without rules after the same work."""
    messages = settings.count(1_000_000)
    for what, rules, drained in (
        ("a waiting message in the index", {"order": "key"}, False),
        ("a remembered key", {"key_rate": 0.001}, True),
    ):
        plain, kept = (memory_of(settings, each, messages, drained) for each in ({}, rules))
        kept.scenario = f"memory of {what}"
        kept.figures["bytes"] = (kept.pss - plain.pss) / messages
        kept.order = "bytes"
        kept.note = f"{kept.figures['bytes']:,.0f} B beside a channel without rules"
        yield kept


def memory_of(settings: Settings, rules: dict[str, Any], messages: int, drained: bool) -> Result:
    """Publish messages; `drained`: each has its own key, and all are finished afterwards."""
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        prepare(nsqd, topic, rules)
        if drained:
            one = load.mpub(topic, [keyed(b"%04d" % n + UNIQUE, b"x" * 20) for n in range(BATCH)])
            result = publish_unique(nsqd, topic, one, messages)
            consume(nsqd, topic, messages)
        else:
            result = fill(settings, nsqd, topic, messages)
        time.sleep(settings.seconds(SETTLE))
        result.pss = nsqd.memory()["Pss"]
    return result


def publish_unique(
    nsqd: Daemon, topic: str, one: bytes, messages: int, name: str = "", start: int = 0
) -> Result:
    with load.Team(2) as team:
        commands = messages // BATCH // 2
        for number in range(2):
            team.add(unique, nsqd.tcp, one, start + number * commands, commands, 8)
        return measure(name, nsqd, team)[0]


# -- publishing once


def once(settings: Settings) -> Iterator[Result]:
    """Publish ids, consume the messages, publish the ids again, and kill nsqd."""
    messages = settings.count(IDS)
    with on_disk() as folder:
        plain, _, _ = ids(settings, folder, settings.count(WITHOUT_IDS), None)
        yield plain
        first, again, ready = ids(settings, folder, messages, "24h")
    first.figures["bytes"] = (first.pss - plain.pss) / messages
    first.figures["disk_bytes"] = first.figures["files"] / messages
    first.figures["ready_s"] = ready
    first.note = (
        f"{messages:,} ids: {first.figures['bytes']:.0f} B of memory and "
        f"{first.figures['disk_bytes']:.0f} B on disk each; ready {ready:.2f} s after kill -9"
    )
    yield first
    again.figures["extra_us"] = again.daemon_us - plain.daemon_us
    again.order = "extra_us"
    again.note = f"{again.figures['extra_us']:+.2f} us of CPU beside publishing without ids"
    yield again


def ids(
    settings: Settings, folder: Path, messages: int, window: str | None
) -> tuple[Result, Result, float]:
    place = folder / f"ids-{time.time_ns():x}"
    place.mkdir()
    one = load.mpub(
        "",
        [headers(**{"dedup-id": b"%04d" % n + UNIQUE}) + settings.body for n in range(BATCH)],
    )
    with (
        settings.nsqd(durability="os", data_path=place, memory_bytes=256 << 20) as nsqd,
        settings.topic(nsqd) as topic,
    ):
        one = one.replace(b"MPUB \n", b"MPUB %b\n" % topic.encode())
        prepare(nsqd, topic, {}, **({"dedup_window": window} if window else {}))
        what = "with ids" if window else "ids not used"
        first = publish_unique(nsqd, topic, one, messages, f"MPUB x200, os, {what}")
        consume(nsqd, topic, messages)
        time.sleep(settings.seconds(SETTLE))
        first.figures["files"] = files_of_ids(nsqd, ID_BYTES * messages if window else 0)
        first.pss = nsqd.memory()["Pss"]
        first.durability = "os"
        if not window:
            return first, first, 0.0
        again = publish_unique(nsqd, topic, one, messages, "MPUB x200, os, duplicates")
        again.durability = "os"
        found = nsqd.web.topic(topic)
        assert found is not None
        if found["duplicates"] != messages:
            raise RuntimeError(f"{found['duplicates']:,} of {messages:,} were duplicates")
        _, ready = cast(Private, nsqd).restart(signal.SIGKILL)
        # The first publish is accepted once all ids are known.
        began = time.monotonic()
        with keyed_load.producer(nsqd.tcp) as sock:
            sock.sendall(one.replace(UNIQUE, b"%08x" % 0))
            load.expect(sock, load.OK)
        ready += time.monotonic() - began
        found = nsqd.web.topic(topic)
        assert found is not None
        if found["duplicates"] != BATCH:
            raise RuntimeError("an id was forgotten at the kill")
    return first, again, ready


def files_of_ids(nsqd: Daemon, minimum: int) -> int:
    """Wait until the ids are in files; return the size of the files."""
    end = time.monotonic() + CHECKPOINT
    while True:
        size = sum(path.stat().st_size for path in Path(nsqd.data).rglob("*.ids"))
        if size >= minimum or time.monotonic() > end:
            return size
        time.sleep(0.1)


# -- restart


def restart(settings: Settings) -> Iterator[Result]:
    """Stop nsqd with many messages waiting, a tenth of them requeued, and start it again."""
    messages = settings.count(RESTARTED)
    with on_disk() as folder:
        place = folder / f"restart-{time.time_ns():x}"
        place.mkdir()
        with settings.nsqd(durability="os", data_path=place) as nsqd, settings.topic(nsqd) as topic:
            prepare(nsqd, topic, {"fair": True})
            fill(settings, nsqd, topic, messages)
            with load.Team(1) as team:
                delay = 10 * 60_000
                team.add(keyed_load.requeueing, nsqd.tcp, topic, messages // 10, delay)
                measure("", nsqd, team)
            time.sleep(settings.seconds(SETTLE))
            stopped, started = cast(Private, nsqd).restart(signal.SIGTERM)
            began = time.monotonic()
            keyed_load.first_message(nsqd.tcp, topic)
            first = started + time.monotonic() - began
            whole = started + calm_after(nsqd, began)
            result = Result(
                f"restart, {messages:,} waiting, a tenth requeued",
                *(messages, whole, nsqd.cpu_seconds(), 0.0),
                workers=nsqd.workers,
                durability="os",
            )
    result.figures = {"first_s": first, "whole_s": whole, "stop_s": stopped}
    result.order = "first_s"
    result.note = (
        f"first delivery after {first:.2f} s, index whole after {whole:.2f} s; "
        f"stopped within {stopped:.2f} s"
    )
    yield result


def calm_after(nsqd: Daemon, began: float) -> float:
    """Return the seconds until the daemon uses no CPU time any more."""
    calm = began
    used, quiet = nsqd.cpu_seconds(), 0
    while quiet < 5:
        time.sleep(0.1)
        now = nsqd.cpu_seconds()
        if now - used > CALM:
            calm, quiet = time.monotonic(), 0
        else:
            quiet += 1
        used = now
    return calm - began


PARTS: list[Callable[[Settings], Iterator[Result]]] = [
    in_memory,
    from_disk,
    limits,
    still,
    memory,
    once,
    restart,
]
