"""Plots of a rollup."""

import datetime
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


class References(HTMLParser):
    """Collects what a page would fetch."""

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
