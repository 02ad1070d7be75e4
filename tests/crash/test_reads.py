"""Data that readers of a log have received remains valid, no matter when and how the process ends.

Over all lives of a log, a log_id and a sequence number identify one message, and the records of a
log_id have no gap. Records before the stable position survive every event that the topic's
durability class covers. The number of a program is its seed, so a failure can be reproduced.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.log_columns import ALL, Columns, read_columns
from support.worker_core import ERROR, SECOND, Client, Core
from tests.crash.program import TOPICS, Program, run_all
from tests.crash.test_power_loss import OK, Scene

ACTIONS = 30
CUTS = 2

Ask = Callable[[Client, str], tuple[int, bytes]]


def ask(client: Client, line: str) -> tuple[int, bytes]:
    answer = client.ask(line.encode())
    assert answer is not None
    return answer


def logs_of(ask: Ask, client: Client, topic: str) -> list[dict[str, Any]]:
    kind, data = ask(client, f"LOG_META {topic}\n")
    if kind == ERROR:
        assert data == b"E_LOG_NO_TOPIC"
        return []
    facts = json.loads(data)
    logs: list[dict[str, Any]] = facts["incarnations"]
    last = {key: facts[key] for key in ("log_id", "first_seq", "next_seq")}
    assert logs[-1] == last
    assert len({log["log_id"] for log in logs}) == len(logs)
    places = [log[key] for log in logs for key in ("first_seq", "next_seq")]
    assert places == sorted(places)
    return logs


def rows_of(ask: Ask, client: Client, topic: str, log: dict[str, Any], maximum: int) -> list[bytes]:
    """Return the bodies of a log. A damaged body is empty."""
    at, found = log["first_seq"], []
    while at < log["next_seq"]:
        line = f"LOG_FETCH {topic} {log['log_id']} {at} {log['next_seq']} {maximum} {ALL}\n"
        kind, data = ask(client, line)
        if kind == ERROR:
            assert data.startswith((b"E_LOG_FAILED ", b"E_LOG_GONE ")), data
            break
        part: Columns = read_columns(data)
        assert part.log_id == log["log_id"] and part.base_seq == at
        assert part.body is not None and part.id is not None
        assert [not id for id in part.id] == [not body for body in part.body]
        found += part.body
        at = part.end
    return found


class Reading(Program):
    """Program that also reads logs."""

    policies = Policies(
        TopicPolicy(),
        [
            ("f*", {"durability": "fsync"}),
            ("o*", {"durability": "os"}),
            ("?0", {"retention_time": 3600 * SECOND}),
        ],
    )

    def __init__(self, *args: Any, **kind: bool) -> None:
        self.read_once: dict[tuple[str, int], tuple[bytes, int]] = {}
        self.topic_of: dict[str, str] = {}
        self.lost_power: dict[str, bool] = {}  # whether power was lost since the log was read
        super().__init__(*args, **kind)

    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [*super().kinds(), (self.read, 40)]

    def read(self) -> None:
        for topic in sorted(set(TOPICS)):
            self.read_topic(topic)

    def read_topic(self, topic: str) -> None:
        client = self.core.client(topic_log=True)
        for log in logs_of(self.ask, client, topic):
            maximum = self.chance.choice([1, 500, 1 << 20])
            rows = rows_of(self.ask, client, topic, log, maximum)
            self.compare(topic, log, rows, self.now)
            for seq, body in enumerate(rows, log["first_seq"]):
                if body:
                    self.read_once.setdefault((log["log_id"], seq), (body, self.now))

    def ask(self, client: Client, line: str) -> tuple[int, bytes]:
        client.send(line.encode())
        for _ in range(20000):
            answer = client.answer()
            if answer is not None:
                return answer
            self.step()
        raise AssertionError(f"no answer to {line}")

    def compare(self, topic: str, log: dict[str, Any], rows: list[bytes], moment: int) -> None:
        name = log["log_id"]
        assert self.topic_of.setdefault(name, topic) == topic
        for seq, body in enumerate(rows, log["first_seq"]):
            if body:
                assert self.messages[body].topic == topic
                known = self.read_once.get((name, seq))
                assert known is None or known[1] > moment or known[0] == body, (name, seq)
            else:
                assert self.lost_power.get(name), (name, seq)

    def begin(self, folder: Path, keep: bool) -> None:
        super().begin(folder, keep)
        self.settle()
        self.verify(self.ask, self.core, self.now, power=not keep)

    def verify(self, ask: Ask, core: Core, moment: int, *, power: bool) -> None:
        """Check that all records that were read are unchanged if they still exist, and exist if
        they must."""
        client = core.client(topic_log=True)
        for topic in sorted(set(TOPICS)):
            for log in logs_of(ask, client, topic):
                name = log["log_id"]
                if power and topic[0] != "f":
                    self.lost_power[name] = True
                rows = rows_of(ask, client, topic, log, 1 << 20)
                self.compare(topic, log, rows, moment)
                if self.lost_power.get(name):
                    continue
                end = log["first_seq"] + len(rows)
                for (other, seq), (_, when) in self.read_once.items():
                    assert other != name or when > moment or seq < end or self.faults, (name, seq)

    def check_reads(self, cut: int, *, power: bool) -> None:
        """Check the records that readers received, after a start from the state after `cut` calls;
        see image_after."""
        image = self.image_after(cut, power=power)
        known = dict(self.lost_power)
        core = self.load(image, self.noted, self.core.wall + SECOND)
        core.settle()
        try:
            self.verify(ask, core, self.base + cut, power=power)
            core.close()
        finally:
            self.lost_power = known
            shutil.rmtree(image)


def run(path: Path, number: int, **kind: bool) -> None:
    path.mkdir()
    program = Reading(path, number, **kind)
    program.run(ACTIONS)
    program.read()
    chance = Random(number)
    last = len(program.disk.calls)
    for cut in (last, last, *(chance.randint(0, last) for _ in range(CUTS))):
        program.check_reads(cut, power=True)
        program.check_reads(cut, power=False)
    program.close()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_power_loss_and_kill(tmp_path: Path, first: int) -> None:
    run_all(run, tmp_path, range(first, first + 20))


def test_when_the_disk_had_failed_as_well(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(20), faults=True)


@pytest.mark.soak
def test_power_loss_and_kill_a_thousand_times(tmp_path: Path) -> None:
    run_all(run, tmp_path, range(1000, 2000))
    run_all(run, tmp_path, range(1000, 1500), faults=True)


def test_there_is_something_to_compare(tmp_path: Path) -> None:
    program = Reading(tmp_path, 5)
    program.run(ACTIONS)
    assert program.read_once
    program.close()


def newest(scene: Scene) -> tuple[str, list[bytes]]:
    """Return the id and the bodies of the newest log."""
    client = scene.core.client(topic_log=True)
    log = logs_of(ask, client, "f")[-1]
    return log["log_id"], rows_of(ask, client, "f", log, 1 << 20)


def test_what_a_killed_process_had_not_synced_is_synced_before_it_is_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "data")
    scene.core.create("f").channel("c")
    assert scene.publish(b"kept") == OK
    scene.core.advance(3 * SECOND)
    scene.disk.take(scene.core.io.recorded())
    scene.begin_to_publish(1)
    scene = scene.killed()
    name, rows = newest(scene)
    assert rows == [b"kept", b"nobody"]
    scene.disk.take(scene.core.io.recorded())
    scene = scene.without_power()
    assert scene.publish(b"new") == OK
    assert newest(scene) == (name, [b"kept", b"nobody", b"new"])
    scene.end()
