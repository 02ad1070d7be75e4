"""`nsqcy up`: both daemons from one command, their common start and their common end."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon import environment, free_port
from up import BUDGET, PORTS, Up
from web import eventually


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """`up(*args)`: one that was started."""
    made: list[Up] = []

    def start(*args: str) -> Up:
        made.append(Up(tmp_path, *args))
        return made[-1]

    yield start
    for each in made:
        each.destroy()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_one_life(up: Callable[..., Up], signum: int) -> None:
    both = up().serving()
    both.nsqd.create("t", "c")
    both.nsqd.pub("t", b"kept")
    producers = eventually(lambda: both.lookupd.get("/lookup", topic="t").json().get("producers"))
    where = [(each["broadcast_address"], each["tcp_port"]) for each in producers]
    assert where == [("127.0.0.1", both.tcp_port)]

    # As a terminal has it: to the whole group, of which the daemons are not.
    os.killpg(both.process.pid, signum)
    assert both.wait() == 0
    assert both.nothing_left()
    log = both.log()
    assert "[nsqcy up]" not in log
    closing = re.search(r"\[nsqlookupd\] .* HTTP: closing", log)
    assert closing and log.index("NSQ: bye") < closing.start()

    again = up().serving()
    assert again.data == "data"
    again.nsqd.await_counts("t", "c", depth=1)


def test_options_of_nsqd_come_from_its_file_and_from_flags(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    file = tmp_path / "mine.ini"
    other = free_port()
    text = f"data_path = elsewhere\nmax_rdy_count = 7\nlookupd_tcp_address = 127.0.0.1:{other}\n"
    file.write_text("[nsqd]\n" + text)
    both = up("--config", "mine.ini", "--msg-timeout", "3s", "--nsqlookupd-log-level=error")
    both.serving()
    assert both.data == "elsewhere"
    assert (tmp_path / "elsewhere" / "nsqd.dat").exists()
    assert not (tmp_path / "data").exists()
    addresses = both.nsqd.get("/config/nsqlookupd_tcp_addresses").json()
    assert len(addresses) == 2 and f"127.0.0.1:{other}" in addresses
    assert "[nsqlookupd]" not in both.log()


@pytest.mark.parametrize("name, other", [("nsqd", "nsqlookupd"), ("nsqlookupd", "nsqd")])
def test_when_one_dies_both_end(up: Callable[..., Up], name: str, other: str) -> None:
    both = up().serving()
    both.child(name).kill()
    assert both.wait() == 1
    assert "[nsqcy up] " in both.log()
    assert f"FATAL: {name} was ended by SIGKILL; everything is being stopped\n" in both.log()
    assert f"{other} was ended" not in both.log()
    eventually(both.nothing_left)


@pytest.mark.parametrize("flag, name", [(PORTS[0], "nsqd"), (PORTS[2], "nsqlookupd")])
def test_a_port_that_is_taken(up: Callable[..., Up], flag: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        both = up(f"{flag}={address}")
        assert both.wait() == 1
    assert f"listen tcp {address}: bind: address already in use\n" in both.log()
    assert f"FATAL: {name} exited with 1 before it was ready; everything" in both.log()
    assert both.said() == ""


def test_nobody_stays_behind_when_it_is_killed(up: Callable[..., Up]) -> None:
    both = up().serving()
    both.nsqd.create("t", "c")
    both.nsqd.pub("t", b"kept")
    both.process.kill()
    eventually(both.nothing_left, BUDGET)
    assert up().serving().nsqd.counts("t", "c")["depth"] == 1


def test_hangups_are_passed_on(up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "nsqd.ini").write_text("[nsqd]\n")
    (tmp_path / "nsqlookupd.ini").write_text("[nsqlookupd]\n")
    both = up("--config=nsqd.ini", "--nsqlookupd-config=nsqlookupd.ini").serving()
    for name in ("nsqd", "nsqlookupd"):
        (tmp_path / f"{name}.ini").write_text(f"[{name}]\nbogus = 1\n")
    both.process.send_signal(signal.SIGHUP)
    eventually(lambda: both.log().count("everything stays as it was") == 2)
    assert not both.ended()


def test_it_can_be_stopped_before_it_is_ready(up: Callable[..., Up]) -> None:
    both = up()
    eventually(lambda: both.family() or both.ended())
    both.process.terminate()
    assert both.wait() == 0
    assert both.said() == ""
    eventually(both.nothing_left)


@pytest.mark.parametrize(
    "words, code, out, err",
    [
        (["--help"], 0, "Usage: nsqcy up", ""),
        (["--version"], 0, "nsqd v1.3.0", ""),
        (["data"], 2, "", "unexpected argument: data\nUsage: nsqcy up"),
        (["--bogus"], 2, "", "flag provided but not defined: -bogus\nUsage of nsqd:"),
        (["--nsqlookupd-bogus=1"], 2, "", "flag provided but not defined: -bogus\nUsage of nsqlo"),
        (["--data-path"], 2, "", "flag needs an argument: -data-path\n"),
        (["--config=/no/such"], 1, "", "[nsqcy up] "),
        (["--data-path=/dev/null/x"], 1, "", "[nsqcy up] "),
    ],
)
def test_words(words: list[str], code: int, out: str, err: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsqcy", "up", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=BUDGET,
    )
    assert (done.returncode, done.stdout[: len(out)]) == (code, out)
    assert done.stderr.startswith(err) and bool(done.stderr) == bool(err)
    assert list(tmp_path.iterdir()) == []
