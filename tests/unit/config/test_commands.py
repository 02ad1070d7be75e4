"""Flags of nsqcy's own commands: how click parses an option table."""

import operator

import click
import pytest

from nsqcy.cli.main import describe
from nsqcy.config.commands import TableCommand
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


COMMAND = TableCommand("nsqcy work", sections=SECTIONS, help="Work.")


def values(*words: str) -> dict[str, object]:
    return COMMAND.make_context("nsqcy work", list(words)).params


def test_values() -> None:
    defaults = {"max_tries": 3, "dry_run": False, "name": ("a",), "pair": {}}
    assert values() == defaults and COMMAND.given([]) == {}
    assert values("--max-tries=1", "--max-tries", "5") == defaults | {"max_tries": 5}
    assert values("--dry-run") == values("--dry-run=true") == defaults | {"dry_run": True}
    assert values("-name=b", "-dry-run")["name"] == ("b",)
    assert values("--dry-run=false", "--name=b", "--name", "c")["name"] == ("b", "c")
    assert values("--pair=a=1", "--pair=b=2", "--pair=a=3")["pair"] == {"a": "3", "b": "2"}
    assert COMMAND.given(["--dry-run=false", "-name=b"]) == {"dry_run": False, "name": ("b",)}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--max-tries=x"],
            "--max-tries is 'x': expected a whole number of at least 0 (see nsqcy work --help)",
        ),
        (["--max-tries=9"], "--max-tries is '9': expected < 9 (see nsqcy work --help)"),
        (["--max-tries"], "option '--max-tries' requires an argument (see nsqcy work --help)"),
        (["--max-try=1"], "unknown option --max-try: did you mean --max-tries?"),
        (["--dry"], "unknown option --dry: did you mean --dry-run?"),
        (["word"], "got unexpected extra argument (word) (see nsqcy work --help)"),
        (["-nme=b"], "unknown option -n (see nsqcy work --help)"),
    ],
)
def test_what_is_refused(words: list[str], text: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        values(*words)
    assert describe(caught.value) == text


@pytest.mark.parametrize("word", ["-h", "-help", "--help"])
def test_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        values(word)
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Usage: nsqcy work [OPTIONS] Work. Work: --max-tries number ")
    assert " 100% of tries [default: 3] " in text
    assert " --dry-run [true, false] change nothing " in text
    assert " --name name whose [default: a; may be repeated] " in text
    assert " Options: " in text and text.endswith(" Show this message and exit.")
