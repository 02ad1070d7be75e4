"""Small files that are missing, damaged, outdated or unreadable at startup: nsqd starts, deletes
nothing, and reports the problem."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd

WEEK = {"retention_time": "168h"}
# Without this capability, root may not read a file whose mode forbids it.
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def previous(path: Path) -> Path:
    return path.parent / "previous" / path.name


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path) -> None:
    """Flip a bit that leaves valid JSON."""
    content = path.read_bytes()
    at = content.index(b"kept") + 2
    path.write_bytes(content[:at] + b"q" + content[at + 1 :])


def older(path: Path) -> None:
    shutil.copy(path.with_name(f"{path.name}.older"), path)


def unreadable(path: Path) -> None:
    path.chmod(0)


def unreadable_twice(path: Path) -> None:
    path.chmod(0)
    previous(path).chmod(0)


def damaged_twice(path: Path) -> None:
    empty(path)
    empty(previous(path))


def missing_twice(path: Path) -> None:
    missing(path)
    missing(previous(path))


EACH = (
    missing,
    empty,
    truncated,
    flipped,
    older,
    unreadable,
    unreadable_twice,
    damaged_twice,
    missing_twice,
)
SILENT = (older, missing_twice)  # the file itself does not show the problem


def filled(nsqd: Starter, files: tuple[str, ...], **options: object) -> Nsqd:
    """Return a daemon with a topic that keeps its finished messages because of a policy."""
    daemon = nsqd(durability="os", max_bytes_per_file=100_000, **options)
    web = daemon.web
    web.create("other", "c")
    assert web.put("/topic/config", b'{"ttl": "1h"}', topic="other").status == 200
    for file in files:
        shutil.copy(daemon.data / file, daemon.data / f"{file}.older")
    web.create("kept", "c")
    assert web.put("/topic/config", json.dumps(WEEK).encode(), topic="kept").status == 200
    web.post("/mpub", b"\n".join([b"x" * 500] * 1000), topic="kept")
    daemon.connect().sub("kept", "c", rdy=500).take(1000)
    web.await_counts("kept", "c", depth=0, in_flight_count=0)
    return daemon


def first_seq(daemon: Nsqd) -> int:
    found: int = daemon.web.get("/topic/log", topic="kept").json()["first_seq"]
    return found


@one_worker  # the master reads the files whatever the number of workers
@pytest.mark.parametrize("spoil", EACH, ids=lambda each: each.__name__)
def test_nothing_is_deleted(nsqd: Starter, spoil: Callable[[Path], None]) -> None:
    files = ("nsqd.dat", "policies.json")
    is_forbidden = spoil in (unreadable, unreadable_twice)
    daemon = filled(nsqd, files, within=UNPRIVILEGED if is_forbidden else ())
    daemon.stop()
    for file in files:
        spoil(daemon.data / file)
    daemon.start()
    assert first_seq(daemon) == 1
    config = daemon.web.get("/topic/config", topic="kept").json()["config"]
    assert config["retention_time"] == {"value": "168h", "from": "http"}
    for file in files:
        is_said = f"{daemon.data / file} " in daemon.log_text()
        assert is_said == (spoil not in SILENT or (file, spoil) == ("nsqd.dat", older))
    saved = daemon.data / "policies.json"
    eventually(lambda: json.loads(saved.read_bytes())["set"]["kept"] == WEEK)
    daemon.restart()
    assert first_seq(daemon) == 1
    assert daemon.web.get("/topic/config", topic="kept").json()["config"] == config
