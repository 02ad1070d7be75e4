"""What the documents tell a reader to type works.

A block fenced as ```sh test or ```python test is run against a daemon of the test's own: its ports
stand in for 4150 and 4151. Blocks of one document share the daemon, in the order of the page. A
```text block right behind one is what it prints, where `...` stands for anything.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Starter
from daemon import Nsqd

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^```(sh|python) test\n(.*?)^```\n(?:\s*```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


class Block(NamedTuple):
    language: str
    text: str
    printed: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


TESTED = [page for page in PAGES if blocks(page)]


def command(block: Block, daemon: Nsqd) -> list[str]:
    ports = {":4150": f":{daemon.tcp_port}", ":4151": f":{daemon.http_port}"}
    text = re.sub(r":415[01]\b", lambda found: ports[found[0]], block.text)
    if block.language == "python":
        return [sys.executable, "-u", "-c", text]
    return ["bash", "-euo", "pipefail", "-c", text]


def pattern(printed: str) -> str:
    return ".*".join(map(re.escape, printed.strip().split("...")))


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
    for block in blocks(page):
        done = subprocess.run(
            command(block, daemon),
            cwd=tmp_path,
            env=quiet_home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        if block.printed:
            assert re.fullmatch(pattern(block.printed), done.stdout.strip(), re.DOTALL), block.text


def test_the_readme_is_tried() -> None:
    assert ROOT / "README.md" in TESTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [page.parent / target for target in LINK.findall(page.read_text())]
    assert [str(target) for target in targets if not target.exists()] == []


def test_every_attack_names_its_test() -> None:
    page = (ROOT / "docs" / "SECURITY.md").read_text()
    table = page.partition("| attack | what happens | test |")[2].splitlines()[2:]
    rows = [line for line in table if line.startswith("|")]
    assert len(rows) > 15
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
