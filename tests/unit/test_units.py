"""The units of systemd in conf/: what they say fits what nsqd does."""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from nsqcy.nsqd import master
from nsqcy.nsqd.options import NSQD
from nsqcy.process import arbiter, openfiles, watchdog
from nsqcy.process import service as manager

CONF = Path(__file__).parents[2] / "conf"
UNITS = {path.name: path for path in CONF.glob("nsqd.s*") if path.suffix != ".ini"}


def settings(name: str) -> dict[str, list[str]]:
    """Key -> values, of all sections."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in UNITS[name].read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


@pytest.fixture
def service() -> dict[str, str]:
    found = settings("nsqd.service")
    assert all(len(values) == 1 for values in found.values())
    return {key: values[0] for key, values in found.items()}


def test_it_notifies_and_reloads(service: dict[str, str]) -> None:
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Restart"] == "on-failure"


def test_nsqd_kills_a_worker_that_does_not_save_before_systemd_kills_all(
    service: dict[str, str],
) -> None:
    assert float(service["TimeoutStopSec"]) > master.STOP_LIMIT + master.KILL_LIMIT
    assert service["KillMode"] == "control-group"


def test_a_worker_that_hangs_is_replaced_before_the_watchdog_barks(service: dict[str, str]) -> None:
    replaced = (arbiter.SILENCE + arbiter.GRACE) / arbiter.SECOND
    period = float(service["WatchdogSec"])
    assert period > replaced + watchdog.PATIENCE
    assert period / 2 >= watchdog.PATIENCE


def test_more_time_is_asked_for_in_time(service: dict[str, str]) -> None:
    assert manager.AGAIN < manager.MORE_TIME < float(service["TimeoutStartSec"])


def test_many_files_may_be_open(service: dict[str, str]) -> None:
    assert int(service["LimitNOFILE"]) >= openfiles.FEW


def test_the_command_is_one_nsqd_takes(service: dict[str, str], tmp_path: Path) -> None:
    words = service["ExecStart"].split()
    assert words[0].endswith("/bin/nsqd")
    state = f"/var/lib/{service['StateDirectory']}"
    assert f"--data-path={state}" in words
    flags = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words[1:]}
    assert flags <= NSQD.by_name.keys()


def test_the_sockets_are_where_the_options_have_them() -> None:
    ports = [NSQD.by_name[f"{kind}_address"].default.rpartition(":")[2] for kind in ("tcp", "http")]
    assert settings("nsqd.socket")["ListenStream"] == ports


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_them(tmp_path: Path) -> None:
    copies = []
    for name, path in UNITS.items():
        text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text())
        copies.append(tmp_path / name)
        copies[-1].write_text(text)
    assert sorted(UNITS) == ["nsqd.service", "nsqd.socket"]
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", "verify", *map(str, copies)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
