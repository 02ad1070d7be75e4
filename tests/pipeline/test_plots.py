"""Plots of a rollup."""

import datetime
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import minutes, plots
from nsqcy.pipeline.minutes import ATTEMPTS, FINISH, PUBLISH, SIZE, Count, Key, State

START = 1_769_842_800 // 60
drawn = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def row(minute: int, nsqd: str = "n1", **values: Any) -> dict[str, Any]:
    start = datetime.datetime.fromtimestamp((START + minute) * 60, datetime.UTC)
    return {"topic": "orders", "nsqd": nsqd, "minute": start, "late": False} | values


def test_minutes_without_rows_are_zero_and_have_no_percentile() -> None:
    rows = [row(0, count=60, size_p50=5.0), row(2, count=120, size_p50=7.0)]
    line = plots.lines(rows, ("topic",), plots.span_of(rows))["orders",]
    assert len(line.times) == 3 and line.step == 1
    assert line.per_second("count") == [1, 0, 2]
    assert line.columns["size_p50"] == [5.0, None, 7.0]
    assert (line.total("count"), line.maximum("size_p50")) == (180, 7.0)


def test_nsqds_are_put_together() -> None:
    rows = [row(0, count=1, size_p99=5.0), row(0, "n2", count=2, size_p99=4.0)]
    line = plots.lines(rows, ("topic",), plots.span_of(rows))["orders",]
    assert line.columns == {"count": [3], "size_p99": [5.0]}


def test_long_times_have_longer_steps() -> None:
    rows = [row(each, count=60) for each in range(2 * 1440)]
    line = plots.lines(rows, ("topic",), plots.span_of(rows))["orders",]
    assert (line.step, len(line.times)) == (10, 288)
    assert set(line.per_second("count")) == {1.0}
    assert len(plots.latest(rows, 3600)) == 60


def rollup(root: Path, topics: list[str]) -> None:
    state = State()
    counts = []
    for minute in range(30):
        for topic in topics:
            at = (START + minute) * 60
            key = Key(topic, "", "n1", START + minute)
            counts.append(Count(key, PUBLISH, SIZE, 100, 10, 800, 70, 90, at))
            key = Key(topic, "<c>", "n1", START + minute)
            counts.append(Count(key, FINISH, ATTEMPTS, 0, 10, 10, 1, 1, at))
            counts.append(Count(key, FINISH, "age", 320, 10, 10_000_000, 900_000, 1_100_000, at))
    minutes.write_days(root, state, minutes.advance(state, counts, 60))


@drawn
def test_pictures_and_the_page(tmp_path: Path) -> None:
    assert plots.draw(tmp_path, 3600) is None
    rollup(tmp_path, ["topics"])
    page = plots.draw(tmp_path, 3600)
    assert page == tmp_path / "plots" / "index.html"
    assert {path.name for path in page.parent.iterdir()} == {
        "index.html",
        "topics.png",
        "topic-topics.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page.parent.glob("*.png"))
    text = page.read_text()
    assert text.count("<svg") == 2 and "&lt;c&gt;" in text
    assert "<td>300</td><td>24.0 kB</td>" in text
    outside = References()
    outside.feed(text)
    assert outside.found == []


def figure(minutes: int, latency: Callable[[int], float | None]) -> Any:
    """Draw the plots of a topic and a channel that are active only in the second of these minutes.
    Its percentiles are `latency` in ms."""
    topic = [
        row(each, count=60, bytes=600, size_p50=1.0, size_p95=2.0, size_p99=3.0)
        for each in range(minutes)
    ]
    names = ("requeued", "timed_out", "dead_lettered", "expired")
    names += ("attempts_1", "attempts_2", "attempts_3_to_5", "attempts_more")
    channel = [
        row(
            each,
            channel="c",
            **dict.fromkeys(names, 60 * (each == 1)),
            **{f"latency_p{percent}_ms": latency(each) for percent in (50, 95, 99)},
        )
        for each in range(minutes)
    ]
    span = plots.span_of(topic, channel)
    lines = plots.lines(channel, ("topic", "channel"), span)
    return plots.of_topic(
        plots.lines(topic, ("topic",), span)["orders",], {"c": lines["orders", "c"]}
    )


def minutes_of(axes: Any) -> set[int]:
    """Return the minutes in which the plot is above zero: it contains the middle of each."""
    from matplotlib.dates import date2num

    shapes = [each for collection in axes.collections for each in collection.get_paths()]
    found = set()
    for minute in range(-2, 8):
        middle = datetime.datetime.fromtimestamp((START + minute) * 60 + 30, datetime.UTC)
        x = date2num(middle)
        if any(shape.contains_point((x, 0.5)) for shape in shapes):
            found.add(minute)
        for line in axes.lines:
            xs, ys = line.get_path().vertices.T
            at = [y for before, after, y in zip(xs, xs[1:], ys, strict=False) if before < x < after]
            if at and max(at) > 0.5:
                found.add(minute)
    return found


@drawn
def test_every_minute_is_drawn_at_its_time() -> None:
    """The last minute, which ends at the end of the axis, is drawn as well."""
    rates, volumes, _, _, outcomes, attempts = figure(3, lambda _: 100.0).axes
    assert minutes_of(rates) == minutes_of(volumes) == {0, 1, 2}
    assert minutes_of(outcomes) == minutes_of(attempts) == {1}
    rates, *_, outcomes, attempts = figure(2, lambda _: 100.0).axes
    assert minutes_of(rates) == {0, 1}
    assert minutes_of(outcomes) == minutes_of(attempts) == {1}


@drawn
def test_every_minute_of_the_overview_is_drawn() -> None:
    rows = [row(each, count=60) for each in range(3)]
    line = plots.lines(rows, ("topic",), plots.span_of(rows))["orders",]
    (axes,) = plots.overview({"orders": line}).axes
    assert minutes_of(axes) == {0, 1, 2}


@drawn
@pytest.mark.parametrize(
    ("low", "high"), [(610.0, 640.0), (60.0, 700.0), (0.5, 90_000.0), (250.0, 250.0), (3, 3.001)]
)
def test_a_time_axis_has_one_kind_of_label(low: float, high: float) -> None:
    drawing = figure(3, lambda minute: high if minute == 1 else low)
    drawing.draw_without_rendering()
    axes = drawing.axes[3]
    bottom, top = axes.get_ylim()
    assert bottom <= low / 1000 and high / 1000 <= top
    shown = [
        label.get_text()
        for label in axes.yaxis.get_ticklabels(which="both")
        if label.get_text() and bottom <= label.get_position()[1] <= top
    ]
    assert len(shown) >= 2
    assert all(re.fullmatch(r"(1|2|5)0{0,2} ([mµ]?)s", each) for each in shown), shown


@drawn
def test_a_channel_in_which_nothing_is_finished_is_drawn() -> None:
    drawing = figure(3, lambda _: None)
    drawing.draw_without_rendering()
    assert len(drawing.axes) == 6


class References(HTMLParser):
    """Collects the files that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe"):
            self.found.append(tag)
        self.found += [
            value
            for name, value in attrs
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#")
        ]
