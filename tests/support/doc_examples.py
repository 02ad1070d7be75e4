"""Documents as readers use them: the blocks that they type, run in a directory.

A block is fenced as ```sh WORD or ```python WORD. A ```text block after it is its output, where
`...` matches anything. Ports on a page are replaced with the test's own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


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
    fence = rf"^```(sh|python) {word}\n(.*?)^```\n(?:\s*```text\n(.*?)^```\n)?"
    return [Block(*found) for found in re.findall(fence, page, re.MULTILINE | re.DOTALL)]


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
        if 4151 in self._ports:  # the nsqcy command queries the usual ports by default
            self.environment["NSQCY_NSQD_HTTP_ADDRESS"] = f"127.0.0.1:{self._ports[4151]}"

    def type(self, block: Block, timeout: float = 60.0) -> None:
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
