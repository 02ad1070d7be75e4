"""Language check for docs, docstrings and comments: a list of patterns, and long sentences.

    python -m release.language           every tracked text, as `make lint` does
    python -m release.language FILE...   some of them

It finds known bad habits, but cannot recognize good English.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TEXTS = ("*.md", "docs/**/*.md", "examples/**/*.md")
SOURCE_FOLDERS = (
    "cext/nsqcy",
    "examples",
    "loadtest",
    "nsqcy",
    "pyspark_nsq",
    "release",
    "tests/support",
)
SOURCES = tuple(
    f"{folder}/**/*.{ending}" for folder in SOURCE_FOLDERS for ending in ("py", "pyx", "pxd", "pyi")
)
MAX_WORDS = 45  # per sentence; the aim is 25

PATTERNS = {
    r"\b(?:[Ss]ome|[Aa]ny|[Ee]very|[Nn]o)body\b": "name the actor: a user, no consumer",
    r"\b(?:[Ww]hoever|[Ww]homever|[Ww]hom)\b": "name the actor",
    r"\bof which\b": "start a new sentence",
    r"\b(?:[Hh]e|[Hh]im|[Hh]is)\b": "it, they, the client, the user",
    r"\bforlorn\b": "unused",
    r"\b(?:let|lets|letting) go\b": "release, free, drop",
    r"\b(?:is|are|was|be|been) (?:told|asked)\b": "gets, receives, is queried, is configured",
    r"\bso (?:many|much) (?!that\b|as\b|more\b)": "N, or the number",
    r"(?:^|(?<=[.:;] ))(?:Who|What|Whose|Whatever) (?![^.?]*\?)": "begin with the subject",
    r"\b[Hh]owever (?:many|often|long|much|fast|far)\b": "for any number, regardless of",
    r"\breceive[sd]? ahead\b": "may have in flight",
    r"(?<![/.\w])[Ll]ogins?\b(?!/|\.\w)": "log-in, log-ins",
}
# Only in docstrings and comments.
SOURCE_PATTERNS = {
    r"\b[Ww]h(?:atever|ichever)\b": "any, regardless of",
    r"\b[Pp]rov(?:e|es|ed|ing) (?:itself|themselves)\b": "authenticate",
    r"\b[Mm]end(?:s|ed|ing)?\b": "repair",
    r"\bsigns? of life\b": "a response, a heartbeat",
    r"\bbyte layers?\b": "layers",
    r"\bthe version before\b": "the previous version",
    r"\bin doubt\b": "the outcome is unknown",
    r"\b(?:come|comes|came) back\b": "return, is restored",
    r"\bput(?:s|ting)? (?:it |them )?back\b": "return, requeue",
    r"\bby (?:itself|themselves)\b": "on its own, automatically",
    r"\bsays so\b": "reports it",
}
_COMPILED = [(re.compile(pattern), advice) for pattern, advice in PATTERNS.items()]
_SOURCE = [(re.compile(pattern), advice) for pattern, advice in SOURCE_PATTERNS.items()]

FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
"""A code block of a page."""
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\([^)]*\)")
# Matches the end of a sentence, paragraph, list item, or row of a table that is aligned with
# spaces.
_END = re.compile(
    r"(?<=[.!?:;|])\s+|\n\s*\n|\n\s*(?=[-*#|>] ?)|\n\s*(?=\d+\. )|\n(?=[^\n]*\S {2,}\S)"
)


class Finding(NamedTuple):
    path: Path
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text!r}: {self.advice}"


def main(words: Sequence[str]) -> int:
    """Print the findings; return the exit code."""
    paths = [Path(word).resolve() for word in words] or [*tracked()]
    found = [finding for path in paths for finding in check(path)]
    for finding in found:
        print(finding)
    return 1 if found else 0


def tracked() -> Iterator[Path]:
    for pattern in (*TEXTS, *SOURCES):
        yield from sorted(ROOT.glob(pattern))


def check(path: Path) -> Iterator[Finding]:
    """Find the patterns in one file."""
    text = path.read_text()
    is_page = path.suffix == ".md"
    for line, prose in markdown(text) if is_page else comments(text):
        for at, found, advice in judge(prose, is_source=not is_page):
            yield Finding(path, line + at, found, advice)


def judge(prose: str, *, is_source: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield the patterns found in a text: the number of lines after the first one, the words, and
    the advice."""
    plain = _LINK.sub("]", _CODE.sub(lambda code: "x" * len(code[0]), prose))
    for pattern, advice in [*_COMPILED, *(_SOURCE if is_source else ())]:
        for found in pattern.finditer(plain):
            yield plain.count("\n", 0, found.start()), found[0].strip(), advice
    start = 0
    for sentence in _END.split(plain):
        start = plain.find(sentence, start)
        count = len(re.findall(r"[A-Za-z][\w'-]*", sentence))
        if count > MAX_WORDS:
            begin = " ".join(sentence.split()[:6])
            yield plain.count("\n", 0, start), begin, f"a sentence of {count} words: split it"


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a page, with code blocks emptied so that lines keep their numbers."""
    yield 1, FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings and blocks of comments, each with the number of its first line."""
    block: list[str] = []
    first = last = 0
    is_statement = True
    for token in tokens(text):
        if token.type == tokenize.COMMENT:
            is_trailing = not token.line.lstrip().startswith("#")
            if block and (is_trailing or token.start[0] != last + 1):
                yield first, "\n".join(block)
                block = []
            if not block:
                first = token.start[0]
            block.append(token.string.lstrip("#").strip())
            last = 0 if is_trailing else token.start[0]
        elif token.type == tokenize.STRING and is_statement:
            yield token.start[0], token.string.strip("rb").strip('"')
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            newlines = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
            is_statement = token.type in newlines
    if block:
        yield first, "\n".join(block)


def tokens(text: str) -> Iterable[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
