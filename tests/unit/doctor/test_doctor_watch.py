"""`nsqcy doctor --watch`: new and resolved findings, and the findings that fail a run."""

import json

import click
import pytest

from nsqcy.config.durations import SECOND
from nsqcy.doctor import report
from nsqcy.doctor.checks import Judged
from nsqcy.doctor.findings import Finding, error, note, ok, warning
from nsqcy.doctor.main import doctor
from nsqcy.doctor.watch import Watch

WELL = Judged("health", ok("all nsqds are ready"))
PAUSED = Judged("paused", note("channel t/c is paused", "unpause it"))
SILENT = Judged("nsqds", error("nsqd 10.0.0.1:4151 does not answer: refused", "start it"))
OTHER = Judged("nsqds", error("nsqd 10.0.0.2:4151 does not answer: refused", "start it"))


def waiting(count: int) -> Judged:
    text = f"channel t/c has no consumer, and {count} messages are waiting, growing by 1.5/s"
    return Judged("idle-channels", warning(text, "start its consumers"))


def test_the_first_round_shows_everything_that_is_not_ok() -> None:
    assert Watch().lines([WELL, PAUSED], "12:00") == (
        "12:00 1 ok, 1 note\n+ note     paused: channel t/c is paused\n+          -> unpause it\n"
    )
    assert Watch().lines([WELL], "12:00") == "12:00 1 ok\n"


def test_what_is_new_and_what_is_gone() -> None:
    watch = Watch()
    watch.lines([WELL, PAUSED], "12:00")
    assert watch.lines([SILENT], "12:01") == (
        "12:01 1 new, 1 gone\n"
        "+ error    nsqds: nsqd 10.0.0.1:4151 does not answer: refused\n"
        "+          -> start it\n"
        "- paused: channel t/c is paused\n"
    )
    assert watch.lines([SILENT], "12:02") == ""
    assert watch.lines([], "12:03").startswith("12:03 0 new, 1 gone\n- nsqds: ")


def test_a_finding_with_other_numbers_is_the_same() -> None:
    watch = Watch()
    assert watch.changes([waiting(5)]) == ([waiting(5)], [])
    assert watch.changes([waiting(1007)]) == ([], [])


def test_findings_about_different_nodes_differ() -> None:
    watch = Watch()
    watch.changes([SILENT])
    assert watch.changes([OTHER]) == ([OTHER], [SILENT])
    assert watch.changes([OTHER, SILENT]) == ([SILENT], [])


def test_a_worse_level_is_new() -> None:
    watch = Watch()
    worse = Judged("paused", Finding("warning", *PAUSED.finding[1:]))
    watch.changes([PAUSED])
    assert watch.changes([worse]) == ([worse], [PAUSED])


def test_one_line_of_json_for_each_change() -> None:
    watch = Watch()
    assert json.loads(watch.as_json([PAUSED], "12:00")) == {
        "time": "12:00",
        "new": [{"check": "paused", **PAUSED.finding._asdict()}],
        "gone": [],
    }
    assert watch.as_json([PAUSED], "12:01") == ""
    assert json.loads(watch.as_json([], "12:02"))["gone"][0]["check"] == "paused"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [([], 0), (["--watch"], 10), (["--watch=30s"], 30), (["--watch", "--json"], 10)],
)
def test_intervals(words: list[str], seconds: int) -> None:
    assert doctor.make_context("doctor", words).params["watch"] == seconds * SECOND


@pytest.mark.parametrize("word", ["--watch=often", "--watch=-1s", "--fail-on=note"])
def test_words_that_are_refused(word: str) -> None:
    with pytest.raises(click.UsageError):
        doctor.make_context("doctor", [word])


def test_the_level_that_fails() -> None:
    assert report.exit_code([WELL, PAUSED, waiting(5)]) == 0
    assert report.exit_code([WELL, PAUSED, waiting(5)], "warning") == 1
    assert report.exit_code([WELL, PAUSED], "warning") == 0
    assert report.exit_code([SILENT]) == report.exit_code([SILENT], "warning") == 1
    assert json.loads(report.as_json([waiting(5)], "warning"))["exit_code"] == 1
