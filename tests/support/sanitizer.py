"""Differences under AddressSanitizer (`make asan`; docs/internals/testing.md)."""

import os

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
KEPT_ASIDE = 5 * (256 << 20)  # freed memory that five processes keep


def at_most(limit: int) -> int:
    """Return the permitted growth of a daemon's processes, in bytes."""
    return limit + KEPT_ASIDE if SANITIZED else limit


def within(seconds: float) -> float:
    """Return the time limit of a test."""
    return seconds * 10 if SANITIZED else seconds


def unwatched() -> dict[str, str]:
    """Return the environment for a third-party program: curl hangs with a sanitizer in its
    process."""
    environ = dict(os.environ)
    if SANITIZED:
        del environ["LD_PRELOAD"]
    return environ
