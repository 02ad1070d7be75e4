"""Format numbers, durations and times for pages. Pure: reads no clock."""

from datetime import datetime, timedelta

from nsqcy.cluster.stats import ClientStats
from nsqcy.config.durations import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND

_UNITS = ((MILLISECOND, "ms"), (MICROSECOND, "µs"), (1, "ns"))


def number(value: int) -> str:
    """Format an integer as `1,234,567`."""
    return f"{value:,}"


def duration(nanoseconds: float) -> str:
    """Format a duration with only the useful digits: `1h2m3.5s`, `1m0s`, `12.5ms`."""
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
    """Format a quantile as `99th`, `99.9th` or `51st`."""
    text = f"{quantile * 100:.9f}".rstrip("0").rstrip(".")
    last = text[-1]
    if "." in text or text[-2:] in ("11", "12", "13"):
        return f"{text}th"
    return text + {"1": "st", "2": "nd", "3": "rd"}.get(last, "th")


def plural(count: int, one: str) -> str:
    """Format a count with its noun: `1 message`, `2 messages`."""
    return f"{number(count)} {one}" if count == 1 else f"{number(count)} {one}s"


def share(value: float) -> str:
    """Format a share as `41 %`."""
    return f"{100 * value:.0f} %"


_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(count: float) -> str:
    """Format bytes as `1.5 GiB`."""
    unit, name = next((each for each in _BYTES if count >= each[0]), (1, "B"))
    return f"{amount(round(count / unit, 1))} {name}"


_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def span(seconds: float) -> str:
    """Format a length of time by its two largest units: `3d 4h`, `12m 5s`."""
    left, parts = int(seconds), list[tuple[int, str]]()
    for unit, name in _SPANS:
        count, left = divmod(left, unit)
        if count or parts:
            parts.append((count, name))
    shown = [f"{count}{name}" for count, name in parts[:2] if count]
    return " ".join(shown) or "0s"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


_EPOCH = datetime(1970, 1, 1)
_LAST = 250_000_000_000  # seconds; datetime supports years up to 9999


def moment(nanoseconds: int) -> str:
    """Format nanoseconds since 1970 as `2026-01-31 12:00:00.123 UTC`."""
    seconds, rest = divmod(nanoseconds, SECOND)
    date = _EPOCH + timedelta(seconds=min(seconds, _LAST))
    return f"{date:%Y-%m-%d %H:%M:%S}.{rest // MILLISECOND:03d} UTC"


def instant(seconds: int) -> str:
    """Format seconds since 1970 as `2026-01-31T12:00:00Z`."""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def rate(value: float) -> str:
    """Format a rate as `1,234/s` or `0.25/s`."""
    return f"{amount(value)}/s"


def amount(value: float) -> str:
    """Format a number with up to two decimals, and with up to three digits if it has decimals."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 10 else 2}f}".rstrip("0").rstrip(".")


def client_name(client: ClientStats) -> str:
    """Return `host:port`, and the client's id if it adds information."""
    port = client.remote_address.rpartition(":")[2]
    host = client.hostname.lower()
    if client.client_id.lower() in ("", host, host.partition(".")[0]):
        return f"{client.hostname}:{port}"
    return f"{client.hostname}:{port} ({client.client_id})"
