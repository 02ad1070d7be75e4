"""The page, the chart and the data of `make bench`, from invented figures."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench import report, stored


def row(contestant: str, scenario: str, **fields: Any) -> dict[str, Any]:
    return {
        "contestant": contestant,
        "scenario": scenario,
        "durability": "memory",
        "messages": 1000,
        "rate": 1_000_000.0,
        "rate_times": 1.0,
        "daemon_us": 0.25,
        "cpu_times": 1.0,
        "load_us": 0.125,
        "load_busy": 0.5,
        "rss": 64_000_000,
        "size": 200,
        "rounds": 3,
    } | fields


def slow(scenario: str, **fields: Any) -> dict[str, Any]:
    return row("Slow & Co", scenario, rate_times=0.251, cpu_times=12.4, **fields)


def figures() -> dict[str, Any]:
    told = {
        "durability": "memory",
        "settings": "as it comes",
        "publishes": "`P`",
        "consumes": "`C`",
    }
    return {
        "date": "2030-01-02",
        "machine": report.machine(),
        "settings": {"batches": "200 messages"},
        "contestants": [
            told | {"name": "nsqcy", "version": "1.0"},
            told | {"name": "Slow & Co", "version": "9.9"},
        ],
        "skipped": {"other": "other is not installed, and only root can install it"},
        "peers": [
            row("nsqcy", "publish"),
            slow("publish", rate=250_000.0, daemon_us=3.0, load_busy=0.95),
            row("nsqcy", "memory", idle_rss=50e6, bytes_each=240.0),
            row("Slow & Co", "memory", idle_rss=9e6, bytes_each=1234.0),
        ],
        "nsqd": [
            row("", "MPUB", name="batches", workers=2, note="p50 1 us", floors=2.5),
            row("", "PUB", name="pipe", workers=2, note="", floors=0.0),
        ],
        "failed": [{"what": "latency", "why": "the connection was closed"}],
    }


@pytest.fixture
def page(tmp_path: Path) -> str:
    return report.write(figures(), tmp_path / "docs").read_text()


def cells(page: str, first: str) -> list[list[str]]:
    """Return the rows whose first cell is this text, from all tables."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return [line for line in lines if line[0] == first]


def test_figures_stand_beside_those_of_nsqcy(page: str) -> None:
    assert cells(page, "nsqcy")[1] == [
        *("nsqcy", "memory", "1,000,000", "1.00", "0.25", "1.00", "0.12", "50%", "64", "1,000")
    ]
    assert cells(page, "Slow & Co")[1] == [
        *("Slow & Co", "memory", "250,000 †", "0.25", "3.00", "12", "0.12", "95%", "64", "1,000")
    ]


def test_the_page_of_the_docs_is_that_of_its_figures() -> None:
    """The next run would overwrite a text that was changed on the page only."""
    docs = Path(__file__).parents[3] / "docs"
    figures = json.loads((docs / "benchmarks.json").read_text())
    assert (docs / "BENCHMARKS.md").read_text() == report.page(figures)


def test_tables_of_separate_runs_stay(tmp_path: Path) -> None:
    separate = {"clients": {"rows": [["aio", "1 k"]]}}
    (tmp_path / report.DATA).write_text(json.dumps(figures() | {"recorded": separate}))
    report.write(figures(), tmp_path)
    assert json.loads((tmp_path / report.DATA).read_text())["recorded"] == separate


def test_a_part_replaces_its_rows_and_says_when() -> None:
    before = figures() | {"separate": {"copies": "2030-01-01"}}
    own = {"workers": 2, "note": "", "floors": 0.0}
    new = [row("", "PUB", name="pipe", rate=7.0, **own), row("", "new", name="new", **own)]
    whole = report.joined(before, new, {"pipe": "2030-01-03", "new": "then"})
    assert [(each["name"], each["rate"]) for each in whole["nsqd"]] == [
        *(("batches", 1_000_000.0), ("pipe", 7.0), ("new", 1_000_000.0))
    ]
    text = report.page(whole)
    assert cells(text, "pipe")[0][1] == "from a separate run on 2030-01-03"
    copies = cells(text, "copies on other machines")
    assert copies[0][1] == "from a separate run on 2030-01-01"


def test_parts_that_a_run_does_not_measure_stay() -> None:
    before = figures() | {"separate": {"batches": "2030-01-01"}, "peers": [], "date": "2030-01-02"}
    new = figures() | {"nsqd": figures()["nsqd"][1:], "date": "2030-02-02"}
    whole = report.kept(before, new, "")
    assert {each["name"] for each in whole["nsqd"]} == {"batches", "pipe"}
    assert (whole["date"], whole["separate"]) == ("2030-02-02", {"batches": "2030-01-01"})
    beside = report.kept(before, new | {"nsqd": []}, "2030-02-02, on a busy machine")
    assert beside["nsqd"] == before["nsqd"] and beside["peers"] == new["peers"]
    text = report.page(beside)
    assert cells(text, "date") == [["date", "2030-01-02"]]
    (when,) = cells(text, "comparison with other brokers")
    assert when[1] == "from a separate run on 2030-02-02, on a busy machine"


def test_brokers_with_files_have_a_table_for_each_scenario() -> None:
    found = {"ratio": 2.0, "first_s": 1.5, "files": 3e9, "bytes": 500.0}
    found |= {"stop_s": 0.25, "start_s": 0.75, "start_cpu_s": 0.5}
    rows = [
        row("", f"NATS, {name}", name=name, figures=found, note="2.15.1", messages=100)
        for name in stored.SECTIONS
    ]
    rows.append(row("", "Redis", name="queues", figures={}, note="8.2; not measured: gone"))
    text = report.page(figures() | {"nsqd": rows})
    assert cells(text, "NATS, synced")[0][3] == "2.00 ×"
    assert cells(text, "NATS, recovery") == [
        ["NATS, recovery", "3.00", "1.50", "0.00", "64", "2.15.1"]
    ]
    assert cells(text, "NATS, queues") == [
        ["NATS, queues", "0", "500", "0.25", "0.75", "0.50", "2.15.1"]
    ]
    assert cells(text, "Redis")[0] == ["Redis", *[""] * 5, "8.2; not measured: gone"]
    assert "## nsqd alone" not in text


def test_a_busy_machine_is_called_busy() -> None:
    assert "on a quiet machine (load average 0.1" in report.condition(0.1)
    assert "on a busy machine (load average 2.0" in report.condition(2.0)


def test_memory_has_its_own_columns(page: str) -> None:
    assert cells(page, "Slow & Co")[2] == ["Slow & Co", "memory", "9", "1,234", "1,000"]


def test_nsqd_alone_has_its_table(page: str) -> None:
    assert cells(page, "MPUB")[0][1:3] == ["2", "memory"]
    assert cells(page, "MPUB")[0][5] == "2.50"
    assert cells(page, "MPUB")[0][-2:] == ["3", "p50 1 us"]
    assert cells(page, "PUB")[0][5] == ""


def test_it_reports_failures(page: str) -> None:
    assert "- latency: the connection was closed\n" in page
    assert "failed" not in report.page(figures() | {"failed": []})


def test_no_figure_of_anybody_is_a_page_too(tmp_path: Path) -> None:
    text = report.write(figures() | {"nsqd": [], "peers": []}, tmp_path).read_text()
    assert "- latency: " in text and "Beside" not in text
    ElementTree.parse(tmp_path / report.CHART)


def test_the_machine_is_not_named(page: str) -> None:
    assert report.machine().keys() == {"CPU", "cores", "memory", "kernel", "system", "Python"}
    assert str(Path.cwd()) not in page


def test_tables_have_as_many_cells_in_each_row(page: str) -> None:
    widths: list[set[int]] = []
    before = ""
    for line in page.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                widths.append(set())
            widths[-1].add(line.replace(" | ", "|").count("|"))
        before = line
    assert widths and all(len(each) == 1 for each in widths)


def test_bars_are_as_long_as_the_figures_tell(tmp_path: Path) -> None:
    report.write(figures(), tmp_path)
    root = ElementTree.parse(tmp_path / report.CHART).getroot()
    bars = [each for each in root if each.tag.endswith("rect")]
    ours, theirs = (
        [bar for bar in bars if ("ours" in bar.attrib["class"]) == own] for own in (1, 0)
    )
    assert len(bars) == 8
    assert float(ours[0].attrib["width"]) == pytest.approx(
        4 * float(theirs[0].attrib["width"]), rel=0.01
    )
    assert {text.text for text in root if text.tag.endswith("text")} >= {"Slow & Co", "250 k"}
