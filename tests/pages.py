"""Commands in documents: blocks fenced as ```sh test or ```python test.

A ```text block right behind one is what it prints, where `...` stands for anything.
"""

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"^```(sh|python) test\n(.*?)^```\n(?:\s*```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    language: str
    text: str
    printed: str

    def at(self, ports: dict[str, int], python: str) -> list[str]:
        """The command, with other ports than those of the page (":4150")."""
        text = self.text
        for port, ours in ports.items():
            text = re.sub(rf"{port}\b", f":{ours}", text)
        if self.language == "python":
            return [python, "-u", "-c", text]
        return ["bash", "-euo", "pipefail", "-c", text]

    def is_what(self, output: str) -> bool:
        pattern = ".*".join(map(re.escape, self.printed.strip().split("...")))
        return not self.printed or bool(re.fullmatch(pattern, output.strip(), re.DOTALL))


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]
