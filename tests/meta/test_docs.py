"""What the documents tell a reader to type works.

A block that says so (`tests/pages.py`) is run against a daemon of the test's own: its ports stand
in for 4150 and 4151. Blocks of one document share the daemon, in the order of the page.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Starter
from pages import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


TESTED = [page for page in PAGES if blocks(page)]


@pytest.fixture
def quiet_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield os.environ | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:" + os.environ["PATH"],
    }


@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_what_it_says_to_type(
    page: Path, nsqd: Starter, workers: int, tmp_path: Path, quiet_home: dict[str, str]
) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    daemon = nsqd()
    ports = {":4150": daemon.tcp_port, ":4151": daemon.http_port}
    for block in blocks(page):
        done = subprocess.run(
            block.at(ports, sys.executable),
            cwd=tmp_path,
            env=quiet_home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        assert block.is_what(done.stdout), block.text


def test_the_readme_is_tried() -> None:
    assert ROOT / "README.md" in TESTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [page.parent / target for target in LINK.findall(page.read_text())]
    assert [str(target) for target in targets if not target.exists()] == []


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
