"""Flags of the daemons and NSQ's tools, in the syntax of Go's flag package.

An error is one line with a hint; only -help prints the usage. Independent of particular options,
and of words after the flags (config/stray_words.py). Commands that NSQ does not have use
config/commands.py instead.
"""

from collections.abc import Sequence

from nsqcy.config import hints
from nsqcy.config.options import FLOATS, OptionTable
from nsqcy.errors import FloatListError, HelpWanted, UsageError
from nsqcy.names import quote
from nsqcy.options.option import Option, Value


def split_flags(
    table: OptionTable, argv: Sequence[str]
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the options set on the command line, by name, and the words after the flags.

    Go's grammar: the first word that is not a flag ends the flags, and so does `--`.
    """
    values: dict[str, Value] = {}
    words = list(reversed(argv))
    while words:
        word = words.pop()
        if len(word) < 2 or word[0] != "-":
            words.append(word)
            break
        if word == "--":
            break
        name, equals, text = word[2 if word[1] == "-" else 1 :].partition("=")
        if not name or name[0] == "-":
            raise UsageError(f"bad flag syntax: {word}{hints.bad_syntax(table, word)}")
        option = table.by_flag.get(name)
        if option is None:
            if name in ("h", "help"):
                raise HelpWanted(usage(table))
            hint = hints.unknown_flag(table, name)
            raise UsageError(f"flag provided but not defined: -{name}{hint}")
        if not equals:
            if option.kind.bare:
                text = "true"
            elif words:
                text = words.pop()
            else:
                raise UsageError(f"flag needs an argument: -{name}{hints.no_value(option)}")
        _set(values, option, text)
    return values, tuple(reversed(words))


def _set(values: dict[str, Value], option: Option, text: str) -> None:
    kind = option.kind
    try:
        value = kind.parse(text)
    except ValueError as error:
        if kind is FLOATS:
            raise FloatListError(str(error)) from None
        what = "boolean value" if kind.bare else "value"
        where = "" if kind.bare else "flag "
        message = f"invalid {what} {quote(text)} for {where}-{option.flag}: {error}"
        raise UsageError(message + hints.bad_value(option, text, error)) from None
    if kind.combine:
        value = kind.combine(values.get(option.name, ()), value)
    values[option.name] = value


def usage(table: OptionTable) -> str:
    """Return the usage as Go's flag package prints it: flags sorted by name, with one dash."""
    lines = [f"Usage of {table.daemon}:"]
    for _, option in sorted(table.by_flag.items()):
        word = option.kind.values
        lines.append(f"  -{option.flag} {word}" if word else f"  -{option.flag}")
        many = " (may be given multiple times)" if option.kind.many else ""
        lines.append(f"    \t{option.help}{many}{_default_note(option)}")
    return "\n".join(lines)


def _default_note(option: Option) -> str:
    value = option.default
    if not value:
        return ""
    shown = quote(value) if isinstance(value, str) else option.show(value)
    return f" (default {shown})"
