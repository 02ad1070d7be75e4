"""Differences under AddressSanitizer (`make asan`; docs/internals/testing.md)."""

import os

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
KEPT_ASIDE = 5 * (256 << 20)  # what five processes have freed


def at_most(limit: int) -> int:
    """So many bytes may the processes of a daemon grow by."""
    return limit + KEPT_ASIDE if SANITIZED else limit


def within(seconds: float) -> float:
    """So long may a test take."""
    return seconds * 10 if SANITIZED else seconds


def unwatched() -> dict[str, str]:
    """The environment of a program that is not ours: curl hangs with a sanitizer in its process."""
    environ = dict(os.environ)
    if SANITIZED:
        del environ["LD_PRELOAD"]
    return environ
