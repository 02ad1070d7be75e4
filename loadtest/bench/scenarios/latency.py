"""Message latency from publisher to consumer, at a fixed rate."""

from collections.abc import Iterator

from loadtest.bench import load
from loadtest.bench.speed import READY, Result, Settings, measure, percentiles, told

SECONDS = 4
RATES = (1_000, 20_000, 200_000)


def latency(settings: Settings) -> Iterator[Result]:
    """Measure with nsqd's default settings."""
    with settings.nsqd(mem_queue_size=10_000) as nsqd:
        for _ in settings.rounds():
            for rate in RATES:
                messages = max(rate // 4, int(rate * SECONDS * settings.scale))
                with settings.topic(nsqd) as topic, load.Team(2) as team:
                    size = max(settings.size, load.STAMPS.size)
                    team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 1), size)
                    team.add(load.paced, nsqd.tcp, topic, size, rate, messages)
                    name = f"latency at {rate // 1000} k msg/s"
                    result, (received, sent) = measure(name, nsqd, team, slice(0, 1))
                yield described(result, received, sent)


def described(result: Result, received: load.Report, sent: load.Report) -> Result:
    of = {
        "": percentiles(received["since_due"]),
        "sent_": percentiles(received["latencies"]),
        "late_": percentiles(sent["late"]),
    }
    result.figures = {f"{what}{name}_us": us for what in of for name, us in of[what].items()}
    result.order = "p99_us"
    result.note = "; ".join(
        (
            told("us since due:", of[""]),
            told("since sent:", of["sent_"]),
            f"sender late p99 {of['late_']['p99']:.0f}",
        )
    )
    return result
