"""A command-line tool under test: run to completion, or observed while it is running."""

import contextlib
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.nsqd_process import environment

DATE = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", re.MULTILINE)


def command(name: str) -> list[str]:
    return [sys.executable, "-m", f"nsqcy.tools.{name}"]


def refusal(name: str, *args: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and the final error of a tool that does not start; runs in this process,
    which is fast."""
    code = importlib.import_module(f"nsqcy.tools.{name}").main(args)
    out, err = capfd.readouterr()
    assert out == ""
    return code, re.sub(DATE, "", err).removesuffix("\n")


def feed(data: bytes, name: str, *args: str) -> subprocess.CompletedProcess[bytes]:
    """Run with this input on stdin."""
    words = [*command(name), *args]
    return subprocess.run(words, env=environment(), input=data, capture_output=True, timeout=30)


def run(name: str, *args: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(name), *args],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@contextlib.contextmanager
def running(name: str, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """Run with pipes for stdout and stderr; kill it at the end if it has not exited on its own."""
    with subprocess.Popen(
        [*command(name), *args],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
