"""Metrics as a scraper reads them, by prometheus_client's own parsers."""

import gzip
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nsqcy.metrics.families import Family
from nsqcy.testing.http_requests import Answer, Web

OPENMETRICS = "application/openmetrics-text"


class Scrape:
    """One page: samples by name and labels."""

    def __init__(self, answer: Answer) -> None:
        assert answer.status == 200, answer
        self.content_type = answer.headers["content-type"]
        self.was_compressed = answer.headers.get("content-encoding") == "gzip"
        body = gzip.decompress(answer.body) if self.was_compressed else answer.body
        self.text = body.decode()
        parse = parse_openmetrics if self.content_type.startswith(OPENMETRICS) else parse_text
        self.families: dict[str, Metric] = {}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in parse(self.text):
            assert family.name not in self.families, f"{family.name} appears twice"
            self.families[family.name] = family
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self._values, f"{key} appears twice"
                self._values[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the only sample with that name and these labels; 0 if there is
        none."""
        return self._values.get((name, frozenset(labels.items())), 0)

    def labels(self, name: str) -> Iterator[dict[str, str]]:
        """Return the values of all samples with that name."""
        return (dict(labels) for found, labels in self._values if found == name)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all samples that include these labels."""
        wanted = set(labels.items())
        return sum(v for (found, has), v in self._values.items() if found == name and wanted <= has)


def scrape(
    web: Web, path: str = "/metrics", *, accept: str = "", gzipped: bool = False, token: str = ""
) -> Scrape:
    headers = {"Accept": accept} if accept else {}
    if gzipped:
        headers["Accept-Encoding"] = "gzip"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return Scrape(web.request("GET", path, headers=headers))


def check_names(found: Scrape, table: Sequence[Family]) -> None:
    """Check that a page in OpenMetrics has the families of the table and no others, with the same
    types and help texts."""
    shown = {each.name: (each.type, each.documentation) for each in found.families.values()}
    assert shown == {each.name: (each.kind, each.help) for each in table}


def check_by_promtool(found: Scrape) -> None:
    """Check that promtool has no complaints about a page in the text format; without promtool, skip
    the rest of the test."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=found.text,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
