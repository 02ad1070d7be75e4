"""Starting processes: what a child does and does not inherit."""

import json
import os
import signal
import subprocess
import sys

import pytest

from nsqcy.process import spawn

REPORT = """
import json, os, signal, sys
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
json.dump([fds, blocked, os.readlink("/proc/self/fd/0"), sys.path[0]], open(sys.argv[1], "w"))
"""

FORK = f"""
import os, sys
from nsqcy.process import spawn
kept, other = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
def run():
    exec({REPORT!r})
    os.fstat(kept)
    return 7
pid = spawn.fork(run, [kept])
os.fstat(other)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
THREAD = """
import threading
from nsqcy.process import spawn
threading.Thread(target=threading.Event().wait, daemon=True).start()
spawn.fork(lambda: 0, [])
"""


def run(argv, fds):
    _, status = os.waitpid(spawn.spawn(argv, fds), 0)
    assert status == 0


def test_a_child_has_what_it_was_given_and_no_more(tmp_path):
    kept, other = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
    os.set_inheritable(other, False)
    run([sys.executable, "-c", REPORT, str(tmp_path / "report")], [kept])
    fds, blocked, stdin, _ = json.loads((tmp_path / "report").read_text())
    assert {0, 1, 2, kept} <= set(fds)
    assert other not in fds
    assert not os.get_inheritable(kept)
    assert set(blocked) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
    assert stdin == "/dev/null"
    os.close(kept)
    os.close(other)


def test_a_fork_has_the_same(tmp_path):
    fork = [sys.executable, "-c", FORK, str(tmp_path / "report")]
    done = subprocess.run(fork, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("7\n", "")
    fds, blocked, stdin, _ = json.loads((tmp_path / "report").read_text())
    assert len(fds) <= 5  # standard, kept, and the descriptor that lists them
    assert set(blocked) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
    assert stdin == "/dev/null"


@pytest.mark.parametrize(
    ("function", "code"), [("sys.exit(3)", 1), ("1 / 0", 1), ("os.abort()", -signal.SIGABRT)]
)
def test_a_fork_that_fails(function, code):
    program = (
        "import os, sys; from nsqcy.process import spawn\n"
        f"pid = spawn.fork(lambda: {function}, [])\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == code % 256


def test_a_process_with_threads_does_not_fork():
    done = subprocess.run([sys.executable, "-c", THREAD], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a process with threads cannot fork" in done.stderr


def test_files_in_the_current_directory_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run(spawn.python("json.tool", "--help"), [])


def test_the_package_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", *sys.path[1:]])
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != spawn._PACKAGE_ROOT])
    run(spawn.python("nsqcy.process.openfiles"), [])


def test_values_travel_in_a_memfd():
    value = {"a": [1, "two", None], "large": "x" * 1_000_000}
    fd = spawn.pack(value)
    assert not os.get_inheritable(fd)
    assert spawn.unpack(fd) == value
