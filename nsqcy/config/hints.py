"""Hints at the end of errors about command lines and configuration files: suggestions for the text
that was probably intended.

Independent of particular options. NSQ's own text always comes first, because scripts may match it.
"""

import re
from collections.abc import Iterable

from nsqcy.config.options import DURATION, OptionTable
from nsqcy.names import quote
from nsqcy.options.option import Expected, Option

_SIMILAR = 0.6  # similarity of two names, above which one may be a typo of the other
_LONGEST = 64  # characters of a name to compare

# A number without a unit, or with a blank before it.
_UNFINISHED = r"([0-9]+(?:\.[0-9]+)?) *(ns|us|ms|s|m|h|)"


def unknown_flag(table: OptionTable, name: str) -> str:
    """Return the flag with the most similar name, or a hint about where to find all flags."""
    return similar_flag(name, table.by_flag) or see_help(table)


def similar_flag(name: str, flags: Iterable[str]) -> str:
    """Return the flag with the most similar name, or an empty string."""
    import difflib  # slow to import, and daemons need it only for errors

    wanted = name.replace("_", "-").lower()[:_LONGEST]
    near = difflib.get_close_matches(wanted, list(flags), 1, _SIMILAR)
    return f"; did you mean --{near[0]}?" if near else ""


def see_help(table: OptionTable) -> str:
    return f"; see {table.daemon} -help"


def bad_syntax(table: OptionTable, word: str) -> str:
    """Return the flag with two dashes, if there is such a flag."""
    flag = word.lstrip("-")
    known = flag.partition("=")[0] in table.by_flag
    return f"; did you mean --{flag}?" if known else see_help(table)


def no_value(option: Option) -> str:
    return f"; write --{option.flag}={option.kind.values.upper()}"


def bad_value(option: Option, text: str, error: ValueError) -> str:
    """Return the value that was probably meant, or the values that are allowed."""
    if isinstance(error, Expected):
        return ""  # the error text already contains the allowed values
    meant = _duration_meant(text) if option.kind is DURATION else ""
    return f"; did you mean {meant}?" if meant else f" (allowed: {option.kind.allowed})"


def _duration_meant(text: str) -> str:
    found = re.fullmatch(_UNFINISHED, text, re.ASCII)
    if not found:
        return ""
    meant = found[1] + (found[2] or "s")
    try:
        DURATION.parse(meant)
    except ValueError:
        return ""
    return meant


def unknown_key(key: str, allowed: Iterable[str]) -> tuple[str, str]:
    """Return the problem and the permitted keys."""
    import difflib

    names = sorted(allowed)
    near = difflib.get_close_matches(key.replace("-", "_").lower()[:64], names, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"unknown key {quote(key)}{meant}", ", ".join(names)
