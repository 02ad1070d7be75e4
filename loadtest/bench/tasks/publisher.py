"""Publishes tasks: python -m loadtest.bench.tasks.publisher KIND COUNT [SECONDS].

Writes a JSON line with its times when every publish has returned, and fails if one was refused.
KIND: `record`, `etas` or `naive-etas`. ETAs are spread over SECONDS. A naive ETA has no time zone:
the transport does not defer its task, so workers hold it in memory.
"""

import json
import sys
import time
from datetime import UTC, datetime

from loadtest.bench.tasks.app import record, record_lateness

RETRY = {"max_retries": 100, "interval_start": 0.05, "interval_step": 0.1, "interval_max": 1.0}


def publish(kind: str, number: int, start: float, step: float) -> None:
    """Publish a task; retry while the broker is away."""
    if kind == "record":
        record.apply_async((number,), retry=True, retry_policy=RETRY)
        return
    due = start + number * step
    eta = datetime.fromtimestamp(due, UTC)
    if kind == "naive-etas":
        eta = eta.replace(tzinfo=None)
    record_lateness.apply_async((number, due), eta=eta, retry=True, retry_policy=RETRY)


def main(kind: str, count: int, seconds: float = 0.0) -> None:
    started, cpu = time.time(), time.process_time()
    lead = seconds and count / 500  # at 500 per second, all publishes precede the first ETA
    for number in range(count):
        publish(kind, number, started + lead, seconds / count)
    times = {"seconds": time.time() - started, "cpu": time.process_time() - cpu}
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
