"""How often tests run with random input: in the suite, and `make soak TESTS=...` longer."""

import os

FACTOR = int(os.environ.get("NSQCY_RUNS", "1"))


def runs(count: int) -> int:
    """Return the number of runs, given that of the suite."""
    return count * FACTOR


def steps(count: int) -> int:
    """Return the maximum steps of a state machine, given those in the suite. Longer histories find
    other faults."""
    return count if FACTOR == 1 else 2 * count
