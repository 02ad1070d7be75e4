"""Figures as pages show them."""

from nsqcy.config.durations import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND

_UNITS = ((MILLISECOND, "ms"), (MICROSECOND, "µs"), (1, "ns"))


def number(value: int) -> str:
    """`1,234,567`."""
    return f"{value:,}"


def duration(nanoseconds: float) -> str:
    """`1h2m3.5s`, `1m0s`, `12.5ms`: what a person wants to know of it."""
    if nanoseconds <= 0:
        return "0s"
    if nanoseconds < SECOND:
        unit, name = next((each for each in _UNITS if nanoseconds >= each[0]), _UNITS[-1])
        return f"{_short(nanoseconds / unit)}{name}"
    hundredths = round(nanoseconds / SECOND * 100)
    hours, hundredths = divmod(hundredths, HOUR // SECOND * 100)
    minutes, hundredths = divmod(hundredths, MINUTE // SECOND * 100)
    seconds = f"{_short(hundredths / 100)}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def percent(quantile: float) -> str:
    """`99th`, `99.9th`, `51st`."""
    text = f"{quantile * 100:.9f}".rstrip("0").rstrip(".")
    last = text[-1]
    if "." in text or text[-2:] in ("11", "12", "13"):
        return f"{text}th"
    return text + {"1": "st", "2": "nd", "3": "rd"}.get(last, "th")


def plural(count: int, one: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number(count)} {one}" if count == 1 else f"{number(count)} {one}s"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
