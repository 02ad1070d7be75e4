"""The commands of the quick start in docs/PIPELINE.md, run as printed."""

import re
import resource
import shutil
import socket
import subprocess
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import Web, eventually
from support.doc_examples import Reader, blocks
from support.spark_requirements import QUICK_JAVA, QUICK_PYTHON
from support.up_process import Up

pytestmark = [pytest.mark.spark, pytest.mark.ours]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "PIPELINE.md").read_text()
JOB = "nsqcy-pipeline archive "
BAR_SECONDS = 300.0
NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "node_modules", "*.so", "*.egg-info", "__pycache__"
)


def flags_of_up() -> list[str]:
    (found,) = re.findall(r"^nsqcy up (.*?) *#", PAGE, re.MULTILINE)
    return found.split()


def test_the_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemons use free ports, so the job needs the address of nsqd."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    monkeypatch.setenv("PYTHONPATH", f"{QUICK_PYTHON}:{ROOT}")
    typed = blocks(PAGE, "quick-start")
    both = Up(tmp_path, *flags_of_up())
    try:
        port = both.serving().tcp_port
        reader = Reader(tmp_path, ports={4150: port})
        assert len(typed) == 3 and JOB in typed[1].text
        for block in typed:
            told = block.text.replace(JOB, f"{JOB}--nsqd-tcp-address=127.0.0.1:{port} ")
            reader.type(block._replace(text=told), timeout=240)
    finally:
        both.destroy()


# --- with the installation --------------------------------------------------------------------


def taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def core_seconds() -> float:
    """Return the CPU seconds of all child processes that have been waited for."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


@contextmanager
def running(reader: Reader, folder: Path) -> Iterator[None]:
    """Run `nsqcy up` on the default ports."""
    process = subprocess.Popen(
        ["nsqcy", "up", *flags_of_up()],
        cwd=folder,
        env=reader.environment,
        stdin=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: taken(4151) and Web(4151).get("/ping").body == b"OK", 60)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_quick_start_from_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all commands of the page in an empty environment. The limit is for CPU time, because
    elapsed time depends on the machine; it is only printed."""
    for port in (4150, 4151, 4160, 4161, 4171):
        if taken(port):
            pytest.skip(f"port {port} is in use")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    tree, home = tmp_path / "tree", tmp_path / "home"
    shutil.copytree(ROOT, tree, ignore=NOT_SOURCES)
    home.mkdir()
    begun, used = time.monotonic(), core_seconds()
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"{tree}[spark]"], check=True)
    installed = time.monotonic()
    reader = Reader(home, python)
    with running(reader, home):
        for block in blocks(PAGE, "quick-start"):
            reader.type(block, timeout=240)
    end = time.monotonic()
    used = core_seconds() - used
    print(f"{installed - begun:.0f} s for the installation, {end - installed:.0f} s for the rest")
    print(f"{used:.0f} s of CPU time")
    assert used < BAR_SECONDS
