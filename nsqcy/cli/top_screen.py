"""The table of `nsqcy top`, as text and JSON. Pure: queries nothing and reads no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import click

from nsqcy.cli.tables import number, plain, plural, table
from nsqcy.cluster import problems
from nsqcy.cluster.problems import NodeState, Place, Problem, Severity, rate
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.cluster.summaries import Origins, Totals
from nsqcy.config.durations import SECOND, format_duration

MARKS = {
    Severity.ERROR: ("✖", "red"),
    Severity.WARNING: ("⚠", "yellow"),
    Severity.NOTE: ("·", "blue"),
}
HEAD = ["", "channel", "depth", "in/s", "out/s", "drained in", "in flight", "deferred", "consumers"]


class Omitted(NamedTuple):
    topics: int = 0
    busy: int = 0


NOTHING = Omitted()


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one time. topics: the busiest, summed across all nsqds. totals: of all topics.
    origins: the channels that send dead letters; default: according to `topics`. omitted: number
    of other topics, and how many of them are not quiet, summed across all nsqds."""

    topics: Mapping[str, TopicStats]
    nodes: Sequence[NodeState]
    lookupd_errors: Mapping[str, str]
    time: datetime
    totals: Totals
    origins: Origins | None = None
    omitted: Omitted = NOTHING

    @cached_property
    def problems(self) -> list[Problem]:
        return problems.find(self.topics, self.nodes, self.lookupd_errors, self.origins)

    @property
    def is_partial(self) -> bool:
        """Whether an nsqd or nsqlookupd did not respond."""
        return bool(self.lookupd_errors) or any(each.error for each in self.nodes)

    @property
    def channels(self) -> list[ChannelStats]:
        """All channels: those with the most severe problems first, then the longest."""
        severity: dict[Place, Severity] = {}
        for each in self.problems:
            severity.setdefault(each.place, each.severity)
        found = [each for topic in self.topics.values() for each in topic.channels.values()]
        return sorted(
            found,
            key=lambda each: (
                -severity.get(Place(each.topic, each.name), 0),
                -each.figures.depth,
                each.topic,
                each.name,
            ),
        )

    def label(self, channel: ChannelStats) -> Problem | None:
        """Return the most severe problem of a channel."""
        place = Place(channel.topic, channel.name)
        return next((each for each in self.problems if each.place == place), None)


def text(found: Snapshot, width: int = 0, height: int = 0) -> str:
    """Return the screen. width, height: of the terminal; 0 shows everything.

    Problems take at most half of the height, so that the table of channels remains visible.
    """
    lines = [_summary(found), *_unchecked(found), ""]
    lines += _problem_part(found.problems, width, height // 2)
    lines += ["", *(_cut(line, width) for line in _channel_lines(found))]
    return "\n".join(lines[: height - 1] if height else lines)


def _problem_part(found: Sequence[Problem], width: int, room: int) -> list[str]:
    """Return the problems, in at most `room` lines if it is not 0: omits the advice if it does not
    fit, and then the least severe problems."""
    lines = _problem_lines(found, width)
    if room and len(lines) > room:
        lines = lines[::2]
    if room and len(lines) > room:
        left = plural(len(lines) - room + 1, "more problem")
        return [*lines[: room - 1], f"  and {left}: use --once"]
    return lines


def _summary(found: Snapshot) -> str:
    down = sum(bool(each.error) for each in found.nodes)
    totals = found.totals
    nodes = plural(len(found.nodes), "nsqd") + (f", {down} down" if down else "")
    title = f"{click.style('nsqcy top', bold=True)}  {found.time:%H:%M:%S}  {nodes}"
    if down == len(found.nodes):
        return title
    return (
        f"{title}  in {rate(totals.publish_rate)}  out {rate(totals.rates.finished)}"
        f"  backlog {number(totals.backlog)}"
        f"  in flight {number(totals.of_channels.in_flight_count)}"
    )


def _unchecked(found: Snapshot) -> list[str]:
    if not found.omitted.busy:
        return []
    more = problems.count(found.omitted.busy, "less busy topic")
    return [click.style(f"{more} with messages or traffic not checked", fg="yellow")]


def _problem_lines(found: Sequence[Problem], width: int) -> list[str]:
    if not found:
        return [click.style("no problems", fg="green")]
    lines = []
    for each in found:
        mark, colour = MARKS[each.severity]
        lines.append(click.style(_cut(f"{mark} {plain(each.text)}", width), fg=colour))
        lines.append(_cut(f"    {plain(each.advice)}", width))
    return lines


def _cut(text: str, width: int) -> str:
    """Truncate a line, which may contain colours, to the width of the screen."""
    bare = click.unstyle(text)
    return text if not width or len(bare) <= width else f"{bare[: width - 1]}…"


def _channel_lines(found: Snapshot) -> list[str]:
    rows = [_row(found, each) for each in found.channels]
    if not rows:
        return ["no channels"] if any(not each.error for each in found.nodes) else []
    lines = table(HEAD, rows, right=",".join(HEAD[2:])).splitlines()
    if found.omitted.topics:
        lines.append(
            f"and the channels of {problems.count(found.omitted.topics, 'less busy topic')}"
        )
    return lines


def _row(found: Snapshot, channel: ChannelStats) -> list[str]:
    problem = found.label(channel)
    mark, colour = MARKS[problem.severity] if problem else (" ", "")
    name = f"{channel.topic}/{channel.name}" + (f"  {problem.label}" if problem else "")
    rates, figures = channel.rates, channel.figures
    return [
        click.style(mark, fg=colour or None),
        click.style(name, fg=colour or None),
        number(figures.depth),
        rate(rates.received) if rates else "-",
        rate(rates.finished) if rates else "-",
        _drained_in(channel, rates),
        number(figures.in_flight_count),
        number(figures.deferred_count),
        number(figures.client_count),
    ]


def _drained_in(channel: ChannelStats, rates: Rates | None) -> str:
    if rates is None or not channel.figures.depth:
        return "-"
    if channel.figures.paused:
        return "paused"
    if rates.growth >= 0:
        return "never"
    return format_duration(round(channel.figures.depth / -rates.growth) * SECOND)


def as_json(found: Snapshot) -> dict[str, Any]:
    return {
        "nsqds": [
            {"address": each.name, "error": each.error or None, "disk_free": each.disk_free}
            for each in found.nodes
        ],
        "lookupd_errors": dict(found.lookupd_errors),
        "problems": [
            {
                "severity": each.severity.name.lower(),
                "kind": each.kind,
                **{name: value for name, value in each.place._asdict().items() if value},
                "text": each.text,
                "advice": each.advice,
            }
            for each in found.problems
        ],
        "channels": [
            {
                "topic": each.topic,
                "channel": each.name,
                "depth": each.figures.depth,
                "in_flight": each.figures.in_flight_count,
                "deferred": each.figures.deferred_count,
                "consumers": each.figures.client_count,
                "received_per_second": each.rates.received if each.rates else None,
                "finished_per_second": each.rates.finished if each.rates else None,
                "growth_per_second": each.rates.growth if each.rates else None,
            }
            for each in found.channels
        ],
        "omitted_topics": found.omitted.topics,
        "unchecked_topics": found.omitted.busy,
    }
