"""The state that the master passes to its next version: the envelope, and the parts that need no
process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy import __version__, formats
from nsqcy.formats import FormatError
from nsqcy.metrics.families import AGES, CHANNELS, OTHER, TOPICS
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.master import master_state, upgrade
from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.nsqd.master.placement import Placement
from nsqcy.nsqd.master.policy_file import SavedPolicies
from nsqcy.nsqd.stats import metrics_other_series
from nsqcy.nsqd.stats.metrics_other_series import Summed
from nsqcy.nsqd.stats.statsd import Increases
from nsqcy.process import spawn
from nsqcy.process.ancillary import Keep
from nsqcy.process.systemd import Notifier, notifier
from support.gevent_hub import Lines

OLD = Program(["/old/python", "-P", "-m", "nsqcy.nsqd.main", "--workers=2"], "/old/path")


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


# -- the envelope


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_CLOEXEC)
    yield ends
    for fd in ends:
        os.close(fd)


def written(fd: int = -1) -> State:
    def parts(keep: Keep) -> dict[str, Any]:
        return {"part": [keep(fd)] if fd >= 0 else []}

    state, fds = master_state.write(parts, OLD, {"NOTIFY_SOCKET": "@a"})
    environ = {master_state.STATE: str(state), "OTHER": "1"}
    found = master_state.received(environ)
    assert found is not None and environ == {"OTHER": "1"}
    assert found.fds == fds
    return found


def test_a_state_and_back(pipe: tuple[int, int]) -> None:
    state = written(pipe[0])
    state.check()
    assert state.parts == {"part": [pipe[0]]}
    assert (state.version, state.failure, state.way_back) == (__version__, "", OLD)
    assert (state.service, state.fds) == ({"NOTIFY_SOCKET": "@a"}, [pipe[0]])
    os.set_inheritable(pipe[0], True)
    name = Path("/proc/self/comm")
    before = name.read_text()
    state._replace(name="another").take_over()
    assert name.read_text() == "another\n"
    name.write_text(before)
    assert state.name == before.strip()
    assert not os.get_inheritable(pipe[0])
    with pytest.raises(OSError):
        os.fstat(state.fd)


def test_without_a_state() -> None:
    assert master_state.received({}) is None


@pytest.mark.parametrize("each", formats.FORMATS, ids=lambda each: each.name)
def test_a_format_that_is_not_read_is_refused(each: formats.Format) -> None:
    state = written()
    os.close(state.fd)
    state = state._replace(formats=state.formats | {each.name: each.number + 1})
    with pytest.raises(FormatError, match=f"the running master: {each.name} format version"):
        state.check()


def test_a_format_that_the_version_before_does_not_have_is_no_reason() -> None:
    state = written()
    os.close(state.fd)
    found = {name: number for name, number in state.formats.items() if name != "master state"}
    state._replace(formats=found).check()


def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def execve(path: str, argv: list[str], environ: dict[str, str]) -> None:
        found.append((path, argv, environ))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "environ", {"HOME": "/h", "PYTHONPATH": "/new/path"})
    return found


def test_the_way_back(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    calls = executed(monkeypatch)
    state = written(pipe[0])
    state.go_back("no module")
    assert calls == [
        (
            "/old/python",
            OLD.command,
            {
                "HOME": "/h",
                "PYTHONPATH": "/old/path",
                "NOTIFY_SOCKET": "@a",
                master_state.STATE: str(state.fd),
                master_state.FAILED: "no module",
            },
        )
    ]
    assert os.get_inheritable(pipe[0]) and os.get_inheritable(state.fd)
    failed = master_state.read(state.fd, "no module")
    failed.go_back("once more")  # it is the version before itself
    assert len(calls) == 1
    os.close(state.fd)


def test_descriptors_are_as_before_if_nothing_can_be_executed(pipe: tuple[int, int]) -> None:
    state = written(pipe[0])
    os.set_inheritable(pipe[1], True)
    program = Program(["/missing/python"], None)
    with pytest.raises(FileNotFoundError):
        master_state.execute(program, state.fd, list(pipe), {})
    assert not os.get_inheritable(pipe[0])
    assert os.get_inheritable(pipe[1])
    os.close(state.fd)


def test_it_passes_through_execve(tmp_path: Path) -> None:
    """A process executes another program, which reads what the first one has passed to it."""
    text = (
        "import os, sys\n"
        "from nsqcy.nsqd.master import master_state as m\n"
        "state = m.received(os.environ)\n"
        "if state is None:\n"
        "    r, w = os.pipe()\n"
        "    os.write(w, b'passed')\n"
        "    program = m.Program([sys.executable, __file__], os.environ['PYTHONPATH'])\n"
        "    fd, fds = m.write(lambda keep: {'pipe': keep(r)}, program, {})\n"
        "    m.execute(program, fd, fds, {'SERVICE': 'given'})\n"
        "print(os.read(state.parts['pipe'], 10).decode(), os.environ['SERVICE'])\n"
    )
    path = tmp_path / "program.py"
    path.write_text(text)
    env = spawn.environment()
    env.setdefault("PYTHONPATH", "")
    found = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "passed given\n"


def test_only_the_package_of_this_interpreter_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(spawn, "_PACKAGE_ROOT", "/a/checkout")
    assert Program.of(sys.executable, ["-x"]) == (
        [sys.executable, "-P", "-m", "nsqcy.nsqd.main", "-x"],
        "/a/checkout",
    )
    assert Program.of("/opt/python", []).pythonpath is None


def test_variables_of_the_service_manager(tmp_path: Path) -> None:
    environ = {
        "NOTIFY_SOCKET": f"{tmp_path}/missing",
        "WATCHDOG_USEC": "20000000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    before = dict(environ)
    found = notifier(environ, Lines())
    assert (environ, found.environ()) == ({}, before)
    assert Notifier().environ() == {}


# -- parts


def test_known_topics() -> None:
    topics = KnownTopics()
    topics.create_channel("b", "two")
    topics.create_channel("b", "one")
    topics.create_topic("a")
    topics.pause_topic("a", True)
    topics.pause_channel("b", "one", True)
    found = KnownTopics()
    found.restore(through_json(topics.dump()))
    assert list(found) == ["b", "a"]
    assert [found.entry(name) for name in found] == [topics.entry(name) for name in topics]
    topics.create_channel("a", "later")
    assert found.pairs("a") == [("a", "")]


def test_placement() -> None:
    placement = Placement(3)
    for number in range(20):
        placement.place(f"topic {number}")
    for number in range(0, 20, 3):
        placement.retire(f"topic {number}")
    found = Placement(3)
    found.restore(through_json(placement.dump()))
    assert (found.table(), found.counts()) == (placement.table(), placement.counts())
    assert found.place("topic 0") == placement.place("topic 0")
    assert found.place("new") == placement.place("new")
    assert found.counts() == placement.counts()


def test_policies() -> None:
    saved = SavedPolicies("/data").change("topic/channel", {"max-attempts": 3})
    found = SavedPolicies.restore("/data", through_json(saved.dump()))
    assert (found.dump(), found.version) == (saved.dump(), saved.version)
    assert found.change("topic/channel", None).version.revision == 2


def test_values_of_statsd() -> None:
    values = Increases()
    values.of(("topic", "channel", "count"), 5)
    values.end_push(True)
    values.of(("topic", "channel", "count"), 7)  # of a push that did not end
    found = Increases()
    found.restore(through_json(values.dump()))
    assert found.of(("topic", "channel", "count"), 9) == 4


def share(count: int) -> dict[str, Any]:
    return {
        "topics": 1,
        "channels": 1,
        "topic": [count] * len(TOPICS),
        "channel": [count] * len(CHANNELS),
        "ages": [[count] * 3, float(count)],
    }


def test_sums_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = Summed(OTHER)
    summed.look({0: share(5), 1: share(2)}, {0: 0, 1: 0})
    summed.look({0: share(1), 1: share(3)}, {0: 1, 1: 0})  # worker 0 was restarted
    found = Summed(OTHER)
    dumped = through_json(summed.dump())
    found.restore(dumped)
    found.look({0: share(2), 1: share(4)}, {0: 1, 1: 0})
    assert found.ages() == ([11] * 3, 11.0)
    columns = metrics_other_series._COLUMNS | {"ages": [f"{AGES.name}_other"]}
    monkeypatch.setattr(metrics_other_series, "_COLUMNS", columns)
    later = Summed(OTHER)
    later.restore(dumped)
    later.look({0: share(2)}, {0: 1})
    assert later.ages() == ([2] * 3, 2.0)


# -- the program


def test_signals_that_are_blocked() -> None:
    assert set(upgrade._SIGNALS) == {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR2,
    }


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_program_that_others_can_change(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "python3"
    path.touch(mode=0o755)
    upgrade.check_program(str(path))
    path.chmod(mode)
    with pytest.raises(upgrade.UpgradeFailed, match=f"{path}: other users can change it"):
        upgrade.check_program(str(path))
    path.chmod(0o755)
    tmp_path.chmod(mode)
    with pytest.raises(upgrade.UpgradeFailed, match=f"{tmp_path}: other users can change it"):
        upgrade.check_program(str(path))


def test_a_link_to_a_program_that_others_can_change(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / "python3", tmp_path / "python"
    path.touch(mode=0o755)
    link.symlink_to(path)
    upgrade.check_program(str(link))
    (tmp_path / "there").chmod(0o777)
    with pytest.raises(upgrade.UpgradeFailed, match="other users can change it"):
        upgrade.check_program(str(link))


@pytest.mark.parametrize("path", ["python3", "/bin/sh", "/usr/bin/env", "../python3"])
def test_a_program_that_is_no_interpreter(path: str) -> None:
    with pytest.raises(upgrade.UpgradeFailed, match="is not the absolute path"):
        upgrade.check_program(path)
