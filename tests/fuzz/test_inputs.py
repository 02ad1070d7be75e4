"""A failing input is not lost, no matter how the process fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import inputs

DEATH = """
import os, signal, sys
from pathlib import Path
from fuzz import inputs

def one(data):
    if data == b"bad":
        os.kill(os.getpid(), signal.SIGKILL)

run = inputs.kept(one, Path(sys.argv[1]))
for data in (b"good and longer", b"bad"):
    run(data)
"""


def fail(data: bytes) -> None:
    assert data != b"bad", "this one"


def test_what_raises_is_kept(tmp_path: Path) -> None:
    run = inputs.kept(fail, tmp_path)
    run(b"good")
    assert inputs.failed(tmp_path) == []
    with pytest.raises(AssertionError, match="this one"):
        run(b"bad")
    (path,) = inputs.failed(tmp_path)
    assert path.name.startswith("crash-") and path.read_bytes() == b"bad"
    raised = path.with_name(path.name + inputs.RAISED).read_text()
    assert raised.startswith("Traceback") and "AssertionError: this one" in raised
    inputs.save_running(tmp_path)
    assert inputs.failed(tmp_path) == [path]


def test_what_kills_is_kept(tmp_path: Path) -> None:
    """The parent process saves the input that killed its child."""
    command = [sys.executable, "-c", DEATH, str(tmp_path)]
    assert subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}).returncode == -9
    assert inputs.failed(tmp_path) == []
    inputs.save_running(tmp_path)
    (path,) = inputs.failed(tmp_path)
    assert path.read_bytes() == b"bad"


def test_an_input_that_passed_is_not_kept(tmp_path: Path) -> None:
    inputs.save_running(tmp_path)
    inputs.kept(fail, tmp_path)(b"good")
    inputs.save_running(tmp_path)
    assert inputs.failed(tmp_path) == []


def test_what_libfuzzer_keeps_is_not_kept_twice(tmp_path: Path) -> None:
    (tmp_path / "timeout-1").write_bytes(b"bad")
    with pytest.raises(AssertionError):
        inputs.kept(fail, tmp_path)(b"bad")
    for path in tmp_path.glob("crash-*"):
        path.unlink()
    inputs.save_running(tmp_path)
    assert inputs.failed(tmp_path) == [tmp_path / "timeout-1"]
