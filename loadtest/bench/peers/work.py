"""The same work for every contestant, in rounds in which the contestants take turns."""

import select
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.bench import speed
from loadtest.bench.daemon import Daemon
from loadtest.bench.load import Report, Team
from loadtest.bench.peers.drivers import Consumer, Driver, Publisher
from loadtest.bench.speed import Result

BATCH = 200
IN_THE_PIPE = 8  # unanswered batches, or
SINGLE = 100  # unanswered single messages
WINDOW = 2500
CONNECTIONS = 50
QUIET = 0.2
SETTLED = 10.0  # time limit in seconds for processing the last acknowledgements

PUBLISH = f"publish, batches of {BATCH}"
CONSUME = "consume, acknowledging each"
BOTH = "publish and consume at once"
PIPE = f"publish one by one, {SINGLE} pipelined"
WAIT = f"publish one by one, {CONNECTIONS} waiting clients"
TURNS = f"consume one by one, {CONNECTIONS} waiting clients"
MEMORY = "memory of queued messages"
SCENARIOS = [PUBLISH, CONSUME, BOTH, WAIT, TURNS, PIPE, MEMORY]


@dataclass
class Settings(speed.Settings):
    messages: int = 1_000_000

    def part(self, share: float) -> int:
        """Return the number of messages for a contestant with this share."""
        minimum = 2 * BATCH
        return max(minimum, int(self.messages * share) // minimum * minimum)


# -- members of a team


class Received:
    """Received bytes that have not been parsed yet."""

    def __init__(self, size: int) -> None:
        self._room = memoryview(bytearray(size))
        self._have = 0

    def read(self, sock: socket.socket) -> memoryview:
        n = sock.recv_into(self._room[self._have :])
        if n == 0:
            raise RuntimeError("the connection was closed")
        self._have += n
        return self._room[: self._have]

    def used(self, n: int) -> None:
        self._room[: self._have - n] = self._room[n : self._have]
        self._have -= n
        if self._have == len(self._room):
            raise RuntimeError(f"an answer without end {bytes(self._room[:100])!r}")


def publishing(
    make: Callable[[int], Publisher], batch: int, commands: int, depth: int, team: Team, index: int
) -> Callable[[], Report]:
    """One connection that keeps `depth` commands with `batch` messages each unanswered."""
    publisher = make(batch)
    sock, one = publisher.sock, len(publisher.command)
    several = memoryview(publisher.command * depth)
    received = Received(1 << 18)

    def run() -> Report:
        sent = answered = 0
        while answered < commands * batch:
            more = min(depth - (sent - answered // batch), commands - sent)
            if more > 0 and (more >= depth // 4 or more == commands - sent):
                sock.sendall(several[: more * one])
                sent += more
            reply, used, messages = publisher.answered(received.read(sock))
            received.used(used)
            answered += messages
            if reply:
                sock.sendall(reply)
        return {"messages": commands * batch}

    return run


def publishing_in_turn(
    make: Callable[[int], Publisher],
    batch: int,
    commands: int,
    connections: int,
    timed: bool,
    team: Team,
    index: int,
) -> Callable[[], Report]:
    """Connections that each send the next command when all `batch` messages of the previous command
    have been acknowledged. `timed`: whether to measure the latency of each command."""
    poll = select.epoll()
    members = {}
    for _ in range(connections):
        publisher = make(batch)
        members[publisher.sock.fileno()] = publisher, Received(1 << 16)
        poll.register(publisher.sock.fileno(), select.EPOLLIN)

    def run() -> Report:
        left = commands - connections
        answered = 0
        unanswered = dict.fromkeys(members, batch)
        sent = dict.fromkeys(members, time.monotonic_ns())
        latencies = []
        for publisher, _ in members.values():
            publisher.sock.sendall(publisher.command)
        while answered < commands:
            for fd, _ in poll.poll():
                publisher, received = members[fd]
                reply, used, messages = publisher.answered(received.read(publisher.sock))
                received.used(used)
                if reply:
                    publisher.sock.sendall(reply)
                unanswered[fd] -= messages
                if not unanswered[fd]:
                    answered += 1
                    unanswered[fd] = batch
                    if timed:
                        now = time.monotonic_ns()
                        latencies.append(now - sent[fd])
                        sent[fd] = now
                    if left > 0:
                        left -= 1
                        publisher.sock.sendall(publisher.command)
        return {"messages": commands * batch, "latencies": latencies}

    return run


def drain(consumers: list[Consumer]) -> None:
    """Read until no more data arrives: the last command has then been processed, and is not lost
    when the connection is closed."""
    socks = {consumer.sock.fileno(): consumer.sock for consumer in consumers}
    end = time.monotonic() + SETTLED
    with select.epoll() as poll:
        for fd in socks:
            poll.register(fd, select.EPOLLIN)
        while (ready := poll.poll(QUIET)) and time.monotonic() < end:
            for fd, _ in ready:
                socks[fd].recv(1 << 20)


def consuming(
    make: Callable[[], Consumer], size: int, total: int, slots: slice, team: Team, index: int
) -> Callable[[], Report]:
    """A consumer of all messages, until all consumers (`slots` in the tally) have received
    `total`."""
    consumer = make()
    sock = consumer.sock
    received = Received((2 << 20) + 1200 * (size + 100))

    def step() -> int:
        reply, used, messages = consumer.take(received.read(sock))
        received.used(used)
        if reply:
            sock.sendall(reply)
        return messages

    def run() -> Report:
        last = time.monotonic()
        sock.settimeout(0.05)
        sock.sendall(consumer.first)
        while sum(team.tally[slots]) < total:
            try:
                messages = step()
            except TimeoutError:
                continue
            if messages:
                team.tally[index] += messages
                last = time.monotonic()
        drain([consumer])
        return {"messages": team.tally[index], "ended": last}

    return run


def consuming_in_turn(
    make: Callable[[], Consumer],
    total: int,
    connections: int,
    slots: slice,
    team: Team,
    index: int,
) -> Callable[[], Report]:
    """Consumers that take one message at a time, and request the next one together with the
    acknowledgement."""
    poll = select.epoll()
    members = {}
    for _ in range(connections):
        consumer = make()
        members[consumer.sock.fileno()] = consumer, Received(1 << 17)
        poll.register(consumer.sock.fileno(), select.EPOLLIN)

    def run() -> Report:
        last = time.monotonic()
        for consumer, _ in members.values():
            consumer.sock.sendall(consumer.first)
        while sum(team.tally[slots]) < total:
            for fd, _ in poll.poll(0.05):
                consumer, received = members[fd]
                reply, used, messages = consumer.take(received.read(consumer.sock))
                received.used(used)
                if reply:
                    consumer.sock.sendall(reply)
                if messages:
                    team.tally[index] += messages
                    last = time.monotonic()
        drain([consumer for consumer, _ in members.values()])
        return {"messages": team.tally[index], "ended": last}

    return run


# -- one turn


@dataclass
class Run:
    """A result, its contestant, and the share of time for which the busiest load process was
    running."""

    contestant: str
    result: Result
    busy: float
    figures: dict[str, float] = field(default_factory=dict)
    round: int = 0


def measure(
    driver: Driver, scenario: str, server: Daemon, team: Team, counted: slice = slice(None)
) -> Run:
    result, reports = speed.measure(scenario, server, team, counted)
    result.durability = driver.durability
    busy = max(report["cpu"] / (report["ended"] - report["started"]) for report in reports)
    return Run(driver.name, result, min(busy, 1.0))


@dataclass
class Turn:
    """Run one contestant's work on its own server."""

    driver: Driver
    server: Daemon
    settings: Settings

    def __post_init__(self) -> None:
        share = self.driver.share
        self._many = self.settings.part(share)
        self._fewer = self.settings.part(share / 2)
        self._few = self.settings.part(0.1 * share**0.5)

    def all(self) -> Iterator[Run]:
        yield self._memory()
        queue = self._queue()
        yield self._publish(queue, PUBLISH, self._many)
        yield self._consume(queue, self._many)
        yield self._both()
        queue = self._queue()
        yield self._wait(queue)
        yield self._turns(queue)
        yield self._pipe()

    def _queue(self) -> str:
        name = speed.topic_name()
        self.driver.create(self.server.tcp, name)
        return name

    def _publisher(self, queue: str) -> Callable[[int], Publisher]:
        address, body = self.server.tcp, self.settings.body
        return lambda batch: self.driver.publisher(address, queue, body, batch)

    def _consumer(self, queue: str, window: int) -> Callable[[], Consumer]:
        return lambda: self.driver.consumer(self.server.tcp, queue, window)

    def _add_publishers(self, team: Team, queue: str, messages: int) -> None:
        commands = messages // BATCH // 2
        for _ in range(2):
            team.add(publishing, self._publisher(queue), BATCH, commands, IN_THE_PIPE)

    def _add_consumers(self, team: Team, queue: str, messages: int) -> None:
        make, size = self._consumer(queue, WINDOW), self.settings.size
        for _ in range(2):
            team.add(consuming, make, size, messages, slice(0, 2))

    def _publish(self, queue: str, scenario: str, messages: int) -> Run:
        with Team(2) as team:
            self._add_publishers(team, queue, messages)
            return measure(self.driver, scenario, self.server, team)

    def _consume(self, queue: str, messages: int, scenario: str = CONSUME) -> Run:
        with Team(2) as team:
            self._add_consumers(team, queue, messages)
            return self._finish(measure(self.driver, scenario, self.server, team), queue)

    def _memory(self) -> Run:
        """Measure the memory per queued message in a new daemon; this also warms the daemon up."""
        queue = self._queue()
        idle = self.server.memory() if self.server.pids else {"Rss": 0, "Pss": 0}
        run = self._publish(queue, MEMORY, self._fewer)
        each = (run.result.pss - idle["Pss"]) / run.result.messages
        run.figures = {"idle_rss": idle["Rss"], "bytes_each": each}
        self._consume(queue, self._fewer)
        return run

    def _both(self) -> Run:
        queue = self._queue()
        with Team(4) as team:
            self._add_consumers(team, queue, self._many)
            self._add_publishers(team, queue, self._many)
            return self._finish(measure(self.driver, BOTH, self.server, team, slice(0, 2)), queue)

    def _pipe(self) -> Run:
        queue = self._queue()
        with Team(1) as team:
            team.add(publishing, self._publisher(queue), 1, self._fewer, SINGLE)
            run = measure(self.driver, PIPE, self.server, team)
        self.driver.drop(self.server, queue)
        return run

    def _wait(self, queue: str) -> Run:
        with Team(2) as team:
            for _ in range(2):
                make = self._publisher(queue)
                team.add(publishing_in_turn, make, 1, self._few // 2, CONNECTIONS // 2, False)
            return measure(self.driver, WAIT, self.server, team)

    def _turns(self, queue: str) -> Run:
        with Team(2) as team:
            for _ in range(2):
                make = self._consumer(queue, 1)
                team.add(consuming_in_turn, make, self._few, CONNECTIONS // 2, slice(0, 2))
            return self._finish(measure(self.driver, TURNS, self.server, team), queue)

    def _finish(self, run: Run, queue: str) -> Run:
        """Check that all messages were acknowledged; otherwise the figures are invalid."""
        end = time.monotonic() + SETTLED
        while (left := self.driver.left(self.server, queue)) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            raise RuntimeError(f"{run.contestant}, {run.result.scenario}: {left} messages are left")
        self.driver.drop(self.server, queue)
        return run


# -- rounds


def run(drivers: Sequence[Driver], settings: Settings, say: Callable[[str], None]) -> speed.Found:
    """Run every driver in each round; return the medians. A driver that fails is not run again."""
    runs: list[Run] = []
    failed = []
    for number in settings.rounds():
        for driver in drivers:
            turn = time.monotonic()
            try:
                with driver.start() as server:
                    for each in Turn(driver, server, settings).all():
                        each.round = number
                        runs.append(each)
            except Exception as error:
                say(f"  round {number + 1}: {driver.name} failed, {error}")
                failed.append(speed.failure(f"{driver.name}, round {number + 1}", error))
                continue
            say(f"  round {number + 1}: {driver.name}, {time.monotonic() - turn:.1f} s")
    return speed.Found(
        [row | {"size": settings.size} for row in medians(runs, drivers[0].name)], failed
    )


def medians(runs: Sequence[Run], base: str) -> list[dict[str, Any]]:
    """Return a row for each scenario and contestant. The median of each figure is taken separately;
    multiples are relative to the contestant `base`."""
    rows = []
    names = dict.fromkeys(run.contestant for run in runs)
    for scenario in SCENARIOS:
        of = {
            name: [r for r in runs if (r.contestant, r.result.scenario) == (name, scenario)]
            for name in names
        }
        rows += [_median(those, of.get(base, [])) for those in of.values() if those]
    return rows


def _median(runs: Sequence[Run], base: Sequence[Run]) -> dict[str, Any]:
    def of(figure: Callable[[Run], float]) -> float:
        return statistics.median(figure(run) for run in runs)

    def times(figure: Callable[[Result], float]) -> float:
        """Return a multiple of the base's value in the same round."""
        pairs = [(run, one) for run in runs for one in base if run.round == one.round]
        ratios = [figure(run.result) / figure(one.result) for run, one in pairs]
        return statistics.median(ratios) if ratios else 0.0

    first = runs[0]
    return {
        "contestant": first.contestant,
        "scenario": first.result.scenario,
        "durability": first.result.durability,
        "messages": first.result.messages,
        "rounds": len(runs),
        "rate": of(lambda run: run.result.rate),
        "rate_times": times(lambda result: result.rate),
        "daemon_us": of(lambda run: run.result.daemon_us),
        "cpu_times": times(lambda result: result.daemon_us),
        "load_us": of(lambda run: run.result.load_us),
        "load_busy": of(lambda run: run.busy),
        "rss": of(lambda run: run.result.rss),
        "pss": of(lambda run: run.result.pss),
        **{key: statistics.median(run.figures[key] for run in runs) for key in first.figures},
        "runs": [asdict(run.result) for run in runs],
    }
