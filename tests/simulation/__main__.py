"""Run many schedules."""

import argparse
import time
import traceback
from collections import Counter

from simulation.mutants import MUTANTS, broken
from simulation.world import World


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="seed of the first schedule")
    parser.add_argument("--schedules", type=int, default=100, help="number of schedules")
    parser.add_argument(
        "--removals", action="store_true", help="also remove files of stopped processes"
    )
    parser.add_argument("--verbose", action="store_true", help="log every event")
    parser.add_argument(
        "--mutants",
        nargs="*",
        help="break each of these rules, or every one, until a schedule notices it",
    )
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.schedules)
    if arguments.mutants is not None:
        _run_mutants(arguments.mutants or list(MUTANTS), seeds, arguments.removals)
    else:
        _run_schedules(seeds, removals=arguments.removals, verbose=arguments.verbose)


def _run_mutants(names: list[str], seeds: range, removals: bool) -> None:
    for name in names:
        with broken(name):
            print(f"{name}: {_first_violation(seeds, removals)}", flush=True)


def _first_violation(seeds: range, removals: bool) -> str:
    for count, seed in enumerate(seeds, 1):
        try:
            World(seed, removals=removals).run()
        except Exception as error:  # a broken rule may raise anything
            return f"noticed by schedule {count}: {type(error).__name__} {error}"
    return "NOT NOTICED"


def _run_schedules(seeds: range, *, removals: bool, verbose: bool) -> None:
    totals: Counter[str] = Counter()
    violations = 0
    began = time.process_time()
    for seed in seeds:
        world = World(seed, removals=removals, verbose=verbose)
        try:
            world.run()
        except Exception:
            violations += 1
            print(f"seed {seed}:")
            traceback.print_exc(limit=-2)
        totals.update(world.counts)
        totals["takeovers"] += world.oracle.takeovers
        totals["acknowledged"] += len(world.oracle.acknowledged)
        totals["refused"] += len(world.oracle.refused)
        totals["duplicates"] += world.oracle.duplicates()
    seconds = time.process_time() - began
    print(f"{len(seeds)} schedules, {violations} violations, {seconds:.1f} s of CPU")
    print(", ".join(f"{name} {count}" for name, count in sorted(totals.items())))


if __name__ == "__main__":
    main()
