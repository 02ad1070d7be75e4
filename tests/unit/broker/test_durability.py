"""Durability classes of the core: the guarantees of an OK, and the state at startup after a
kill.

The tests simulate a kill with a copy of the files at that moment.
"""

import errno
import json
import select
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.server.core import BytesTransport, Publisher
from nsqcy.storage.core import MirroredIo
from nsqcy.storage.io_faults import FaultyIoThread
from support.worker_core import (
    ERROR,
    MILLISECOND,
    MOMENT,
    RESPONSE,
    SECOND,
    Client,
    Core,
    log_pub,
    mpub,
)

OK = (RESPONSE, b"OK")
Make = Callable[..., Core]
Done = Callable[[str | None], object]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(
        durability: str, path: Path | None = None, retention_time: int = 0, **more: Any
    ) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        policy = TopicPolicy(durability=durability, retention_time=retention_time)
        core = Core(path, policies=Policies(policy), **more)
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, durability: str, later: int = 0) -> Core:
    """Return what would be found at startup if the process were killed now; there is no
    metadata."""
    again = make(durability, core.copied(), now=core.now + 77 * SECOND, wall=core.wall + later)
    again.load_all()
    return again


def bodies(core: Core, topic: str = "t", channel: str = "c") -> list[bytes]:
    return [each.body for each in received(core.client().subscribe(topic, channel, 2500))]


def received(client: Client) -> list:
    client.core.settle()
    return client.messages()


CALLS = {"os": "pwrite", "fsync": "fdatasync"}  # the calls that each class waits for
# The topic's class, the class that the publisher requests, and the class that applies.
ASKED = [
    ("memory", "os", "os"),
    ("memory", "fsync", "fsync"),
    ("os", "fsync", "fsync"),
    ("os", "memory", "os"),
    ("fsync", "os", "fsync"),
    ("fsync", "memory", "fsync"),
]


def parked(core: Core) -> None:
    """Run a turn until the I/O thread is parked at the held call."""
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.io.poll_now()
    core.manager.run_turn(core.now, core.wall)


@pytest.mark.parametrize(
    ("durability", "asked", "holds"), [("os", "", "os"), ("fsync", "", "fsync"), *ASKED]
)
def test_ok_comes_when_it_is_kept(make: Make, durability: str, asked: str, holds: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold(CALLS[holds])
    client = core.client(durability=asked)
    client.send(b"PUB t\n\0\0\0\3one")
    parked(core)
    assert client.answer() is None
    assert core.counters("t")["depth"] == core.counters("t", "c")["depth"] == 0
    core.io.release()
    core.settle()
    assert client.answer() == OK
    assert core.counters("t", "c")["depth"] == 1
    assert bodies(core) == [b"one"]


@pytest.mark.parametrize(("durability", "asked", "holds"), ASKED)
def test_publishing_from_within_is_answered_as_late(
    make: Make, durability: str, asked: str, holds: str
) -> None:
    """Publishing from within the process, as HTTP does."""
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold(CALLS[holds])
    outcomes: list[str | None] = []
    Publisher(core.manager).publish(b"t", [b"one", b"two"], 0, asked, outcomes.append)
    parked(core)
    assert outcomes == []
    core.io.release()
    core.settle()
    assert outcomes == [None]
    assert bodies(core) == [b"one", b"two"]
    assert bodies(killed(make, core, durability)) == [b"one", b"two"]


def test_only_a_durable_publish_waits_for_a_sync(make: Make) -> None:
    """Publishes after the durable one also wait for its answer: messages keep their order."""
    core = make("memory")
    core.create("t").channel("c")
    plain, careful, behind = core.client(), core.client(durability="fsync"), core.client()
    core.io.hold("fdatasync")
    assert plain.publish("t", b"0") == OK
    careful.send(b"PUB t\n\0\0\0\0011")
    parked(core)
    behind.send(b"PUB t\n\0\0\0\0012")
    core.manager.run_turn(core.now, core.wall)
    assert careful.answer() is behind.answer() is None
    core.io.release()
    core.settle()
    assert careful.answer() == behind.answer() == OK
    before = core.io.calls_made("pwrite")
    assert plain.publish("t", b"3") == behind.publish("t", b"4") == OK
    assert core.io.calls_made("pwrite") == before
    assert bodies(core) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("asked", ["os", "fsync"])
def test_messages_published_as_durable_survive_a_kill(make: Make, asked: str) -> None:
    """The channels that receive the messages also survive, regardless of the metadata."""
    core = make("memory")
    core.create("t").channel("c")
    core.create("t").channel("gone")
    plain, careful = core.client(), core.client(durability=asked)
    assert plain.publish("t", b"risked") == OK
    core.topic("t").delete_channel("gone")
    assert careful.publish("t", b"one") == OK
    core.create("t").channel("d")
    assert plain.publish("t", b"risked") == OK
    assert careful.ask(mpub("t", [b"two", b"three"])) == OK
    assert plain.publish("t", b"risked") == plain.publish("t", b"risked", delay=60_000) == OK
    assert careful.publish("t", b"later", delay=60_000) == OK
    again = killed(make, core, "memory", later=SECOND)
    assert sorted(again.topic("t").channels) == ["c", "d"]
    assert bodies(again, channel="c") == [b"one", b"two", b"three"]
    assert bodies(again, channel="d") == [b"two", b"three"]
    assert again.counters("t", "c")["deferred_count"] == 1


def test_channels_are_written_before_the_first_durable_message(make: Make) -> None:
    core = make("memory")
    core.create("t").channel("c")
    assert core.client(durability="os").publish("t", b"one") == OK
    again = killed(make, core, "memory")
    assert list(again.topic("t").channels) == ["c"]
    assert bodies(again) == [b"one"]


def test_channels_are_written_again_after_the_log_was_empty(make: Make) -> None:
    """A class memory topic keeps no journal while it has nothing on disk."""
    core = make("memory", log_options={"max_bytes_per_file": 1000})
    core.create("t").channel("c")
    careful = core.client(durability="os")
    consumer = core.client().subscribe("t", "c", 1)
    for _ in range(2):
        assert careful.publish("t", b"x" * 900) == OK
        (message,) = received(consumer)
        consumer.finish(message.id)
        core.settle()
    consumer.send(b"CLS\n")
    core.advance(15 * SECOND)
    core.create("t").channel("d")
    assert careful.publish("t", b"last") == OK
    again = killed(make, core, "memory")
    assert bodies(again, channel="d") == [b"last"]


def test_a_durable_publish_needs_a_disk(make: Make) -> None:
    core = make("memory")
    plain, careful = core.client(), core.client(durability="os")
    outcomes: list[str | None] = []
    core.shard.set_refusal("no room")
    assert careful.publish("t", b"x") == (ERROR, b"E_PUB_FAILED PUB failed no room")
    Publisher(core.manager).publish(b"t", [b"x"], 0, "os", outcomes.append)
    assert outcomes == ["no room"]
    assert plain.publish("t", b"x") == OK
    assert core.counters("t")["message_count"] == 1


def test_it_holds_wherever_the_client_goes(make: Make) -> None:
    """The requested class also applies at the owner of the topic, through a stream or after a
    migration."""
    core = make("memory")
    core.create("t").channel("c")
    careful = core.client(durability="fsync")
    core.settle()
    state, unread, unsent = careful.session.pack()
    moved, far_end = BytesTransport(core.manager), BytesTransport(core.manager)
    moved.client.unpack(state, unread, unsent)
    known = {"authed": False, "auth_identity": "", "auth_identity_url": "", "tls": None}
    known |= {"snappy": False, "deflate": False, "lenient": False, "transfers": False}
    far_end.client.adopt_hello(state | known)
    far_end.feed(b"  V2")
    for transport in (moved, far_end):
        core.io.hold("fdatasync")
        transport.feed(b"PUB t\n\0\0\0\1x")
        parked(core)
        assert transport.sent() == b""
        core.io.release()
        core.settle()
        assert transport.sent().endswith(b"OK")


def test_asking_again(make: Make) -> None:
    core = make("memory")

    def ask(**fields: object) -> bytes:
        text = json.dumps(fields).encode()
        kind, answer = client.ask(b"IDENTIFY\n", struct.pack(">i", len(text)), text) or (None, b"")
        assert kind == RESPONSE
        return answer

    client = core.client(durability="fsync")
    assert ask() == b"OK"
    assert client.session.durability == 2
    assert b"durability" not in ask(feature_negotiation=True)
    assert ask(feature_negotiation=True, durability="os").endswith(b',"durability":"os"}')
    assert client.session.durability == 1
    assert ask(durability="memory") == b"OK"
    assert client.session.durability == 0


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_acknowledged_messages_survive_a_kill(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", b"one") == OK
    assert client.ask(mpub("t", [b"two", b"three"])) == OK
    assert client.publish("t", b"four") == OK
    assert bodies(killed(make, core, durability)) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("durability, syncs", [("memory", 3), ("os", 0)])
def test_only_a_topic_of_class_os_is_not_synced_by_count(
    make: Make, durability: str, syncs: int
) -> None:
    options = {"max_bytes_per_file": 100 << 20, "sync_every": 2, "sync_timeout": 2 * SECOND}
    core = make(durability, mem_queue_size=0, log_options=options)
    core.create("t").channel("c")
    client = core.client()
    for _ in range(7):
        assert client.publish("t", b"one") == OK
    assert core.io.calls_made("fdatasync") == syncs
    core.advance(3 * SECOND)
    assert core.io.calls_made("fdatasync") > syncs


def test_memory_promises_less(make: Make) -> None:
    core = make("memory")
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    core.advance(5 * SECOND)
    assert core.files() == []


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_channel_is_known_before_its_messages(make: Make, durability: str) -> None:
    """The channel was created but never checkpointed; the metadata may not be on disk either."""
    core = make(durability)
    client = core.client()
    assert client.publish("t", b"early") == OK
    core.create("t").channel("c")
    assert client.publish("t", b"one") == OK
    core.create("t").channel("d")
    assert client.publish("t", b"two") == OK
    again = killed(make, core, durability)
    assert bodies(again, channel="c") == [b"early", b"one", b"two"]
    assert bodies(again, channel="d") == [b"two"]


def test_a_deleted_channel_stays_deleted(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    topic.channel("d")
    assert core.client().publish("t", b"one") == OK
    topic.delete_channel("d")
    core.settle()
    assert list(killed(make, core, "os").topic("t").channels) == ["c"]


def test_an_emptied_queue_stays_empty(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    client = core.client()
    for n in range(10):
        assert client.publish("t", b"%d" % n) == OK
    topic.empty_channel("c")
    assert client.publish("t", b"last") == OK
    assert bodies(killed(make, core, "os")) == [b"last"]


def test_messages_emptied_from_a_topic_stay_dropped(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    client = core.client()
    assert client.publish("t", b"dropped") == OK
    topic.empty()
    assert client.publish("t", b"kept") == OK
    again = killed(make, core, "os")
    assert again.counters("t")["depth"] == 1
    assert bodies(again) == [b"kept"]


CHANGES: dict[str, Callable[[Core, Done], object]] = {
    "delete a channel": lambda core, done: core.topic("t").delete_channel("c", done),
    "empty a channel": lambda core, done: core.topic("t").empty_channel("c", done),
    "pause a channel": lambda core, done: core.topic("t").pause_channel("c", True, done),
    "move a channel": lambda core, done: core.topic("t").seek("c", 2, done),
    "empty the topic": lambda core, done: core.topic("t").empty(done),
    "pause the topic": lambda core, done: core.topic("t").pause(True, done),
    "delete the topic": lambda core, done: core.shard.delete_topic(b"t", done),
    "cancel a message": lambda core, done: core.topic("t").cancel("c", deferred(core), done),
    "place a cursor": lambda core, done: core.topic("t").set_cursor("n", bytes(16), 1, done),
}


def deferred(core: Core) -> int:
    return core.topic("t").channels["c"].upcoming(1, None)[0][3]


def with_messages(make: Make, durability: str) -> Core:
    """Return a core whose I/O operations can run one by one."""
    io = FaultyIoThread(stepped=True)
    core = make(durability, retention_time=3600 * SECOND, io=io)
    core.create("t").channel("c")
    for body, delay in ((b"one", 0), (b"two", 0), (b"later", 60_000)):
        assert core.client().publish("t", body, delay) == OK
    core.advance(3 * SECOND)
    return core


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("durability", "call"), [("os", "pwrite"), ("fsync", "fdatasync")])
def test_a_change_is_answered_once_it_is_as_safe_as_a_publish(
    make: Make, durability: str, call: str, change: str
) -> None:
    core = with_messages(make, durability)
    if change.startswith("delete the"):
        call = "unlink"
    elif not change.startswith(("delete", "cancel", "place")):
        call = "rename"  # ends the write of a snapshot
    before = core.io.calls_made(call)
    answers: list[str | None] = []
    CHANGES[change](core, answers.append)
    while not answers:
        core.manager.run_turn(core.now, core.wall)
        core.io.kick_now()
        assert core.io.step_now()
        core.io.poll_now()
        core.manager.run_turn(core.now, core.wall)
        assert not answers or core.io.calls_made(call) > before
    assert answers == [None]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_cannot_be_written_is_reported(make: Make, change: str) -> None:
    core = with_messages(make, "fsync")
    core.io.fault("any", 1, errno.EIO, times=100)
    answers: list[str | None] = []
    CHANGES[change](core, answers.append)
    core.settle()
    core.io.clear_faults()
    assert answers == ["input/output error"]


@pytest.mark.parametrize("change", ["delete a channel", "empty a channel", "delete the topic"])
@pytest.mark.parametrize("durability", ["memory", "os"])
def test_ephemeral_channels_and_topics_are_changed_at_once(
    make: Make, durability: str, change: str
) -> None:
    core = make(durability)
    topic = "t#ephemeral" if change == "delete the topic" else "t"
    core.create(topic).channel("c#ephemeral")
    answers: list[str | None] = []
    if change == "delete the topic":
        core.shard.delete_topic(topic.encode(), answers.append)
    elif change == "delete a channel":
        core.topic(topic).delete_channel("c#ephemeral", answers.append)
    else:
        core.topic(topic).empty_channel("c#ephemeral", answers.append)
    assert answers == [None]


def test_the_deletions_of_a_turn_share_a_sync(make: Make) -> None:
    core = make("fsync")
    topic = core.create("t")
    names = [f"c{number}" for number in range(100)]
    for name in names:
        topic.channel(name)
    assert core.client().publish("t", b"one") == OK
    core.advance(5 * SECOND)
    before = core.io.calls_made("fdatasync")
    answers: list[str | None] = []
    for name in names:
        topic.delete_channel(name, answers.append)
    core.settle()
    assert answers == [None] * len(names)
    assert core.io.calls_made("fdatasync") - before <= 2
    assert list(killed(make, core, "fsync").topic("t").channels) == []


def test_a_change_is_not_answered_by_a_sync_that_omits_it(make: Make) -> None:
    """A sync of the journal that was already in progress fails, and the next one has nothing to
    do."""
    core = make("fsync")
    topic = core.create("t")
    topic.channel("c")
    topic.channel("d")
    assert core.client().publish("t", b"one") == OK
    core.advance(5 * SECOND)
    core.io.fault("fdatasync", 1, errno.EIO, times=1)
    answers: list[str | None] = []
    topic.delete_channel("c", answers.append)
    core.client().send(b"PUB t\n\0\0\0\3two")
    core.settle()
    core.io.clear_faults()
    assert len(answers) == 1 and answers[0] is not None


def test_too_few_copies_leave_changes_unconfirmed(make: Make) -> None:
    core = with_messages(make, "os")
    topic = core.topic("t")
    answers: list[str | None] = []
    topic.empty_channel("c", answers.append)
    topic.leave_unanswered()
    core.settle()
    assert answers == ["unknown"]
    topic.refused = "too few copies"
    topic.pause(True, answers.append)
    core.settle()
    assert answers == ["unknown", "too few copies"]


def test_finished_messages_are_known_after_a_checkpoint(make: Make) -> None:
    core = make("os")
    core.create("t").channel("c")
    client = core.client()
    for n in range(100):
        client.publish("t", b"%d" % n)
    consumer = core.client().subscribe("t", "c", 100)
    some = received(consumer)
    for each in some[1:99]:
        consumer.finish(each.id)
    consumer.requeue(some[99].id, 60_000)
    core.settle()
    core.advance(3 * SECOND)
    core.settle()
    again = killed(make, core, "os", later=SECOND)
    reader = again.client().subscribe("t", "c", 100)
    (first,) = received(reader)
    assert (first.body, first.attempts) == (b"0", 2)
    again.advance(57 * SECOND)
    last = [each for each in received(reader) if each.body == b"99"]
    assert [each.attempts for each in last] == [2]


QUICK = {
    "max_bytes_per_file": 100 << 20,
    "sync_every": 2500,
    "sync_timeout": 100 * MILLISECOND,
}


@pytest.mark.parametrize(("later", "left"), [(0, 10), (100 * MILLISECOND, 0)])
def test_a_checkpoint_is_due_with_a_short_sync_timeout(make: Make, later: int, left: int) -> None:
    """Messages finished before the sync timeout stay finished, however short the timeout is."""
    core = make("os", log_options=QUICK)
    core.create("t").channel("c")
    client = core.client()
    for n in range(20):
        client.publish("t", b"%d" % n)
    consumer = core.client().subscribe("t", "c", 20)
    some = received(consumer)
    core.advance(SECOND)
    for each in some[:10]:
        consumer.finish(each.id)
    core.advance(100 * MILLISECOND)
    for each in some[10:]:
        consumer.finish(each.id)
    core.advance(later)
    assert len(bodies(killed(make, core, "os"))) == left


def test_a_short_sync_timeout_writes_nothing_where_nothing_happens(make: Make) -> None:
    core = make("os", log_options=QUICK)
    core.create("t").channel("c")
    core.client().publish("t", b"x")
    core.advance(SECOND)
    made = core.io.calls_made("any")
    for _ in range(20):
        core.advance(100 * MILLISECOND)
    assert core.io.calls_made("any") == made


def test_the_worker_sleeps_until_the_next_checkpoint(make: Make) -> None:
    for timeout, wanted in ((2 * SECOND, SECOND), (300 * MILLISECOND, 300 * MILLISECOND)):
        core = make("os", log_options={**QUICK, "sync_timeout": timeout})
        core.create("t").channel("c")
        core.advance(10 * SECOND)
        assert core.due == core.now + wanted
    core = make("os", log_options={**QUICK, "sync_timeout": 1})
    core.create("t")
    core.advance(10 * SECOND)
    assert core.due == core.now + 10 * MILLISECOND


@pytest.mark.parametrize("checkpoint", [0, 5 * SECOND])
def test_a_delay_goes_on_from_the_publish(make: Make, checkpoint: int) -> None:
    core = make("os")
    core.create("t").channel("c")
    assert core.client().publish("t", b"later", delay=60_000) == OK
    core.advance(checkpoint)
    again = killed(make, core, "os", later=40 * SECOND)
    consumer = again.client().subscribe("t", "c", 1)
    assert received(consumer) == []
    again.advance(20 * SECOND - checkpoint - MILLISECOND)
    assert received(consumer) == []
    again.advance(MILLISECOND)
    assert [each.body for each in received(consumer)] == [b"later"]


def test_a_delay_begins_with_the_first_channel(make: Make) -> None:
    core = make("os")
    assert core.client().publish("t", b"later", delay=60_000) == OK
    again = killed(make, core, "os", later=40 * SECOND)
    consumer = again.client().subscribe("t", "c", 1)
    again.advance(59 * SECOND)
    assert received(consumer) == []
    again.advance(SECOND)
    assert [each.body for each in received(consumer)] == [b"later"]


def test_a_checkpoint_omits_unwritten_records(make: Make) -> None:
    """The delay of a deferred record that is being written along with the journal is not lost."""
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    core.client().publish("t", b"first")
    client = core.client()
    client.send(b"DPUB t 60000\n\0\0\0\5later")
    topic.pause(False)  # causes a journal write in the same turn
    core.settle()
    assert client.answer() == OK
    again = killed(make, core, "os")
    assert [again.counters("t", "c")[key] for key in ("depth", "deferred_count")] == [1, 1]


@pytest.mark.parametrize(("durability", "call"), [("os", "pwrite"), ("fsync", "fdatasync")])
def test_a_failure_refuses_and_heals(make: Make, durability: str, call: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", b"before") == OK
    core.io.fault(call, 1, errno.EIO)
    kind, text = client.publish("t", b"lost")
    assert kind == ERROR and text.startswith(b"E_PUB_FAILED ") and b"input/output error" in text
    assert core.shard.host.health.startswith("NOK - ")
    client = core.client()
    assert client.publish("t", b"after") == OK
    assert core.shard.host.health == "OK"
    assert core.counters("t")["message_count"] == 2
    again = killed(make, core, durability)
    assert bodies(core) == [b"before", b"after"]
    assert bodies(again) == [b"before", b"after"]


def chunk(number: int, bodies: list[bytes]) -> bytes:
    return log_pub("t", number, bodies)


def batch(number: int, bodies: list[bytes]) -> bytes:
    return mpub("t", bodies)


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("command", [batch, chunk])
@pytest.mark.parametrize("maximum", [1000, 1 << 20])
@pytest.mark.parametrize(
    ("durability", "call"),
    [("memory", "pwrite"), ("os", "pwrite"), ("fsync", "pwrite"), ("fsync", "fdatasync")],
)
def test_a_batch_is_there_as_a_whole_or_not_at_all(
    make: Make,
    durability: str,
    call: str,
    maximum: int,
    command: Callable[[int, list[bytes]], bytes],
    nth: int,
) -> None:
    """A batch is all or nothing, however many writes it takes: here, it is larger than a block, and
    larger than a file."""
    core = make(durability, mem_queue_size=8, log_options={"max_bytes_per_file": maximum})
    core.create("t").channel("c")
    core.settle()
    core.io.fault(call, nth, errno.ENOSPC)
    accepted = []
    for first in range(0, 12, 3):
        clients = [core.client(topic_log=True) for _ in range(3)]
        for number, client in enumerate(clients, first):
            sent = [b"%d %d " % (number, index) * 800 for index in range(7)]
            client.send(command(number, sent))
        core.settle()
        for number, client in enumerate(clients, first):
            if client.answer() == OK:
                accepted += [b"%d %d " % (number, index) for index in range(7)]
    core.settle()
    assert 28 <= len(accepted) <= 84
    if durability != "memory":
        again = killed(make, core, durability)
        assert [body[: body.index(b" ", 3) + 1] for body in bodies(again)] == accepted
    assert [body[: body.index(b" ", 3) + 1] for body in bodies(core)] == accepted


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_publish_after_a_lost_journal_record_is_rejected(make: Make, durability: str) -> None:
    """Otherwise, nsqd would find the message at startup, along with a channel that had been deleted
    before it."""
    core = make(durability)
    topic = core.create("t")
    topic.channel("c")
    topic.channel("d")
    assert core.client().publish("t", b"before") == OK
    core.io.fault("pwrite", 1, errno.EIO)
    topic.delete_channel("d")
    kind, text = core.client().publish("t", b"refused")
    assert kind == ERROR and b"journal: input/output error" in text
    assert core.client().publish("t", b"after") == OK
    assert core.shard.host.health == "OK"
    again = killed(make, core, durability)
    assert list(again.topic("t").channels) == ["c"]
    assert bodies(again) == bodies(core) == [b"before", b"after"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_refuses_and_heals(make: Make, durability: str) -> None:
    """The failing call may write a journal, a segment or a footer; consuming continues."""
    core = make(durability, log_options={"max_bytes_per_file": 300})
    core.create("t").channel("c")
    for n in range(9):
        assert core.client().publish("t", b"%d" % n) == OK
    for call in ("pwrite", "open"):
        core.io.fault(call, 1, errno.ENOSPC, times=1 << 30)
    for _ in range(3):
        kind, text = core.client().publish("t", b"refused")
        assert kind == ERROR and text.startswith(b"E_PUB_FAILED ")
        core.advance(3 * SECOND)
    assert core.shard.host.health.startswith("NOK - ")
    consumer = core.client().subscribe("t", "c", 5)
    some = received(consumer)
    for each in some[:4]:
        consumer.finish(each.id)
    assert [each.body for each in some + received(consumer)] == [b"%d" % n for n in range(9)]
    core.create("t").channel("d")
    core.io.clear_faults()
    core.advance(3 * SECOND)
    assert core.client().publish("t", b"after") == OK
    assert core.shard.host.health == "OK"
    core.advance(3 * SECOND)
    again = killed(make, core, durability)
    assert sorted(bodies(again)) == [b"4", b"5", b"6", b"7", b"8", b"after"]
    assert bodies(again, channel="d") == [b"after"]


@pytest.mark.parametrize("jump", [-3600 * SECOND, 3600 * SECOND])
def test_the_wall_clock_jumps(make: Make, jump: int) -> None:
    """Delays are measured by the monotonic clock; across a restart, only the wall clock is
    available."""
    core = make("os")
    core.create("t").channel("c")
    assert core.client().publish("t", b"soon", delay=60_000) == OK
    assert core.client().publish("t", b"late", delay=3_600_000) == OK
    core.wall += jump
    consumer = core.client().subscribe("t", "c", 1)
    core.advance(59 * SECOND)
    assert received(consumer) == []
    core.advance(SECOND)
    (soon,) = received(consumer)
    assert soon.body == b"soon"
    consumer.finish(soon.id)
    core.advance(3 * SECOND)
    again = killed(make, core, "os", later=jump)
    consumer = again.client().subscribe("t", "c", 1)
    left = 3600 * SECOND - 63 * SECOND - jump
    if left > 0:
        again.advance(left - SECOND)
        assert received(consumer) == []
        again.advance(SECOND + MOMENT)
    assert [each.body for each in received(consumer)] == [b"late"]


def test_a_clean_end_syncs_what_a_crash_left(make: Make) -> None:
    """Nothing has been written since the start, so nothing has been synced."""
    core = make("os")
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    again = killed(make, core, "os")
    assert again.shard.save() == {}


def test_one_sync_serves_all_publishes_that_arrived_during_the_last(make: Make) -> None:
    core = make("fsync")
    core.create("t").channel("c")
    core.settle()
    clients = [core.client() for _ in range(20)]
    core.io.hold("fdatasync")
    clients[0].send(b"PUB t\n\0\0\0\1x")
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    before = core.io.calls_made("fdatasync")
    for client in clients[1:]:
        client.send(b"PUB t\n\0\0\0\1x")
        core.manager.run_turn(core.now, core.wall)
    core.io.release()
    core.settle()
    assert [client.answer() for client in clients] == [OK] * 20
    assert core.io.calls_made("fdatasync") == before + 1


def test_a_background_sync_blocks_no_client(make: Make) -> None:
    """The sync blocks neither writes to its own topic, nor writes to a topic that overflows, nor a
    sync that a client is waiting for."""
    core = make("memory", mem_queue_size=0)
    topics = {"heavy": "os", "over": "memory", "safe": "fsync"}
    clients = {name: core.client(durability=durability) for name, durability in topics.items()}
    for name, client in clients.items():
        core.create(name).channel("c")
        assert client.publish(name, b"before") == OK
    core.io.hold("fdatasync")
    core.now += 3 * SECOND
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    for name, client in clients.items():
        client.send(b"PUB %s\n\0\0\0\5while" % name.encode())
        answered(core, client)
    core.io.release()
    core.settle()
    for name in topics:
        assert bodies(core, name) == [b"before", b"while"]


def answered(core: Core, client: Client) -> None:
    """Wait for the answer while a thread is parked, so the core does not settle."""
    while (answer := client.answer()) is None:
        core.manager.run_turn(core.now, core.wall)
        assert select.select([core.io.fileno()], [], [], 30)[0]
        core.io.poll_now()
    assert answer == OK


def test_a_topic_that_goes_while_publishes_wait(make: Make) -> None:
    """The first publish waits for its sync, the second for the next one; by then the files are
    deleted."""
    core = make("fsync", io=FaultyIoThread(stepped=True))
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", b"before") == OK
    for _ in range(2):
        client.send(b"PUB t\n\0\0\0\1x")
        core.manager.run_turn(core.now, core.wall)
        assert core.io.step_now()
    core.shard.delete_topic(b"t")
    core.settle()
    assert client.answer() == (ERROR, b"E_PUB_FAILED PUB failed exiting")
    assert core.files() == []


def test_ephemeral_topics_are_never_on_disk(make: Make) -> None:
    core = make("fsync")
    core.create("t#ephemeral").channel("c")
    assert core.client(durability="fsync").publish("t#ephemeral", b"x") == OK
    assert core.topic("t#ephemeral").durability == "memory"
    assert core.files() == []


def log_id(core: Core) -> str:
    core.settle()
    found = core.topic("t").log_facts()["log_id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("durability", "rebooted", "same"),
    [
        ("memory", False, False),
        ("os", False, True),
        ("os", True, False),
        ("fsync", False, True),
        ("fsync", True, True),
    ],
)
def test_a_log_that_may_have_lost_something_is_another_log(
    make: Make, durability: str, rebooted: bool, same: bool
) -> None:
    """The log needs a new id if sequence numbers that clients have seen are reused."""
    core = make(durability, mem_queue_size=0)
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    core.advance(3 * SECOND)
    assert core.client().publish("t", b"two") == OK
    old = log_id(core)
    if rebooted:
        core.shard.host.boot = b"the boot before "
        core.create("t").channel("d")
        core.advance(3 * SECOND)
    assert (log_id(killed(make, core, durability)) == old) == same


def test_a_clean_exit_keeps_the_log(make: Make, tmp_path: Path) -> None:
    core = make("memory")
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    old = log_id(core)
    again = restarted(make, core, {})
    assert log_id(again) == old
    # The clean exit does not count after a later kill.
    assert again.client().publish("t", b"two") == OK
    again.settle()
    assert log_id(killed(make, again, "memory")) != old


def restarted(make: Make, core: Core, channels: dict[str, bool]) -> Core:
    """Return the shard of a process that starts after a clean exit."""
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    again = make("memory", core.path)
    again.shard.load_topic(b"t", False, channels)
    again.advance(5 * SECOND)
    return again


def saved_and_restarted(make: Make, *bodies: bytes, paused: bool = False) -> Core:
    """Return the shard of a process that starts after a clean exit, with these messages in a topic.
    paused: whether the channel is paused in the metadata, but not in the journal"""
    core = make("memory")
    core.create("t").channel("c")
    for body in bodies:
        assert core.client().publish("t", body) == OK
    return restarted(make, core, {"c": paused})


def journal_of(core: Core) -> tuple[int, bytes] | None:
    """Return the journal's inode, which each snapshot changes, and the journal's content."""
    assert core.path is not None
    path = core.path / "t.topic/journal"
    return (path.stat().st_ino, path.read_bytes()) if path.exists() else None


def test_restarts_without_changes_write_no_journal(make: Make) -> None:
    again = saved_and_restarted(make, b"one")
    saved = journal_of(again)
    assert saved is not None
    for _ in range(2):
        again = restarted(make, again, {"c": False})
        assert journal_of(again) == saved
    assert bodies(again) == [b"one"]


def pause_topic(core: Core) -> None:
    core.shard.topics[b"t"].pause(True)


def pause_channel(core: Core) -> None:
    core.shard.topics[b"t"].pause_channel("c", True)


def create_channel(core: Core) -> None:
    core.shard.topics[b"t"].channel("new")


def finish(core: Core) -> None:
    client = core.client().subscribe("t", "c", 1)
    core.settle()
    client.finish(client.messages()[0].id)


@pytest.mark.parametrize(
    "change",
    [
        pause_topic,
        pause_channel,
        create_channel,
        finish,
        lambda core: core.shard.topics[b"t"].delete_channel("c"),
        lambda core: core.client().publish("t", b"three"),
        lambda core: core.client().publish("t", b"three", 1000),
        lambda core: core.shard.policies_changed("t"),
    ],
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_any_change_after_a_restart_is_in_the_journal(
    make: Make, change: Callable[[Core], object], is_clean: bool
) -> None:
    again = saved_and_restarted(make, b"one", b"two")
    saved = journal_of(again)
    change(again)
    if is_clean:
        again.save()
        again.close = lambda: None  # type: ignore[method-assign]
    else:
        again.advance(5 * SECOND)
    assert journal_of(again) != saved


def test_the_metadata_overrule_the_journal(make: Make) -> None:
    again = saved_and_restarted(make, b"one", paused=True)
    saved = journal_of(again)
    again = restarted(make, again, {"c": True, "d": False})
    assert journal_of(again) != saved


def test_counts_are_right_where_the_journal_is_older_than_the_files(make: Make) -> None:
    """Segments finished by all channels are deleted immediately; the journal is updated later."""
    core = make("os", log_options={"max_bytes_per_file": 16_000, "sync_timeout": 10 * SECOND})
    core.create("t").channel("c")
    client = core.client()
    for n in range(30):
        assert client.publish("t", b"%02d" % n * 2500) == OK
    core.advance(11 * SECOND)
    consumer = core.client().subscribe("t", "c", 20)
    for each in received(consumer)[:20]:
        consumer.finish(each.id)
    core.settle()
    again = killed(make, core, "os")
    depth = again.counters("t", "c")["depth"]
    channel = again.topic("t").channels["c"]
    assert channel.ledger()["received"] == depth < 30
    assert len(bodies(again)) == depth


@pytest.mark.parametrize("end", ["clean exit", "publish"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_a_lost_journal_is_rewritten_before_later_records(
    make: Make, nth: int, times: int, end: str
) -> None:
    """The journal is rewritten even if nothing had required it by the time the disk recovered."""
    first = make("memory", mem_queue_size=3)
    first.create("t").channel("c")
    for _ in range(4):
        first.client().publish("t", b"before")
    first.advance(3 * SECOND)
    core = killed(make, first, "memory")
    core.scheduler.mem_queue_size = 3
    core.topic("t").empty_channel("c")
    core.settle()
    core.io.fault("pwrite", nth, errno.ENOSPC, times)
    kept = [b"%d" % n for n in range(6) if core.client().publish("t", b"%d" % n) == OK]
    core.io.clear_faults()
    core.settle()
    if end == "publish":
        assert core.client().publish("t", b"after") == OK
        kept.append(b"after")
    core.save()
    again = make("memory", core.path, now=core.now + 9 * SECOND, wall=core.wall)
    again.shard.load_topic(b"t", False, {})
    again.settle()
    assert bodies(again) == kept


class CountingMirror:
    """A mirror that only counts the changes."""

    def __init__(self) -> None:
        self.position = 0

    def _next(self, *_: object) -> int:
        self.position += 1
        return self.position

    write = truncate = rename = delete = _next

    def shrinks(self, path: str, size: int | None) -> None:
        pass


@pytest.mark.parametrize("change", ["delete a channel", "empty a channel", "delete the topic"])
def test_a_change_to_copies_is_answered_once_it_is_committed(
    make: Make, tmp_path: Path, change: str
) -> None:
    core = make("os")
    mirror = CountingMirror()
    (tmp_path / "copies").mkdir()
    files = MirroredIo(core.io, tmp_path / "copies", mirror)
    core.shard.open_topic(b"t", files, str(tmp_path / "copies")).channel("c")
    core.settle()
    files.committed(mirror.position)
    core.client().send(b"PUB t\n\0\0\0\3one")
    core.settle()
    files.committed(mirror.position)
    core.advance(5 * SECOND)
    files.committed(mirror.position)
    core.settle()
    before = mirror.position
    answers: list[str | None] = []
    CHANGES[change](core, answers.append)
    core.settle()
    assert mirror.position > before and answers == []
    files.committed(mirror.position)
    core.settle()
    assert answers == [None]
    files.wait(False)


def test_a_kill_during_a_clean_exit_keeps_delays(make: Make) -> None:
    """The exit has copied the message out of its block, but not written the journal."""
    core = make("memory")
    core.create("t").channel("c")
    assert core.client().publish("t", b"later", 60_000) == OK
    for _ in range(20):
        assert core.client().publish("t", bytes(4000)) == OK
    client = core.client().subscribe("t", "c", 100)
    for message in received(client):
        client.finish(message.id)
    core.settle()
    core.io.fault("rename", 1, errno.EIO, times=100)
    core.manager.close_sessions()
    core.shard.save()
    again = make("memory", core.copied(), now=core.now, wall=core.wall)
    again.shard.load_topic(b"t", False, {"c": False})
    client = again.client().subscribe("t", "c", 100)
    assert b"later" not in [each.body for each in received(client)]
    again.advance(61 * SECOND)
    assert b"later" in [each.body for each in received(client)]
