"""conf/grafana-nsqcy.json: its queries use existing metrics, and its panels are visible."""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.promql import LABELS, METRIC, metrics, mistakes

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "conf" / "grafana-nsqcy.json").read_text())
PANELS = DASHBOARD["panels"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"short", "cps", "ops", "Bps", "bytes", "s", "percentunit"}
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def expressions() -> Iterator[str]:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield target["expr"]


def unit(panel: dict[str, Any]) -> str | None:
    if panel["type"] == "heatmap":
        return panel["options"]["yAxis"]["unit"]
    return panel["fieldConfig"]["defaults"].get("unit")


def test_it_asks_for_what_nsqd_tells() -> None:
    assert {each: list(mistakes(each)) for each in expressions() if list(mistakes(each))} == {}
    assert all(metrics(each) for each in expressions())


def test_every_expression_is_promql(tmp_path: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    rules = [
        {"record": f"panel:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_legends_name_labels_that_are_left() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            known = set.union(*(LABELS[name] for name in metrics(target["expr"])))
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= known, target
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            for labels in grouped:
                assert shown <= set(labels.split(", ")), target


def test_variables_lead_to_values_and_are_used() -> None:
    assert list(VARIABLES) == ["datasource", "node", "topic", "channel"]
    for name in ("node", "topic", "channel"):
        found = LABEL_VALUES.fullmatch(VARIABLES[name]["query"]["query"])
        assert found and list(mistakes(found[1])) == []
        assert found[2] in LABELS[metrics(found[1])[0]]
        assert any(f"${name}" in each for each in expressions())
    used = set(re.findall(r"\$(\w+)", " ".join(expressions())))
    assert used - VARIABLES.keys() == {"__rate_interval"}


def test_what_is_chosen_holds_everywhere() -> None:
    """Every selector uses the dashboard's variables for all labels that the metric has."""
    variables = {"instance": "node", "topic": "topic", "channel": "channel"}
    for each in expressions():
        for name, selector in METRIC.findall(each):
            for label in variables.keys() & LABELS[name]:
                assert f'{label}=~"${variables[label]}"' in selector, each


def test_panels_do_not_overlap() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for _, place in places)
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{one} overlaps {other}"


def test_panels_are_told_apart_and_have_units() -> None:
    assert max(Counter(panel["id"] for panel in PANELS).values()) == 1
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Cluster", "Topics", "Channels", "Nodes and workers", "Disk"]
    for panel in PANELS:
        if panel["type"] != "row":
            assert unit(panel) in UNITS, panel["title"]


def test_nothing_comes_from_outside() -> None:
    """The dashboard needs no plugins, no specific data source, and no addresses."""
    assert "://" not in json.dumps(DASHBOARD)
    assert {panel["type"] for panel in PANELS} == {"row", "stat", "timeseries", "heatmap"}
    for panel in PANELS:
        for each in (panel, *panel.get("targets", ())):
            assert panel["type"] == "row" or each["datasource"] == DATASOURCE
