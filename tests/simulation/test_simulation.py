"""Random schedules of faults around the state machine of copies, and the same with broken rules.

`python -m simulation` runs as many schedules as wanted: docs/internals/copies.md.
"""

import pytest

from simulation.mutants import MUTANTS, broken
from simulation.world import World

SEEDS = range(1, 101)

# Seed of the first schedule that notices each broken rule. `python -m simulation --mutants` finds
# them after a change of the simulation.
NOTICED_BY = {}


@pytest.mark.parametrize("first", SEEDS[::20])
def test_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + 20):
        World(seed).run()


def test_a_schedule_can_be_repeated() -> None:
    logs = []
    for _ in range(2):
        world = World(7)
        world.run()
        logs.append((world.counts, world.clock.now, sorted(world.oracle.acknowledged)))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may break anything
        World(NOTICED_BY[rule]).run()
