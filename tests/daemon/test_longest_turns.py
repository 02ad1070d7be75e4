"""No input blocks an event loop for long. The test runs every command and route with the largest
input.

The test measures the CPU time of the loop's thread (or of nsqadmin, while a /ping is waiting)
relative to a known loop. The shortest of several measurements counts. The time does not include
waiting for the CPU, and without slices the rows take several times the limit. A busy machine can
therefore neither fail the test nor hide a missing slice.
"""

import pytest

from loadtest.turns.rows import SMALL
from loadtest.turns.scenes import LIMIT, SCENES, measure

TESTED = [scene for scene in SCENES if scene != "nsqd:together"]


@pytest.mark.ours
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", TESTED)
def test_the_longest_turn(scene: str) -> None:
    found = list(measure(scene, SMALL))
    assert found
    assert not [
        (each.row.subject, each.row.input, each.longest) for each in found if each.longest > LIMIT
    ]
