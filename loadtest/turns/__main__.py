"""The command line: measure, and print the table as Markdown. Exit status 1: a row is above the
limit."""

import argparse
import sys

from loadtest.turns.rows import FULL, SMALL
from loadtest.turns.scenes import LIMIT, SCENES, measure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.turns", description=__doc__)
    parser.add_argument("--small", action="store_true", help="less state, as in the tests")
    parser.add_argument("--only", choices=SCENES, action="append", help="one group of rows")
    given = parser.parse_args()
    sizes = SMALL if given.small else FULL
    print("| daemon | command or route | input | longest iteration (ms of CPU) |")
    print("| --- | --- | --- | ---: |")
    long = 0
    for scene in given.only or SCENES:
        for daemon, row, longest in measure(scene, sizes):
            is_long = longest > LIMIT
            long += is_long
            mark = " **above**" if is_long else ""
            print(f"| {daemon} | `{row.subject}` | {row.input} | {longest:.1f}{mark} |", flush=True)
    print(f"\n{long} above {LIMIT:g} ms")
    return int(long > 0)


if __name__ == "__main__":
    sys.exit(main())
