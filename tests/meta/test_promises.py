"""A promise stands beside its condition.

A page that owns a limit of nsqcy marks it above the text that states it:

    <!-- limit NAME
    promises: words | words
    unless: words | words -->

A further page that states the same limit has `<!-- limit NAME -->`. Elsewhere, a paragraph with one
of the promises links to one of these pages, or contains one of the words after `unless`. An item of
a list and a row of a table are paragraphs; a heading belongs to the paragraph below it.

It cannot find:

- a promise in other words than those that a marker lists
- a promise that is wrong although its limit is linked or named beside it
- a limit that no marker states
- promises in docs/internals (for contributors; facts that the tests check), code blocks, the
  CHANGELOG, and texts of the programs
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from release.language import FENCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.parent != DOCS / "internals"),
]
NAMES = {"clients", "exactly once", "kill -9", "loss", "machine"}

MARKER = re.compile(
    r"<!-- limit (?P<name>[^\n]+?)"
    r"(?:\npromises: (?P<promises>[^\n]+)\nunless: (?P<unless>[^\n]+))? -->\n"
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)[^)]*\)")
BEGINS = re.compile(r" *(?:[-*|]|\d+\.) ?")


class Limit(NamedTuple):
    promises: re.Pattern[str]
    unless: re.Pattern[str]
    owners: set[Path]


def limits() -> dict[str, Limit]:
    marked = [(page, found) for page in PAGES for found in MARKER.finditer(page.read_text())]
    named = {
        found["name"]: Limit(_any(found["promises"]), _any(found["unless"]), set())
        for _, found in marked
        if found["promises"]
    }
    for page, found in marked:
        named[found["name"]].owners.add(page)
    return named


def _any(words: str) -> re.Pattern[str]:
    """Return a pattern for any of the words; a space matches a hyphen and a line feed."""
    each = (re.escape(word.strip()).replace(r"\ ", r"[\s-]+") for word in words.split("|"))
    return re.compile(rf"(?<!\w)(?:{'|'.join(each)})(?!\w)", re.IGNORECASE)


def paragraphs(text: str) -> Iterator[str]:
    """Return the paragraphs of a page without code blocks and comments."""
    lines: list[str] = []
    for line in [*COMMENT.sub("", FENCE.sub("", text)).splitlines(), "", "# "]:
        heading = line.startswith("#")
        below_heading = len(lines) == 1 and lines[0].startswith("#") and not heading
        ends = heading or BEGINS.match(line) or not line.strip()
        if lines and ends and not below_heading:
            yield "\n".join(lines)
            lines = []
        if line.strip():
            lines.append(line)


def unconditional(page: Path, text: str, limit: Limit) -> list[str]:
    """Return the promises on a page whose limit the paragraph does not mention."""
    if page in limit.owners:
        return []
    return [
        f"{page.relative_to(ROOT)}: {found[0]}: {paragraph[:100]}"
        for paragraph in paragraphs(text)
        if (found := limit.promises.search(paragraph))
        and not limit.unless.search(paragraph)
        and not limit.owners
        & {(page.parent / target).resolve() for target in LINK.findall(paragraph)}
    ]


LIMITS = limits()


def test_every_limit_is_marked() -> None:
    assert LIMITS.keys() == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_promise_stands_beside_its_condition(name: str) -> None:
    limit = LIMITS[name]
    found = [promise for page in PAGES for promise in unconditional(page, page.read_text(), limit)]
    owners = ", ".join(str(owner.relative_to(ROOT)) for owner in sorted(limit.owners))
    assert found == [], f"add the condition, or link to {owners}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Messages survive `kill -9`.", 1),
        ("Messages\nsurvive\n`kill -9`.\n\nSee [classes](DURABILITY.md).", 1),
        ("- They survive `kill -9`.\n- In class `os`, they are on disk.", 1),
        ("# They survive `kill -9`\n\nIn class `os`.", 0),
        ("Messages survive `kill -9` ([classes](DURABILITY.md#what-survives-what)).", 0),
        ("In class `os`, messages survive\n`kill -9`.", 0),
        ("```sh\n# survives `kill -9`\n```\n", 0),
    ],
)
def test_a_condition_is_looked_for_in_the_same_paragraph(text: str, found: int) -> None:
    assert len(unconditional(DOCS / "page.md", text, LIMITS["kill -9"])) == found
