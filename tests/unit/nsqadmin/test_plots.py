"""Plots and lists as drawn: paths, scales, gaps, sorting."""

import math
from dataclasses import replace

import pytest

from nsqcy.cluster.latency import Latency, Percentile, merge
from nsqcy.cluster.stats import TopicFigures, TopicStats
from nsqcy.nsqadmin.history.store import METRICS, History, Subject
from nsqcy.nsqadmin.html.formatting import amount
from nsqcy.nsqadmin.html.location import Location, slug
from nsqcy.nsqadmin.html.plots import Plots, charts, line_path, scale_top
from nsqcy.nsqadmin.html.tables import Columns, Heading, Times, heading, table
from nsqcy.nsqadmin.html.templates import environment
from support.strict_html import Element, read

TOPIC = Subject(topic="t")
NAN = math.nan


@pytest.mark.parametrize(
    ("values", "minimum", "top"),
    [
        ([], 1.0, 1.0),
        ([NAN, 0.0], 10.0, 10.0),
        ([1.0, 17.0], 1.0, 20.0),
        ([20.0], 1.0, 20.0),
        ([21.0], 1.0, 50.0),
        ([999_999.0], 1.0, 1_000_000.0),
        ([0.0042], 0.001, 0.005),
        ([0.00001], 0.001, 0.001),
    ],
)
def test_scales_end_at_round_numbers(values: list[float], minimum: float, top: float) -> None:
    assert scale_top(values, minimum) == pytest.approx(top)


def test_paths_have_gaps() -> None:
    assert line_path([0, 5, NAN, 10, NAN], 10, 40, 20) == "M0 20h0L10 10M30 0h0"
    assert line_path([NAN], 10, 40, 20) == ""
    assert line_path([3], 10, 40, 20) == "M0 14h0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (9.416, "9.42"),
        (12.52, "12.5"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (7.0, "7"),
    ],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def plots(length: float = 43200.0, chosen: str = "1h") -> Plots:
    history = History(10.0, length)
    for tick in range(10):
        if tick != 5:
            row = [100.0 * tick if name == "in" else 0.0 for name in METRICS]
            row[METRICS.index("latency")] = NAN
            history.add(10.0 * tick, {TOPIC: row})
    return Plots(history, 94.0, 1_000_000.0, chosen)


def drawn(plots: Plots, location: Location) -> Element:
    """Return the topic's section."""
    macro = environment().get_template("plots.html").module.history  # type: ignore[attr-defined]
    return read(str(macro(plots, location, TOPIC)))


def test_a_section_of_plots() -> None:
    page = drawn(plots(chosen="15m"), Location("/topics/t", {"sort": "depth"}))
    assert [each.text for each in page.one("nav").all("a")] == [
        *("15m", "1h", "6h", "12h"),
        "since start",
    ]
    chosen = page.one("a", **{"aria-current": "true"})
    assert chosen.attributes["href"] == "/topics/t?sort=depth&range=15m"
    figure = page.all("figure")[0]
    assert figure.one("figcaption").text == "ThroughputIn 900/sOut 0/s"
    label = figure.one("svg").attributes["aria-label"]
    assert label == "Throughput. In: 900/s now, maximum 900/s; Out: 0/s now, maximum 0/s"
    values = figure.one("path", **{"class": "line0"}).attributes["data-values"].split(",")
    assert values[-6:] == ["400", "", "600", "700", "800", "900"]
    assert len(values) == 90
    assert figure.attributes["data-start"] == f"{1_000_000 + 95 - 900:.3f}"
    assert [each.text for each in figure.all("div")[0].all("span")] == ["1,000/s", "500/s", "0/s"]
    assert [each.text for each in figure.all("div")[2].all("span")] == [
        "−15m",
        "−10m",
        "−5m",
        "now",
    ]


def test_time_frames_are_those_that_are_kept() -> None:
    assert plots(length=172800.0).frames == ["15m", "1h", "6h", "12h", "24h", "48h", "start"]
    short = plots(length=1000.0, chosen="12h")
    assert (short.frames, short.frame) == (["15m", "start"], "start")  # the history is still short
    old = replace(plots(), now=10_000.0)
    assert (old.frame, replace(old, chosen="nonsense").frame) == ("1h", "1h")
    assert replace(plots(length=1000.0), now=10_000.0).frame == "15m"
    assert drawn(plots(length=60.0), Location("/", {})).all("figure")


def test_since_the_first_sample() -> None:
    section = plots(chosen="start").section(TOPIC)
    assert section is not None
    assert section.plots[0].lines[0].values.split(",")[0] == "0"
    assert section.ago == ["−1m 39s", "−1m 6s", "−33s", "now"]
    long = plots(length=60.0, chosen="start").section(TOPIC)
    assert long is not None and long.ago[0] == "−1m"


def test_depth_has_one_meaning() -> None:
    assert [each.title for each in charts(TOPIC)][1] == "Backlog"
    assert [each.title for each in charts(TOPIC._replace(channel="c"))][1] == "Depth"


def test_percentiles_of_several_nodes_are_their_maximum() -> None:
    one = Latency(9, (Percentile(0.99, 2e6, 2e6, 2e6, 9, 2e6),))
    both = merge([one, Latency(1, (Percentile(0.99, 7e6, 7e6, 7e6, 1, 7e6),))])
    macro = environment().get_template("macros.html").module.times  # type: ignore[attr-defined]
    times = Times([one, both])
    (cell,) = read(str(macro(times.of(both)))).all("td")
    assert cell.text == "7ms"
    assert cell.one("span").attributes["title"] == "The slowest node; the fastest has 2ms"
    (_, value) = times.columns[0]
    row = TopicStats("t", "*", "", TopicFigures(), latency=both)
    assert value(row) == 7e6


def test_what_is_not_kept_is_not_drawn() -> None:
    other = Subject(topic="u")
    assert plots().section(other) is None and plots().spark(other, "in") == ""
    assert plots().latest(other, "in") is None
    assert Plots(None, 0.0, 0.0).section(TOPIC) is None
    assert not drawn(Plots(None, 0.0, 0.0), Location("/", {})).all("section")


def test_small_plots_and_the_latest_value() -> None:
    assert plots().latest(TOPIC, "in") == 900
    assert plots().spark(TOPIC, "in").endswith("L58 3")  # the mean of the last three values
    section = plots().section(TOPIC)  # each of its points is also a mean
    assert section is not None
    assert section.plots[0].lines[0].latest == "900/s"
    assert "In: 900/s now" in section.plots[0].spoken
    later = replace(plots(), now=1_000.0).section(TOPIC)
    assert later is not None and later.plots[0].lines[0].latest == "–"


# -- sorting


def rows(**params: str) -> list[tuple[str, int, str]]:
    """Return the rows of a table in this sort order."""
    columns: Columns[tuple[str, int, str]] = [
        ("Name", lambda row: row[0]),
        ("In-Flight", lambda row: row[1]),
        ("Other", lambda row: row[2]),
    ]
    found = table("T", columns, [("b", 1000, "x"), ("A", 7, "y")], Location("/p", params))
    assert found.names == [row[0] for row in found.rows]
    return list(found.rows)


def test_tables_are_sorted_by_any_column() -> None:
    assert [each[0] for each in rows()] == ["b", "A"]
    assert [each[0] for each in rows(sort="name")] == ["A", "b"]
    assert [each[0] for each in rows(sort="-name")] == ["b", "A"]
    assert [each[0] for each in rows(sort="in_flight")] == ["b", "A"]
    assert [each[0] for each in rows(sort="-in_flight")] == ["A", "b"]
    assert [each[0] for each in rows(sort="-other")] == ["A", "b"]
    assert [each[0] for each in rows(sort="none")] == ["b", "A"]


def test_headings_say_what_they_do() -> None:
    location = Location("/p", {"sort": "depth", "q": "x", "page": "3", "ask": "delete"})
    assert heading(location, "Depth") == Heading("Depth", "/p?q=x&sort=-depth", "descending")
    assert heading(location, "Memory + Disk").href == "/p?q=x&sort=memory_disk"
    assert heading(location, "Memory + Disk").order == ""
    text = heading(Location("/p", {"sort": "topic"}), "Topic", is_text=True)
    assert text.order == "ascending"
    assert slug("In-Flight") == "in_flight"
