"""Durations in Go's notation: `1.5h30m`, `250ms`, `-5s`, to and from int nanoseconds."""

import re

from nsqcy.names import quote

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

ALLOWED_WITH_DAYS = (
    "a number with a unit, such as 250ms, 1.5h30m, 7d or 0; units are ns, us, ms, s, m, h, d"
)
ALLOWED = "a number with a unit, such as 250ms, 1.5h30m or 0; units are ns, us, ms, s, m, h"

_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "µs": MICROSECOND,  # U+00B5, the micro sign
    "μs": MICROSECOND,  # U+03BC, the Greek letter
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_DAYS = re.compile(r"([+-]?)([0-9]{1,9})d((?:[0-9].*)?)", re.DOTALL)
_TERM = r"([0-9]*)(?:\.([0-9]*))?([^0-9.]+)"
_MAX = (1 << 63) - 1


def parse_duration(text: str) -> int:
    """Parse a duration like Go's time.ParseDuration into nanoseconds; raise ValueError."""
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise ValueError("not a duration")
    total = position = 0
    terms = re.compile(_TERM)
    while position < len(rest):
        term = terms.match(rest, position)
        if term is None:
            raise ValueError("missing unit")
        total += _term_nanoseconds(*term.groups(default=""))
        position = term.end()
    if total > _MAX + negative:
        raise ValueError("out of range")
    return -total if negative else total


def parse_with_days(text: str) -> int:
    """Parse like parse_duration(), but also accept days, which people use on a command line: `7d`,
    `1d12h`."""
    found = _DAYS.fullmatch(text)
    if found is None:
        return parse_duration(text)
    sign, days, rest = found.groups()
    total = int(days) * 24 * HOUR + (parse_duration(rest) if rest else 0)
    if total > _MAX:
        raise ValueError("out of range")
    return -total if sign == "-" else total


def _term_nanoseconds(whole: str, fraction: str, unit: str) -> int:
    if not whole and not fraction:
        raise ValueError("not a duration")
    if unit not in _UNITS:
        raise ValueError(f"unknown unit {quote(unit)}")
    if len(whole.lstrip("0")) > 19:  # more digits than any int64; int() would refuse 4,300 digits
        raise ValueError("out of range")
    nanoseconds = _UNITS[unit]
    # Eighteen digits are enough: the largest unit is 3.6e12 nanoseconds.
    part = int(fraction[:18].ljust(18, "0")) * nanoseconds // 10**18
    return int(whole or "0") * nanoseconds + part


def format_duration(nanoseconds: int) -> str:
    """Format like Go's time.Duration: `1m0s`, `1.633µs`, `0s`."""
    if nanoseconds < 0:
        return "-" + format_duration(-nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < SECOND:
        for unit, name in ((MILLISECOND, "ms"), (MICROSECOND, "µs"), (NANOSECOND, "ns")):
            if nanoseconds >= unit:
                return _decimal(nanoseconds, unit) + name
    minutes, rest = divmod(nanoseconds, MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = _decimal(rest, SECOND) + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def short_duration(nanoseconds: int) -> str:
    """Format in the shortest form: `1m`, `1h30m`."""
    text = format_duration(nanoseconds)
    for tail in ("m0s", "h0m"):
        if text.endswith(tail):
            text = text[:-2]
    return text


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = str(part).zfill(len(str(unit)) - 1).rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)
