"""conf/systemd: the units fit the daemons, and systemd accepts them."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from nsqcy.config.options import OptionTable
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqd.master.worker_lifecycle import KILL_LIMIT, STOP_LIMIT
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.process import arbiter, openfiles, watchdog
from nsqcy.process import systemd as manager

SYSTEMD = Path(__file__).parents[3] / "conf" / "systemd"
TABLES = [NSQD, NSQLOOKUPD, NSQADMIN]
EXPOSURE = 20  # tenths, at most 100; systemd 252 reports 11, for listening and reading /proc

each_daemon = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.daemon)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def settings(name: str) -> dict[str, list[str]]:
    """Return the values of each key, across all sections."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in (SYSTEMD / name).read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


def service_of(table: OptionTable) -> dict[str, str]:
    found = settings(f"{table.daemon}.service")
    assert [key for key, values in found.items() if len(values) > 1] == ["SystemCallFilter"]
    return {key: values[0] for key, values in found.items()}


@pytest.fixture
def service() -> dict[str, str]:
    return service_of(NSQD)


def systemd(*words: str) -> str:
    """Return the output of a systemd program, which must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@each_daemon
def test_it_notifies_and_reloads(table: OptionTable) -> None:
    service = service_of(table)
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Restart"] == "on-failure"
    assert "2" in service["RestartPreventExitStatus"].split()


def test_nsqd_kills_a_worker_that_does_not_save_before_systemd_kills_all(
    service: dict[str, str],
) -> None:
    assert float(service["TimeoutStopSec"]) > STOP_LIMIT + KILL_LIMIT
    assert service["KillMode"] == "control-group"


def test_a_worker_that_hangs_is_replaced_before_the_watchdog_barks(service: dict[str, str]) -> None:
    replaced = (arbiter.SILENCE + arbiter.GRACE) / arbiter.SECOND
    period = float(service["WatchdogSec"])
    assert period > replaced + watchdog.PATIENCE
    assert period / 2 >= watchdog.PATIENCE


def test_more_time_is_asked_for_in_time(service: dict[str, str]) -> None:
    assert manager.AGAIN < manager.MORE_TIME < float(service["TimeoutStartSec"])


@each_daemon
def test_many_files_may_be_open(table: OptionTable) -> None:
    assert int(service_of(table)["LimitNOFILE"]) >= openfiles.FEW


@each_daemon
def test_the_command_is_one_the_daemon_takes(table: OptionTable) -> None:
    service = service_of(table)
    *words, more = service["ExecStart"].split()
    assert words[0].endswith(f"/bin/{table.daemon}")
    assert f"--config=/etc/nsqcy/{table.daemon}.ini" in words
    assert {word.partition("=")[0].lstrip("-") for word in words[1:]} <= table.by_flag.keys()
    if state := service.get("StateDirectory"):
        assert f"--data-path=/var/lib/{state}" in words
    assert service["EnvironmentFile"] == f"-/etc/default/{table.daemon}"
    (given,) = re.findall(
        r'^#(\w+)="(.*)"$', (SYSTEMD / "default" / table.daemon).read_text(), re.MULTILINE
    )
    assert more == f"${given[0]}"
    assert {word.partition("=")[0].lstrip("-") for word in given[1].split()} <= table.by_flag.keys()


def test_the_sockets_are_where_the_options_have_them() -> None:
    ports = [NSQD.by_name[f"{kind}_address"].default.rpartition(":")[2] for kind in ("tcp", "http")]
    assert settings("nsqd.socket")["ListenStream"] == ports


@needs("systemd-analyze")
def test_systemd_takes_them(tmp_path: Path) -> None:
    units = [path for path in SYSTEMD.iterdir() if path.suffix in (".service", ".socket")]
    assert len(units) == len(TABLES) + 1
    copies = []
    for unit in units:
        text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text())
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(text)
    assert systemd("systemd-analyze", "--no-pager", "verify", *map(str, copies)) == ""


@each_daemon
@needs("systemd-analyze")
def test_little_is_exposed(table: OptionTable) -> None:
    """systemd measures the exposure; the command fails above the threshold."""
    unit = SYSTEMD / f"{table.daemon}.service"
    words = ["security", "--offline=true", f"--threshold={EXPOSURE}", str(unit)]
    assert "Overall exposure level" in systemd("systemd-analyze", "--no-pager", *words)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Directory that serves as /, and in which the users exist."""
    (tmp_path / "etc").mkdir()
    systemd("systemd-sysusers", f"--root={tmp_path}", str(SYSTEMD / "sysusers.d/nsqcy.conf"))
    return tmp_path


@needs("systemd-sysusers")
def test_the_users_of_the_services_are_made(host: Path) -> None:
    made = {line.split(":")[0] for line in (host / "etc/passwd").read_text().splitlines()}
    assert {service_of(table)["User"] for table in TABLES} == made
    (members,) = re.findall(r"(?m)^nsqcy:.*:(.*)$", (host / "etc/group").read_text())
    assert set(members.split(",")) == made


@needs("systemd-sysusers")
@needs("systemd-tmpfiles")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change file owners")
def test_their_folders_are_made(host: Path) -> None:
    secret = host / "etc/nsqcy/nsqd.ini"
    secret.parent.mkdir()
    secret.touch(0o644)
    words = ["--create", f"--root={host}", str(SYSTEMD / "tmpfiles.d/nsqcy.conf")]
    systemd("systemd-tmpfiles", *words)
    wanted = {secret: 0o640, secret.parent: 0o750, host / "var/lib/nsqd": 0o750}
    assert {path: path.stat().st_mode & 0o777 for path in wanted} == wanted
