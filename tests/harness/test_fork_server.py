"""The fork server: a program observes the same as after `exec`."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import fork_server
from support.nsqd_process import environment
from support.private_network import Network, needs_namespaces
from support.up_process import BUDGET, PORTS, Up

STATE = """
import json, os, resource, signal, sys
fds = [each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
with open("/proc/self/status") as file:
    status = {name: rest.strip() for name, _, rest in (line.partition(":") for line in file)}
state = {
    "name": __name__,
    "file": __file__,
    "argv": sys.argv,
    "path": sys.path[0],
    "cwd": os.getcwd(),
    "environ": dict(os.environ),
    "fds": sorted(int(each) for each in fds),
    "inheritable": [os.get_inheritable(fd) for fd in (0, 1, 2)],
    "parent": os.getppid(),
    "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "umask": status["Umask"],
    "comm": status["Name"],
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "streams": [
        [each.fileno(), each.name, each.mode, each.encoding, each.errors, each.line_buffering]
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "input": sys.stdin.read(),
}
print(json.dumps(state))
"""
ENDS = {
    "returns": ("print('said')", 0),
    "exits": ("import sys; print('said'); sys.exit(3)", 3),
    "exits with a negative status": ("import sys; print('said'); sys.exit(-1)", 255),
    "exits with a text": ("import sys; print('said'); sys.exit('a text')", 1),
    "raises": ("print('said'); raise ValueError('wrong')", 1),
    "is interrupted": ("print('said'); raise KeyboardInterrupt", -signal.SIGINT),
    "is killed": ("import os; print('said', flush=True); os.kill(os.getpid(), 9)", -9),
    "exits by atexit": ("import atexit; atexit.register(print, 'said')", 0),
    "exits after a thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('said'))).start()",
        0,
    ),
}


@pytest.fixture(params=["exec", "fork"])
def forks(request: pytest.FixtureRequest) -> bool:
    """Run the test with both ways of starting, so each expectation also holds for `exec`."""
    return bool(request.param == "fork")


@pytest.fixture(scope="module")
def server() -> Iterator[fork_server.Server]:
    server = fork_server.Server(ours())
    yield server
    server.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, forks: bool, server: fork_server.Server) -> list[int]:
    """Let a server also start `probe`. Return a list that receives the pids of its forks."""
    pids: list[int] = []

    def fork(request: dict[str, Any]) -> int:
        pids.append(fork_server.Server.fork(server, request))
        return pids[-1]

    monkeypatch.setattr(fork_server.Popen, "server", server if forks else None)
    monkeypatch.setattr(server, "fork", fork)
    monkeypatch.setattr(fork_server, "PROGRAMS", ("probe",))
    return pids


def ours() -> dict[str, str]:
    """Return the environment of the server."""
    return {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}


def encoded(stream: Any) -> tuple[str, str]:
    return stream.encoding, stream.errors


def probe(
    folder: Path, program: str, *words: str, within: tuple[str, ...] = (), **options: Any
) -> "subprocess.Popen[Any]":
    (folder / "probe.py").write_text(program)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return fork_server.Popen(
        [*within, sys.executable, "-m", "probe", *words],
        **(pipes | {"cwd": folder, "env": ours(), "text": True} | options),
    )


def test_the_state_of_a_process(forks: bool, started: list[int], tmp_path: Path) -> None:
    passed = os.memfd_create("passed")
    with contextlib.closing(os.fdopen(passed, "wb")):
        env = ours() | {"ADDED": "\u00e9 \udcff"}
        old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        process = probe(
            tmp_path, STATE, "a", "", "b c", env=env, pass_fds=[passed], process_group=0
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        out, err = process.communicate("given")
    assert err == ""
    state = json.loads(out)
    assert state.pop("environ") == env
    with open("/proc/self/status") as file:
        own = dict(line.split(":\t", 1) for line in file.read().splitlines())
    ignored = int(own["SigIgn"], 16) | 0x1001000  # SIGPIPE and SIGXFSZ, as Python does
    assert state == {
        "name": "__main__",
        "file": str(tmp_path / "probe.py"),
        "argv": [str(tmp_path / "probe.py"), "a", "", "b c"],
        "path": str(tmp_path),
        "cwd": str(tmp_path),
        "fds": [0, 1, 2, passed],
        "inheritable": [True, True, True],
        "parent": os.getpid(),
        "leads": [True, False],
        "signals": [f"{1 << signal.SIGTERM - 1:016x}", f"{ignored:016x}", f"{2:016x}"],
        "umask": own["Umask"],
        "comm": Path(sys.executable).name,
        "shown": [sys.executable, "-m", "probe", "a", "", "b c"],
        "limits": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "streams": [
            [0, "<stdin>", "r", *encoded(sys.__stdin__), False],
            [1, "<stdout>", "w", *encoded(sys.__stdin__), False],
            [2, "<stderr>", "w", *encoded(sys.__stderr__), True],
        ],
        "input": "given",
    }
    assert started == [process.pid] * forks


@pytest.mark.parametrize(("program", "code"), ENDS.values(), ids=list(ENDS))
def test_the_end_of_a_process(
    program: str, code: int, forks: bool, started: list[int], tmp_path: Path
) -> None:
    process = probe(tmp_path, program)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "said\n")
    assert (err.splitlines() or [""])[-1] == {
        "exits with a text": "a text",
        "raises": "ValueError: wrong",
        "is interrupted": "KeyboardInterrupt",
    }.get(next(name for name, end in ENDS.items() if end == (program, code)), "")
    assert len(started) == forks


@pytest.mark.parametrize(
    "options",
    [
        {"start_new_session": True},
        {"variables": {"PYTHONPATH": ""}},
        {"variables": {"LC_ALL": "C"}},
        {"variables": {"LD_PRELOAD": ""}},
        {"preexec_fn": lambda: None},
        {"close_fds": False},
        {"umask": 0o77},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_is_executed_instead(
    options: dict[str, Any], forks: bool, started: list[int], tmp_path: Path
) -> None:
    rest = {name: value for name, value in options.items() if name != "variables"}
    program = "import os; print(os.getsid(0) == os.getpid())"
    process = probe(tmp_path, program, env=ours() | options.get("variables", {}), **rest)
    out, _ = process.communicate(timeout=20)
    assert out == f"{'start_new_session' in options}\n"
    assert len(started) == (forks and "start_new_session" in options)


def test_a_program_text_on_a_prepared_server(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules are those of the server; the rest is as after `exec`."""
    unused = fork_server.Server(ours())
    monkeypatch.setattr(fork_server.Popen, "server", unused if forks else None)
    text = """
import sys
early = "colorsys" in sys.modules
def main():
    import colorsys
    print(sys.argv, repr(sys.path[0]), __name__, early, colorsys.ONE_THIRD < 1)
main()
sys.exit(3)
"""
    with fork_server.prepared(ours(), ["colorsys"]):
        done = subprocess.run(
            [sys.executable, "-c", text, "a", ""],
            env=ours(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert fork_server.Popen.server is (unused if forks else None)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"['-c', 'a', ''] '' __main__ {forks} True\n"


@needs_namespaces
def test_a_network_namespace(forks: bool, started: list[int], tmp_path: Path) -> None:
    program = "import os; print(os.readlink('/proc/self/ns/net'))"
    with Network(("a",)) as network:
        process = probe(tmp_path, program, within=network.inside("a"))
        out, err = process.communicate(timeout=20)
        number = os.stat(f"/run/netns/{network.inside('a')[-1]}").st_ino
    assert (out, err) == (f"net:[{number}]\n", "")
    assert len(started) == forks


def test_errors_of_the_command_line(forks: bool, started: list[int], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe(tmp_path, "", cwd=tmp_path / "missing")
    process = probe(tmp_path, "import os; print(os.environ['A'])", env=ours() | {"A": "1"})
    assert process.communicate(timeout=20) == ("1\n", "")


def test_a_full_stdout_is_an_error(forks: bool, started: list[int], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = probe(tmp_path, "print('lost')", stdout=full)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, "No space left on device" in err) == (120, True)


def test_no_process_of_a_server_is_left(forks: bool, started: list[int], tmp_path: Path) -> None:
    """Only the program is a child of the test process, and it is reaped."""
    process = probe(tmp_path, "input()")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    assert str(process.pid) in children.read_text().split()
    process.communicate("\n", timeout=20)
    assert str(process.pid) not in children.read_text().split()


def test_daemons_of_up_are_forks_of_a_server_that_exits_with_it(
    server: fork_server.Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fork_server.Popen, "server", server)
    monkeypatch.setattr(subprocess, "Popen", fork_server.Popen)
    monkeypatch.setattr("support.up_process.environment", ours)
    up = Up(tmp_path, "--no-nsqadmin", ports=PORTS[:-1]).serving()
    try:
        nested = [
            each
            for each in psutil.Process(up.process.pid).children()
            if fork_server.__file__ in each.cmdline()
        ]
        daemons = [up.child("nsqd"), up.child("nsqlookupd")]
        # /proc shows the environment of the last `exec`.
        executed = [each for each in daemons if "NOTIFY_SOCKET" in each.environ()]
        os.killpg(up.process.pid, signal.SIGTERM)
        assert up.wait() == 0
        psutil.wait_procs(nested, BUDGET)
    finally:
        up.destroy()
    assert len(nested) == 1 and not nested[0].is_running()
    assert executed == []


def test_a_signal_to_a_process_that_blocks_it_stays_pending(
    forks: bool, started: list[int], tmp_path: Path
) -> None:
    program = "import signal; print(signal.sigtimedwait([signal.SIGTERM], 20).si_signo)"
    for _ in range(5):
        old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        process = probe(tmp_path, program)
        process.terminate()
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        assert process.communicate(timeout=20) == ("15\n", "")
