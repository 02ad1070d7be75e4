"""The next version's first steps in the process of an nsqd, until it has restored the parts."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.config import loader
from nsqcy.logging.logger import Log
from nsqcy.nsqd import main
from nsqcy.nsqd.master import master as master_module
from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.nsqd.options import NSQD, resolve


class Stopped(Exception):
    """The test ends here."""


class FakeMaster:
    """Keeps what it is made with, and ends the test."""

    made: tuple[Any, ...] = ()

    def __init__(self, *args: Any) -> None:
        FakeMaster.made = args

    def restore(self, state: State) -> None:
        raise Stopped


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Replace what needs another nsqd, and count the reads."""
    counted = {"load": 0, "_load_tls": 0, "_load_users": 0}

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counting(*args: Any) -> Any:
            counted[name] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, counting)

    count(main.loader, "load")
    count(main, "_load_tls")
    count(main, "_load_users")
    monkeypatch.setattr(main.startup, "open_log", lambda *_: Log())
    monkeypatch.setattr(main.startup, "join_system", lambda _: None)
    monkeypatch.setattr(main.Launcher, "restore", lambda *_: None)
    monkeypatch.setattr(main.policy_file.SavedPolicies, "restore", lambda *_: None)
    monkeypatch.setattr(master_module, "Master", FakeMaster)
    return counted


def state_of(path: Path) -> State:
    options = resolve(loader.load(NSQD, [f"--data-path={path}"]))
    found = os.stat(path)
    launcher = {
        "lock": {"directory": [found.st_dev, found.st_ino]},
        "context": {"options": options.dump()},
    }
    parts = {"launcher": launcher, "listeners": [], "policies": {}}
    return State(-1, {}, "", "0.0.9", "nsqd", parts, Program([], None), {}, [])


def test_the_configuration_is_read_once(
    tmp_path: Path, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients wait in the meantime."""
    state = state_of(tmp_path)
    counts["load"] = 0
    reasons = []
    monkeypatch.setattr(State, "go_back", lambda _, reason: reasons.append(reason))
    with pytest.raises(Stopped):
        main._take_over([f"--data-path={tmp_path}"], state)
    assert reasons == ["Stopped"]
    assert counts == {"load": 1, "_load_tls": 1, "_load_users": 1}


def test_what_was_read_is_what_a_reload_reads(tmp_path: Path, counts: dict[str, int]) -> None:
    argv = [f"--data-path={tmp_path}", "--log-level=debug"]
    state = state_of(tmp_path)
    options, found, warnings = main._read_settings(argv, state)
    assert options.log_level != found.log_level and warnings == []
    assert found == main._reader(argv, options, SimpleNamespace())()  # type: ignore[arg-type]
