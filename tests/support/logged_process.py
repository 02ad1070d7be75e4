"""A process under test that logs to stderr, started in its own session."""

import re
import subprocess
import threading
from typing import Any

LISTENING = re.compile(r"\b(TCP|HTTP|HTTPS): listening on (\S+)")


class Logged:
    """A process that may be started repeatedly; the log covers all of its runs."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}  # lines that announce its addresses
        self._log: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def _spawn(self, words: list[str], **options: Any) -> None:
        self.addresses = {}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            **options,
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)
            if found := LISTENING.search(line):
                self.addresses[found[1]] = found[2]

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "not started"
        return self._process

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        return "".join(self._log)

    def tail(self, lines: int = 200) -> str:
        return "".join(self._log[-lines:])
