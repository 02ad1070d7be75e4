"""Flags of nsqcy's own commands: how argparse parses an option table."""

import operator

import pytest

from nsqcy.config.arguments import Parser
from nsqcy.errors import HelpWanted, UsageError
from nsqcy.options.kinds import BOOLEAN, NAME, repeated, whole
from nsqcy.options.option import Kind, Option, Rule

PAIR = Kind(
    "K=V", "K=V", lambda text: dict([text.split("=")]), lambda pairs: "", combine=operator.or_
)
SECTIONS = {
    "work": (
        Option("max-tries", whole(0), 3, "100% of tries", rule=Rule("< 9", lambda n: n < 9)),
        Option("dry-run", BOOLEAN, False, "change nothing"),
        Option("name", repeated(NAME), ("a",), "whose"),
        Option("pair", PAIR, {}, "settings"),
    )
}


def values(*words: str) -> dict[str, object]:
    return Parser("nsqcy work", "Work.", SECTIONS).values(words)


def test_values() -> None:
    defaults = {"max_tries": 3, "dry_run": False, "name": ("a",), "pair": {}}
    assert values() == defaults
    assert values("--max-tries=1", "--max-tries", "5") == defaults | {"max_tries": 5}
    assert values("--dry-run") == values("--dry-run=true") == defaults | {"dry_run": True}
    assert values("-name=b", "-dry-run")["name"] == ("b",)
    assert values("--dry-run=false", "--name=b", "--name", "c")["name"] == ("b", "c")
    assert values("--pair=a=1", "--pair=b=2", "--pair=a=3")["pair"] == {"a": "3", "b": "2"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max-tries=x"], "--max-tries is 'x': expected a whole number of at least 0"),
        (["--max-tries=9"], "--max-tries is '9': expected < 9"),
        (["--max-tries"], "argument --max-tries: expected one argument"),
        (["--max-try=1"], "unknown flag --max-try; did you mean --max-tries?"),
        (["--dry"], "unknown flag --dry; did you mean --dry-run?"),
        (["--zzz"], "unknown flag --zzz; allowed: --max-tries, --dry-run, --name, --pair"),
        (["word"], "'word' is not a flag: flags begin with --"),
        (["-nme=b"], "'-nme=b' is not a flag: flags begin with --"),
    ],
)
def test_what_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        values(*words)
    assert str(caught.value) == text


@pytest.mark.parametrize("word", ["-h", "-help", "--help"])
def test_help(word: str) -> None:
    with pytest.raises(HelpWanted) as caught:
        values(word)
    text = " ".join(str(caught.value).split())
    assert caught.value.fd == 1 and text.startswith("usage: nsqcy work [FLAGS] Work. options: ")
    assert " work: --max-tries number 100% of tries (default 3) " in text
    assert " --dry-run [true, false] change nothing " in text
    assert " --name name whose (default a; may be repeated) " in text
