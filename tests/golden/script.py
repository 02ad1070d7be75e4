"""Golden conversations: the format of their files, and helpers to read and cut them.

A file is read line by line: `>` is sent as written, `<` is expected, `#` is a comment. Escapes
such as `\\n` and `\\x00` stand for bytes, and `{topic}` for a name that is unique to this replay.
Consecutive lines to send are sent in one write.
"""

import itertools
import random
from pathlib import Path

HERE = Path(__file__).parent
Script = list[tuple[str, str]]


def conversations(folder: str = ".") -> list[Path]:
    return sorted((HERE / folder).glob("*.txt"))


def read(path: Path) -> Script:
    """Return the lines of a conversation as (`>` or `<`, text), with consecutive sent lines
    joined."""
    script: Script = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        side, text = line[0], line[2:]
        assert side in "<>" and line[1:2] in ("", " "), line
        if side == ">" and script and script[-1][0] == ">":
            script[-1] = (">", script[-1][1] + text)
        else:
            script.append((side, text))
    return script


def octets(text: str, names: dict[str, bytes]) -> bytes:
    """Return the bytes that a line stands for."""
    raw = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    for name, value in names.items():
        raw = raw.replace(b"{" + name.encode() + b"}", value)
    return raw


def pieces(data: bytes, cut: str, chance: random.Random) -> list[bytes]:
    if cut == "whole":
        return [data]
    if cut == "bytes":
        return [data[at : at + 1] for at in range(len(data))]
    count = min(chance.randint(1, 6), len(data) - 1)
    cuts = [0, *sorted(chance.sample(range(1, len(data)), max(count, 0))), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(cuts)]
