"""The `nsqcy` command: the table of its commands, and how errors are shown.

Imports a command only when it runs, or when its own help is shown. Commands that have NSQ's flag
syntax, such as the daemons, receive their arguments unchanged.

Exit codes:

    0  success
    1  failure
    2  invalid command line
"""

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config.commands import HELP, Commands, UnknownCommand
from nsqcy.errors import NsqError, Stop
from nsqcy.util.standard_streams import guarded

INVALID = 2


class Entry(NamedTuple):
    """A click command, an attribute of a module; or, without an attribute, a program: the module's
    main(), which parses its own arguments."""

    module: str
    attribute: str
    summary: str


# Commands by section of the help, in its order.
SECTIONS: dict[str, dict[str, Entry]] = {
    "Messages": {
        "pub": Entry("nsqcy.cli.publish", "pub", "publish messages"),
        "sub": Entry("nsqcy.cli.subscribe", "sub", "print messages as they arrive"),
        "peek": Entry("nsqcy.cli.peek", "peek", "show queued messages without consuming them"),
        "deferred": Entry("nsqcy.cli.deferred", "deferred", "list and cancel deferred messages"),
        "redrive": Entry("nsqcy.cli.redrive", "redrive", "return dead letters to their channels"),
    },
    "Topics and channels": {
        "topic": Entry("nsqcy.cli.topics", "topic", "list, show, create and change topics"),
        "channel": Entry("nsqcy.cli.channels", "channel", "show, create and change channels"),
    },
    "Observing and measuring": {
        "top": Entry("nsqcy.cli.top", "top", "show what is slow and what is wrong, live"),
        "doctor": Entry(
            "nsqcy.doctor.main", "doctor", "check this host and a cluster, and recommend actions"
        ),
        "bench": Entry("nsqcy.cli.bench", "bench", "measure throughput and latency of a cluster"),
        "capacity": Entry(
            "nsqcy.capacity.main", "capacity", "compute the number and size of nsqds for a load"
        ),
    },
    "Running": {
        "up": Entry("nsqcy.cli.up", "", "run nsqlookupd, nsqd and nsqadmin together"),
        "nsqd": Entry("nsqcy.nsqd.main", "", "run nsqd"),
        "nsqlookupd": Entry("nsqcy.nsqlookupd.main", "", "run nsqlookupd"),
        "nsqadmin": Entry("nsqcy.nsqadmin.main", "", "run nsqadmin"),
    },
    "Administration": {
        "config": Entry("nsqcy.cli.configuration", "config", "print and check configuration"),
        "copies": Entry("nsqcy.cli.copies.main", "copies", "show and repair topics with copies"),
        "drain": Entry("nsqcy.cli.operations", "drain", "empty an nsqd, which then exits"),
        "ready": Entry("nsqcy.cli.operations", "ready", "show whether nsqds are ready for clients"),
        "reload": Entry("nsqcy.cli.operations", "reload", "reload an nsqd's configuration"),
        "upgrade": Entry("nsqcy.cli.upgrade", "upgrade", "upgrade a running nsqd in place"),
        "data": Entry("nsqcy.nsqd.data.command", "data", "import, export and check a data path"),
        "passwd": Entry("nsqcy.users.passwd", "passwd", "print a user section for --auth-file"),
        "completion": Entry("nsqcy.cli.completion", "completion", "print a completion script"),
        "version": Entry("nsqcy.cli.version", "version", "print the version"),
    },
    "NSQ's tools": {
        "nsq_stat": Entry("nsqcy.tools.nsq_stat", "", "print a channel's statistics"),
        "nsq_tail": Entry("nsqcy.tools.nsq_tail", "", "print the messages of topics"),
        "nsq_to_file": Entry("nsqcy.tools.nsq_to_file", "", "write messages to files"),
        "nsq_to_http": Entry("nsqcy.tools.nsq_to_http", "", "send messages to HTTP endpoints"),
        "nsq_to_nsq": Entry("nsqcy.tools.nsq_to_nsq", "", "publish to other nsqds"),
        "to_nsq": Entry("nsqcy.tools.to_nsq", "", "publish messages from stdin"),
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
        return 130  # the status that a shell reports for SIGINT
    except BrokenPipeError:
        sys.stdout = None  # nothing to flush at exit
        return 0
    return code if isinstance(code, int) else 0


def describe(error: click.UsageError) -> str:
    """Return a usage error as one line, with a suggestion or a pointer to the help."""
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
    """Return a hint for an argument written as an option, as in NSQ's tools, or for an option
    before its command."""
    if error.ctx is None:
        return ""
    name = error.option_name.lstrip("-")
    for parameter in error.ctx.command.params:
        if isinstance(parameter, click.Argument) and parameter.name == name:
            return f"write {name.upper()} without a flag, as in {_usage(error.ctx)}"
    if isinstance(error.ctx.command, click.Group):
        return f"write options after the command (see {error.ctx.command_path} --help)"
    return ""


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return " ".join([context.command_path, *pieces[1:]])


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _path(context: click.Context | None, otherwise: str) -> str:
    return context.command_path if context else otherwise


class Nsqcy(Commands):
    """The group of all commands, which are imported when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if not entry.attribute:
            return _program(cmd_name, entry)
        found = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(found, click.Command)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing all of them, as click would."""
        found = [
            CompletionItem(name, help=entry.summary)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()])


def _program(name: str, program: Entry) -> click.Command:
    """Return a command that passes its arguments on to a program."""

    def start(words: Sequence[str]) -> int:
        return int(importlib.import_module(program.module).main(list(words)) or 0)

    return click.Command(
        name,
        callback=start,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        context_settings=RAW,
        add_help_option=False,
        short_help=program.summary,
    )


@click.group(
    cls=Nsqcy,
    context_settings=HELP,
    invoke_without_command=True,
    help=f"nsqcy {__version__}, compatible with NSQ {NSQ_VERSION}.\n\n"
    "Commands that query a cluster use --lookupd-http-address or --nsqd-http-address; the default"
    " is this machine. NSQCY_LOOKUPD_HTTP_ADDRESS and NSQCY_NSQD_HTTP_ADDRESS set other"
    " defaults.",
    epilog="`nsqcy COMMAND --help` describes a command.",
)
@click.pass_context
def group(context: click.Context) -> int:
    if context.invoked_subcommand is not None:
        return 0
    click.echo(context.get_help(), err=True)
    return INVALID
