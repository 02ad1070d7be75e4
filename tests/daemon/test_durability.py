"""Durability requested for a single publish to a topic of class memory, on any worker. Also other
operations that are answered only once their effect is on disk."""

import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from conftest import Starter
from loadtest.many_clients import owners
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support.many_clients import homes
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.real_disk

TOPICS = [f"t{number}" for number in range(6)]


def careful(daemon: Nsqd, durability: str = "fsync") -> Conn:
    conn = daemon.connect()
    assert conn.negotiate(durability=durability)["durability"] == durability
    return conn


def kill_all(daemon: Nsqd) -> None:
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.wait()
    daemon.hang_up()
    daemon.start()


def holds(daemon: Nsqd, topic: str, bodies: Counter[bytes]) -> bool:
    """Return whether the channel holds exactly these messages."""
    conn = daemon.connect().sub(topic, "c", rdy=2500)
    found = Counter(message.body for message in conn.take(bodies.total()))
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0)
    return found == bodies


def test_messages_finished_before_a_checkpoint_stay_finished(nsqd: Starter) -> None:
    daemon = nsqd(sync_timeout="100ms", mem_queue_size=0)
    daemon.web.create("t", "c")
    producer = daemon.connect()
    for number in range(20):
        producer.pub("t", b"%d" % number)
    journal = daemon.data / "t.topic" / "journal"
    consumer = daemon.connect().sub("t", "c", rdy=20)
    taken = consumer.messages(20)
    before = eventually(lambda: written(journal))
    for message in taken:
        consumer.fin(message)
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    eventually(lambda: written(journal) != before)
    # The first change may have begun too early, but the second one includes all FINs.
    before = written(journal)
    daemon.web.pub("t", b"last")
    eventually(lambda: written(journal) != before)
    kill_all(daemon)
    assert holds(daemon, "t", Counter([b"last"]))


def written(journal: Path) -> tuple[int, int] | None:
    """Return the identity and the size of the journal's file; None if there is none."""
    if not journal.exists():
        return None
    found = journal.stat()
    return found.st_ino, found.st_size


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_durable_messages_survive_the_death_of_all_processes(
    nsqd: Starter, durability: str
) -> None:
    daemon = nsqd()
    web = daemon.web
    for topic in [*TOPICS, "risked"]:
        web.create(topic, "c")
    conn = careful(daemon, durability)
    for topic in TOPICS:
        web.pub(topic, b"pub", durability=durability)
        answer = web.post("/mpub", b"mpub 1\nmpub 2", topic=topic, durability=durability)
        assert answer.body == b"OK"
        conn.pub(topic, b"PUB")
        conn.mpub(topic, [b"MPUB 1", b"MPUB 2"])
        conn.dpub(topic, 3_600_000, b"DPUB")
    daemon.connect().pub("risked", b"not asked for")
    kill_all(daemon)
    for topic in TOPICS:
        assert daemon.web.counts(topic, "c")["deferred_count"] == 1
        bodies = [b"pub", b"mpub 1", b"mpub 2", b"PUB", b"MPUB 1", b"MPUB 2"]
        assert holds(daemon, topic, Counter(bodies))
    assert daemon.web.counts("risked", "c")["depth"] == 0, "an unsynced publish has survived"


def test_owners_that_are_known_already_learn_of_it(nsqd: Starter) -> None:
    daemon = nsqd()
    for topic in TOPICS:
        daemon.web.create(topic, "c")
    conn = daemon.connect()
    for topic in TOPICS:
        conn.pub(topic, b"risked")
    conn.identify(durability="os")
    for topic in TOPICS:
        conn.pub(topic, b"kept")
    kill_all(daemon)
    for topic in TOPICS:
        assert holds(daemon, topic, Counter([b"kept"]))


def test_it_moves_with_the_session(starter: Starter) -> None:
    daemon = starter(workers=2, move_sessions=True)
    for topic in TOPICS:
        daemon.web.create(topic, "c")
    served_by = owners(2, TOPICS)
    pids = daemon.workers()
    conn = careful(daemon, "os")
    (home,) = homes(daemon, [conn], pids)
    topic = next(topic for topic in TOPICS if served_by[topic] != home)
    body = bytes(100_000)
    published = 0

    def moved() -> bool:
        nonlocal published
        conn.pub(topic, *[body] * 12)
        published += 12
        return bool(daemon.home_of(conn) == pids[served_by[topic]])

    eventually(moved, 30)
    conn.pub(topic, b"moved")
    assert psutil.pid_exists(pids[home])
    kill_all(daemon)
    assert holds(daemon, topic, Counter({body: published, b"moved": 1}))


def test_created_names_are_on_disk_before_the_answer(nsqd: Starter) -> None:
    daemon = nsqd(durability="os")
    for topic in TOPICS:
        daemon.web.create(topic)
        assert named(daemon)[topic] == []
        daemon.web.create(topic, "c")
        assert named(daemon)[topic] == ["c"]
        answer = daemon.web.post("/channel/create", topic=topic, channel="d", start="earliest")
        assert (answer.status, named(daemon)[topic]) == (200, ["c", "d"])


def paused(daemon: Nsqd, topic: str) -> bool:
    figures = daemon.web.counts(topic, "c")
    return bool(figures["paused"]) and figures["depth"] == 2


# The change, and whether it is still in effect.
CHANGES: list[tuple[str, str | None, Callable[[Nsqd, str], bool]]] = [
    ("delete", "c", lambda daemon, topic: named(daemon)[topic] == []),
    ("empty", "c", lambda daemon, topic: daemon.web.counts(topic, "c")["depth"] == 0),
    ("pause", "c", paused),
    ("pause", None, lambda daemon, topic: bool(daemon.web.counts(topic)["paused"])),
    ("delete", None, lambda daemon, topic: topic not in named(daemon)),
]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_answered_change_stays_done(nsqd: Starter, durability: str) -> None:
    """All processes are killed as soon as the change has been answered."""
    daemon = nsqd(durability=durability)
    for topic in TOPICS:
        daemon.web.create(topic, "c")
        daemon.web.mpub(topic, [b"one", b"two"])
    for topic, (action, channel, is_done) in zip(TOPICS, CHANGES, strict=False):
        daemon.web.do(action, topic, channel)
        kill_all(daemon)
        assert is_done(daemon, topic), (action, channel)
        assert daemon.web.topic(topic) is None or topic in named(daemon)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_answered_change_of_one_of_many_names_stays_done(nsqd: Starter, durability: str) -> None:
    """nsqd.dat is large, so changes are appended to another file."""
    daemon = nsqd(durability=durability)
    daemon.stop()
    names = [f"{number:04}{'n' * 60}" for number in range(900)]
    channels = [{"name": name, "paused": False} for name in names]
    content = {"topics": [{"name": "many", "paused": False, "channels": channels}]}
    (daemon.data / "nsqd.dat").write_text(json.dumps(content))
    daemon.start()
    changes = daemon.data / "nsqd.dat.changes"
    kept = set(names)
    for name in names:
        daemon.web.do("delete", "many", name)
        kept.remove(name)
        if changes.exists():
            break
    daemon.web.create("new", "c")
    daemon.web.do("pause", "new", "c")
    kill_all(daemon)
    assert set(named(daemon)["many"]) == kept
    assert daemon.web.counts("new", "c")["paused"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_an_answered_seek_stays_done(nsqd: Starter, durability: str) -> None:
    daemon = nsqd(durability=durability, retention_time="1h")
    for topic in TOPICS[:1]:
        web = daemon.web
        web.create(topic, "c")
        web.mpub(topic, [b"one", b"two", b"three"])
        web.do("empty", topic, "c")
        answer = web.post("/channel/create", topic=topic, channel="d", start="earliest")
        assert answer.status == 200
        assert web.post("/channel/seek", topic=topic, channel="c", to="earliest").status == 200
        kill_all(daemon)
        assert [daemon.web.counts(topic, name)["depth"] for name in "cd"] == [3, 3]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_message_that_was_deleted_stays_deleted(nsqd: Starter, durability: str) -> None:
    daemon = nsqd(durability=durability)
    for topic in TOPICS[:1]:
        daemon.web.create(topic, "c")
        daemon.web.mpub(topic, [b"one", b"two", b"three"])
        page = daemon.web.get("/channel/peek", topic=topic, channel="c").json()
        answer = daemon.web.post(
            "/message/delete", topic=topic, channel="c", id=page["messages"][1]["id"]
        )
        assert answer.status == 200, answer
        kill_all(daemon)
        assert holds(daemon, topic, Counter([b"one", b"three"]))


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_dead_letter_that_was_redriven_is_in_one_place(nsqd: Starter, durability: str) -> None:
    daemon = nsqd(durability=durability)
    daemon.web.create("t", "c")
    daemon.web.create("dead", "c")
    policy = b'{"max_attempts": 1, "dead_letter_topic": "dead"}'
    assert daemon.web.put("/channel/config", policy, topic="t", channel="c").status == 200
    daemon.web.pub("t", b"one")
    consumer = daemon.connect().sub("t", "c", rdy=1)
    consumer.req(consumer.message())
    daemon.web.await_counts("dead", "c", depth=1)
    consumer.close()
    page = daemon.web.get("/channel/peek", topic="dead", channel="c").json()
    answer = daemon.web.post(
        "/channel/redrive", topic="dead", channel="c", id=page["messages"][0]["id"]
    )
    assert answer.status == 200, answer
    kill_all(daemon)
    daemon.web.await_counts("t", "c", depth=1)
    daemon.web.await_counts("dead", "c", depth=0, in_flight_count=0)


def ask_to_delete(daemon: Nsqd, topic: str, channel: str) -> http.client.HTTPConnection:
    """Send a request without waiting for its response."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=30)
    connection.request("POST", f"/channel/delete?topic={topic}&channel={channel}")
    return connection


def test_changes_share_writes(nsqd: Starter) -> None:
    """Concurrent deletions are answered together, rather than one write after the other."""
    daemon = nsqd(durability="fsync", log_level="info")
    names = [f"c{number}" for number in range(40)]
    daemon.web.create("t", *names)
    before = daemon.log_text().count("persisting topic/channel metadata")
    daemon.process.send_signal(signal.SIGSTOP)  # until all requests are waiting
    try:
        asked = [ask_to_delete(daemon, "t", name) for name in names]
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    for each in asked:
        assert each.getresponse().status == 200
        each.close()
    writes = daemon.log_text().count("persisting topic/channel metadata") - before
    assert 1 <= writes < len(names) / 2
    kill_all(daemon)
    assert named(daemon)["t"] == []


def test_in_class_memory_a_change_does_not_wait(nsqd: Starter) -> None:
    """A directory in place of nsqd.dat makes saving fail, but does not affect a deletion."""
    daemon = nsqd()
    daemon.web.create("t", "c")
    eventually(lambda: named(daemon).get("t") == ["c"])
    (daemon.data / "nsqd.dat").unlink()
    (daemon.data / "nsqd.dat").mkdir()
    daemon.web.do("empty", "t", "c")
    daemon.web.do("delete", "t", "c")
    daemon.web.do("delete", "t")
    (daemon.data / "nsqd.dat").rmdir()


def test_what_the_disk_does_not_take_is_refused_in_so_many_words(nsqd: Starter) -> None:
    """A change that cannot be saved stays in effect until nsqd exits, and is saved as soon as
    possible. Changes to policies are the exception. A directory in place of the file makes saving
    fail."""
    daemon = nsqd(durability="os")
    web = daemon.web
    for topic in TOPICS:
        web.create(topic, "c")
    for file in ("nsqd.dat", "policies.json"):
        (daemon.data / file).unlink(missing_ok=True)
        (daemon.data / file).mkdir()
    for topic in TOPICS:
        for answer in (
            web.post("/channel/pause", topic=topic, channel="c"),
            web.post("/topic/pause", topic=topic),
            web.post("/channel/create", topic=topic, channel="d"),
            web.put("/topic/config", b'{"msg_timeout": "30s"}', topic=topic),
        ):
            assert (answer.status, answer.json()) == (503, {"message": "NOT_WRITTEN"})
        assert web.counts(topic)["paused"] and web.counts(topic, "c")["paused"]
    assert "Traceback" not in daemon.log_text() and "failed to persist" in daemon.log_text()
    for file in ("nsqd.dat", "policies.json"):
        (daemon.data / file).rmdir()
    for topic in TOPICS:
        web.do("unpause", topic, "c")
        assert named(daemon)[topic] == ["c", "d"]


def named(daemon: Nsqd) -> dict[str, list[str]]:
    """Return the current topics in nsqd.dat with their channels."""
    page = json.loads((daemon.data / "nsqd.dat").read_bytes())
    return {
        topic["name"]: sorted(channel["name"] for channel in topic["channels"] or ())
        for topic in page["topics"] or ()
    }
