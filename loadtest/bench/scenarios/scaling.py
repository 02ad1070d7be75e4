"""The same work with different numbers of workers."""

from collections.abc import Iterator

from loadtest.bench import load, speed
from loadtest.bench.daemon import Daemon
from loadtest.bench.speed import BATCH, READY, Result, Settings, measure

PUBLISHERS, CHANNELS, CONSUMERS = 50, 4, 8


def both_ways(settings: Settings, nsqd: Daemon, topics: int, messages: int) -> Result:
    """Producers and consumers with separate connections for each topic."""
    with settings.topics(nsqd, topics) as names, load.Team(2) as team:
        places = [(each, "bench") for each in names for _ in range(2)]
        team.add(load.crowd, nsqd.tcp, places, READY, messages, slice(0, 1), 0)
        commands = [load.mpub(each, [settings.body] * BATCH) for each in names]
        connections = max(8, topics)
        team.add(load.waiting, nsqd.tcp, commands, BATCH, messages // BATCH, connections)
        what = f"{topics} topic{'s' * (topics > 1)}{speed.on(nsqd)}"
        return measure(what, nsqd, team, slice(0, 1))[0]


def busiest(result: Result) -> str:
    return f"busiest process {result.busiest_us:.3f} us"


def scaling(settings: Settings) -> Iterator[Result]:
    """Measure the cost of a second worker when both workers have topics."""
    messages = settings.count(2_000_000)
    with settings.nsqds(1, 2) as nsqds:
        for _ in settings.rounds():
            first: Result | None = None
            for nsqd in nsqds.values():
                result = both_ways(settings, nsqd, 4, messages)
                first = first or result
                result.figures["ratio"] = result.daemon_us / first.daemon_us
                result.order = "ratio"
                result.note = f"{result.figures['ratio']:.2f} x the CPU; {busiest(result)}"
                yield result


def hot(settings: Settings) -> Iterator[Result]:
    """Measure one topic that all clients use. The CPU time of the busiest process shows the
    limit."""
    messages = settings.count(100_000)
    with settings.nsqds(1, 2, 3, 4) as nsqds:
        for _ in settings.rounds():
            first: Result | None = None
            for nsqd in nsqds.values():
                result = one_hot_topic(settings, nsqd, messages)
                first = first or result
                yield against(result, first)


def against(result: Result, one: Result) -> Result:
    """Return a result with its ratios to the result with one worker."""
    rate, busy = result.rate / one.rate, one.busiest_us / result.busiest_us
    result.figures |= {"rate_ratio": rate, "busy_ratio": busy}
    result.order = "busy_ratio"
    result.note = f"{rate:.2f} x the rate, {busy:.2f} x by busy time; {busiest(result)}"
    return result


def one_hot_topic(settings: Settings, nsqd: Daemon, messages: int) -> Result:
    with settings.topic(nsqd) as topic, load.Team(4) as team:
        places = [(topic, f"channel{number % CHANNELS}") for number in range(CONSUMERS)]
        for number in range(2):
            some = places[number::2]
            team.add(load.crowd, nsqd.tcp, some, READY, messages * CHANNELS, slice(0, 2), 0)
        for _ in range(2):
            command = load.pub(topic, settings.body)
            team.add(load.waiting, nsqd.tcp, [command], 1, messages // 2, PUBLISHERS // 2)
        result, reports = measure(f"one hot topic{speed.on(nsqd)}", nsqd, team, slice(2, 4))
    result.seconds = max(r["ended"] for r in reports) - min(r["started"] for r in reports)
    return result
