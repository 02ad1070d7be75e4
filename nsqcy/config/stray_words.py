"""Words after the flags, which NSQ's daemons ignore: they are usually a mistake.

Decides between a warning and an error: a word is an error if ignoring it could leave a
daemon without protection. Independent of particular options.
"""

from collections.abc import Sequence

from nsqcy.config.options import BOOL, FALSE, TRUE, OptionTable
from nsqcy.errors import UsageError
from nsqcy.names import quote


def check(table: OptionTable, argv: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Return warnings about `rest`, the words after the flags in `argv`.

    Raises UsageError if they contain a security flag or its value.
    """
    if not rest:
        return []
    flag = _separated(table, argv, rest)
    if flag and table.by_flag[flag].guard:
        value = f"-{flag}={rest[0]}"
        raise UsageError(f"boolean flag -{flag} takes no separate value: write {value}")
    for word in rest:
        name = _flag_name(word)
        option = table.by_flag.get(name)
        if option and option.guard:
            raise UsageError(f"flag -{name} would be ignored: flags must precede {quote(rest[0])}")
    return [_warning(flag, rest)]


def _warning(flag: str, rest: Sequence[str]) -> str:
    if flag:
        why = f"boolean flag --{flag} takes no separate value; write --{flag}={rest[0]}"
    elif any(_flag_name(word) for word in rest):
        why = "flags must precede all other words"
    else:
        why = "it is neither a flag nor the value of one"
    words = "and all words after it are" if len(rest) > 1 else "is"
    return f"{quote(rest[0])} {words} ignored: {why}"


def _separated(table: OptionTable, argv: Sequence[str], rest: Sequence[str]) -> str:
    """Return the boolean flag before `rest` if the first of these words was probably meant as the
    flag's value."""
    before = argv[-len(rest) - 1] if len(rest) < len(argv) else ""
    option = table.by_flag.get(before.lstrip("-")) if before.startswith("-") else None
    meant = option and option.kind is BOOL and rest[0] in TRUE | FALSE
    return option.flag if option and meant else ""


def _flag_name(word: str) -> str:
    return word.lstrip("-").partition("=")[0] if word.startswith("-") else ""
