"""Starting processes: what a child inherits, and what it does not."""

import json
import os
import signal
import sys

from nsqcy.process import spawn

REPORT = """
import json, os, signal, sys
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
json.dump([fds, blocked, os.readlink("/proc/self/fd/0"), sys.path[0]], open(sys.argv[1], "w"))
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
    assert set(blocked) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    assert stdin == "/dev/null"
    os.close(kept)
    os.close(other)


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
