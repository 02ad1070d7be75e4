"""Stubs say what the compiled modules have: all of it, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOW = Path(__file__).with_name("stubtest.allow")
MODULES = sorted(path.stem for path in (ROOT / "cext" / "nsqcy").glob("*.pyx"))


def test_every_compiled_module_has_a_stub() -> None:
    assert sorted(path.stem for path in (ROOT / "nsqcy").glob("_*.pyi")) == MODULES


def test_stubs_are_true() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    stubtest = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases"]
    modules = [f"nsqcy.{name}" for name in MODULES]
    done = subprocess.run(
        [*stubtest, "--allowlist", str(ALLOW), *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
