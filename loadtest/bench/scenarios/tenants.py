"""Keys beside other brokers: a tenant that floods, order within 10,000 keys, urgent messages in a
backlog."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from loadtest.bench import keyed_load, load, speed
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.keyed_load import KEYS, timed
from loadtest.bench.scenarios.keys import FLOOD as FLOODING
from loadtest.bench.scenarios.keys import HOLD, OTHERS, SECONDS, WORKERS
from loadtest.bench.speed import READY, Result, Settings, measure, percentiles, told

if TYPE_CHECKING:
    from loadtest.bench.peers.groups import Grouped

FLOODER = OTHERS  # number of the group that floods
ORDERED = 500_000
BACKLOG = 200_000
URGENT_RATE = 100
IN_PIPE = 4_000  # unanswered messages of a publisher that fills
PIECE = 200  # messages in one write

Measure = Callable[[Settings, "Grouped", Daemon, str], Result]


def tenants(settings: Settings) -> Iterator[Result]:
    from loadtest.bench.peers import groups

    if settings.target is not None:
        raise NotOffered("it needs servers of its own")
    for _ in settings.rounds():
        yield from each(settings, groups.FLOOD, flooded)
        yield from each(settings, groups.ORDER, ordered)
        yield from each(settings, groups.URGENT, urgent)


def each(settings: Settings, work: str, run: Measure) -> Iterator[Result]:
    """Run every contestant; one that cannot be measured has a row that says why."""
    from loadtest.bench.peers import groups, packages, servers

    first: Result | None = None
    for one in groups.contestants(work):
        driver = one.driver
        version = packages.version(driver.package) if driver.package else driver.version
        title = f"{work}: {one.name}, {one.how}"
        try:
            if driver.program and not servers.program(driver.program):
                raise NotOffered(f"{driver.package} is not installed")
            with one.start() as server, settings.topic(server) as queue:
                one.prepare(server, queue, work)
                result = run(settings, one, server, queue)
            result.scenario = title
            first = first or result
            result.figures |= {
                "ratio": first.rate / result.rate,
                "cpu_ratio": first.daemon_us / result.daemon_us,
            }
            result.note = f"{version}; {result.note}".rstrip("; ")
            yield result
        except Exception as error:
            why = speed.failure("", error)["why"]
            yield Result(title, 1, 1.0, 0.0, 0.0, note=f"{version}; not measured: {why}")


# -- works


def part(settings: Settings, one: "Grouped", messages: int) -> int:
    """Return the number of messages for a contestant; slow ones get fewer."""
    minimum = int(SECONDS * WORKERS / HOLD / PIECE + 1) * PIECE  # so that the backlog outlasts
    return max(minimum, settings.count(int(messages * min(1, one.driver.share))))


def flooded(settings: Settings, one: "Grouped", server: Daemon, queue: str) -> Result:
    """A group with many messages, and others with 10 a second each."""
    from loadtest.bench.peers.groups import FLOOD

    fill(one, server, queue, FLOOD, [(FLOODER, 0)], part(settings, one, FLOODING), settings.size)
    others = [(number, 0) for number in range(OTHERS)]
    backlog = settings.count(FLOODING)
    return waiting(settings, one, server, queue, FLOOD, others, OTHERS * 10, backlog)


def urgent(settings: Settings, one: "Grouped", server: Daemon, queue: str) -> Result:
    """Urgent messages, while others wait."""
    from loadtest.bench.peers.groups import URGENCY, URGENT

    fill(one, server, queue, URGENT, [(0, 0)], part(settings, one, BACKLOG), settings.size)
    urgent, backlog = [(1, URGENCY)], settings.count(BACKLOG)
    return waiting(settings, one, server, queue, URGENT, urgent, URGENT_RATE, backlog)


def ordered(settings: Settings, one: "Grouped", server: Daemon, queue: str) -> Result:
    from loadtest.bench.peers.groups import ORDER
    from loadtest.bench.peers.work import consuming

    messages = part(settings, one, ORDERED)
    groups = [(number, 0) for number in range(KEYS)]
    fill(one, server, queue, ORDER, groups, messages, settings.size)
    with load.Team(2) as team:
        for number in range(2):
            make = partial(one.consumer, server.tcp, queue, ORDER, READY, number)
            team.add(consuming, make, settings.size, messages, slice(0, 2))
        return measure("", server, team)[0]


# -- loads


def fill(
    one: "Grouped",
    server: Daemon,
    queue: str,
    work: str,
    places: list[tuple[int, int]],
    messages: int,
    size: int,
) -> None:
    """Publish messages to these groups and levels in turn."""
    with load.Team(1) as team:
        team.add(filling, partial(one.sender, server.tcp, queue, work), places, messages, size)
        measure("", server, team)


def filling(
    make: Callable[[], "object"],
    places: list[tuple[int, int]],
    messages: int,
    size: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    from loadtest.bench.peers.groups import Sender
    from loadtest.bench.peers.work import Received

    sender = make()
    assert isinstance(sender, Sender)
    received = Received(1 << 20)
    content = timed(size)
    ones = [sender.one(group, content, level) for group, level in places]
    ones *= -(-PIECE // len(ones))
    pieces = [b"".join(ones[at : at + PIECE]) for at in range(0, len(ones), PIECE)]
    counts = [len(ones[at : at + PIECE]) for at in range(0, len(ones), PIECE)]

    def run() -> load.Report:
        sent = answered = number = 0
        while answered < messages:
            while sent < messages and sent - answered < IN_PIPE:
                place = number % len(pieces)
                sender.sock.sendall(pieces[place])
                sent += counts[place]
                number += 1
            reply, used, count = sender.answered(received.read(sender.sock))
            received.used(used)
            answered += count
            if reply:
                sender.sock.sendall(reply)
        return {"messages": sent}

    return run


def waiting(
    settings: Settings,
    one: "Grouped",
    server: Daemon,
    queue: str,
    work: str,
    places: list[tuple[int, int]],
    rate: int,
    backlog: int,
) -> Result:
    """Measure how long messages at a fixed rate wait, beside a backlog. Consumers take one message
    at a time. If none of the messages is delivered, each waits for the whole backlog, which is
    `backlog` messages even if a slow contestant has fewer."""
    seconds = max(2.0, settings.seconds(SECONDS))

    def open_one() -> "tuple[object, list[bytes]]":
        sender = one.sender(server.tcp, queue, work)
        content = timed(settings.size)
        return sender.sock, [sender.one(group, content, level) for group, level in places]

    with load.Team(2) as team:
        make = partial(one.consumer, server.tcp, queue, work, 1, 0)
        team.add(keyed_load.working, make, WORKERS, HOLD, seconds)
        team.add(keyed_load.paced, open_one, rate, int(rate * (seconds - 0.5)))
        result, (report, _) = measure("", server, team, slice(0, 1))
    result.figures["busy"] = report["busy"]
    result.order = "p99_us"
    if not report["delivered"]:
        wait = backlog / result.rate
        result.figures["p50_us"] = result.figures["p99_us"] = wait * 1e6
        result.note = f"none was delivered: each waits for the backlog, {wait:,.0f} s"
        return result
    found = percentiles(report["delivered"])
    result.figures |= {f"{name}_us": us for name, us in found.items()}
    result.note = told("ms:", found, 1000, 1)
    return result
