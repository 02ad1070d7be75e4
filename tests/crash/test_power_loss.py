"""Whatever is lost with the power, and whenever: what was acknowledged as `fsync` is there.

And whenever all processes are killed: what was acknowledged as `os` or `fsync` is there. Programs and
chances are numbered, so a failure is repeated by its number.
"""

from pathlib import Path
from random import Random

import pytest

from tests.crash_program import Program

ACTIONS = 25
CUTS = 3


def run(path: Path, number: int, **kind: bool) -> None:
    """One program, and cuts anywhere in what it did since its last start."""
    path.mkdir()
    program = Program(path, number, **kind)
    program.run(ACTIONS)
    chance = Random(number)
    for _ in range(CUTS):
        cut = chance.randint(0, len(program.disk.calls))
        program.check(cut, "f", power=True)
        program.check(cut, "fo", power=False)
    program.close()


def run_all(path: Path, numbers: range, **kind: bool) -> None:
    for number in numbers:
        try:
            run(path / str(number), number, **kind)
        except BaseException as error:
            error.add_note(f"program {number} {kind}")
            raise


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_power_loss_and_kill(tmp_path: Path, first: int) -> None:
    run_all(tmp_path, range(first, first + 20))


def test_when_the_disk_had_failed_as_well(tmp_path: Path) -> None:
    run_all(tmp_path, range(40), faults=True)


def test_in_the_midst_of_compactions(tmp_path: Path) -> None:
    run_all(tmp_path, range(10), big=True)


@pytest.mark.soak
def test_power_loss_and_kill_a_thousand_times(tmp_path: Path) -> None:
    run_all(tmp_path, range(1000, 3000))
    run_all(tmp_path, range(1000, 2000), faults=True)
    run_all(tmp_path, range(1000, 1200), big=True)
