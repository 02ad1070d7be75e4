"""The examples pass a strict type check. `make lint` checks nsqcy itself, and its stubs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
