"""The `nsqcy` command: the table of its commands, and how errors are shown.

Imports a command only when it runs, or when its own help is shown. Commands that have NSQ's flag
syntax, such as the daemons, get their words unchanged.

Exit codes:

    0  success
    1  failure
    2  invalid command line
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from nsqcy import NSQ_VERSION, __version__
from nsqcy.errors import NsqError, Stop
from nsqcy.util.standard_streams import guarded

INVALID = 2


class Native(NamedTuple):
    """A command that click parses: an attribute of a module."""

    module: str
    attribute: str
    summary: str


class Program(NamedTuple):
    """A command that parses its own words. `named`: its name is also that of a program."""

    module: str
    summary: str
    named: bool = False


# Commands by section of the help, in its order.
SECTIONS: dict[str, dict[str, Native | Program]] = {
    "Messages": {
        "pub": Native("nsqcy.cli.publish", "pub", "publish messages"),
        "sub": Native("nsqcy.cli.subscribe", "sub", "print messages as they arrive"),
        "peek": Native("nsqcy.cli.peek", "peek", "show queued messages without consuming them"),
        "deferred": Native("nsqcy.cli.deferred", "deferred", "list and cancel deferred messages"),
        "redrive": Native("nsqcy.cli.redrive", "redrive", "return dead letters to their channels"),
    },
    "Topics and channels": {
        "topic": Native("nsqcy.cli.topics", "topic", "list, show, create and change topics"),
        "channel": Native("nsqcy.cli.channels", "channel", "show, create and change channels"),
    },
    "Observing and measuring": {
        "top": Native("nsqcy.cli.top", "top", "show what is slow and what is wrong, live"),
        "doctor": Program(
            "nsqcy.doctor.main", "check this host and a cluster, and recommend actions"
        ),
        "bench": Native("nsqcy.cli.bench", "bench", "measure throughput and latency of a cluster"),
        "capacity": Program(
            "nsqcy.capacity.main", "compute how many nsqds a load needs, and how large"
        ),
    },
    "Running": {
        "up": Program("nsqcy.cli.up", "run nsqlookupd, nsqd and nsqadmin together"),
        "nsqd": Program("nsqcy.nsqd.main", "run nsqd", named=True),
        "nsqlookupd": Program("nsqcy.nsqlookupd.main", "run nsqlookupd", named=True),
        "nsqadmin": Program("nsqcy.nsqadmin.main", "run nsqadmin", named=True),
    },
    "Administration": {
        "config": Native("nsqcy.cli.configuration", "config", "print and check configuration"),
        "copies": Program("nsqcy.cli.copies.main", "show and repair topics with copies"),
        "drain": Native("nsqcy.cli.operations", "drain", "empty an nsqd, which then exits"),
        "ready": Native(
            "nsqcy.cli.operations", "ready", "show whether nsqds are ready for clients"
        ),
        "reload": Native("nsqcy.cli.operations", "reload", "reload an nsqd's configuration"),
        "data": Program("nsqcy.nsqd.data.command", "import, export and check a data path"),
        "passwd": Program("nsqcy.users.passwd", "print a user section for --auth-file"),
        "completion": Native("nsqcy.cli.completion", "completion", "print a completion script"),
        "version": Native("nsqcy.cli.version", "version", "print the version"),
    },
    "NSQ's tools": {
        "nsq_stat": Program("nsqcy.tools.nsq_stat", "print a channel's statistics", named=True),
        "nsq_tail": Program("nsqcy.tools.nsq_tail", "print the messages of topics", named=True),
        "nsq_to_file": Program("nsqcy.tools.nsq_to_file", "write messages to files", named=True),
        "nsq_to_http": Program("nsqcy.tools.nsq_to_http", "send messages to HTTP", named=True),
        "nsq_to_nsq": Program("nsqcy.tools.nsq_to_nsq", "publish to other nsqds", named=True),
        "to_nsq": Program("nsqcy.tools.to_nsq", "publish messages from stdin", named=True),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

RAW = {"ignore_unknown_options": True, "help_option_names": []}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-version"], ["--version"]):
        words[0] = "version"
    if words[:1] in (["help"], ["-h"], ["-help"]):
        words[0] = "--help"
    return guarded("nsqcy", lambda: run(group, words, "nsqcy"))


def run(command: click.Command, words: Sequence[str], name: str) -> int:
    """Run a click command; show an error as one line. Return the exit code."""
    try:
        code = command.main(list(words), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        click.echo(f"{_path(error.ctx, name)}: {describe(error)}", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"{name}: {error.format_message()}", err=True)
        return error.exit_code
    except (Stop, NsqError) as error:
        click.echo(f"{name}: {error}", err=True)
        return getattr(error, "exit_code", 1)
    except (click.Abort, KeyboardInterrupt):
        return 130  # as a shell reports SIGINT
    except BrokenPipeError:
        sys.stdout = None  # nothing to flush at exit
        return 0
    return code if isinstance(code, int) else 0


def describe(error: click.UsageError) -> str:
    """Return a usage error as one line, with a suggestion or with where to find help."""
    if isinstance(error, click.NoSuchOption):
        text = f"unknown option {error.option_name}"
        near = error.possibilities or []
        if hint := _misplaced(error):
            return f"{text}: {hint}"
    elif isinstance(error, UnknownCommand):
        text, near = error.message, error.near
    else:
        text, near = _lower(error.format_message()), []
    if near:
        return f"{text}: did you mean {' or '.join(near)}?"
    return f"{text.rstrip('.')} (see {_path(error.ctx, 'nsqcy')} --help)"


def _misplaced(error: click.NoSuchOption) -> str:
    """Return a hint for an argument that is written as an option, as in NSQ's tools, and for an
    option before its command."""
    if error.ctx is None:
        return ""
    name = error.option_name.lstrip("-")
    for parameter in error.ctx.command.params:
        if isinstance(parameter, click.Argument) and parameter.name == name:
            return f"write {name.upper()} without it, as in {_usage(error.ctx)}"
    if isinstance(error.ctx.command, click.Group):
        return f"options follow the command (see {error.ctx.command_path} --help)"
    return ""


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return " ".join([context.command_path, *pieces[1:]])


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _path(context: click.Context | None, otherwise: str) -> str:
    return context.command_path if context else otherwise


class UnknownCommand(click.UsageError):
    """Word that is not a command, with commands that are similar."""

    def __init__(self, word: str, names: Sequence[str], context: click.Context) -> None:
        super().__init__(f"unknown command {word}", context)
        self.near = difflib.get_close_matches(word, names)


class Commands(click.Group):
    """Group that suggests similar commands and shows no usage with an error."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownCommand(args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)


class Nsqcy(Commands):
    """The group of all commands, which are imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if isinstance(entry, Native):
            found = getattr(importlib.import_module(entry.module), entry.attribute)
            assert isinstance(found, click.Command)
            return found
        return _program(cmd_name, entry)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()])


def _program(name: str, program: Program) -> click.Command:
    """Return a command that passes its words on to a program."""
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        callback=_starter(name, program),
        params=[words],
        context_settings=RAW,
        add_help_option=False,
        short_help=program.summary,
    )


def _starter(name: str, program: Program) -> Callable[..., int]:
    def start(words: Sequence[str]) -> int:
        run: Callable[..., Any] = importlib.import_module(program.module).main
        if not program.named:
            return int(run(list(words)))
        sys.argv = [name, *words]
        return int(run() or 0)

    return start


@click.group(
    cls=Nsqcy,
    invoke_without_command=True,
    help=f"nsqcy {__version__}, compatible with NSQ {NSQ_VERSION}.\n\n"
    "Commands that query a cluster find it by --lookupd-http-address or --nsqd-http-address; by"
    " default on this machine. NSQCY_LOOKUPD_HTTP_ADDRESS and NSQCY_NSQD_HTTP_ADDRESS set other"
    " defaults.",
    epilog="`nsqcy COMMAND --help` describes a command.",
)
@click.pass_context
def group(context: click.Context) -> int:
    if context.invoked_subcommand is not None:
        return 0
    click.echo(context.get_help(), err=True)
    return INVALID
