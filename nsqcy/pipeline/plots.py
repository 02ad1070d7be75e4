"""The plots for a rollup, and one self-contained page with all of them.

plots/topics.png, plots/topic-orders.png, plots/index.html

Draws with matplotlib, which nsqcy[plots] installs; the rest of rollup does not need it.
"""

import datetime
import html
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.pipeline import minutes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 300  # maximum points per line; beyond that, minutes are merged
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1440)  # minutes
ALL = ""  # name of the plot for all topics
TOPICS = 12  # number of busiest topics with their own plots; the table has all topics
BLUE, ORANGE, GREEN, RED, GREY = "#2f6fb2", "#e08a1e", "#2f9e6e", "#c8423b", "#8a929c"
COLORS = (BLUE, ORANGE, GREEN, RED, "#7b5ea7", "#8c6d4f", "#cc79a7", GREY)
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#c9ced6",
    "axes.grid": True,
    "axes.labelcolor": "#4a525c",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 9,
    "grid.color": "#e8ebef",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "nsqcy",
    "xtick.color": "#4a525c",
    "ytick.color": "#4a525c",
}
OUTCOMES = (
    ("requeued", ORANGE),
    ("timed_out", RED),
    ("dead_lettered", "#7b5ea7"),
    ("expired", GREY),
)
ATTEMPTS = (
    ("attempts_1", "once", GREEN),
    ("attempts_2", "twice", ORANGE),
    ("attempts_3_to_5", "3 to 5 times", RED),
    ("attempts_more", "more often", "#7b5ea7"),
)

Rows = list[dict[str, Any]]


@dataclass
class Line:
    """Lines for a topic or a channel: a number for each step, or None if there is no value."""

    times: list[datetime.datetime]  # starts of the steps
    step: int  # minutes
    columns: dict[str, list[float | None]] = field(default_factory=dict)

    @property
    def edges(self) -> list[datetime.datetime]:
        """Return the start of each step, and the end of the last."""
        return [*self.times, self.times[-1] + datetime.timedelta(minutes=self.step)]

    @property
    def middles(self) -> list[datetime.datetime]:
        half = datetime.timedelta(minutes=self.step) / 2
        return [each + half for each in self.times]

    def numbers(self, name: str) -> list[float]:
        return [float("nan") if each is None else each for each in self.columns[name]]

    def total(self, name: str) -> float:
        return sum(each or 0 for each in self.columns[name])

    def maximum(self, name: str) -> float | None:
        return max((each for each in self.columns[name] if each is not None), default=None)

    def per_second(self, name: str) -> list[float]:
        return [(each or 0) / (60 * self.step) for each in self.columns[name]]

    def per_second_at_edges(self, name: str) -> list[float]:
        """Return a rate for each edge; the last step's rate holds until its end."""
        rates = self.per_second(name)
        return [*rates, rates[-1]]


# --- data to draw ----------------------------------------------------------------------------


def read(root: Path, kind: str) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = minutes.checksums(root)
    tables = []
    for path in minutes.files(root, kind):
        minutes.check_day(root, path, known)
        tables.append(pq.read_table(path))
    return pa.concat_tables(tables).to_pylist() if tables else []


def latest(rows: Rows, seconds: float) -> Rows:
    """Return the rows of this time span, which ends at the last row."""
    if not rows:
        return []
    start = max(row["minute"] for row in rows) - datetime.timedelta(seconds=seconds)
    return [row for row in rows if row["minute"] > start]


def lines(rows: Rows, keys: tuple[str, ...], span: range) -> dict[tuple[str, ...], Line]:
    """Return a line for each topic or channel, across all nsqds. Counts are summed; percentiles are
    the worst of any nsqd."""
    step = next((each for each in STEPS if len(span) <= POINTS * each), STEPS[-1])
    count = (len(span) + step - 1) // step
    times = [
        datetime.datetime.fromtimestamp((span.start + number * step) * 60, datetime.UTC)
        for number in range(count)
    ]
    found: dict[tuple[str, ...], Line] = {}
    for row in rows:
        line = found.setdefault(tuple(row[key] for key in keys), Line(times, step))
        index = (number_of(row["minute"]) - span.start) // step
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                column = line.columns.setdefault(name, [None] * count)
                before = column[index]
                merge: Callable[[Iterable[float]], float] = max if is_level(name) else sum
                column[index] = value if before is None else merge((before, value))
            elif value is None:
                line.columns.setdefault(name, [None] * count)
    return found


def is_level(name: str) -> bool:
    """Return whether sums of this measure are meaningless."""
    return name.startswith("size_") or "_p" in name


def number_of(minute: datetime.datetime) -> int:
    return int(minute.timestamp()) // 60


def span_of(*tables: Rows) -> range:
    found = [number_of(row["minute"]) for rows in tables for row in rows]
    return range(min(found), max(found) + 1)


# --- drawing ----------------------------------------------------------------------------------


def draw(root: Path, seconds: float) -> Path | None:
    """Draw the plots; return the page, or None if there is nothing to draw."""
    from matplotlib import rc_context

    topic_rows, channel_rows = (
        latest(read(root, kind), seconds) for kind in ("topics", "channels")
    )
    if not topic_rows and not channel_rows:
        return None
    span = span_of(topic_rows, channel_rows)
    topics = lines(topic_rows, ("topic",), span)
    channels = lines(channel_rows, ("topic", "channel"), span)
    busiest = sorted(topics, key=lambda key: -topics[key].total("count"))[:TOPICS]
    folder = root / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figures = {ALL: overview({key[0]: topics[key] for key in busiest})} if topics else {}
        for (topic,) in busiest:
            mine = {name: line for (of, name), line in channels.items() if of == topic}
            figures[topic] = of_topic(topics[topic,], mine)
        pictures = {}
        for name, figure in figures.items():
            write(folder / (f"topic-{name}.png" if name else "topics.png"), png(figure))
            pictures[name] = svg(figure)
    index = folder / "index.html"
    write(index, page(span, topics, channels, pictures).encode())
    return index


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, because it may be open in a browser."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.rename(path)


def png(figure: "Figure") -> bytes:
    found = io.BytesIO()
    figure.savefig(found, format="png", dpi=144)
    return found.getvalue()


def svg(figure: "Figure") -> str:
    found = io.StringIO()
    figure.savefig(found, format="svg", transparent=True, metadata={"Date": None})
    text = found.getvalue()
    return text[text.index("<svg") :]


def panels(count: int) -> tuple["Figure", list["Axes"]]:
    """Draw plots one below the other, with a common time axis."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.4 + 2.1 * count), layout="constrained")
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    locator = AutoDateLocator(tz=datetime.UTC)
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=datetime.UTC))
    return figure, list(axes)


def dress(axes: "Axes", title: str, unit: str = "", *, legend: bool = False) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter

    formatter = EngFormatter(unit) if unit else FuncFormatter(lambda value, _: plain(value))
    axes.set_title(title)
    axes.yaxis.set_major_formatter(formatter)
    axes.margins(x=0.01)
    if axes.get_yscale() == "linear":
        top = axes.get_ylim()[1]
        axes.set_ylim(0, top * (1.15 if legend else 1))
    if legend:
        axes.legend(loc="upper left", ncols=8, fontsize=8)


def make_logarithmic(axes: "Axes") -> None:
    """Give the axis a logarithmic scale from one round number to another, so that it always has
    labels."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    low, high = axes.dataLim.minposy, axes.dataLim.y1
    if not 0 < low <= high < math.inf:
        return  # nothing is drawn
    axes.set_yscale("log")
    ticks = round_numbers(low, high)
    axes.set_ylim(ticks[0], ticks[-1])
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_formatter(NullFormatter())


def round_numbers(low: float, high: float) -> list[float]:
    """Return round numbers from below `low` to above `high`: powers of ten and, if there are few of
    these, also their multiples by 2 and 5."""
    factors = (1,) if high > 1000 * low else (1, 2, 5)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    found = [factor * 10.0**power for power in powers for factor in factors]
    below = max(each for each in found if each < low)
    above = min(each for each in found if each > high)
    return [each for each in found if below <= each <= above]


def plain(value: float) -> str:
    """`0.25`, `12.5`, `1,500`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def overview(topics: dict[str, Line]) -> "Figure":
    figure, (axes,) = panels(1)
    line = next(iter(topics.values()))
    rates = [each.per_second_at_edges("count") for each in topics.values()]
    colors = [COLORS[number % len(COLORS)] for number in range(len(rates))]
    axes.stackplot(line.edges, *rates, labels=topics, colors=colors, alpha=0.85, step="post")
    dress(axes, "Messages per second", legend=True)
    return figure


def of_topic(line: Line, channels: dict[str, Line]) -> "Figure":
    figure, axes = panels(3 + 3 * len(channels))
    area(axes[0], line, "count", BLUE)
    dress(axes[0], "Messages per second")
    area(axes[1], line, "bytes", GREEN)
    dress(axes[1], "Bytes per second", "B")
    bands(axes[2], line, "size_p{}", 1.0, BLUE)
    dress(axes[2], "Message size", "B", legend=True)
    for number, (name, channel) in enumerate(sorted(channels.items())):
        latency, outcomes, attempts = axes[3 + 3 * number : 6 + 3 * number]
        bands(latency, channel, "latency_p{}_ms", 0.001, ORANGE)
        make_logarithmic(latency)
        dress(latency, f"Channel {name}: time from publish to finish", "s", legend=True)
        for column, color in OUTCOMES:
            label = column.replace("_", " ")
            rates = channel.per_second_at_edges(column)
            outcomes.step(channel.edges, rates, color=color, label=label, where="post")
        dress(outcomes, f"Channel {name}: unfinished deliveries per second", legend=True)
        shares = [channel.per_second_at_edges(column) for column, _, _ in ATTEMPTS]
        labels, colors = [each[1] for each in ATTEMPTS], [each[2] for each in ATTEMPTS]
        attempts.stackplot(
            channel.edges, *shares, labels=labels, colors=colors, alpha=0.85, step="post"
        )
        dress(attempts, f"Channel {name}: messages finished per second, by attempts", legend=True)
    return figure


def area(axes: "Axes", line: Line, name: str, color: str) -> None:
    """Draw a rate with the area below it."""
    rates = line.per_second_at_edges(name)
    axes.fill_between(line.edges, rates, color=color, alpha=0.25, step="post", linewidth=0)
    axes.step(line.edges, rates, color=color, where="post", linewidth=1.2)


def bands(axes: "Axes", line: Line, name: str, factor: float, color: str) -> None:
    """Draw p50, p95 and p99; higher percentiles are lighter. Single minutes are dots."""
    found = {
        percent: [each * factor for each in line.numbers(name.format(percent))]
        for percent in (50, 95, 99)
    }
    times = line.middles
    axes.fill_between(times, found[50], found[95], color=color, alpha=0.25, linewidth=0)
    axes.fill_between(times, found[95], found[99], color=color, alpha=0.12, linewidth=0)
    for percent, alpha in ((99, 0.35), (95, 0.6), (50, 1.0)):
        axes.plot(
            times,
            found[percent],
            color=color,
            alpha=alpha,
            linewidth=1.4,
            marker="." if len(times) < 100 else "",
            label=f"p{percent}",
        )


# --- the page ---------------------------------------------------------------------------------

CSS = """
body { margin: 0; background: #f4f6f8; color: #20262d; font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 64px }
h1 { font-size: 22px; margin: 0 } h2 { font-size: 17px; margin: 0 0 8px }
p { color: #5b6570; margin: 4px 0 20px }
section { background: #fff; border: 1px solid #e1e5ea; border-radius: 8px; padding: 16px 20px;
  margin: 0 0 20px; overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid #eef1f4 }
th { color: #5b6570; font-weight: 600; font-size: 13px } tr:last-child td { border: 0 }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto; display: block }
a { color: #2f6fb2; text-decoration: none }
"""


def page(
    span: range,
    topics: dict[tuple[str, ...], Line],
    channels: dict[tuple[str, ...], Line],
    pictures: dict[str, str],
) -> str:
    first, last = (
        datetime.datetime.fromtimestamp(each * 60, datetime.UTC).strftime("%Y-%m-%d %H:%M")
        for each in (span.start, span.stop)
    )
    parts = [section("Topics", topic_table(topics, pictures) + pictures.get(ALL, ""))]
    if channels:
        parts.append(section("Channels", channel_table(channels)))
    parts += [section(name, picture, name) for name, picture in pictures.items() if name != ALL]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>nsqcy rollup</title>'
        '<meta name="viewport" content="width=device-width"><style>'
        f"{CSS}</style></head><body><main><h1>Throughput</h1>"
        f"<p>{first} to {last} UTC</p>{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, content: str, name: str = "") -> str:
    id = f' id="{html.escape(name)}"' if name else ""
    return f"<section{id}><h2>{html.escape(title)}</h2>{content}</section>"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table row; cells are HTML."""
    heads = "".join(f"<th>{each}</th>" for each in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def topic_table(topics: dict[tuple[str, ...], Line], pictures: dict[str, str]) -> str:
    rows = []
    for (name,), line in sorted(topics.items(), key=lambda each: -each[1].total("count")):
        rates = line.per_second("count")
        shown = html.escape(name)
        rows.append(
            (
                f'<a href="#{shown}">{shown}</a>' if name in pictures else shown,
                f"{line.total('count'):,.0f}",
                amount(line.total("bytes"), "B"),
                f"{sum(rates) / len(rates):,.1f}",
                f"{max(rates):,.1f}",
                amount(line.maximum("size_p99"), "B"),
            )
        )
    head = ("topic", "messages", "bytes", "mean per s", "maximum per s", "p99 size")
    return table(head, rows)


def channel_table(channels: dict[tuple[str, ...], Line]) -> str:
    rows = [
        (
            f"{html.escape(topic)} / {html.escape(name)}",
            *(
                f"{line.total(column):,.0f}"
                for column in ("finished", "requeued", "timed_out", "dead_lettered", "expired")
            ),
            amount(seconds(line.maximum("latency_p99_ms")), "s"),
        )
        for (topic, name), line in sorted(channels.items())
    ]
    head = ("channel", "finished", "requeued", "timed out", "dead letters", "expired")
    return table((*head, "worst p99 latency"), rows)


def seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def amount(value: float | None, unit: str) -> str:
    """Format as `1.2 MB`, or a dash if there is no value."""
    if value is None:
        return "&ndash;"
    from matplotlib.ticker import EngFormatter

    return str(EngFormatter(unit, places=1, sep=" ")(value))
