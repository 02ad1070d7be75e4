"""Command lines of commands that NSQ does not have: click's groups, and commands that option tables
declare.

Independent of particular options and commands. NSQ's programs use Go's flag syntax instead: see
config/flags.py. nsqcy/cli/main.py shows the errors.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from nsqcy.options.option import InvalidOption, Option

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic only in recent versions of click

HELP: dict[str, Any] = {"help_option_names": ["-h", "-help", "--help"]}
# Short names of flags, the same in all commands.
SHORT = {"lookupd-http-address": ["-l"], "nsqd-http-address": ["-n"]}


class UnknownCommand(click.UsageError):
    """Error: a word is not a command. Suggests similar commands."""

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


class TableCommand(click.Command):
    """Command whose options are declared in tables, by section of its help. As in Go, flags may
    begin with a single dash."""

    def __init__(self, *args: Any, sections: Mapping[str, Iterable[Option]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.context_settings = HELP
        self._sections: dict[str, list[click.Option]] = {
            title: [TableOption(option) for option in options]
            for title, options in sections.items()
        }
        self.params += [each for options in self._sections.values() for each in options]

    def given(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that are set on the command line, by name. Raises
        click.UsageError, and click's Exit after the help."""
        with self.make_context(self.name, list(words)) as context:
            return {
                name: value
                for name, value in context.params.items()
                if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
            }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        short = {f"-{each.flag}" for each in self.params if isinstance(each, TableOption)}
        words = [f"-{each}" if each.partition("=")[0] in short else each for each in args]
        try:
            return super().parse_args(ctx, words)
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx  # click's parser sets no context
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [each for options in self._sections.values() for each in options]
        all_options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        rest = [each for each in all_options if each not in listed]
        for title, options in [*self._sections.items(), ("options", rest)]:
            with formatter.section(title.capitalize()):
                formatter.write_dl([each.get_help_record(ctx) or ("", "") for each in options])


class TableOption(click.Option):
    """Option of a command that is declared in a table."""

    def __init__(self, option: Option) -> None:
        self.flag = option.flag
        kind = option.kind
        values = kind.values or "true, false"
        bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if kind.bare else {}
        super().__init__(
            [*SHORT.get(option.flag, ()), f"--{option.flag}"],
            type=_Type(option),
            metavar=f"[{values}]" if kind.bare else values,
            multiple=kind.many,
            help=_help(option),
            callback=lambda _context, _option, found: _value(option, found),
            **bare,
        )


class _Type(ParamType):
    def __init__(self, option: Option) -> None:
        self.name = option.kind.values
        self._option = option

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        try:
            return self._option.parse(value, f"--{self._option.flag}")
        except InvalidOption as error:
            raise click.UsageError(str(error), ctx) from None


def _value(option: Option, found: Any) -> Any:
    if found is None or found == ():
        return option.default
    return reduce(option.kind.combine, found) if option.kind.combine else found


def _help(option: Option) -> str:
    default = "" if option.default is None else option.show(option.default)
    notes = []
    if default and option.default is not False:
        notes.append(f"default: {default}")
    if option.kind.many:
        notes.append("may be repeated")
    return f"{option.help}  [{'; '.join(notes)}]" if notes else option.help
