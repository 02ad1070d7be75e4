"""Draw texts at random, for an editor to judge the language of the project.

    python -m release.language_sample SEED > sample.txt

Draws 100 sentences from the pages, 100 strings that users see, and 100 docstrings and comments. The
same seed draws the same texts from the same tree.
"""

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from release.language import FENCE, ROOT, comments

COUNT = 100  # texts of each kind
MAX_STRING = 900  # characters; longer strings are programs or pages
MAX_COMMENT = 700  # characters that are shown
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md")
SOURCES = tuple(
    f"{folder}/**/*.{ending}"
    for folder in ("cext/nsqcy", "examples", "loadtest", "nsqcy", "pyspark_nsq", "release", "tests")
    for ending in ("py", "pyx", "pxd", "pyi")
)

_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(\[])|\n\s*\n|\n\s*(?=[-*#|>] ?)|\n\s*(?=\d+\. )")
_PROGRAM = re.compile(r"[;{}]\s*\w+:|^\s*<|function|=>|^SELECT")

Text = tuple[str, str]
"""The file of a text, and the text."""


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z][\w'-]*", re.sub(r"`[^`]*`", "x", text)))


def sentences() -> Iterator[Text]:
    """Yield the sentences, list items and table rows of the pages."""
    for path in _files(*PAGES):
        for part in _END.split(FENCE.sub("", path.read_text())):
            sentence = _joined(part)
            if words(sentence) >= 5:
                yield _place(path), sentence


def strings() -> Iterator[Text]:
    """Yield the string literals that may be texts for users. A format string's expressions are in
    braces."""
    for path in _files("nsqcy/**/*.py"):
        for node in _literals(ast.parse(path.read_text())):
            text = _joined(_literal_text(node))
            if words(text) >= 4 and len(text) < MAX_STRING and not _PROGRAM.search(text):
                yield _place(path), text


def remarks() -> Iterator[Text]:
    """Yield the docstrings and comments."""
    for path in (found for pattern in SOURCES for found in _files(pattern)):
        for line, text in comments(path.read_text()):
            remark = _joined(text)
            if words(remark) >= 4 and not remark.startswith(("noqa", "type:")):
                yield f"{_place(path)}:{line}", remark[:MAX_COMMENT]


def sample(seed: str) -> Iterator[str]:
    """Yield the lines of a sample."""
    chosen = random.Random(seed)
    for letter, found in (("D", sentences()), ("S", strings()), ("C", remarks())):
        for number, (place, text) in enumerate(chosen.sample(list(found), COUNT), 1):
            yield f"{letter}{number:03d} [{place}]\n    {text}\n"


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _joined(text: str) -> str:
    return " ".join(text.split())


def _literals(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the string literals that are neither docstrings nor parts of a format string."""
    excluded: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            excluded.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            excluded.update(each for each in ast.walk(node) if each is not node)
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (is_string or isinstance(node, ast.JoinedStr)) and node not in excluded:
            assert isinstance(node, ast.Constant | ast.JoinedStr)
            yield node


def _literal_text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(
        str(each.value)
        if isinstance(each, ast.Constant)
        else f"{{{ast.unparse(each.value)}}}"
        if isinstance(each, ast.FormattedValue)
        else ""
        for each in node.values
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m release.language_sample SEED\n\n{__doc__}")
    print("\n".join(sample(sys.argv[1])))
