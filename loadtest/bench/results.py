"""Reads docs/benchmarks.json, the results of the recorded runs. Measures and writes nothing."""

import json
from pathlib import Path
from typing import Any

RESULTS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "benchmarks.json").read_text()
)

Row = dict[str, Any]


def alone(scenario: str, durability: str = "memory") -> Row:
    """Return the last row of nsqd alone with this scenario, including its own figures."""
    return _last(RESULTS["nsqd"], scenario=scenario, durability=durability)


def beside(contestant: str, scenario: str) -> Row:
    """Return the row of a broker in the comparison."""
    return _last(RESULTS["peers"], scenario=scenario, contestant=contestant)


def separate(scenario: str) -> str:
    """Return which run a scenario of nsqd alone is from."""
    when = RESULTS.get("separate", {}).get(scenario)
    return f"from a separate run on {when}" if when else "from the same run"


def _last(rows: list[Row], **wanted: str) -> Row:
    found = [row for row in rows if wanted.items() <= row.items()]
    if not found:
        raise LookupError(f"docs/benchmarks.json has no row with {wanted}")
    return {**found[-1], **found[-1].get("figures", {})}
