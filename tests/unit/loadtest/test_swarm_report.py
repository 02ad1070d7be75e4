"""The verdict on a load test, and its report."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.soak import lines
from loadtest.soak.lines import Line, Panel, svg
from loadtest.swarm import report
from loadtest.swarm.machine import Sample, is_here
from loadtest.swarm.options import Options
from loadtest.swarm.run import Run, Strain
from loadtest.swarm.stages import Knee, Step
from loadtest.swarm.thresholds import Threshold, Verdict, judge, parse
from support.nsqd_process import environment

TOML = """
lost = 0
failures = 0.01

[p99]
deliver = 50
"PUB orders" = 5.5
"""


# --- thresholds ---------------------------------------------------------------------------------


def test_thresholds_are_of_flags_and_files(tmp_path: Path) -> None:
    (tmp_path / "bars.toml").write_text(TOML)
    found = parse(f"{tmp_path}/bars.toml, p99 deliver = 20, rate PUB=1000")
    assert found == [
        Threshold("lost", "", 0),
        Threshold("failures", "", 0.01),
        Threshold("p99", "deliver", 20),
        Threshold("p99", "PUB orders", 5.5),
        Threshold("rate", "PUB", 1000),
    ]


@pytest.mark.parametrize(
    "text", ["p98 PUB=1", "p99=1", "p99 PUB", "p99 PUB=quick", "lost PUB=0", "no/such.toml"]
)
def test_thresholds_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="threshold"):
        parse(text)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A ten-second run with a hundred messages: one was lost, and an HTTP publish failed."""
    monkeypatch.setattr(Run, "_now", lambda run: 10.0)
    run = Run(Options(topics="t", channels="c"), 5)
    run.ended()
    run.drained()
    for number in range(100):
        run.timeline.add(int(run.begun), "PUB", "t", 1.0 + number)
        run.timeline.add(int(run.begun), "deliver", "t/c", 0.3)
    run.timeline.add(int(run.begun) + 1, "HTTP pub", "t", None, failed=True)
    run.ledger.publish("t", 1, range(100))
    for number in range(99):
        run.ledger.finish(("t", "c"), 1, number)
    return run


@pytest.mark.parametrize(
    ("text", "kept", "told"),
    [
        ("lost=0", False, "lost: 1 (at most 0)"),
        ("lost=1", True, "lost: 1 (at most 1)"),
        ("failures=0.1", True, "failures: 0.00497512 (at most 0.1)"),
        ("failures HTTP pub=0.1", False, "failures HTTP pub: 1 (at most 0.1)"),
        ("p50 PUB=60", True, "p50 PUB: 50.175 ms (at most 60 ms)"),
        ("p99 PUB t=60", False, "p99 PUB t: 99.327 ms (at most 60 ms)"),
        ("p99 DPUB=60", False, "p99 DPUB: nothing was measured (at most 60 ms)"),
        ("rate PUB=9.9", True, "rate PUB: 10 msg/s (at least 9.9 msg/s)"),
        ("rate PUB=11", False, "rate PUB: 10 msg/s (at least 11 msg/s)"),
    ],
)
def test_a_threshold_is_kept_or_not(run: Run, text: str, kept: bool, told: str) -> None:
    (verdict,) = judge(parse(text), run.figure)
    assert str(verdict) == told
    assert verdict.kept == kept


def test_where_nobody_consumes_nothing_is_lost(run: Run) -> None:
    run.consumes = False
    assert run.accounts() == []
    assert judge([Threshold("lost", "", 0)], run.figure)[0].found is None


# --- the report ---------------------------------------------------------------------------------


@pytest.fixture
def figures(run: Run) -> report.Figures:
    second = int(run.begun)
    run.strains.add(second, Strain(0.95, 30.0))
    run.ledger.count(("t", "c"), "ahead")
    knee = Knee(1, 1.0, 1, 1.0, 0.0, lambda users, since, until: Step(users, 1.0, 0.5, "PUB", 0.0))
    while knee.tick(len(knee.steps) * 2.0) is not None:
        knee.tick(1.5)
    samples = [Sample(second, 3, None, None), Sample(second + 1, 3, 50 << 20, 0.25)]
    return report.gather(run, samples, [Verdict(Threshold("lost", "", 0), 1.0)], knee)


def test_the_table_says_what_was_missed(figures: report.Figures) -> None:
    told = report.text(figures)
    assert re.search(r"^PUB +t +100 +10\.0 +0 +50\.1\d +99\.33 ", told, re.MULTILINE)
    assert "t/c: published 100, finished 99, lost 1" in told
    assert "MISSED  lost: 1 (at most 0)" in told
    assert "knee    not reached: 1 users, 1 msg/s" in told
    for note in ("busy for 95%", "up to 30 ms late", "1 messages arrived before"):
        assert note in told


def test_the_page_needs_nothing_from_elsewhere(figures: report.Figures, tmp_path: Path) -> None:
    path = tmp_path / "some" / "where.html"
    report.write(path, figures)
    page = path.read_text()
    assert not re.search(r"(src|href|@import|url\()", page)
    assert not set(re.findall(r"https?://[^\"'\s]+", page)) - {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page
    for title in ("Messages", "Failures", "Latency, p99", "Users", "Memory of nsqd", "CPU"):
        assert f">{title}<" in page
    assert json.loads(path.with_suffix(".json").read_text()) == json.loads(json.dumps(figures))


def test_names_are_no_markup(figures: report.Figures) -> None:
    figures["requests"][0]["name"] = figures["channels"][0]["topic"] = "<script>"
    figures["verdicts"][0]["told"] = figures["knee"]["told"] = "<script>"
    figures["options"]["topics"] = "<script>"
    figures["kinds"]["<script>"] = figures["kinds"].pop("PUB")
    assert "<script>" not in report.page(figures)


def test_of_nsqds_elsewhere_nothing_is_drawn(figures: report.Figures) -> None:
    for sample in figures["samples"]:
        sample["memory"] = sample["cpu"] = None
    assert [panel.title for panel in report.panels(figures)][-2:] == ["Users", "CPU"]
    assert [is_here(host) for host in ("127.0.0.2", "::1", "localhost", "10.0.0.1", "db")] == [
        *[True] * 3,
        *[False] * 2,
    ]


def test_a_report_of_nothing() -> None:
    run = Run(Options(), 1)
    figures = report.gather(run, [], [], None)
    assert "published 0" in report.text(figures)
    assert "<svg" in report.page(figures)


# --- lines --------------------------------------------------------------------------------------


def drawn(panel: Panel) -> list[list[tuple[str, float, float]]]:
    """Return the points of each line, and whether the pen was down."""
    paths = re.findall(r'<path class="line c\d" d="([^"]*)"/>', svg(panel, 10))
    return [
        [(pen, float(x), float(y)) for pen, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)]
        for path in paths[len(panel.lines) :]
    ]


def test_a_line_is_broken_where_nothing_was() -> None:
    (line,) = drawn(Panel("", "", [Line("a", [(0, 0.0), (5, 2.0), (6, None), (10, 4.0)])]))
    assert [pen for pen, _, _ in line] == ["M", "L", "M"]
    (x0, y0), (x1, y1), (x2, y2) = [each[1:] for each in line]
    assert x1 == pytest.approx((x0 + x2) / 2)
    assert y1 == pytest.approx((y0 + y2) / 2)
    assert y0 == lines.HEIGHT - lines.BOTTOM


def test_decades_are_as_far_apart_as_each_other() -> None:
    points = [(0, 0.1), (1, 1.0), (2, 10.0), (3, 0.0)]
    (line,) = drawn(Panel("", "", [Line("a", points)], logarithmic=True))
    low, middle, high, zero = [y for _, _, y in line]
    assert low - middle == pytest.approx(middle - high)
    assert zero == low


def test_locust_stays_in_its_own_process() -> None:
    """locust patches the process that imports it, so neither this process nor the process of the
    daemons imports locust."""
    code = "import sys, loadtest.swarm.report, loadtest.swarm.__main__; "
    code += "sys.exit('locust' in sys.modules or 'gevent' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=60)
