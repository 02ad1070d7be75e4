"""Random schedules of faults around the state machine of copies, and the same with broken rules.

`python -m simulation` runs as many schedules as wanted: docs/internals/copies.md.
"""

import pytest

from simulation.mutants import MUTANTS, broken
from simulation.world import World

SEEDS = range(1, 101)

# Seed of the first schedule that detects each broken rule. `python -m simulation --mutants` finds
# them after a change to the simulation.
NOTICED_BY = {
    "confirms_before_it_is_stored": 11,
    "does_not_wait_for_its_own_disk": 3,
    "commits_when_min_copies_have_it": 2,
    "shows_what_is_not_committed": 1,
    "keeps_changes_to_itself": 1,
    "refuses_what_it_has_sent": 19,
    "does_not_cut": 87,
    "takes_files_of_other_processes_for_the_same": 4,
    "accepts_any_epoch": 147,
    "commits_in_an_incomplete_group": 19,
    "joins_before_it_is_filled": 5,
    "does_not_wait_for_proposed_members": 58,
    "forgets_a_member_before_the_outcome": 2,
    "guesses_that_a_proposal_failed": 832,
    "guesses_that_a_proposal_succeeded": 1,
    "proposes_equal_values": 1,
    "members_leave_until_one_is_left": 2,
    "takes_over_although_it_is_not_whole": 3,
    "does_not_compare_the_value": 17,
    "removes_the_other_members": 1,
    "the_loser_deletes_its_copy": 5,
    "leaves_before_the_move_is_committed": 338,
    "ends_a_group_that_is_not_drained": 15,
    "resumes_although_it_is_not_whole": 15,
    "answers_before_the_members_have_what_it_has": 2,
    "does_not_notice_an_old_disk": 223,
    "is_whole_before_it_is_filled": 17,
    "trusts_a_copy_after_a_power_failure": 61,
    "is_live_before_it_has_confirmed": 2,
    "does_not_fill_a_changed_file_again": 20,
    "replaces_states_before_the_end": 49,
    "does_not_notice_an_older_registry": 81,
    "uses_any_registry": 374,
    "trusts_values_from_before_the_identity": 17,
    "does_not_restore_lost_groups": 3,
    "remembers_nothing": 27,
    "restores_what_it_remembers_itself": 191,
    "gives_up_absent_members_without_a_repair": 1069,
    "takes_silence_for_the_end": 1294,
    "takes_over_unregistered_groups": 3,
    "claims_while_an_owner_may_fill_it": 2483,
    "does_not_wait_for_all_members": 445,
}

# The same with read errors and damaged files.
NOTICED_WITH_DAMAGE_BY = {
    "does_not_verify_what_it_has_fetched": 324,
    "spreads_damage": 79,
    "owns_a_damaged_state": 132,
    "does_not_look_for_damage": 2,
    "keeps_a_damaged_state": 55,
}


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


@pytest.mark.parametrize("rule", NOTICED_BY)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    world = World(NOTICED_BY[rule], damages=False)
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may raise anything
        world.run()


def test_every_rule_is_broken() -> None:
    assert NOTICED_BY.keys() | NOTICED_WITH_DAMAGE_BY.keys() == MUTANTS.keys()


@pytest.mark.parametrize("rule", NOTICED_WITH_DAMAGE_BY)
def test_a_broken_rule_about_damage_is_noticed(rule: str) -> None:
    world = World(NOTICED_WITH_DAMAGE_BY[rule])
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may raise anything
        world.run()
