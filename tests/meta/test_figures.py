"""Measured figures in README and docs/ are those of docs/benchmarks.json, with their conditions.

Blocks with figures are generated (release/figures.py); test_pages.py compares them with the file,
and tests/unit/loadtest/test_bench_report.py compares BENCHMARKS.md. This module finds figures
that were typed by hand: numbers with a unit of speed, latency or cost, outside of generated blocks.

It cannot find:

- a figure without a unit of MEASURED, such as "a few milliseconds" or "takes a minute"
- figures in code blocks and inline code, which show the output of a program or values of options
- a claim without a number ("fast", "cheap"), or one that is true only under other conditions
- a wrong figure in docs/benchmarks.json, and a figure from an old version of nsqcy
"""

import re
from pathlib import Path

import pytest

from release.language import FENCE

ROOT = Path(__file__).parents[2]
GENERATED = {"BENCHMARKS.md", "changelog.md"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"<!-- begin (?P<name>[^>]+) -->\n.*?<!-- end (?P=name) -->\n", re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")

NUMBER = r"\d[\d.,]*"
WORD = "two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|thirty|fifty|hundred|several"
SIZE = "(?:bytes|B|[KMG]i?B)"
MEASURED = re.compile(
    "|".join(
        [
            rf"{NUMBER} ?(?:µs|us|ns)\b",
            rf"{NUMBER}(?: ?[kM]| thousand| million)?(?: \w+)?(?: ?/ ?| per | a )(?:s|second)\b",
            rf"{NUMBER} ?×",
            rf"\b(?:{NUMBER}|{WORD}) times (?:as|faster|slower|more|less|fewer)\b",
            r"\b(?:twice|half|a tenth) (?:as (?:fast|much|many|slow|long)|the (?:CPU|time|rate))\b",
            rf"{NUMBER} ?% (?:faster|slower|more|less|fewer|longer|of a\s+core|of the CPU)\b",
            rf"{NUMBER} ?m?s of CPU\b",
            rf"\b(?:takes?|costs?|uses?|needs?)(?: about| up to| only| at most| less than)?"
            rf" {NUMBER} (?:ms|{SIZE})\b",
            rf"{NUMBER} instructions\b",
            rf"\bp(?:50|90|99|99\.9)(?: of| is)? {NUMBER}",
            rf"{NUMBER} {SIZE} (?:per|for each) (?:message|connection|channel|topic)\b",
        ]
    ).replace(" ", r"\s")  # a line may end within a figure
)

# Figures that nothing measures, by page and text.
LIMIT = "a limit that nsqcy enforces"
SETTING = "an option or its default"
ALLOWED = {
    ("docs/NSQADMIN.md", "needs 34,560 bytes"): "the size of its arrays",
    ("docs/POLICIES.md", "needs at most 40 bytes"): "the size of its arrays",
    ("docs/internals/keys.md", "costs 24 bytes"): "the size of its arrays",
    ("docs/REPLICATION.md", "4 MiB/s"): SETTING,
    ("docs/SPARK.md", "need 2 GB"): SETTING,
    ("docs/internals/broker.md", "32 per second"): LIMIT,
    ("docs/internals/nsqadmin.md", "10 ms of CPU"): "a limit that loadtest/turns checks",
    ("docs/reference/commands.md", "110 messages per second"): "what --demo publishes",
    ("docs/runbooks/README.md", "100 % of a core"): "a symptom",
    ("docs/runbooks/busy-worker.md", "100 % of a core"): "a symptom",
    ("docs/runbooks/capacity.md", "half as fast"): "explains the value 0.5 of an option",
}


def typed(text: str) -> list[tuple[int, str]]:
    """Return the figures that a page contains outside of generated blocks and code, with lines."""
    for part in (BLOCK, FENCE, CODE):
        text = part.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return [
        (text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()))
        for found in MEASURED.finditer(text)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_typed_by_hand(page: Path) -> None:
    if page.name in GENERATED:
        return
    name = str(page.relative_to(ROOT))
    found = [
        f"{name}:{line}: {figure}"
        for line, figure in typed(page.read_text())
        if (name, figure) not in ALLOWED
    ]
    assert found == [], "generate it from docs/benchmarks.json (release/figures.py), or drop it"


def test_every_exception_is_needed() -> None:
    found = {
        (str(page.relative_to(ROOT)), figure)
        for page in PAGES
        for _, figure in typed(page.read_text())
    }
    assert ALLOWED.keys() - found == set()


@pytest.mark.parametrize(
    "text",
    [
        "A publish takes 0.12 µs.",
        "Consuming is 14 times\nas fast as with another broker.",
        "It delivers 250 k messages per second.",
        "| a connection | 1,856 B per connection |",
        "nsqd has 4.2 × its rate.",
        "A scrape takes about 15 ms of CPU time.",
        "p99 is 2 ms",
    ],
)
def test_typed_figures_are_found(text: str) -> None:
    assert typed(text)


@pytest.mark.parametrize(
    "text",
    [
        "It waits for at most 5 s, and retries after 250 ms.",
        "```text\n1,000 msg/s\n```\n",
        "The option `--rate=5/s`",
        "<!-- begin x -->\n0.12 µs\n<!-- end x -->\n",
    ],
)
def test_limits_code_and_generated_blocks_pass(text: str) -> None:
    assert typed(text) == []
