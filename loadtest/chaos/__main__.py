"""Soak and chaos test with a private cluster: docs/LOADTEST.md.

python -m loadtest.chaos [--minutes=30] [--seed=N] [--rate=2500]

Exit code 0 if every guarantee held, 3 if one was broken: the last lines name it.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.chaos import report
from loadtest.chaos.run import Options, Outcome, run

BROKEN = 3  # exit code
PAUSE = "5-15"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of load and faults")
    parser.add_argument("--seed", type=int, help="of the schedule; else any")
    parser.add_argument("--rate", type=float, default=2500.0, help="messages per second, of all")
    parser.add_argument("--nsqds", type=int, default=3, help="the last of them is never killed")
    parser.add_argument("--workers", type=int, default=2, help="of each nsqd")
    parser.add_argument("--pause", type=_pause, default=PAUSE, help="seconds between two faults")
    parser.add_argument(
        "--forget",
        type=int,
        default=0,
        help="messages that are finished behind the ledger's back, which must be noticed as lost",
    )
    parser.add_argument("--report", type=Path, default=Path("build/chaos/report.html"))
    args = vars(parser.parse_args(argv))
    path = args.pop("report")
    if args["seed"] is None:
        args["seed"] = random.SystemRandom().randrange(1 << 31)
    logging.getLogger("nsqcy.client").setLevel(logging.CRITICAL)
    outcome = asyncio.run(_told_to_end(Options(**args)))
    report.write(path, outcome)
    print(report.text(outcome), f"report  {path}", sep="\n", flush=True)
    return BROKEN if outcome.broken else 0


async def _told_to_end(options: Options) -> Outcome:
    """SIGTERM ends the run like Ctrl-C, and leaves no processes or files."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(ValueError):  # raised outside the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(options)


def _pause(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    return float(low), float(high or low)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
