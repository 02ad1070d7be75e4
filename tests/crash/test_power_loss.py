"""Whatever is lost with the power, and whenever: what was acknowledged as `fsync` is there."""

from pathlib import Path
from random import Random

import pytest

from tests.crash_program import Program


def run(path: Path, seed: int, cuts: int, **kind: bool) -> None:
    program = Program(path, seed, **kind)
    program.run(25)
    chance = Random(seed)
    for _ in range(cuts):
        cut = chance.randint(0, len(program.disk.calls))
        program.check(cut, "f", power=True)
        program.check(cut, "fo", power=False)
    program.close()


@pytest.mark.parametrize("seed", range(100))
def test_power_loss(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 3)
