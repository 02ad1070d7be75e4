"""Random schedules of faults for the state machine of copies, with intact and with broken rules.

`python -m simulation` runs any number of schedules: docs/internals/copies.md.
"""

import pytest

from simulation.mutants import MUTANTS, broken
from simulation.world import SETTLE_LIMIT, World
from support.runs import runs

SEEDS = range(1, runs(100) + 1)

# Seed of the first schedule that detects each broken rule. `python -m simulation --mutants` finds
# them after a change to the simulation.
NOTICED_BY = {
    "confirms_before_it_is_stored": 3,
    "does_not_wait_for_its_own_disk": 3,
    "commits_when_min_copies_have_it": 5,
    "shows_what_is_not_committed": 1,
    "keeps_changes_to_itself": 2,
    "refuses_what_it_has_sent": 54,
    "does_not_cut": 14,
    "takes_files_of_other_processes_for_the_same": 35,
    "accepts_any_epoch": 632,
    "commits_in_an_incomplete_group": 5,
    "joins_before_it_is_filled": 5,
    "does_not_wait_for_proposed_members": 175,
    "forgets_a_member_before_the_outcome": 12,
    "guesses_that_a_proposal_failed": 2337,
    "guesses_that_a_proposal_succeeded": 2,
    "proposes_equal_values": 4,
    "members_leave_until_one_is_left": 1,
    "takes_over_although_it_is_not_whole": 53,
    "does_not_compare_the_value": 1,
    "removes_the_other_members": 1,
    "the_loser_deletes_its_copy": 69,
    "leaves_before_the_move_is_committed": 1722,
    "ends_a_group_that_is_not_drained": 7,
    "resumes_although_it_is_not_whole": 42,
    "answers_before_the_members_have_what_it_has": 1,
    "does_not_notice_an_old_disk": 191,
    "is_whole_before_it_is_filled": 26,
    "trusts_a_copy_after_a_power_failure": 7,
    "is_live_before_it_has_confirmed": 1,
    "does_not_fill_a_changed_file_again": 21,
    "replaces_states_before_the_end": 50,
    "does_not_notice_an_older_registry": 38,
    "uses_any_registry": 292,
    "trusts_values_from_before_the_identity": 9,
    "does_not_require_the_identity": 2008,
    "does_not_restore_lost_groups": 3,
    "remembers_nothing": 20,
    "restores_what_it_remembers_itself": 68,
    "takes_silence_for_the_end": 1231,
    "takes_over_unregistered_groups": 12,
    "does_not_wait_for_all_members": 26,
    "keeps_the_generation": 3,
    "remembers_after_it_has_acted": 117,
}

# Seconds that these schedules may take to settle. With the broken rule, they never settle, and
# simulating them up to the usual limit takes many seconds of CPU time.
SETTLE_LIMITS = {"keeps_the_generation": 60.0}

# Schedules with read errors and damaged files.
NOTICED_WITH_DAMAGE_BY = {
    "gives_up_without_the_members_that_are_silent": 380,
    "takes_a_read_error_for_an_answer": 701,
    "takes_a_lost_request_for_an_answer": 130,
    "gives_up_what_cannot_be_read": 22,
    "does_not_verify_what_it_has_fetched": 701,
    "spreads_damage": 27,
    "owns_a_damaged_state": 234,
    "does_not_look_for_damage": 16,
    "keeps_a_damaged_state": 33,
    "replaces_the_member_that_may_have_the_only_intact_copy": 380,
    "does_not_notice_what_was_mended_meanwhile": 310,
    "owns_what_was_damaged_meanwhile": 792,
    "is_whole_with_an_unknown_file": 265,
    "takes_an_unreadable_copy_for_an_empty_one": 58,
}

# Schedules with files that are removed or cut while a process is stopped.
NOTICED_WITH_REMOVALS_BY = {"is_whole_without_a_listed_file": 5}


@pytest.mark.random
@pytest.mark.parametrize("removals", [False, True])
@pytest.mark.parametrize("first", SEEDS[::20])
def test_nothing_is_lost(first: int, removals: bool) -> None:
    for seed in range(first, first + 20):
        World(seed, removals=removals).run()


def test_a_schedule_can_be_repeated() -> None:
    logs = []
    for _ in range(2):
        world = World(7)
        world.run()
        logs.append((world.counts, world.clock.now, sorted(world.oracle.acknowledged)))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("rule", NOTICED_BY)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    limit = SETTLE_LIMITS.get(rule, SETTLE_LIMIT)
    world = World(NOTICED_BY[rule], damages=False, settle_limit=limit)
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may raise anything
        world.run()


@pytest.mark.parametrize("rule", SETTLE_LIMITS)
def test_the_intact_rule_settles_in_time(rule: str) -> None:
    World(NOTICED_BY[rule], damages=False, settle_limit=SETTLE_LIMITS[rule]).run()


def test_every_rule_is_broken() -> None:
    noticed = NOTICED_BY.keys() | NOTICED_WITH_DAMAGE_BY.keys() | NOTICED_WITH_REMOVALS_BY.keys()
    assert noticed == MUTANTS.keys()


@pytest.mark.parametrize("rule", NOTICED_WITH_DAMAGE_BY)
def test_a_broken_rule_about_damage_is_noticed(rule: str) -> None:
    world = World(NOTICED_WITH_DAMAGE_BY[rule])
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may raise anything
        world.run()


@pytest.mark.parametrize("rule", NOTICED_WITH_REMOVALS_BY)
def test_a_broken_rule_about_removed_files_is_noticed(rule: str) -> None:
    world = World(NOTICED_WITH_REMOVALS_BY[rule], removals=True)
    with broken(rule), pytest.raises(Exception):  # noqa: B017 - it may raise anything
        world.run()
