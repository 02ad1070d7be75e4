"""nsq_to_file under test: a process that may be killed and restarted, and its directories."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.nsqd_process import environment


class ToFile:
    """A process whose directories are `out` and, if `work` is set, `work`."""

    def __init__(self, path: Path, *args: str, work: bool = False) -> None:
        self.out = path / "out"
        self.work = path / "work"
        self.args = [*args, f"--output-dir={self.out}"]
        if work:
            self.args.append(f"--work-dir={self.work}")
        self._log = path / "nsq_to_file.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *args: str, limit: str = "") -> "ToFile":
        """`limit`: the arguments of ulimit."""
        words = [*tool_process.command("nsq_to_file"), *self.args, *args]
        if limit:
            words = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self, timeout: float = 40.0) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"nsq_to_file is still running; its log:\n{self.log()}") from None

    def stop(self) -> None:
        """Send SIGTERM; the exit must be clean."""
        self.send(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"nsq_to_file exited with status {code}; its log:\n{self.log()}"

    def destroy(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def await_log(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.log().count(text) >= times or self._must_run())

    def _must_run(self) -> bool:
        assert self.process.poll() is None, f"nsq_to_file has exited; its log:\n{self.log()}"
        return False

    def files(self, folder: Path | None = None) -> dict[str, bytes]:
        """Return the contents of files by path."""
        root = folder or self.out
        return dict(sorted(_files(root))) if root.exists() else {}

    def lines(self) -> list[bytes]:
        """Return the contents of all files in `out`."""
        return b"".join(self.files().values()).splitlines()

    def await_lines(self, *lines: bytes) -> None:
        eventually(lambda: sorted(self.lines()) == sorted(lines) or self._must_run())


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):
                yield str(path.relative_to(root)), path.read_bytes()
