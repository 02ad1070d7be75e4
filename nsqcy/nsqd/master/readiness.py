"""Whether nsqd is ready for clients and, if not, why: for load balancers and start scripts.

Pure functions that convert the processes' reports to readable lines.
"""

from collections.abc import Mapping
from typing import Any

# Publishers retry a log that failed, but a load balancer may send no publishers while nsqd is not
# ready. Therefore, a failure older than this time is ignored.
REMEMBERED = 10_000_000_000


def reasons(
    workers: int, answers: Mapping[int, Mapping[str, Any] | None], disk: str | None, now: int
) -> list[str]:
    """Return a line for each reason; empty if nsqd is ready.

    answers  the health of each worker that is up; None if the worker has not answered
    disk why nothing may be written; None if writes are permitted
    now      wall clock, ns
    """
    # All workers write to one disk, so the latest write decides.
    written = max(
        (each["health_at"] for each in answers.values() if each and each["health"] == "OK"),
        default=0,
    )
    found = []
    for worker in range(workers):
        if worker not in answers:
            found.append(f"worker {worker} is being restarted")
            continue
        answer = answers[worker]
        if answer is None:
            found.append(f"worker {worker} does not answer")
        elif answer.get("hung") is not None:
            found.append(f"worker {worker}: {answer['hung']}")
        elif answer.get("reads"):
            found.append(f"worker {worker}: {answer['reads']}")
        elif answer["health"] != "OK" and _counts(answer["health_at"], written, now):
            found.append(f"worker {worker}: {answer['health'].removeprefix('NOK - ')}")
        elif answer.get("copies"):
            found.append(f"worker {worker}: {answer['copies']}")
    return [disk, *found] if disk is not None else found


def _counts(failed: int, written: int, now: int) -> bool:
    """Return whether a write failure at that time still counts; the clock may have been set
    back."""
    return failed > written and abs(now - failed) < REMEMBERED
