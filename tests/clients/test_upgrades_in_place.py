"""Third-party client libraries while nsqd is upgraded in place: loadtest/upgrades, briefly."""

import subprocess
import sys
from pathlib import Path

from support.client_libraries import LIBRARIES, absent

ROOT = Path(__file__).parents[2]


def test_no_library_notices() -> None:
    names = ["nsqcy", *(each for each in LIBRARIES if not absent(each))]
    command = [sys.executable, "-m", "loadtest.upgrades", f"--libraries={','.join(names)}"]
    command += ["--upgrades=2", "--pause=0.5", "--rate=500", "--connections=28"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = (line.split() for line in done.stdout.splitlines() if line.startswith("sum "))
    published, acknowledged, *wrong = (int(each.replace(",", "")) for each in total[1:])
    assert published == acknowledged > 0
    assert wrong == [0, 0, 0]  # errors, lost, twice
