"""The table of commands, and how `nsqcy` shows errors."""

import pytest

from nsqcy.cli.main import COMMANDS, group, main
from release import command_help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name: str) -> None:
    command = group.get_command(command_help.TOP, name)
    assert command is not None and command.name == name


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("tpo", "nsqcy: unknown command tpo: did you mean top?"),
        ("zzzz", "nsqcy: unknown command zzzz (see nsqcy --help)"),
        ("topic lst", "nsqcy topic: unknown command lst: did you mean list?"),
        ("topic list --jsn", "nsqcy topic list: unknown option --jsn: did you mean --json?"),
        ("pub", "nsqcy pub: missing argument 'TOPIC' (see nsqcy pub --help)"),
        (
            "pub --topic=t x",
            "nsqcy pub: unknown option --topic: write TOPIC without a flag, as in",
        ),
        ("-n a:1 topic list", "nsqcy: unknown option -n: write options after the command (see"),
        ("pub t --lines x", "nsqcy pub: --lines reads stdin: remove MESSAGES or --lines"),
        ("topic show a:b", "nsqcy topic show: invalid value for 'TOPIC': \"a:b\" is not a valid"),
        ("pub t x --defer=60", "nsqcy pub: invalid value for '--defer': \"60\" is not a duration:"),
        ("topic config t x", "nsqcy topic config: 'x' is not KEY=VALUE (see nsqcy topic config"),
        ("topic list -n x", "nsqcy topic list: invalid value for '-n' / '--nsqd-http-address':"),
    ],
)
def test_a_mistake_gets_one_line(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(error)


@pytest.mark.parametrize("words", [[], ["config"], ["topic"]])
def test_a_group_alone_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.lower().startswith("usage: nsqcy")


def test_every_option_has_a_help_text() -> None:
    for name, entry in COMMANDS.items():
        if entry.attribute:
            command = group.get_command(command_help.TOP, name)
            assert command is not None and command.help
    for each in command_help.commands():
        assert each.text, each.path
        for flags, _, meaning in each.options:
            assert meaning, (each.path, flags)


def test_the_manual_page_is_current() -> None:
    assert command_help.MANUAL.read_text() == command_help.manual(), "run `make conf`"
