"""Kinds of value for nsqcy's own options, such as those for the Spark format and the pipeline."""

import datetime
import operator
import re
from collections.abc import Callable
from typing import Any

from nsqcy.options.option import Expected, Kind

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"g": 1 << 30, "m": 1 << 20, "k": 1 << 10, "": 1}
FLAGS = re.ASCII | re.DOTALL | re.IGNORECASE
NAME_PATTERN = "[.a-zA-Z0-9_-]{1,64}"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def matching(
    values: str,
    pattern: str,
    allowed: str,
    convert: Callable[[re.Match[str]], Any] = lambda found: found[0],
    show: Callable[[Any], str] = str,
    *,
    bare: bool = False,
    combine: Callable[[Any, Any], Any] | None = None,
) -> Kind:
    """Return a kind whose text must match `pattern`, ignoring case.

    `convert` converts the match to a value, or raises ValueError.
    """

    def parse(text: str) -> Any:
        found = re.fullmatch(pattern, text, FLAGS)
        if not found:
            raise ValueError
        return convert(found)

    return Kind(values, allowed, parse, show, bare=bare, combine=combine)


def whole(low: int, values: str = "number") -> Kind:
    """Return a kind for decimal numbers of at least `low`."""

    def convert(found: re.Match[str]) -> int:
        if int(found[0]) < low:
            raise ValueError
        return int(found[0])

    return matching(values, r"[0-9]{1,18}", f"a whole number of at least {low}", convert)


def duration(number: str, units: str, allowed: str) -> Kind:
    """Return a kind for durations in seconds. `number` is a pattern; `units` are keys of `SECONDS`.

    The units are separated by `|`.
    """

    def convert(found: re.Match[str]) -> float:
        return float(found[1]) * SECONDS[found[2].lower()]

    def show(seconds: float) -> str:
        units = ("h", "m", "s") if seconds else ("s",)
        unit = next((unit for unit in units if not seconds % SECONDS[unit]), "ms")
        return f"{seconds / SECONDS[unit]:g}{unit}"

    return matching("duration", rf"({number})({units})", allowed, convert, show)


def address(values: str, allowed: str) -> Kind:
    """Return a kind for `host:port`; the value is the text."""

    def convert(found: re.Match[str]) -> str:
        if not 0 < int(found[2]) < 65536:
            raise ValueError
        return found[1]

    pattern = r"\s*((?:\[[0-9a-f:.]+\]|[^:\s,/\[\]]+):([0-9]{1,5}))\s*"
    return matching(values, pattern, allowed, convert)


def repeated(each: Kind) -> Kind:
    """Return a kind for tuples: each occurrence of the option adds one value."""
    return Kind(
        each.values,
        each.allowed,
        lambda text: (each.parse(text),),
        lambda values: ", ".join(map(each.show, values)),
        combine=operator.add,
    )


def separated(values: str, each: Kind) -> Kind:
    """Return a kind for tuples: distinct values, separated by commas."""

    def parse(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise Expected("a comma-separated list without empty items")
        return tuple(dict.fromkeys(map(each.parse, parts)))

    return Kind(values, each.allowed, parse, ",".join)


def _size(found: re.Match[str]) -> int:
    return int(found[1]) * BYTES[found[2].lower()]


def _show_size(size: int) -> str:
    unit = next(unit for unit, bytes in BYTES.items() if size % bytes == 0)
    return f"{size // BYTES[unit]}{unit}"


def _instant(text: str) -> int:
    """Return nanoseconds since 1970. Text without a time zone is interpreted as UTC."""
    if re.fullmatch("[0-9]+", text):
        if len(text) > 14:  # after the year 5138, or not in milliseconds
            raise ValueError
        return int(text) * 1_000_000
    found = datetime.datetime.fromisoformat(text)
    since = found.replace(tzinfo=found.tzinfo or datetime.UTC) - EPOCH
    return since // datetime.timedelta(microseconds=1) * 1000


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise Expected(f"a regular expression ({error})") from None
    return text


def show_boolean(value: bool) -> str:
    return "true" if value else "false"


BOOLEAN = matching(
    "true, false",
    "true|false",
    "true or false",
    lambda found: found[0].lower() == "true",
    show_boolean,
    bare=True,
)
SIZE = matching(
    "size",
    "(0*[1-9][0-9]{0,14})([kmg]?)b?",
    "a number of bytes, such as 8m, 512k or 1048576",
    _size,
    _show_size,
)
INSTANT = Kind(
    "ISO 8601 or ms since 1970",
    "ISO 8601, such as 2024-05-01T12:00:00Z, or milliseconds since 1970",
    _instant,
)
EXPRESSION = Kind("regular expression", "a regular expression", _expression)
NAME = matching("name", NAME_PATTERN, "a name of 1 to 64 characters: .a-zA-Z0-9_-")
TOPIC_NAME = matching(
    "name",
    NAME_PATTERN,
    "a topic name of 1 to 64 characters: .a-zA-Z0-9_- (ephemeral topics have no log)",
)
ANYTHING = Kind("text", "any text", str)
