"""`nsqcy config`: prints a sample configuration, and checks a file as its daemon would read it."""

import importlib

import click

from nsqcy.config import configuration_file, loader, sample
from nsqcy.config.commands import Commands
from nsqcy.config.options import OptionTable
from nsqcy.errors import Stop

# The module that contains each daemon's options, and the name of its option table.
OPTIONS = {
    "nsqd": ("nsqcy.nsqd.options", "NSQD"),
    "nsqlookupd": ("nsqcy.nsqlookupd.options", "NSQLOOKUPD"),
    "nsqadmin": ("nsqcy.nsqadmin.options", "NSQADMIN"),
}
DAEMON = click.Choice(list(OPTIONS))


@click.group(cls=Commands)
def config() -> None:
    """Print and check configuration files."""


@config.command("sample")
@click.argument("daemon", type=DAEMON, default="nsqd")
def print_sample(daemon: str) -> None:
    """Print an INI file with every option of DAEMON and its default.

    DAEMON is nsqd (the default), nsqlookupd or nsqadmin.
    """
    click.echo(sample.sample(table(daemon)), nl=False)


@config.command()
@click.argument("file")
@click.argument("daemon", type=DAEMON, required=False)
@click.pass_context
def check(context: click.Context, file: str, daemon: str | None) -> None:
    """Read FILE as DAEMON would, and report errors.

    By default, DAEMON is the daemon that an INI file names, or nsqd.
    """
    try:
        daemon = daemon or configuration_file.daemon_of(configuration_file.read_text(file))
        given = configuration_file.read_file(table(daemon), file)
        settings = loader.Settings(table(daemon), {}, given)
        importlib.import_module(OPTIONS[daemon][0]).resolve(settings)
    except Stop as stop:
        click.echo(str(stop), err=True)
        context.exit(1)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    count = sum(len(section.values) for section in (given, *given.patterns))
    click.echo(f"{file}: valid for {daemon}; options set: {count}")


def table(daemon: str) -> OptionTable:
    """Return the options of a daemon."""
    module, name = OPTIONS[daemon]
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, OptionTable)
    return found
