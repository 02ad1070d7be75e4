"""Report of a chaos run, as text for a terminal and as one page with plots."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path

from loadtest.chaos.run import Outcome
from loadtest.chaos.watch import Life, Slope
from loadtest.soak import pages
from loadtest.soak.lines import Line, Panel, svg
from loadtest.soak.pages import Figures, by_kind, channels, columns, document, escaped, lines_of
from nsqcy.pipeline.plots import section, table

MEGABYTE = 1e6
HELD, BROKEN = "held", "BROKEN"
CHANNELS = (
    *("published", "finished", "lost", "forgotten", "unasked", "unexpected", "unconfirmed"),
    *("duplicates", "again", "requeued", "early", "corrupt", "foreign"),
)
SLOPES = ("process", "id", "looked at", "memory", "MB an hour", "")
FAULTS = ("at", "fault", "whom", "seconds", "")
LONG = 60.0  # minimum lifetime, in seconds, of a process that gets a row


def gather(outcome: Outcome) -> Figures:
    """Return the outcome as plain data."""
    load, watch = outcome.load, outcome.watch
    return {
        "begun": outcome.begun,
        "seconds": outcome.seconds,
        "drained": outcome.drained,
        "options": asdict(outcome.options),
        "broken": outcome.broken,
        "channels": [asdict(each) for each in outcome.accounts],
        "faults": [asdict(each) for each in outcome.faults],
        "slopes": [asdict(each) | {"grows": each.grows} for each in outcome.slopes],
        "refusals": [each._asdict() for each in load.refusals],
        "span": load.timeline.span,
        "kinds": by_kind(load.timeline, outcome.begun),
        "lives": [_life(each) for each in watch.lives.values()],
    }


def _life(life: Life) -> Figures:
    return {"name": life.name, "pid": life.pid, "samples": [list(each) for each in life.samples]}


# --- text ---------------------------------------------------------------------------------------


def text(outcome: Outcome) -> str:
    return "\n".join(
        [
            "",
            *columns(_channels(outcome)),
            "",
            *columns([SLOPES, *_slopes(outcome)]),
            "",
            _faults(outcome),
            _total(outcome),
            *(f"{BROKEN}  {each}" for each in outcome.broken),
            f"seed {outcome.options.seed}: {BROKEN if outcome.broken else HELD}",
        ]
    )


def _channels(outcome: Outcome) -> list[tuple[str, ...]]:
    return channels(map(asdict, outcome.accounts), CHANNELS)


def _slopes(outcome: Outcome) -> list[tuple[str, ...]]:
    return [_slope(each) for each in outcome.slopes if each.seconds >= LONG]


def _slope(found: Slope) -> tuple[str, ...]:
    said = "GROWS" if found.grows else HELD if found.judged else "too short to judge"
    return (
        found.name,
        str(found.pid),
        f"{found.seconds:,.0f} s",
        f"{found.first / MEGABYTE:,.1f} MB",
        f"{found.an_hour / MEGABYTE:+,.1f}",
        said,
    )


def _faults(outcome: Outcome) -> str:
    counts = Counter(each.kind for each in outcome.faults)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return f"{len(outcome.faults)} faults: {kinds}"


def _total(outcome: Outcome) -> str:
    published = {each.topic: each.published for each in outcome.accounts}
    count = sum(published.values())
    drained = "not drained" if outcome.drained is None else f"drained in {outcome.drained:.1f} s"
    return (
        f"{count:,} messages in {outcome.seconds:,.0f} s, {count / outcome.seconds:,.0f} a second; "
        f"finished {sum(each.finished for each in outcome.accounts):,}, "
        f"lost {sum(each.lost for each in outcome.accounts):,}, "
        f"forgotten with their nsqd {sum(each.forgotten for each in outcome.accounts):,}, "
        f"duplicates {sum(each.duplicates for each in outcome.accounts):,}; {drained}"
    )


# --- the page -----------------------------------------------------------------------------------


def write(path: Path, outcome: Outcome) -> None:
    """Write the page, its figures, and the daemons' logs."""
    pages.write(path, page(outcome), gather(outcome))
    for name, log in outcome.logs.items():
        path.with_name(f"{name.replace(' ', '-')}.log").write_text(log)


def page(outcome: Outcome) -> str:
    head, *rows = _channels(outcome)
    plots = "".join(svg(each, outcome.seconds) for each in panels(outcome))
    sections = [
        section("Verdict", _verdict(outcome)),
        section("Channels", table(head, escaped(rows))),
        section("Over time", f"<p>Each red line is a fault.</p>{plots}"),
        section("Memory", table(SLOPES, escaped(_slopes(outcome)))),
        section("Faults", table(FAULTS, escaped(_fault_rows(outcome)))),
    ]
    about = f"seed {outcome.options.seed}"
    return document(
        "nsqcy chaos", "Soak and chaos", outcome.begun, outcome.seconds, about, sections
    )


def _verdict(outcome: Outcome) -> str:
    lines = [f"<span class=missed>{BROKEN}</span> {escape(each)}" for each in outcome.broken]
    told = [escape(_total(outcome)), escape(_faults(outcome))]
    return "<br>".join([*(lines or [HELD]), *told])


def _fault_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    return [
        (
            f"{each.begun:.1f} s",
            each.kind,
            each.victim,
            f"{each.ended - each.begun:.1f}",
            each.error,
        )
        for each in sorted(outcome.faults, key=lambda each: each.begun)
    ]


def panels(outcome: Outcome) -> list[Panel]:
    timeline = outcome.load.timeline
    kinds = by_kind(timeline, outcome.begun)
    marks = [each.begun for each in outcome.faults]

    def of(figure: str) -> list[Line]:
        return lines_of(kinds, figure, timeline.span)

    def taken(figure: str, scale: float = 1.0) -> list[Line]:
        """Resource use by all of a daemon's processes."""
        return [
            Line(name, [(at, value / scale) for at, value in sorted(points.items())])
            for name, points in sorted(_sums(outcome.watch.lives.values(), figure).items())
        ]

    return [
        Panel("Messages", "a second", of("rate"), marks=marks),
        Panel("Failures", "a second", of("failures"), marks=marks),
        Panel("Latency, p50", "ms", of("p50"), logarithmic=True, marks=marks),
        Panel("Latency, p99", "ms", of("p99"), logarithmic=True, marks=marks),
        Panel("Memory, proportional", "MB", taken("pss", MEGABYTE), marks=marks),
        Panel("Memory, resident", "MB", taken("rss", MEGABYTE), marks=marks),
        Panel("Open descriptors", "", taken("fds"), marks=marks),
        Panel("Threads", "", taken("threads"), marks=marks),
    ]


def _sums(lives: Iterable[Life], figure: str) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for life in lives:
        daemon = life.name.removesuffix(" master").removesuffix(" worker")
        points = found.setdefault(daemon, {})
        for sample in life.samples:
            points[sample.at] = points.get(sample.at, 0.0) + getattr(sample, figure)
    return found
