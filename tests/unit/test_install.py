"""docs/INSTALL.md: what it says to type for systemd, typed on a host that is made up."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import environment
from packages import PROJECT, ROOT

PAGE = (ROOT / "docs" / "INSTALL.md").read_text()
BLOCK = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
STUBS = ("systemctl", "systemd-sysusers", "systemd-tmpfiles")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder that stands for /, with what `pip install` has left there."""
    for folder, patterns in PROJECT["tool"]["setuptools"]["data-files"].items():
        target = tmp_path / "opt/nsqcy" / folder
        target.mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for path in ROOT.glob(pattern):
                shutil.copy(path, target)
    for name in ("systemd/system", "sysusers.d", "tmpfiles.d", "default", "nsqcy"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    programs = tmp_path / "opt/nsqcy/bin"
    programs.mkdir()
    nsqcy = f'#!/bin/sh\nexec {sys.executable} -m nsqcy "$@"\n'
    stub = f'#!/bin/sh\necho "${{0##*/}} $*" >> {tmp_path}/called\n'
    for name, text in {"nsqcy": nsqcy, **dict.fromkeys(STUBS, stub)}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def test_what_it_says_to_type_for_systemd(host: Path) -> None:
    (script,) = [block for block in BLOCK.findall(PAGE) if "systemd-sysusers" in block]
    script = re.sub(r"(?<!\w)/(opt|etc)/", rf"{host}/\1/", script)
    path = f"{host}/opt/nsqcy/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment() | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for daemon in ("nsqd", "nsqlookupd", "nsqadmin"):
        assert f"[{daemon}]" in (host / f"etc/nsqcy/{daemon}.ini").read_text()
        assert (host / f"etc/systemd/system/{daemon}.service").exists()
        assert (host / f"etc/default/{daemon}").exists()
    called = (host / "called").read_text().splitlines()
    names = {call.split()[-1] for call in called if call.startswith(("systemd-s", "systemd-t"))}
    assert names == {"nsqcy.conf"}
    assert all((host / f"etc/{kind}.d/nsqcy.conf").exists() for kind in ("sysusers", "tmpfiles"))
    assert called[-1] == "systemctl enable --now nsqd"


def test_what_it_says_of_time_and_paths_is_so() -> None:
    assert "docker stop -t 620" in PAGE
    assert "docker stop -t 620" in (ROOT / "Dockerfile").read_text()
    for path in re.findall(r"`(conf/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
