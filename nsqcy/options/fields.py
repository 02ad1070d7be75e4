"""Options as dataclass fields, with Python values instead of text.

timeout: float = option(1.0, FLOAT, "seconds to connect", POSITIVE)
"""

from dataclasses import field, fields
from typing import Any

from nsqcy.options.option import Kind, Option, Rule

TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,)}
MAX_NUMBER = 1e9  # maximum of a float option; as seconds, more than clocks and sockets accept
MAX_WHOLE = (1 << 63) - 1
MAX_SHOWN = 100  # maximum characters of an invalid value that an error shows


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
    """Raise TypeError or ValueError for the first option whose value is not allowed."""
    for each in declared(type(values)):
        value = getattr(values, each.name)
        if value is not None or each.default is not None:
            demand(each.name, value, each.kind.typed, each.rule)


def demand(name: str, value: Any, typed: str, rule: Rule | None = None) -> None:
    """Raise TypeError or ValueError unless an option may have this value. typed: bool, int, float
    or str. Text must be encodable, and have no control characters."""
    if typed == "bool":
        if not isinstance(value, bool):
            raise TypeError(refusal(name, value, "True or False"))
        return
    is_typed = isinstance(value, TYPES[typed]) and not isinstance(value, bool)
    if not is_typed:
        raise TypeError(refusal(name, value, typed))
    if typed == "str" and not value.isprintable():
        raise ValueError(refusal(name, value, "text without control characters"))
    if typed == "int" and not abs(value) <= MAX_WHOLE:
        raise ValueError(refusal(name, value, "64-bit integers"))
    if typed == "float" and not abs(value) <= MAX_NUMBER:
        raise ValueError(refusal(name, value, f"numbers up to {MAX_NUMBER:.0f}"))
    if rule and not rule.holds(value):
        raise ValueError(refusal(name, value, rule.text))


def refusal(name: str, value: object, allowed: str) -> str:
    """Return the text of the error for a value that is not allowed; it shows no secret."""
    kind = type(value).__name__
    shown = f"this {kind}" if "secret" in name else repr(value)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}... ({kind})"
    return f"{name} cannot be {shown} (allowed: {allowed})"
