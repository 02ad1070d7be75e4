"""Runs the code blocks of a page in a directory, as a reader would type them.

A block is fenced as ```sh WORD or ```python WORD. A ```text block after such a block is the
expected output, in which `...` matches anything. Ports on a page are replaced with the test's own.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nsqcy.testing.http_requests import eventually

BUDGET = 60.0  # seconds, on a busy machine


class Block(NamedTuple):
    language: str
    text: str
    printed: str

    def typed(self, ports: Mapping[int, int]) -> str:
        """Return the text with the page's ports replaced."""
        return _with_ports(self.text, ports)

    def command(self, ports: Mapping[int, int], python: str = sys.executable) -> list[str]:
        """Return the command that runs the block."""
        text = self.typed(ports)
        if self.language == "python":
            return [python, "-u", "-c", text]
        return ["bash", "-euo", "pipefail", "-c", text]

    def is_what(self, output: str, ports: Mapping[int, int]) -> bool:
        """Return whether the output matches the page."""
        printed = _with_ports(self.printed.strip(), ports)
        wanted = ".*".join(map(re.escape, printed.split("...")))
        return not self.printed or bool(re.fullmatch(wanted, output.strip(), re.DOTALL))


def _with_ports(text: str, ports: Mapping[int, int]) -> str:
    for named, real in ports.items():
        text = re.sub(rf":{named}\b", f":{real}", text)
    return text


def blocks(page: str, word: str = "test") -> list[Block]:
    return [block for found, block in steps(page) if found == word]


def steps(page: str) -> list[tuple[str, Block]]:
    """Return the word and the block of every marked fence, in order."""
    fence = r"^```(sh|python) (\S+)\n(.*?)^```\n(?:\s*```text\n(.*?)^```\n)?"
    found = re.findall(fence, page, re.MULTILINE | re.DOTALL)
    return [(word, Block(language, *rest)) for language, word, *rest in found]


class Reader:
    """A reader who types the examples, with the commands of a Python installation."""

    def __init__(
        self, folder: Path, python: str = sys.executable, ports: Mapping[int, int] | None = None
    ) -> None:
        self._folder = folder
        self._python = python
        self._ports = ports or {}
        path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
        self.environment = os.environ | {"HOME": str(folder), "PATH": path}
        if 4151 in self._ports:  # the nsqcy command queries the default ports
            self.environment["NSQCY_NSQD_HTTP_ADDRESS"] = f"127.0.0.1:{self._ports[4151]}"

    def type(self, block: Block, timeout: float = BUDGET) -> None:
        """Run a block, which must succeed and print the output shown on the page."""
        done = subprocess.run(
            block.command(self._ports, self._python),
            cwd=self._folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        assert block.is_what(done.stdout, self._ports), done.stdout

    def save(self, name: str, block: Block) -> None:
        """Save a block as a file."""
        (self._folder / name).write_text(block.typed(self._ports))

    def type_until_ctrl_c(self, block: Block) -> None:
        """Run a block until it has printed the output shown on the page, and then press Ctrl-C."""
        output = self._folder / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                block.command(self._ports, self._python),
                cwd=self._folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )

        def is_complete() -> bool:
            return block.is_what(output.read_text(), self._ports)

        try:
            eventually(lambda: is_complete() or process.poll() is not None, BUDGET)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(BUDGET) == 0 and is_complete(), output.read_text()
        finally:
            process.kill()
            process.wait()
