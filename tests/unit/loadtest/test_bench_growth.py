"""Curves of the benchmark: what they say about growth, and the points that are measured."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench import growth, report, speed
from loadtest.bench.everything import names
from loadtest.bench.growth import CHANNELS, CURVES, TOPICS, WORKERS, Curve
from loadtest.bench.scenarios import curves

DOCS = Path(__file__).parents[3] / "docs"


def rows(curve: Curve, *points: tuple[int, float]) -> list[dict[str, Any]]:
    return [
        {
            "name": "curves",
            "scenario": curve.point(x),
            "durability": "memory",
            "messages": 1000,
            "rounds": 1,
            "rate": 1e6 / us,
            "daemon_us": us,
            "load_us": 0.1,
            "rss": 50_000_000,
            "figures": {"x": x, "bytes": 123.0},
            "note": "",
        }
        for x, us in points
    ]


@pytest.mark.parametrize(
    "curve, end, verdict",
    [
        (TOPICS, 1.0, "stays nearly constant"),
        (TOPICS, 0.25, "falls"),
        (TOPICS, 4.0, "**faster than linearly**"),
        (CHANNELS, 100.0, "grows linearly"),
        (CHANNELS, 20.0, "grows more slowly than linearly"),
        (CHANNELS, 400.0, "**faster than linearly**"),
    ],
)
def test_growth_is_compared_with_that_of_the_work(curve: Curve, end: float, verdict: str) -> None:
    assert verdict in growth.told(curve, rows(curve, (1, 1.0), (100, end)))


def test_a_sentence_has_the_ends_and_the_exponent() -> None:
    text = growth.told(TOPICS, rows(TOPICS, (1, 2.0), (1000, 1.0), (10_000, 20.0)))
    assert "From 1 to 10,000 topics" in text and "from 2.00 to 20.00 µs" in text
    assert "exponent of 0.25" in text
    assert "steepest step is from 1,000 to 10,000, with an exponent of 1.30" in text
    assert "a topic takes 123 bytes" in text


def test_a_step_that_the_ends_hide_is_reported() -> None:
    text = growth.told(TOPICS, rows(TOPICS, (1, 8.0), (100, 1.0), (1000, 8.0)))
    assert "stays nearly constant" in text
    assert "steepest step is from 100 to 1,000, with an exponent of 0.90" in text


def test_no_memory_is_claimed_for_each_worker() -> None:
    text = growth.section(rows(WORKERS, (1, 1.0), (4, 1.0)))
    assert "bytes of memory" not in text and "bytes per" not in text


def test_one_point_has_no_growth() -> None:
    assert growth.told(TOPICS, rows(TOPICS, (1, 1.0))) == "Only one point was measured."


def test_no_rows_make_no_section() -> None:
    assert growth.section([]) == ""
    ElementTree.fromstring(growth.picture([]))


def test_the_picture_has_a_panel_for_each_figure() -> None:
    root = ElementTree.fromstring(
        growth.picture(rows(TOPICS, (1, 1.0), (10, 2.0), (100, 400.0)) + rows(WORKERS, (1, 1.0)))
    )
    lines = [each.attrib["points"].split() for each in root if each.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [3, 3, 3, 1, 1, 1]
    places = [tuple(map(float, point.split(","))) for point in lines[0]]
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0], abs=0.2)
    assert places[0][1] > places[1][1] > places[2][1]  # SVG counts from the top


def test_every_curve_is_measured_and_recorded() -> None:
    assert list(curves.PLAN) == list(CURVES)
    recorded = json.loads((DOCS / "benchmarks.json").read_text())["nsqd"]
    for curve, (_, points) in curves.PLAN.items():
        there = [row for row in recorded if row["scenario"].startswith(f"{curve.title}: ")]
        assert len(there) >= len(points) - 1, curve.title
    assert growth.CHART in (DOCS / report.PAGE).read_text()


def test_only_full_runs_draw_curves() -> None:
    def run(**options: Any) -> list[str]:
        return names(type("Args", (), {"only": "", "full": False} | options))  # type: ignore[arg-type]

    assert "curves" not in run() and "batches" in run()
    assert "curves" in run(full=True)
    assert run(only="curves,idle") == ["curves", "idle"]


@pytest.mark.slow
def test_points_are_measured() -> None:
    found = list(curves.curves(speed.Settings(scale=0.001, repeat=1)))
    assert [each.scenario for each in found] == [
        curve.point(x) for curve, (_, points) in curves.PLAN.items() for x in points[:2]
    ]
    assert all(each.messages >= 4 and each.daemon_cpu > 0 for each in found)
    for each in found:
        assert ("bytes" in each.figures) == any(
            curve.thing and each.scenario.startswith(curve.title) for curve in CURVES
        )
