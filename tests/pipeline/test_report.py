"""Output of a job, as text and as JSON."""

import json
import sys
import urllib.request
from typing import Any

import pytest

from nsqcy.pipeline import report as module
from nsqcy.pipeline.report import Metrics, Report


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with Report("archive", json_lines=True) as report:
        report.warn("careful")
        report.line("text", rows=1)
        report.progress(rows=5)
        report.done(rows=5)
    found = lines(capsys)
    assert [line["event"] for line in found] == ["warning", "line", "progress", "done"]
    assert {line["job"] for line in found} == {"archive"}
    assert found[0]["at"].endswith("Z") and found[1]["text"] == "text"


def test_small_steps_are_not_told_one_by_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    report = Report("verify", json_lines=True)
    for done in range(1, 101):
        now[0] += 0.3
        report.progress(done=done, total=100)
    told = [line["done"] for line in lines(capsys)]
    assert told[0] == 1 and told[-1] == 100 and 20 < len(told) < 30


def test_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Report("verify", json_lines=False) as report:
        report.progress(done=1, total=2, batch=7)
        report.warn("careful")
        report.line("all is well")
        report.progress(done=2, total=2, batch=8)
        report.done(rows=12345, lag={"a": 1})
    out, err = capsys.readouterr()
    assert out == "all is well\nverify: rows 12,345\n"
    assert "warning: careful\n" in err and "2.00/2.00" in err and "batch 8" in err


def test_on_a_terminal_without_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    """A stream has no known end."""
    with Report("archive", json_lines=False) as report:
        report.progress(done=1000, batch=1)
        report.warn("careful")
        report.progress(done=2500, batch=2)
        report.line("all is well")
        report.done(rows=2500)
    out, err = capsys.readouterr()
    assert out == "all is well\narchive: rows 2,500\n"
    assert "warning: careful\n" in err and "2.50k" in err and "batch 2" in err


def test_without_tqdm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with Report("verify", json_lines=False) as report:
        report.progress(done=1, total=2)
        report.done()
    assert capsys.readouterr() == ("verify: done\n", "")


def test_metrics() -> None:
    from support.nsqd_process import free_port

    port = free_port()
    metrics = Metrics("archive", port)
    metrics.batch(100, 1.5, {"orders": {"a": 6}})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    for line in [
        'nsqcy_pipeline_rows_total{job="archive"} 100.0',
        'nsqcy_pipeline_batches_total{job="archive"} 1.0',
        'nsqcy_pipeline_batch_seconds{job="archive"} 1.5',
        'nsqcy_pipeline_lag_records{job="archive",log_id="a",topic="orders"} 6.0',
        'nsqcy_pipeline_seconds_since_batch{job="archive"} ',
    ]:
        assert f"\n{line}" in text
