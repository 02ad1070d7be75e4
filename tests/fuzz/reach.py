"""Coverage of inputs: a minimal set with the same coverage, and the covered share of a target's
files.

libFuzzer counts edges in the functions of the compiled files; this module counts lines of the
Python files. (`make cov TESTS=tests/fuzz/test_corpus.py` counts lines of both, with a separate
build.)
"""

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
BUCKETS = 8  # features of one edge, for different hit counts
OURS = re.compile(r"COVERED_FUNC: hits: \d+ edges: (\d+)/(\d+) __pyx_(?:f|pf|pw)_\w+ (\S+):\d+")


def name_of(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:12]


def minimum(control: str, max_size: int) -> list[str]:
    """Return files that together reach every edge of a control file of libFuzzer's merge. Files
    with the most edges for their size come first."""
    lines = control.splitlines()
    paths = lines[2 : 2 + int(lines[0])]
    sizes: dict[int, int] = {}
    reached: dict[int, set[int]] = {}
    for line in lines[2 + len(paths) :]:
        kind, *numbers = line.split()
        if kind == "STARTED":
            sizes[int(numbers[0])] = int(numbers[1])
        elif kind == "FT":
            reached[int(numbers[0])] = {int(each) // BUCKETS for each in numbers[1:]}
    chosen: list[str] = []
    left = max_size
    while True:
        gains = {
            index: len(edges) / (64 + sizes[index])
            for index, edges in reached.items()
            if edges and sizes[index] <= left
        }
        if not gains:
            return [paths[index] for index in chosen]
        best = max(gains, key=lambda index: (gains[index], -index))
        chosen.append(best)
        left -= sizes[best]
        known = reached.pop(best)
        for edges in reached.values():
            edges -= known


def edges(log: str, file: str) -> tuple[int, int]:
    """Return the number of edges passed and the number of edges in a .pyx, from the output of
    -print_coverage."""
    found = [
        (int(passed), int(all_))
        for passed, all_, path in OURS.findall(log)
        if path.endswith(f"/{file}")
    ]
    return sum(passed for passed, _ in found), sum(all_ for _, all_ in found)


def lines(target: Any, inputs: Iterable[bytes], files: list[str]) -> dict[str, tuple[int, int]]:
    """Return, for each .py, the number of lines in functions that the inputs reach, and their
    total."""
    paths = {str(ROOT / "nsqcy" / file): file for file in files}
    seen: dict[str, set[int]] = {path: set() for path in paths}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        reached = seen.get(frame.f_code.co_filename)
        if reached is None:
            return None
        reached.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        for data in inputs:
            target.one(data)
    finally:
        sys.settrace(None)
    found = {}
    for path, file in paths.items():
        there = _function_lines(compile(Path(path).read_text(), path, "exec"))
        found[file] = (len(seen[path] & there), len(there))
    return found


def _function_lines(code: CodeType, inside: bool = False) -> set[int]:
    found = {line for _, _, line in code.co_lines() if line} if inside else set()
    for each in code.co_consts:
        if isinstance(each, CodeType):
            # The body of a class runs when its module is imported.
            found |= _function_lines(each, bool(each.co_flags & 2))
    return found
