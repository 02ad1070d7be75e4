"""Moments as pages show them. Reads no clock."""

from datetime import datetime, timedelta

from nsqcy.config.durations import MILLISECOND, SECOND

_EPOCH = datetime(1970, 1, 1)
_LAST = 250_000_000_000  # seconds: there are no dates beyond the year 9999


def moment(nanoseconds: int) -> str:
    """`2026-01-31 12:00:00.123 UTC`, of nanoseconds since 1970."""
    seconds, rest = divmod(nanoseconds, SECOND)
    date = _EPOCH + timedelta(seconds=min(seconds, _LAST))
    return f"{date:%Y-%m-%d %H:%M:%S}.{rest // MILLISECOND:03d} UTC"
