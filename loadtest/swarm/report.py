"""Report of a test: plain data, a table, and one page with plots.

    figures     begun, seconds, options, requests, channels, verdicts, knee, seconds of the timeline

The page is self-contained. Its data is in a JSON file with the same name, in the same directory.
"""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from loadtest.soak import pages
from loadtest.soak.lines import Line, Panel, svg
from loadtest.soak.pages import Figures, by_kind, channels, columns, document, escaped, lines_of
from loadtest.soak.timeline import PERCENTILES
from loadtest.swarm.machine import Sample
from loadtest.swarm.options import Options
from loadtest.swarm.run import Run, Strain
from loadtest.swarm.stages import Knee
from loadtest.swarm.thresholds import Verdict
from nsqcy.pipeline.plots import section, table

BUSY = 0.9  # load above which a process limits the rate
LATE = 20.0  # ms; if the load itself is later than this, the latencies are distorted
KEPT, MISSED = "kept", "MISSED"


# --- gathering ----------------------------------------------------------------------------------


def gather(
    run: Run, samples: Sequence[Sample], verdicts: Sequence[Verdict], knee: Knee | None
) -> Figures:
    return {
        "begun": run.begun,
        "seconds": run.seconds,
        "options": run.options.shown(),
        "requests": _requests(run),
        "channels": [asdict(account) for account in run.accounts()],
        "verdicts": [{"kept": each.kept, "told": str(each)} for each in verdicts],
        "knee": None
        if knee is None
        else {"told": knee.told(), "steps": list(map(asdict, knee.steps))},
        "strain": run.strains.worst()._asdict(),
        "span": run.timeline.span,
        "kinds": by_kind(run.timeline, run.begun),
        "samples": _samples(run, samples),
    }


def _requests(run: Run) -> list[Figures]:
    return [
        {
            "type": kind,
            "name": name,
            "requests": cell.requests,
            "messages": cell.messages,
            "rate": run.rate(kind, cell.messages),
            "failures": cell.failures,
            **{each: cell.percentile(share) for each, share in PERCENTILES.items()},
        }
        for (kind, name), cell in sorted(run.timeline.totals().items())
    ]


def _samples(run: Run, samples: Sequence[Sample]) -> list[Figures]:
    """Return the last sample in each span of the timeline."""
    span = run.timeline.span
    last = {each.second // span: each for each in samples}
    return [
        asdict(each)
        | run.strains.get(each.second, Strain())._asdict()
        | {"second": max(0.0, each.second - run.begun)}
        for each in last.values()
    ]


# --- telling ------------------------------------------------------------------------------------


def text(figures: Figures) -> str:
    """Return the report as text for a terminal."""
    lines = columns([REQUESTS, *_request_rows(figures)], left=2)
    lines += ["", *(_told(channel) for channel in figures["channels"])]
    lines += [
        f"{KEPT if each['kept'] else MISSED:7} {each['told']}" for each in figures["verdicts"]
    ]
    if figures["knee"]:
        lines.append(f"knee    {figures['knee']['told']}")
    lines += [f"note    {each}" for each in notes(figures)]
    return "\n".join(["", *lines])


REQUESTS = (
    "type",
    "name",
    "messages",
    "msg/s",
    "failures",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
)
COUNTED = ("unconfirmed", "duplicates", "again", "requeued", "out_of_order", "early", "foreign")


def _request_rows(figures: Figures) -> list[tuple[str, ...]]:
    return [
        (
            row["type"],
            row["name"],
            f"{row['messages']:,}",
            f"{row['rate']:,.1f}",
            f"{row['failures']:,}",
            *(_milliseconds(row[each]) for each in ("p50", "p99", "p999", "max")),
        )
        for row in figures["requests"]
    ]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _told(channel: Figures) -> str:
    rest = [f"{name.replace('_', ' ')} {channel[name]:,}" for name in COUNTED if channel[name]]
    counts = f"published {channel['published']:,}, finished {channel['finished']:,}"
    return f"{channel['topic']}/{channel['channel']}: " + ", ".join(
        [counts, f"lost {channel['lost']:,}", *rest]
    )


def notes(figures: Figures) -> list[str]:
    """Return notes that a reader needs before trusting the figures."""
    found = []
    busy, late = figures["strain"]["busy"], figures["strain"]["late"]
    if busy > BUSY:
        found.append(
            f"a load process was busy for {busy:.0%} of a second: the cluster can handle more"
            " (use --processes, or fewer users)"
        )
    if late > LATE:
        found.append(
            f"a load process was up to {late:,.0f} ms late: latencies measured at that time include"
            " its own delay (is the machine busy with other work?)"
        )
    if ahead := sum(channel["ahead"] for channel in figures["channels"]):
        found.append(
            f"{ahead:,} messages arrived before they were published: the machines' clocks differ,"
            " and latencies are wrong by the difference"
        )
    return found


# --- the page -----------------------------------------------------------------------------------


def write(path: Path, figures: Figures) -> None:
    pages.write(path, page(figures), figures)


def page(figures: Figures) -> str:
    parts = [
        section("Verdict", _verdict(figures)),
        section("Requests", table(REQUESTS, escaped(_request_rows(figures)))),
        section("Over time", "".join(svg(each, _last(figures)) for each in panels(figures))),
    ]
    if figures["channels"]:
        names = ("published", "finished", "lost", *COUNTED, "ahead")
        head, *rows = channels(figures["channels"], names)
        parts.insert(2, section("Channels", table(head, escaped(rows))))
    parts.append(section("Options", table(("option", "value"), escaped(_options(figures)))))
    about = figures["options"]["shape"]
    return document("nsqcy load", "Under load", figures["begun"], figures["seconds"], about, parts)


def _verdict(figures: Figures) -> str:
    lines = [
        f"<span{'' if each['kept'] else ' class=missed'}>{KEPT if each['kept'] else MISSED}</span> "
        + escape(each["told"])
        for each in figures["verdicts"]
    ]
    if figures["knee"]:
        lines.append(f"knee {escape(figures['knee']['told'])}")
    return "<br>".join(lines + list(map(escape, notes(figures))))


def _options(figures: Figures) -> list[tuple[str, ...]]:
    """Return the options that differ from their defaults."""
    usual = Options().shown()
    given = figures["options"].items()
    return [(name, str(value)) for name, value in given if value != usual[name]]


def _last(figures: Figures) -> float:
    """Return the second at which the lines end."""
    seconds = [each["second"] for each in figures["samples"]]
    seconds += [each["second"] for rows in figures["kinds"].values() for each in rows]
    return max(seconds, default=0.0)


def panels(figures: Figures) -> list[Panel]:
    kinds, samples = figures["kinds"], figures["samples"]

    def of(figure: str) -> list[Line]:
        """Return the lines for all request types."""
        return lines_of(kinds, figure, figures["span"])

    def sampled(name: str, label: str) -> Line:
        return Line(label, [(each["second"], each[name]) for each in samples])

    late = sampled("late", "lateness of the load itself, at most")
    found = [
        Panel("Messages", "a second", of("rate")),
        Panel("Latency, p50", "ms", of("p50"), logarithmic=True),
        Panel("Latency, p99", "ms", [*of("p99"), late], logarithmic=True),
        Panel("Users", "", [sampled("users", "users")]),
    ]
    if any(row["failures"] for rows in kinds.values() for row in rows):
        found.insert(1, Panel("Failures", "a second", of("failures")))
    cpu = [sampled("busy", "busiest process of the load")]
    if any(each["memory"] is not None for each in samples):
        found.append(Panel("Memory of nsqd", "bytes", [sampled("memory", "proportional")]))
        cpu.insert(0, sampled("cpu", "nsqd"))
    return [*found, Panel("CPU", "cores", cpu)]
