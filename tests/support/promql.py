"""Checks PromQL expressions against the metrics table, for unknown names and labels.

Supports only the part of the language that our rules and dashboard use: grouping labels precede the
grouped expression, `sum by (a) (b)`.
"""

import re
from collections.abc import Iterator

from nsqcy.metrics.families import OF_NSQD

OF_PROMETHEUS = {"instance", "job"}
"""Labels of the scrape, which every series has."""

SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}
LABELS = {
    family.sample + suffix: OF_PROMETHEUS
    | set(family.labels)
    | ({"le"} if suffix == "_bucket" else set())
    for family in OF_NSQD
    for suffix in SUFFIXES.get(family.kind, ("",))
} | {"up": OF_PROMETHEUS}

METRIC = re.compile(r"\b(up|nsq\w+)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+) *(?:=~|!~|!=|=) *\"")
GROUPING = re.compile(r"\b(by|without|on|ignoring) *\(([^)]*)\) *")


def metrics(expression: str) -> list[str]:
    """Return the metric names in an expression."""
    return [name for name, _ in METRIC.findall(expression)]


def mistakes(expression: str) -> Iterator[str]:
    for name, selector in METRIC.findall(expression):
        if name not in LABELS:
            yield f"nobody tells {name}"
            continue
        for label in set(LABEL.findall(selector)) - LABELS[name]:
            yield f"{name} has no label {label}"
    for found in GROUPING.finditer(expression):
        labels = {label.strip() for label in found[2].split(",")}
        for name in metrics(_grouped(expression[found.end() :])):
            for label in labels - LABELS.get(name, labels):
                yield f"{found[1]}: {name} has no label {label}"


def _grouped(rest: str) -> str:
    """Return the content of the leading parentheses."""
    assert rest.startswith("("), f"labels must precede the grouped expression: {rest}"
    depth = 0
    for at, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return rest[1:at]
    raise AssertionError(f"not closed: {rest}")
