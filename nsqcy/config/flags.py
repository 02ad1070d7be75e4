"""Flags of the daemons and NSQ's tools, in the syntax of Go's flag package.

Independent of particular options. Commands that NSQ does not have use config/arguments.py instead.
"""

from collections.abc import Sequence

from nsqcy.config.options import BOOL, FALSE, FLOATS, TRUE, OptionTable
from nsqcy.errors import FloatListError, HelpWanted, UsageError
from nsqcy.names import quote
from nsqcy.options.option import Option, Value


def parse_flags(table: OptionTable, argv: Sequence[str]) -> dict[str, Value]:
    """Return the options set on the command line, by name.

    As in NSQ, words after the flags are ignored, unless one of them may set a security option.
    """
    values, rest = split_flags(table, argv)
    _check_ignored(table, argv, rest)
    return values


def _check_ignored(table: OptionTable, argv: Sequence[str], rest: Sequence[str]) -> None:
    """Reject ignored words that contain a security flag or its value."""
    if not rest:
        return
    last = argv[-len(rest) - 1] if len(rest) < len(argv) else ""
    option = table.by_flag.get(last.lstrip("-")) if last.startswith("-") else None
    if option and option.guard and option.kind is BOOL and rest[0] in TRUE | FALSE:
        value = f"-{option.flag}={rest[0]}"
        text = f"boolean flag -{option.flag} takes no separate value: write {value}"
        raise _usage_error(table, text)
    for word in rest:
        name = word.lstrip("-").partition("=")[0] if word.startswith("-") else ""
        option = table.by_flag.get(name)
        if option and option.guard:
            text = f"flag -{name} is ignored: flags must precede {quote(rest[0])}"
            raise _usage_error(table, text)


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
            raise _usage_error(table, f"bad flag syntax: {word}")
        option = table.by_flag.get(name)
        if option is None:
            if name in ("h", "help"):
                raise HelpWanted(usage(table))
            raise _usage_error(table, f"flag provided but not defined: -{name}")
        if not equals:
            if option.kind.bare:
                text = "true"
            elif words:
                text = words.pop()
            else:
                raise _usage_error(table, f"flag needs an argument: -{name}")
        _set(table, values, option, text)
    return values, tuple(reversed(words))


def _set(table: OptionTable, values: dict[str, Value], option: Option, text: str) -> None:
    kind = option.kind
    try:
        value = kind.parse(text)
    except ValueError as error:
        if kind is FLOATS:
            raise FloatListError(str(error)) from None
        what = "boolean value" if kind.bare else "value"
        where = "" if kind.bare else "flag "
        message = f"invalid {what} {quote(text)} for {where}-{option.flag}: {error}"
        raise _usage_error(table, message) from None
    if kind.combine:
        value = kind.combine(values.get(option.name, ()), value)
    values[option.name] = value


def _usage_error(table: OptionTable, message: str) -> UsageError:
    return UsageError(f"{message}\n{usage(table)}")


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
