"""Options as dataclass fields, with Python values instead of text.

timeout: float = option(1.0, FLOAT, "seconds to connect", POSITIVE)
"""

from dataclasses import field, fields
from typing import Any

from nsqcy.options.option import Kind, Option, Rule

TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,)}


def option(default: Any, kind: Kind, help: str, rule: Rule | None = None) -> Any:
    """Declare a field. If its default is None, None is always allowed."""
    declaration = {"kind": kind, "help": help, "rule": rule}
    return field(default=default, metadata={"option": declaration})


def declared(cls: Any) -> tuple[Option, ...]:
    """Return the options of a dataclass."""
    return tuple(
        Option(each.name, default=each.default, **each.metadata["option"])
        for each in fields(cls)
        if "option" in each.metadata
    )


def check(values: Any) -> None:
    """Raise TypeError or ValueError for the first option whose value is not allowed.

    A boolean option accepts any value, because every value is true or false.
    """
    for each in declared(type(values)):
        value = getattr(values, each.name)
        if each.kind.typed == "bool" or (value is None and each.default is None):
            continue
        if not isinstance(value, TYPES[each.kind.typed]) or isinstance(value, bool):
            raise TypeError(f"{each.name} cannot be {value!r} (allowed: {each.kind.typed})")
        if each.rule and not each.rule.holds(value):
            raise ValueError(f"{each.name} cannot be {value!r} (allowed: {each.rule.text})")
