"""What the documents tell a reader to type works.

A block that says so (`tests/documents.py`) is run against a daemon of the test's own: its ports
stand in for 4150 and 4151. Blocks of one document share the daemon, in the order of the page.
"""

import re
import shutil
from pathlib import Path

import pytest
from conftest import Starter
from documents import Reader, blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TESTED = [page for page in PAGES if blocks(page.read_text())]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_what_it_says_to_type(page: Path, nsqd: Starter, workers: int, tmp_path: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    daemon = nsqd()
    reader = Reader(tmp_path, ports={4150: daemon.tcp_port, 4151: daemon.http_port})
    for block in blocks(page.read_text()):
        reader.type(block)


def test_the_readme_is_tried() -> None:
    assert ROOT / "README.md" in TESTED


def test_the_readme_begins_with_how_to_get_it_without_an_index() -> None:
    top = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert "`pip install .`" in top


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [page.parent / target for target in LINK.findall(page.read_text())]
    assert [str(target) for target in targets if not target.exists()] == []


ATTACKS = ("no token", "a wrong token", "outside of the pattern", "slow-loris over TCP")
ATTACKS += ("slow-loris over HTTP", "compressed bomb", "huge IDENTIFY", "path tricks")
ATTACKS += ("header smuggling", "flood of headers", "CSRF", "logs")


def test_every_attack_names_its_test() -> None:
    page = (ROOT / "docs" / "SECURITY.md").read_text()
    table = page.partition("| attack | what happens | test |")[2].splitlines()[2:]
    rows = [line for line in table if line.startswith("|")]
    assert [each for each in ATTACKS if not any(each in row for row in rows)] == []
    assert [line for line in rows if not re.search(r"`tests/[\w/]+\.py::\w+`", line)] == []


def test_tests_that_are_named_exist() -> None:
    """A page that says which test proves what it says."""
    named = {
        each
        for page in PAGES
        for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    }
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or f"\ndef {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []
