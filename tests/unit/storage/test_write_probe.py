"""The probe: its reports and log lines while the disk fails, and after its recovery."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.io_faults import FaultyIoThread
from nsqcy.storage.write_probe import WriteProbe
from support.gevent_hub import Lines
from support.worker_core import SECOND, Core


@pytest.fixture
def io() -> Iterator[FaultyIoThread]:
    io = FaultyIoThread()
    yield io
    io.close()


def test_it_reports_each_look_and_logs_each_change(io: FaultyIoThread, tmp_path: Path) -> None:
    outcomes: list[str | None] = []
    lines = Lines()
    folder = tmp_path / "data"
    probe = WriteProbe(io, str(folder), 3, outcomes.append, lines)

    def look() -> None:
        probe.look()
        probe.look()  # the first is in progress
        io.drain_now()

    reason = f"write {folder}/disk-probe.3: no such file or directory"
    for _ in range(2):
        look()
    assert outcomes == [reason, reason]
    assert len(lines.all) == 1 and lines.all[0].startswith(f"cannot {reason}: check")
    folder.mkdir()
    for _ in range(2):
        look()
    assert outcomes[2:] == [None, None]
    assert lines.all[1:] == [f"{folder}: writes succeed again"]
    assert os.listdir(folder) == []


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EMFILE])
def test_every_call_counts(io: FaultyIoThread, tmp_path: Path, call: str, number: int) -> None:
    outcomes: list[str | None] = []
    probe = WriteProbe(io, str(tmp_path), 0, outcomes.append, Lines())
    io.fault(call, 1, number)
    probe.look()
    io.drain_now()
    assert outcomes[0] is not None and outcomes[0].endswith(os.strerror(number).lower())
    io.clear_faults()
    probe.look()
    io.drain_now()
    assert outcomes[1:] == [None]


def test_a_probe_that_began_before_a_failure_does_not_hide_it(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=Policies(TopicPolicy(durability="os")))
    assert core.io is not None
    probe = core.shard.host.probe = WriteProbe(
        core.io, str(tmp_path), 0, core.shard.host.set_health, core.log
    )
    probe.look()
    core.io.fault("pwrite", 2, errno.ENOSPC, times=1000)
    core.shard.host.set_health("write t.topic: no space left on device")
    core.io.drain_now()
    assert "disk-probe.0: no space left on device" in core.shard.host.health
    core.io.clear_faults()
    core.advance(SECOND)
    assert core.shard.host.health == "OK"
    core.close()


def test_health_recovers_without_a_publish(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=Policies(TopicPolicy(durability="os")))
    assert core.io is not None
    core.shard.host.probe = WriteProbe(
        core.io, str(tmp_path), 0, core.shard.host.set_health, core.log
    )
    core.io.fault("pwrite", 1, errno.ENOSPC, times=1000)
    client = core.client()
    assert (client.publish("t", b"x") or (0, b""))[1].startswith(b"E_PUB_FAILED")
    for _ in range(3):
        failed_at = core.shard.host.health_at
        core.advance(SECOND)
        assert "no space left on device" in core.shard.host.health
        assert core.shard.host.health_at > failed_at
    core.io.clear_faults()
    core.advance(SECOND)
    assert core.shard.host.health == "OK"
    core.close()


def test_a_healthy_disk_is_not_probed(tmp_path: Path) -> None:
    core = Core(tmp_path)
    assert core.io is not None
    outcomes: list[str | None] = []
    core.shard.host.probe = WriteProbe(core.io, str(tmp_path), 0, outcomes.append, core.log)
    for _ in range(3):
        core.advance(SECOND)
    assert outcomes == []
    core.close()
