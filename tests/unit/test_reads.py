"""Reading a topic's log: LOG_META, LOG_SEEK, LOG_FETCH."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from columns import ALL, Columns, read_columns
from core import EPOCH, ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

from nsqcy.policies import Policies, TopicPolicy

PLACED_HEARD = 100 * MILLISECOND
DAY = 86400 * SECOND


class Retained(Policies):
    """Every topic keeps its log for a day."""

    def __init__(self, durability: str = "memory", **other: Any) -> None:
        self._policy = TopicPolicy(durability=durability, retention_time=DAY, **other)

    def topic(self, name: str) -> TopicPolicy:
        return self._policy


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path, policies=Retained())
    yield made
    made.close()


def meta(client: Client, topic: str = "t") -> dict[str, Any]:
    kind, data = client.ask(f"LOG_META {topic}\n".encode()) or (None, b"")
    assert kind == RESPONSE, data
    found: dict[str, Any] = json.loads(data)
    return found


def fetch(
    client: Client,
    first: int,
    end: int,
    *,
    log_id: str | None = None,
    most: int = 1 << 23,
    columns: str = ALL,
    topic: str = "t",
) -> Columns:
    log_id = log_id or meta(client, topic)["log_id"]
    line = f"LOG_FETCH {topic} {log_id} {first} {end} {most} {columns}\n"
    kind, data = client.ask(line.encode()) or (None, b"")
    assert kind == RESPONSE, data
    return read_columns(data)


def test_commands_that_were_not_asked_for_are_unknown(core: Core) -> None:
    answer = core.client().ask(b"LOG_META t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_META")


def test_commands_that_do_not_exist_are_unknown(core: Core) -> None:
    answer = core.client(topic_log=True).ask(b"LOG_FORGET t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_FORGET")


def test_a_topic_that_does_not_exist_is_not_made(core: Core) -> None:
    client = core.client(topic_log=True)
    assert client.ask(b"LOG_META t\n") == (ERROR, b"E_LOG_NO_TOPIC")
    assert core.topic("t") is None
    assert client.publish("t", b"one") == (RESPONSE, b"OK")


def test_meta(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    core.advance(SECOND)
    client.publish("t", b"two")
    found = meta(client)
    assert len(found["log_id"]) == 32
    assert found == {
        "topic": "t",
        "log_id": found["log_id"],
        "first_seq": 1,
        "next_seq": 2,
        "first_time": EPOCH,
        "last_time": EPOCH,
        "bytes": 48,
        "durability": "memory",
        "retention": {"time": DAY, "bytes": 0},
        "incarnations": [{"log_id": found["log_id"], "first_seq": 1, "next_seq": 2}],
        "cursors": [],
    }
    core.advance(SECOND)
    later = meta(client)
    assert (later["next_seq"], later["last_time"]) == (3, EPOCH + SECOND)


def test_fetch(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    client.publish("t", b"later", 1000)
    client.publish("t", b"three")
    core.advance(SECOND)
    found = fetch(client, 1, 4)
    assert (found.base_seq, found.count, found.damaged) == (1, 3, False)
    assert found.body == [b"one", b"later", b"three"]
    assert found.defer == (0, SECOND, 0)
    assert found.timestamp == (EPOCH, EPOCH, EPOCH)
    assert found.headers == [b"", b"", b""]
    assert found.id is not None and len(set(found.id)) == 3
    some = fetch(client, 2, 3, columns="id,body")
    assert (some.base_seq, some.body, some.id) == (2, [b"later"], found.id[1:2])
    assert (some.timestamp, some.defer, some.headers) == (None, None, None)


@pytest.mark.parametrize("most", [1, 100, 1000, 100_000, 1 << 23])
def test_a_log_is_read_in_ranges_of_any_size(core: Core, most: int) -> None:
    client = core.client(topic_log=True)
    bodies = [b"%d" % i * (i % 50 + 1) for i in range(1, 301)]
    for i in range(0, 300, 60):
        assert client.ask(mpub("t", bodies[i : i + 60])) == (RESPONSE, b"OK")
        core.advance(SECOND)
    at, found = 1, []
    while at < 301:
        part = fetch(client, at, 301, most=most)
        assert part.base_seq == at and part.body is not None
        assert part.count == 1 or sum(map(len, part.body)) + 32 * part.count <= most
        found += part.body
        at = part.end
    assert found == bodies
