"""The targets of the benchmark: each one refers to a recorded row, and is met or missed."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench import bars, report
from loadtest.bench.bars import BARS, Bar
from loadtest.bench.scenarios import SCENARIOS

DOCS = Path(__file__).parents[3] / "docs"
RECORDED: dict[str, Any] = json.loads((DOCS / "benchmarks.json").read_text())
PEERS = {"Redis streams", "Redis lists", "NATS JetStream", "beanstalkd", "RabbitMQ"}


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: f"{bar.row}, {bar.figure.key}")
def test_each_bar_finds_its_row(bar: Bar) -> None:
    row = bar.find(RECORDED["nsqd"])
    assert row is not None
    assert bar.figure.of(row) != 0
    assert row["durability"] in ("memory", "overflow", "os", "fsync")


def test_every_scenario_was_recorded() -> None:
    assert {row["name"] for row in RECORDED["nsqd"]} == set(SCENARIOS)


def test_a_bar_is_kept_up_to_its_own_figure() -> None:
    maximum = Bar("", "s", "row", bars.CPU, 0.5)
    minimum = Bar("", "s", "row", bars.MILLIONS, 2)
    own = Bar("", "s", "row", bars.P99, 10)
    assert [maximum.kept({"daemon_us": us}) for us in (0.4, 0.5, 0.51)] == [True, True, False]
    assert [minimum.kept({"rate": rate}) for rate in (1.9e6, 2e6)] == [False, True]
    assert [own.kept({"figures": {"p99_us": us}}) for us in (10_000, 10_001)] == [True, False]
    assert (maximum.promise, minimum.promise) == ("≤ 0.50 µs", "≥ 2.00 M")


def test_a_bar_has_one_row_and_no_other() -> None:
    bar = Bar("", "s", "row *", bars.CPU, 1)
    rows = [{"name": name, "scenario": "row 1"} for name in ("s", "other")]
    assert bar.find(rows) is rows[0]
    assert bar.find(rows[1:]) is None
    with pytest.raises(ValueError, match="2 rows"):
        bar.find([*rows, rows[0]])


def test_nsqd_is_held_against_each_of_the_others() -> None:
    rivals = bars.rivals(RECORDED["peers"], report.OURS)
    for scenario in bars.ACKNOWLEDGED:
        assert {each.name for each in rivals if each.scenario == scenario} == PEERS
    streams = next(row for row in RECORDED["peers"] if row["contestant"] == "Redis streams")
    more = streams | {"scenario": bars.ACKNOWLEDGED[0], "rate_times": 0.25, "cpu_times": 2.0}
    (rival,) = bars.rivals([more, more | {"contestant": "nsqcy, 2 workers"}], report.OURS)
    assert (rival.rate, rival.cpu, rival.ahead) == (4.0, 0.5, True)
    (rival,) = bars.rivals([more | {"cpu_times": 0.9}], report.OURS)
    assert not rival.ahead


def page(**changed: Any) -> str:
    figures = {"date": "2030-01-02", "machine": {}, "settings": {}, "contestants": []}
    return report.page(figures | {"skipped": {}, "failed": []} | RECORDED | changed)


def table_of_bars(text: str) -> list[list[str]]:
    part = text.partition("## Targets")[2].partition("\n## ")[0]
    part = part.partition("The next table")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    return lines[2:]


def test_the_page_has_a_row_for_each_bar() -> None:
    lines = table_of_bars(page())
    assert [line[0] for line in lines] == [bar.work for bar in BARS]
    assert {line[-1] for line in lines} == {"met", "**missed**"}
    floors = next(line for line in lines if line[1] == bars.FLOORS.about)
    assert floors[4].startswith("≤") and floors[5].endswith("×")


def test_a_bar_without_a_row_was_not_measured() -> None:
    rows = [row for row in RECORDED["nsqd"] if row["name"] != "http"]
    lines = table_of_bars(page(nsqd=rows))
    assert [line[0] for line in lines if line[-1] == "not measured"] == [bars.HTTP] * 2


def test_without_the_others_the_bars_are_there() -> None:
    lines = table_of_bars(page(peers=[]))
    assert len(lines) == len(BARS)
