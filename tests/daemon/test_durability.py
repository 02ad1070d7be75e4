"""Durability requested for a single publish to a topic of class memory, on any worker; and other
operations that are answered only when their effect is on disk."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from conftest import Starter
from loadtest.many_clients import owners
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support.many_clients import homes
from support.nsqd_process import Nsqd

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


def test_what_the_disk_does_not_take_is_refused_in_so_many_words(nsqd: Starter) -> None:
    """A change that cannot be saved applies until nsqd exits, except to policies, and is saved as
    soon as possible. A directory in place of the file makes saving fail."""
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
        for topic in page["topics"]
    }
