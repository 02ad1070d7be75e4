"""nsq_to_file under test: a process that may be killed and restarted, and its directories."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.logged_process import Logged
from support.nsqd_process import environment


class ToFile(Logged):
    """A process whose directories are `out` and, if `work` is set, `work`."""

    def __init__(self, path: Path, *args: str, work: bool = False) -> None:
        super().__init__()
        self.out = path / "out"
        self.work = path / "work"
        self.args = [*args, f"--output-dir={self.out}"]
        if work:
            self.args.append(f"--work-dir={self.work}")

    def start(self, *args: str, limit: str = "") -> "ToFile":
        """`limit`: the arguments of ulimit."""
        words = [*tool_process.command("nsq_to_file"), *self.args, *args]
        if limit:
            words = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *words]
        self._spawn(words, env=environment())
        return self

    def await_log(self, text: str, times: int = 1) -> None:
        eventually(lambda: self.log_text().count(text) >= times or self._must_run())

    def _must_run(self) -> bool:
        assert self.alive(), f"nsq_to_file has exited; its log:\n{self.log_text()}"
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
