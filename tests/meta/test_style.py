"""Style rules for all text files and all modules that no linter checks."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = {".venv", "build", "dist", "data", "node_modules", "__pycache__"}
TEXT = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".md", ".txt", ".ini", ".toml", ".js", ".json"}
TEXT |= {".in", ".conf", ".service", ".socket", ".yaml"}
NAMES = {"Dockerfile", "Makefile", "run"}
# zsh interprets the name in brackets as a pattern, which no file matches.
UNQUOTED = re.compile(r"""pip install [^`#]*?(?<!["'\w.])[\w.]+\[[\w,{}]+\]""")

# Split so that this file does not contain the words itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE = re.compile(r"(?<![\w.])/(root|home/\w+|Users/\w+|work|tmp/w)/")
BARE_EXCEPT = re.compile(r"^\s*except\s*:", re.MULTILINE)


def listed() -> list[Path]:
    """Return the tracked and the new files of git; without git, all files that are not built."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(git, check=True, capture_output=True).stdout.split(b"\0")
        found = [ROOT / name.decode() for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not BUILT & set(path.parts)]
    return [path for path in found if path.is_file()]


FILES = [path for path in listed() if path.suffix in TEXT or path.name in NAMES]


def offenders(pattern: re.Pattern[str], *suffixes: str) -> Iterator[str]:
    for path in FILES:
        if suffixes and path.suffix not in suffixes:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def docstring(path: Path) -> str | None:
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(path.read_text()))
    found = re.match(r'\s*(?:#[^\n]*\n\s*)*"""(.+?)"""', path.read_text(), re.DOTALL)
    return found and found[1]


def test_extras_are_quoted() -> None:
    assert list(offenders(UNQUOTED)) == []


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("nsqcy[spark]", True),
        ("-e .[load]", True),
        ("nsqcy[{extra}]", True),
        ('"nsqcy[spark,plots]"', False),
        ("-e '.[load]'", False),
        ("nsqcy==0.1.0  # not [this]", False),
    ],
)
def test_the_checker_sees_an_extra_without_quotes(words: str, bad: bool) -> None:
    line = f"/opt/nsqcy/bin/pip install {words}"
    assert bool(UNQUOTED.search(line)) == bad


def test_files_are_found() -> None:
    assert {ROOT / "setup.py", ROOT / "Makefile", ROOT / "cext/nsqcy/broker/topic.pyx"} <= set(
        FILES
    )


def test_nothing_is_left_for_later() -> None:
    assert list(offenders(UNFINISHED)) == []


def test_no_path_of_one_machine() -> None:
    assert list(offenders(MACHINE)) == []


def test_what_is_caught_is_named() -> None:
    assert list(offenders(BARE_EXCEPT, ".py", ".pyx")) == []


@pytest.mark.parametrize("suffix", [".py", ".pyx"])
def test_every_module_says_what_it_is(suffix: str) -> None:
    modules = [path for path in FILES if path.suffix == suffix and path.read_text().strip()]
    assert [str(path.relative_to(ROOT)) for path in modules if not docstring(path)] == []


def test_text_ends_with_one_newline() -> None:
    wrong = []
    for path in FILES:
        text = path.read_bytes()
        if text and (not text.endswith(b"\n") or text.endswith(b"\n\n") or b"\r" in text):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
