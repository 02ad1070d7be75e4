"""The help of the `nsqcy` commands that click parses, as Markdown and as a manual page.

python -m release.command_help     writes the manual page, as `make conf` does
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from nsqcy import __version__
from nsqcy.cli.cluster_options import NAMES
from nsqcy.cli.main import COMMANDS, SECTIONS, group

# Commands whose sections are written by hand, with a table of their options.
WITH_SECTIONS = ("nsqcy doctor", "nsqcy capacity", "nsqcy copies")
TOP = click.Context(group, info_name="nsqcy", **group.context_settings)
MANUAL = Path(__file__).parents[1] / "conf" / "man" / "nsqcy.1"


class Described(NamedTuple):
    """A command with its help. `options`: flag, default and meaning of each, excluding those common
    to all cluster commands."""

    path: str
    usage: str
    text: str
    options: list[tuple[str, str, str]]
    is_on_cluster: bool


def commands() -> Iterator[Described]:
    """Yield all commands that click parses, in the order of the help."""
    for name, entry in COMMANDS.items():
        if entry.attribute:
            command = group.get_command(TOP, name)
            assert command is not None
            yield from _described(command, click.Context(command, info_name=name, parent=TOP))


def _described(command: click.Command, context: click.Context) -> Iterator[Described]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _described(inner, click.Context(inner, info_name=name, parent=context))
        return
    names = {each.name for each in command.params}
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [
        _option(each, context)
        for each in command.params
        if isinstance(each, click.Option) and each.name not in NAMES
    ]
    is_on_cluster = NAMES[0] in names
    yield Described(context.command_path, usage, _paragraphs(command), options, is_on_cluster)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    record = option.get_help_record(context)
    assert record is not None
    flags, help = record
    found = re.fullmatch(r"(.*?)(?:  )?(?:\[(.*)\])?", help, re.DOTALL)
    assert found is not None
    notes = (found[2] or "").split("; ")
    default = next((each[9:] for each in notes if each.startswith("default: ")), "")
    return flags.replace("INTEGER RANGE", "N"), default, found[1]


def _paragraphs(command: click.Command) -> str:
    """Return the help's paragraphs, each on one line; blocks that click must not wrap are kept."""
    parts = []
    for each in inspect.cleandoc(command.help or "").split("\n\n"):
        if each.startswith("\b"):
            parts.append("\n".join(line for line in each.splitlines()[1:]))
        else:
            parts.append(" ".join(each.split()))
    return "\n\n".join(parts)


def _is_block(paragraph: str) -> bool:
    return paragraph.startswith("  ")


# --- Markdown -----------------------------------------------------------------------------------


def markdown() -> str:
    """Return a section for each command without a hand-written section."""
    return "\n".join(
        _section(each) for each in commands() if not each.path.startswith(WITH_SECTIONS)
    )


def _section(command: Described) -> str:
    lines = [f"### {command.path}", "", f"`{command.usage}`", ""]
    for each in command.text.split("\n\n"):
        shown = f"```text\n{_dedented(each)}\n```" if _is_block(each) else each
        lines += [shown, ""]
    if command.options:
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| {_code(flags)} | {_code(default)} | {meaning} |"
            for flags, default, meaning in command.options
        ]
        lines += [""]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _dedented(block: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in block.splitlines())


# --- manual page --------------------------------------------------------------------------------


def manual() -> str:
    """Return the manual page nsqcy(1) in the format of man(7)."""
    lines = [
        f'.TH NSQCY 1 "" "nsqcy {__version__}" "User Commands"',
        ".SH NAME",
        "nsqcy \\- operate NSQ clusters",
        ".SH SYNOPSIS",
        ".B nsqcy",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH COMMANDS",
    ]
    for title, section in SECTIONS.items():
        lines += [f".SS {_escaped(title)}"]
        for name, entry in section.items():
            lines += [".TP", f".B {_escaped(name)}", _escaped(entry.summary)]
    lines += [".SH OPTIONS OF A CLUSTER"]
    lines += [_escaped("Commands that query a cluster have these options.")]
    for flags, default, meaning in _cluster_options():
        lines += [".TP", f".B {_escaped(flags)}", _escaped(_with_default(meaning, default))]
    for command in commands():
        lines += _manual_section(command)
    return "\n".join(lines) + "\n"


def _cluster_options() -> list[tuple[str, str, str]]:
    command = group.get_command(TOP, "pub")
    assert command is not None
    context = click.Context(command, info_name="pub", parent=TOP)
    return [
        _option(each, context)
        for each in command.params
        if isinstance(each, click.Option) and each.name in NAMES
    ]


def _manual_section(command: Described) -> list[str]:
    lines = [f".SH {_escaped(command.path.upper())}", f".B {_escaped(command.usage)}"]
    for each in command.text.split("\n\n"):
        text = _dedented(each) if _is_block(each) else each
        shown = [_escaped(line) for line in text.splitlines()]
        lines += [".PP", *([".nf", *shown, ".fi"] if _is_block(each) else shown)]
    for flags, default, meaning in command.options:
        lines += [".TP", f".B {_escaped(flags)}", _escaped(_with_default(meaning, default))]
    return lines


def _with_default(meaning: str, default: str) -> str:
    return f"{meaning} (default: {default})" if default else meaning or "-"


def _escaped(text: str) -> str:
    """Return text with escapes for the characters that have a meaning for man."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    MANUAL.parent.mkdir(exist_ok=True)
    MANUAL.write_text(manual())
