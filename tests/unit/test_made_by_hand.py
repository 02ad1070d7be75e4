"""At worst, creating objects of compiled classes directly raises an exception."""

import subprocess
import sys
from pathlib import Path

import pytest

import nsqcy

PROGRAM = Path(__file__).parents[1] / "support" / "misuse_objects.py"
PACKAGE = Path(nsqcy.__file__).parent
MODULES = sorted(
    ".".join([*path.relative_to(PACKAGE).parent.parts, path.name.partition(".")[0]])
    for path in PACKAGE.rglob("*.so")
)


def test_there_are_compiled_modules() -> None:
    assert "client.codec" in MODULES and len(MODULES) > 10


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_no_class_crashes_the_interpreter(module: str) -> None:
    words = [sys.executable, str(PROGRAM), f"nsqcy.{module}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    last = "\n".join(done.stdout.splitlines()[-3:])
    assert done.returncode == 0, f"after\n{last}\n{done.stderr}"
