"""The quick start of docs/SPARK.md, typed as printed, with daemons that are still empty."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from nsqcy.pipeline.streams import SLOW
from support.doc_examples import Block, Reader, blocks
from support.spark_requirements import QUICK_JAVA, QUICK_PYTHON
from support.up_process import Up

pytestmark = [pytest.mark.spark, pytest.mark.ours]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SPARK.md").read_text()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """PATH without an activated environment: its python3 has none of the packages."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.base_exec_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    (flags,) = re.findall(r"^nsqcy up (.*?) *#", PAGE, re.MULTILINE)
    both = Up(tmp_path, *flags.split())
    try:
        yield both.serving()
    finally:
        both.destroy()


def programs(typed: list[Block]) -> Iterator[Block]:
    """Yield the blocks, with consecutive Python blocks joined to one script."""
    for language, run in groupby(typed, lambda block: block.language):
        several = list(run)
        if language == "python":
            text = "\n".join(each.text for each in several)
            printed = "...".join(each.printed.strip() for each in several if each.printed)
            yield Block(language, text, printed)
        else:
            yield from several


@pytest.mark.timeout(600)
def test_the_quick_start(tmp_path: Path, path: str, up: Up) -> None:
    """Run the script with an explicit Python interpreter, because the environment is not
    activated."""
    assert up.nsqd.get("/stats", format="json").json()["topics"] == []
    ports = {4150: up.tcp_port, 4151: up.nsqd.port, 4161: up.lookupd.port}
    reader = Reader(tmp_path, ports=ports)
    typed = list(programs(blocks(PAGE, "quick-start")))
    assert [block.language for block in typed] == ["sh", "python", "sh"]
    for block in typed:
        if block.language == "sh":
            reader.type(block)
            continue
        script = tmp_path / "script.py"
        script.write_text(block.typed(ports))
        done = None
        while done is None or SLOW in done.stderr:  # on a busy machine
            done = subprocess.run(
                [sys.executable, script],
                cwd=tmp_path,
                env=reader.environment | {"PATH": path, "PYTHONPATH": QUICK_PYTHON},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=500,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        assert block.is_what(done.stdout, ports), done.stdout
