"""The nsqd command, up to the point where it needs a worker."""

import socket
import subprocess
import sys

import pytest

from toy import DEADLINE, environment

pytestmark = pytest.mark.real_start


def nsqd(data_path, *args):
    return subprocess.run(
        [sys.executable, "-m", "nsqcy.nsqd.main", *args],
        cwd=data_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.mark.case("CFG-01")
def test_version(tmp_path):
    done = nsqd(tmp_path, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nsqd v1.3.0 (built w/nsqcy-")


@pytest.mark.case("CFG-03")
def test_a_flag_that_is_not_there(tmp_path):
    done = nsqd(tmp_path, "--bogus")
    assert done.returncode == 2
    assert done.stderr == "flag provided but not defined: -bogus; see nsqd -help\n"


@pytest.mark.case("C327", "CFG-33")
def test_a_data_path_that_is_not_there(tmp_path):
    done = nsqd(tmp_path, "--data-path=/no/such/dir")
    assert done.returncode == 1
    text = (
        "failed to lock data-path: open /no/such/dir: no such file or directory;"
        " create the directory, or change --data-path"
    )
    assert done.stderr.endswith(f"FATAL: failed to instantiate nsqd - {text}\n")


@pytest.mark.case("C326", "CFG-34")
def test_a_data_path_a_living_nsqd_has(tmp_path, toy):
    running = toy(workers=1).ready()
    done = nsqd(tmp_path, "--tcp-address=127.0.0.1:0", "--http-address=")
    assert done.returncode == 1
    assert f"failed to lock data-path: cannot flock directory {tmp_path} - " in done.stderr
    assert done.stderr.endswith("(possibly in use by another instance of nsqd)\n")
    assert running.connect().worker() == 0


@pytest.mark.case("TOOL-009")
@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_an_address_in_use_ends_it_and_frees_the_other(tmp_path, kind):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = "http" if kind == "tcp" else "tcp"
        done = nsqd(
            tmp_path, f"--{kind}-address={address}", f"--{other}-address={tmp_path}/other.sock"
        )
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert "INFO: nsqd v1.3.0 (built w/" in lines[0]
    assert "INFO: ID: " in lines[1]
    text = f"listen ({address}) failed - listen tcp {address}: bind: address already in use"
    text += f"; stop the process that uses it, or change --{kind}-address"
    assert lines[2].endswith(f"FATAL: failed to instantiate nsqd - {text}")
    assert len(lines) == 3
    assert not (tmp_path / "other.sock").exists()
