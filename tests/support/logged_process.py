"""A process under test that logs to stderr, started in its own session."""

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Any

LISTENING = re.compile(r"\b(TCP|HTTP|HTTPS): listening on (\S+)")
CHUNK = 65536


class Logged:
    """A process that may be started repeatedly; the log covers all of its runs."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}  # lines that announce its addresses
        self._log: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: LogReader | None = None

    def _spawn(self, words: list[str], **options: Any) -> None:
        self.addresses = {}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
        assert self._process.stderr is not None
        self._reader = LogReader(self._process.stderr, self._add_line)
        self._reader.start()

    def _add_line(self, line: str) -> None:
        self._log.append(line)
        if found := LISTENING.search(line):
            self.addresses[found[1]] = found[2]

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def still_starting(self, deadline: float) -> None:
        """Wait a moment for a process that must be ready at this time on the monotonic clock."""
        assert self.alive(), f"exited with {self.process.returncode}; its log:\n{self.tail()}"
        assert time.monotonic() < deadline, f"not ready; its log:\n{self.tail()}"
        time.sleep(0.01)

    def stop(self, timeout: float = 40.0) -> None:
        """Send SIGTERM; the exit must be clean."""
        self.process.send_signal(signal.SIGTERM)
        code = self.wait(timeout)
        assert code == 0, f"exited with status {code}; its log:\n{self.tail()}"

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def destroy(self) -> None:
        """Kill the process, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.join_log(5)

    def wait(self, timeout: float = 40.0) -> int:
        """Return the exit code. The log is complete once this returns."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            message = f"still runs after {timeout} s; its log:\n{self.tail()}"
            raise AssertionError(message) from None
        self.join_log(timeout)
        return code

    def log_is_closed(self) -> bool:
        """Return whether every process that had this stderr has closed it."""
        return self._reader is None or not self._reader.is_alive()

    def join_log(self, timeout: float) -> None:
        """Wait until all processes that have this stderr have closed it."""
        if self._reader is not None:
            self._reader.join(timeout)

    def log_text(self) -> str:
        """Return the log, including everything written before this call."""
        if self._reader is not None:
            self._reader.catch_up()
        return "".join(self._log)

    def tail(self, lines: int = 200) -> str:
        return "".join(self.log_text().splitlines(keepends=True)[-lines:])


class LogReader(threading.Thread):
    """Reads the lines of one run as they arrive. On a busy machine, the thread may be late:
    `catch_up` reads everything written so far."""

    def __init__(self, pipe: IO[bytes], add_line: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._add_line = add_line
        self._rest = b""
        self._lock = threading.Lock()
        os.set_blocking(pipe.fileno(), False)

    def run(self) -> None:
        readable = select.poll()
        readable.register(self._pipe, select.POLLIN)
        while self.catch_up():
            readable.poll()

    def catch_up(self) -> bool:
        """Read all that the pipe holds; return whether more may follow."""
        with self._lock:
            while data := self._available():
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._add_line(line.decode(errors="replace") + "\n")
            if data is None:
                return True
            if self._rest:
                self._add_line(self._rest.decode(errors="replace"))
                self._rest = b""
            return False

    def _available(self) -> bytes | None:
        """Return b"" at the end, or None if nothing was written."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipe.fileno(), CHUNK)
        return None
