"""Running `work` under callgrind, and parsing callgrind's output."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 600  # seconds; it takes about fifteen
VALGRIND = ["valgrind", "-q", "--tool=callgrind", "--dump-before=getppid", "--dump-line=no"]

# The environment contains nothing from the caller, because its size moves the stack. libc's copies
# use loops without `rep` instructions, because valgrind counts those once per byte. A large buffer
# grows by moving pages; otherwise the memory after the buffer would decide whether it grows in
# place or is copied.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": str(ROOT),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-ERMS,-FSRM:glibc.malloc.mmap_threshold=32768",
}

TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)
SUFFIX = re.compile(r"('\d+|\.(constprop|part|isra|cold|lto_priv)(\.\d+)*)+$")
VARIANT = re.compile(r"__(mem\w+?|str\w+?)_(?:sse|avx|evex|asimd|generic)\w*$")  # of libc
MANGLED = re.compile(r"__pyx_(?:f|fuse_\d+_f|pf|pw|tp_new|tp_new_vectorcall|tp_dealloc)_(?=\d)")


class Failure(Exception):
    """Counting failed."""


class Count(NamedTuple):
    """Result for one kind of work. `functions`: instructions of each (module, function) by
    itself."""

    messages: int
    instructions: int
    functions: Counter[tuple[str, str]]

    @property
    def each(self) -> float:
        return self.instructions / self.messages


def readable(mangled: str) -> str:
    """Return the name in the source of one of Cython's C functions: Session.put_frame."""
    name = VARIANT.sub(r"\1", SUFFIX.sub("", mangled))
    found = MANGLED.match(name)
    if not found:
        return name
    rest = name[found.end() :]
    parts = []
    while digits := re.match(r"\d+", rest):
        end = digits.end() + int(digits[0])
        if rest[end : end + 1] != "_":
            rest = rest[digits.end() :]  # the number of a def, not a length
            break
        parts.append(rest[digits.end() : end])
        rest = rest[end + 1 :]
    return ".".join([*parts[3:], rest])  # without the packages and the module


def self_costs(lines: Iterable[str]) -> Counter[tuple[str, str]]:
    """Return instructions by (object file, function), without those of called functions."""
    names: dict[tuple[str, str], str] = {}

    def name(kind: str, text: str) -> str:
        """Each name is written out once, after its number."""
        number, _, full = text.partition(" ")
        return names.setdefault((kind, number), full) if full else names[kind, number]

    costs: Counter[tuple[str, str]] = Counter()
    here = module = ""
    callee = False
    for line in lines:
        key, equals, value = line.rstrip("\n").partition("=")
        if equals and key == "ob":
            module = name("ob", value)
        elif equals and key == "fn":
            here = name("fn", value)
        elif equals and key in ("cob", "cfn"):
            name(key[1:], value)
        elif equals and key == "calls":
            callee = True
        elif not equals and line[:1] in "0123456789+-*" and line[:1]:
            if not callee:
                costs[Path(module).name.partition(".")[0], readable(here)] += int(line.split()[1])
            callee = False
    return costs


def fixed_addresses() -> list[str]:
    """Return the prefix of a command that runs it with fixed addresses, where that is allowed.
    Without it, figures differ by a few tenths of a percent between runs."""
    words = ["setarch", "-R"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return words


def count() -> dict[str, Count]:
    """Do the work, and count it."""
    if not shutil.which("valgrind"):
        raise Failure("valgrind is not installed (Debian: apt-get install valgrind)")
    with TemporaryDirectory() as folder:
        output = f"--callgrind-out-file={folder}/out"
        command = [
            *fixed_addresses(),
            *VALGRIND,
            output,
            sys.executable,
            "-m",
            "loadtest.perfcheck.work",
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=MAX_SECONDS
        )
        if done.returncode:
            raise Failure(f"the work has failed\n{done.stderr}")
        found = json.loads(done.stdout)
        dumps = len(os.listdir(folder)) - 1  # the last is what followed the last stretch
        if not found or dumps != found[-1][0]:
            raise Failure(f"callgrind has written {dumps} dumps\n{done.stderr}")
        return gather(Path(folder), found)


def gather(folder: Path, stretches: list[tuple[int, str, int]]) -> dict[str, Count]:
    counts: dict[str, Count] = {}
    for dump, name, messages in stretches:
        text = (folder / f"out.{dump}").read_text()
        total = TOTAL.search(text)
        if not total:
            raise Failure(f"dump {dump} has no total")
        before = counts.get(name, Count(0, 0, Counter()))
        counts[name] = Count(
            before.messages + messages,
            before.instructions + int(total[1]),
            before.functions + self_costs(text.splitlines()),
        )
    return counts
