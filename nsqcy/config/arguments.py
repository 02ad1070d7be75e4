"""Command lines for commands that NSQ does not have: argparse, driven by declared options.

Independent of particular options. NSQ's programs use Go's flag syntax instead: see config/flags.py.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from nsqcy.errors import HelpWanted, UsageError
from nsqcy.options.option import InvalidOption, Option, suggestion
from nsqcy.util.standard_streams import show

# Short names of flags, as in the commands that click parses.
SHORT = {"lookupd-http-address": ["-l"], "nsqd-http-address": ["-n"]}


class PlainParser(argparse.ArgumentParser):
    """argparse's own parser. Raises OSError if its help cannot be written, which argparse
    ignores."""

    def print_help(self, file: Any = None) -> None:
        show(self.format_help())


class Parser(argparse.ArgumentParser):
    """Parser for `--name value`, `--name=value`, and `--name` alone for a boolean. As in Go, one
    dash is enough."""

    def __init__(
        self, command: str, description: str, sections: Mapping[str, Iterable[Option]]
    ) -> None:
        super().__init__(
            command,
            usage="%(prog)s [FLAGS]",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.register("action", "help", _Help)
        self.add_argument("-h", "-help", "--help", action="help", help="show this help")
        self._options = [option for options in sections.values() for option in options]
        for title, options in sections.items():
            group = self.add_argument_group(title)
            for option in options:
                names = [*SHORT.get(option.flag, ()), f"--{option.flag}"]
                group.add_argument(*names, action=SetOption, option=option)

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the value of every option, by name. Raises UsageError and HelpWanted."""
        return {option.name: option.default for option in self._options} | self.given(words)

    def given(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that are set on the command line, by name."""
        short = {f"-{option.flag}" for option in self._options}
        words = [f"-{each}" if each.partition("=")[0] in short else each for each in words]
        found, rest = self.parse_known_args(words)
        if rest:
            name, _, _ = rest[0].partition("=")
            if not name.removeprefix("--") or not name.startswith("--"):
                self.error(f"{rest[0]!r} is not a flag: flags begin with --")
            flags = [option.flag for option in self._options]
            self.error(f"unknown flag {name}{suggestion(name.removeprefix('--'), flags, '--')}")
        return vars(found)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Help(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        wanted = HelpWanted(parser.format_help().rstrip())
        wanted.fd = 1
        raise wanted


class SetOption(argparse.Action):
    """Set an option to a word's value, or append the value to the previous values."""

    def __init__(self, option_strings: Sequence[str], dest: str, option: Option) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs="?" if option.kind.bare else None,
            default=argparse.SUPPRESS,
            metavar=option.kind.values or "true, false",
            help=_help(option).replace("%", "%%"),
        )
        self._option = option

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, text: Any, *_: object
    ) -> None:
        kind = self._option.kind
        try:
            value = self._option.parse("true" if text is None else text, self.option_strings[-1])
        except InvalidOption as error:
            parser.error(str(error))
        if kind.combine:
            value = kind.combine(getattr(namespace, self.dest, type(value)()), value)
        setattr(namespace, self.dest, value)


def _help(option: Option) -> str:
    default = "" if option.default is None else option.show(option.default)
    notes = []
    if default and option.default is not False:
        notes.append(f"default {default}")
    if option.kind.many:
        notes.append("may be repeated")
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help
