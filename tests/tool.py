"""A command-line tool under test: run to its end, or watched while it runs."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from daemon import environment


def command(name: str) -> list[str]:
    return [sys.executable, "-m", f"nsqcy.tools.{name}"]


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
    """With pipes for stdout and stderr; killed in the end if it has not left by itself."""
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
