"""conf/prometheus-rules.yml: every alert can fire, can stay silent, and leads to a runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.promql import LABELS, metrics, mistakes

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf" / "prometheus-rules.yml"
TESTS = Path(__file__).with_name("alerts.yml")
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
NAMES = [alert["alert"] for alert in ALERTS]

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=NAMES)


def promtool(*words: object) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", RULES)


def test_each_fires_and_is_silent_when_it_should() -> None:
    promtool("test", "rules", TESTS)


def test_each_alert_is_tested_both_ways() -> None:
    """Each test has series for which the alert fires, and others for which it does not."""
    tests = {each["name"]: each for each in yaml.safe_load(TESTS.read_text())["tests"]}
    for name in NAMES:
        (check,) = tests[name]["promql_expr_test"]
        assert f'alertname="{name}"' in check["expr"]
        assert 0 < len(check["exp_samples"]) < len(tests[name]["input_series"])


def test_names_are_told_apart() -> None:
    assert len(set(NAMES)) == len(NAMES)


@each_alert
def test_it_asks_for_what_nsqd_tells(alert: dict[str, Any]) -> None:
    assert metrics(alert["expr"])
    assert list(mistakes(alert["expr"])) == []


@each_alert
def test_it_says_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    said = alert["annotations"]
    assert said.keys() == {"summary", "description", "runbook"}
    assert said["description"].endswith(".")
    runbook = ROOT / said["runbook"]
    assert runbook.parent == ROOT / "docs" / "runbooks"
    named = f"`{alert['alert']}`"
    assert named in runbook.read_text(), "the runbook does not name its alert"
    (row,) = re.findall(rf"^.*{named}.*$", runbook.with_name("README.md").read_text(), re.MULTILINE)
    assert f"({runbook.name})" in row


@each_alert
def test_it_names_labels_that_are_left(alert: dict[str, Any]) -> None:
    gone = {
        label.strip()
        for labels in re.findall(r"\bwithout \(([^)]*)\)", alert["expr"])
        for label in labels.split(",")
    }
    left = set.union(*(LABELS[name] for name in metrics(alert["expr"]))) - gone - {"le"}
    said = " ".join(alert["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", said)) <= left


def test_mistakes_in_expressions_are_found() -> None:
    assert list(mistakes("nsqd_depth > 0")) == ["nobody tells nsqd_depth"]
    assert list(mistakes('nsqd_topics{topic="t"}')) == ["nsqd_topics has no label topic"]
    wrong = "sum by (channel) (rate(nsqd_topic_messages_total[5m]))"
    assert list(mistakes(wrong)) == ["by: nsqd_topic_messages_total has no label channel"]
