"""Stubs match the compiled modules completely."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOW = Path(__file__).with_name("stubtest.allow")


def modules(folder: str, pattern: str) -> list[str]:
    paths = (ROOT / folder).rglob(pattern)
    return sorted(".".join(path.relative_to(ROOT / folder).with_suffix("").parts) for path in paths)


MODULES = modules("cext", "*.pyx")


def test_every_compiled_module_has_a_stub() -> None:
    """The stub of nsqcy itself declares names that are imported when they are first used."""
    assert modules(".", "nsqcy/*/**/*.pyi") == MODULES


@pytest.mark.slow
def test_stubs_are_true() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    stubtest = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases"]
    stubtest += ["--mypy-config-file", "pyproject.toml"]
    done = subprocess.run(
        [*stubtest, "--allowlist", str(ALLOW), *MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_examples_are_typed() -> None:
    pytest.importorskip("mypy")
    for name in ("celery", "django", "dramatiq", "fastapi", "faststream", "flask", "taskiq"):
        pytest.importorskip(name)
    examples = sorted(str(path) for path in (ROOT / "examples").glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *examples],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
