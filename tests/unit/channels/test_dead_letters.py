"""Dead letters: after the maximum number of attempts, a message moves to another topic exactly
once, even after a crash."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.broker import dead_letter_headers
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.io_faults import FaultyIoThread
from support.header_client import HeaderClient, Headered
from support.worker_core import ERROR, RESPONSE, SECOND, Core

OK = (RESPONSE, b"OK")
DURABILITIES = ["memory", "os", "fsync"]
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(
        durability: str = "memory",
        path: Path | None = None,
        attempts: int = 3,
        target: str = "dead",
        topics: tuple[Any, ...] = (),
        **more: Any,
    ) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        channel = {"max_attempts": attempts, "dead_letter_topic": target}
        policies = Policies(TopicPolicy(durability=durability), topics, [("*/c*", channel)])
        core = Core(path, policies=policies, **more)
        made.append(core)
        core.load_all()
        return core

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, durability: str, **more: Any) -> Core:
    """Return what would be found at startup if the process were killed now."""
    return make(durability, core.copied(), now=core.now + 77 * SECOND, wall=core.wall, **more)


def restarted(make: Make, core: Core, durability: str, **more: Any) -> Core:
    """Return the core after a clean exit."""
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    return make(durability, core.path, now=core.now, wall=core.wall, **more)


def prepared(core: Core, *bodies: bytes, asks: bool = False, **headers: str) -> HeaderClient:
    """Create topic t with channel c and topic dead with channel look; return a consumer of t/c.
    asks: whether the consumer has negotiated dead letters."""
    core.create("t").channel("c")
    core.create("dead").channel("look")
    client = HeaderClient(core, client_id="worker-7", dead_letters=asks)
    for body in bodies:
        assert client.publish_with(body, headers) == OK
    core.settle()
    client.subscribe("t", "c", 100)
    core.settle()
    return client


def fail(client: HeaderClient, times: int, delay: int = 0) -> int:
    """Requeue all deliveries, `times` times; return the number of deliveries."""
    count = 0
    for _ in range(times):
        client.core.settle()
        for message in client.delivered():
            count += 1
            client.requeue(message.id, delay)
        client.core.advance(delay * 1_000_000 + 1)
    return count


def dead(core: Core, channel: str = "look", finish: bool = False) -> list[Headered]:
    """Return the content of the dead-letter topic."""
    client = HeaderClient(core)
    client.subscribe("dead", channel, 2500)
    core.settle()
    found = client.delivered()
    for message in found:
        if finish:
            client.finish(message.id)
        else:
            client.requeue(message.id)
    client.transport.end()
    core.settle()
    return found


def ledger(core: Core, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    found: dict[str, Any] = core.topic(topic).channels[channel].ledger()
    dropped = found.pop("dropped")
    received = found.pop("received")
    assert received == sum(found.values()) + sum(dropped.values())
    assert dropped["damaged"] == 0
    return {**found, "dropped": dropped, "received": received}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("delay", [0, 50])
def test_after_max_attempts_it_moves(make: Make, durability: str, delay: int) -> None:
    core = make(durability)
    client = prepared(core, b"poison", kind="x")
    published = core.wall
    assert fail(client, 10, delay) == 3
    (letter,) = dead(core)
    assert letter.body == b"poison"
    assert letter.headers.pop("first-time") == str(published)
    assert len(letter.headers.pop("origin-id")) == 16
    assert letter.headers == {
        "origin-topic": "t",
        "origin-channel": "c",
        "attempts": "3",
        "last-client": "worker-7",
        "reason": "attempts",
        "kind": "x",
    }
    assert ledger(core)["dead_lettered"] == 1
    assert core.counters("t", "c")["in_flight_count"] == 0


# -- immediate transfers at the request of a consumer


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_consumer_moves_a_message_at_once(make: Make, durability: str) -> None:
    core = make(durability)
    client = prepared(core, b"poison", b"other", kind="x", asks=True)
    poison, other = client.delivered()
    client.send(b"DEAD_LETTER ", poison.id, b" 0 no%20such%20customer%3A%20M%C3%BCller%0A\n")
    client.finish(other.id)
    core.settle()
    assert client.answer() is None
    (letter,) = dead(core)
    assert letter.body == b"poison"
    assert {name: letter.headers[name] for name in letter.headers if "-" not in name} == {
        "attempts": "1",
        "reason": "rejected",
        "kind": "x",
    }
    assert letter.headers["reason-text"] == "no such customer: Müller "
    assert letter.headers["last-client"] == "worker-7"
    assert (ledger(core)["dead_lettered"], ledger(core)["finished"]) == (1, 1)
    assert core.counters("t", "c")["in_flight_count"] == 0


@pytest.mark.parametrize("word", [b"", b" ", b" 50%", b" %FF%00", b" " + b"x" * 10_000])
def test_any_text_may_be_the_reason(make: Make, word: bytes) -> None:
    core = make()
    client = prepared(core, b"poison", asks=True)
    (poison,) = client.delivered()
    client.send(b"DEAD_LETTER ", poison.id, b" 0", word, b"\n")
    core.settle()
    (letter,) = dead(core)
    assert letter.headers["reason"] == "rejected"
    text = letter.headers.get("reason-text", "")
    assert len(text.encode()) <= 512 and text.isprintable()
    assert bool(text) is bool(word.strip())


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_message_that_was_moved_at_once_can_be_redriven(make: Make, durability: str) -> None:
    core = make(durability)
    client = prepared(core, b"poison", kind="x", asks=True)
    (poison,) = client.delivered()
    client.send(b"DEAD_LETTER ", poison.id, b" 0 why\n")
    core.settle()
    core.topic("dead").channels["look"].redrive(1)
    core.settle()
    (again,) = client.delivered()
    assert (again.body, again.headers, again.attempts) == (b"poison", {"kind": "x"}, 1)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_after_it_was_moved_at_once(make: Make, durability: str) -> None:
    """After the kill, the message is in exactly one topic, whether it had arrived or not."""
    core = make(durability)
    client = prepared(core, b"poison", asks=True)
    (poison,) = client.delivered()
    client.send(b"DEAD_LETTER ", poison.id, b" 0 why\n")
    core.settle()
    again = killed(make, core, durability)
    again.settle()
    assert [each.body for each in dead(again)] == [b"poison"]
    assert again.counters("t", "c")["depth"] == again.counters("t", "c")["in_flight_count"] == 0


def test_without_a_topic_it_is_requeued_with_an_error(make: Make) -> None:
    core = make(target="")
    client = prepared(core, b"poison", asks=True)
    (poison,) = client.delivered()
    client.send(b"DEAD_LETTER ", poison.id, b" 50 why\n")
    core.settle()
    assert client.answer() == (
        ERROR,
        b"E_DEAD_LETTER_FAILED DEAD_LETTER %b failed no dead_letter_topic: requeued" % poison.id,
    )
    assert core.counters("t", "c")["deferred_count"] == 1
    core.advance(51_000_000)
    (again,) = client.delivered()
    assert again.attempts == 2 and not client.closed


def test_only_the_owner_moves_a_message(make: Make) -> None:
    core = make()
    client = prepared(core, b"poison", asks=True)
    (poison,) = client.delivered()
    other = HeaderClient(core, dead_letters=True)
    other.subscribe("t", "c", 1)
    for id, why in ((poison.id, b"client does not own message"), (b"f" * 16, b"ID not in flight")):
        assert other.ask(b"DEAD_LETTER ", id, b" 0\n") == (
            ERROR,
            b"E_DEAD_LETTER_FAILED DEAD_LETTER %b failed %b" % (id, why),
        )
    assert not other.closed
    for command, error in (
        (b"DEAD_LETTER %b x\n", b"E_INVALID DEAD_LETTER could not parse timeout x"),
        (b"DEAD_LETTER %b\n", b"E_INVALID DEAD_LETTER insufficient number of params"),
    ):
        other = HeaderClient(core, dead_letters=True)
        other.subscribe("t", "c", 1)
        assert other.ask(command % poison.id) == (ERROR, error)


def test_it_must_have_been_negotiated(make: Make) -> None:
    core = make()
    client = prepared(core, b"poison")
    (poison,) = client.delivered()
    answer = client.ask(b"DEAD_LETTER ", poison.id, b" 0\n")
    assert answer == (ERROR, b"E_INVALID invalid command DEAD_LETTER")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_timeouts_are_attempts(make: Make, durability: str) -> None:
    core = make(durability)
    client = prepared(core, b"slow")
    seen = 0
    for _ in range(6):
        core.settle()
        seen += len(client.delivered())
        core.advance(61 * SECOND)
    assert seen == 3
    assert [each.body for each in dead(core)] == [b"slow"]


def test_of_a_client_that_left(make: Make) -> None:
    core = make(attempts=1)
    client = prepared(core, b"one", b"two")
    assert len(client.delivered()) == 2
    client.transport.end()
    core.advance(61 * SECOND)
    found = dead(core)
    assert [each.body for each in found] == [b"one", b"two"]
    assert "last-client" not in found[0].headers


def test_without_a_topic_it_is_dropped(make: Make) -> None:
    core = make(target="")
    client = prepared(core, b"poison", b"other")
    assert fail(client, 5) == 6
    assert ledger(core)["dropped"]["attempts"] == 2
    assert ledger(core)["dead_lettered"] == 0
    assert dead(core) == []


def test_what_is_finished_in_time_stays(make: Make) -> None:
    core = make()
    client = prepared(core, b"good")
    assert fail(client, 2) == 2
    core.settle()
    (message,) = client.delivered()
    assert message.attempts == 3
    client.finish(message.id)
    core.settle()
    assert ledger(core)["finished"] == 1
    assert dead(core) == []


def test_in_order_and_many(make: Make) -> None:
    core = make("os", attempts=1)
    bodies = [b"%d" % number for number in range(300)]
    client = prepared(core, *bodies)
    client.ready(1000)
    assert fail(client, 3) == 300
    assert [each.body for each in dead(core)] == bodies


def test_other_channels_have_it_still(make: Make) -> None:
    core = make(attempts=1)
    core.create("t").channel("other")
    client = prepared(core, b"poison")
    fail(client, 2)
    assert core.counters("t", "other")["depth"] == 1
    assert len(dead(core)) == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_too_old_is_dead_too(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    core.create("dead").channel("look")
    assert HeaderClient(core).publish_with(b"old", {"ttl": "1000"}) == OK
    core.advance(2 * SECOND)
    consumer = core.client().subscribe("t", "c", 10)
    core.settle()
    assert consumer.messages() == []
    (letter,) = dead(core)
    assert letter.headers["reason"] == "expired"
    assert letter.headers["origin-ttl"] == "1000"
    assert "ttl" not in letter.headers
    assert ledger(core)["dead_lettered"] == 1
    assert ledger(core)["expired"] == 0


def test_the_dead_letter_topic_has_no_dead_letters(make: Make) -> None:
    """Otherwise, a topic with two channels would double the messages again and again."""
    core = make(target="t", attempts=2)
    core.create("t").channel("c")
    core.create("t").channel("c2")
    client = core.client()
    client.publish("t", b"stays")
    consumer = core.client().subscribe("t", "c", 10)
    for attempt in range(1, 7):
        core.settle()
        (message,) = consumer.messages()
        assert message.attempts == attempt
        consumer.requeue(message.id)


def test_a_full_topic_is_tried_again(make: Make) -> None:
    core = make("os", attempts=1, topics=(("dead", {"max_depth": 2}),))
    client = prepared(core, *(b"%d" % number for number in range(5)))
    assert fail(client, 2) == 5
    core.advance(3 * SECOND)
    assert core.counters("dead", "look")["depth"] == 2
    assert core.counters("t", "c")["in_flight_count"] == 3
    assert [each.body for each in dead(core, finish=True)] == [b"0", b"1"]
    core.advance(3 * SECOND)
    assert [each.body for each in dead(core, finish=True)] == [b"2", b"3"]
    core.advance(3 * SECOND)
    assert [each.body for each in dead(core, finish=True)] == [b"4"]
    assert ledger(core)["dead_lettered"] == 5


def test_nobody_else_finishes_what_moves(make: Make) -> None:
    core = make("os", attempts=1, topics=(("dead", {"max_depth": 1}),))
    client = prepared(core, b"one", b"two")
    first, second = client.delivered()
    client.requeue(first.id)
    client.requeue(second.id)
    core.settle()
    client.finish(second.id)
    core.settle()
    answer = client.answer()
    assert answer is not None and answer[1].startswith(b"E_FIN_FAILED")
    assert core.counters("t", "c")["in_flight_count"] == 1


def test_emptied_and_deleted_while_it_moves(make: Make) -> None:
    core = make("os", attempts=1, topics=(("dead", {"max_depth": 1}),))
    client = prepared(core, b"one", b"two", b"three")
    fail(client, 2)
    assert core.counters("t", "c")["in_flight_count"] == 2
    core.topic("t").empty_channel("c")
    core.advance(2 * SECOND)
    assert core.counters("t", "c")["in_flight_count"] == 0
    assert ledger(core)["dropped"]["emptied"] == 2
    assert client.publish_with(b"four", {}) == OK
    fail(client, 2)
    assert core.counters("t", "c")["in_flight_count"] == 1
    core.topic("t").delete_channel("c")
    dead(core, finish=True)
    core.advance(2 * SECOND)
    assert dead(core) == []


# ---- every kind of exit ----


def places(core: Core) -> dict[bytes, list[str]]:
    """Return the topics that contain each message, after completing transfers."""
    core.advance(2 * SECOND)
    found: dict[bytes, list[str]] = {}
    for topic, channel in (("t", "c"), ("dead", "look")):
        client = core.client().subscribe(topic, channel, 2500)
        while True:
            core.settle()
            some = client.messages()
            if not some:
                break
            for message in some:
                found.setdefault(message.body, []).append(topic)
                client.finish(message.id)
        client.transport.end()
    return found


def stopped_at(core: Core, client: HeaderClient, step: int) -> None:
    """Let the message fail once, then run this number of the subsequent steps."""
    for message in client.delivered():
        client.requeue(message.id)
    for _ in range(step):
        core.manager.run_turn(core.now, core.wall)
        core.io.step_now()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 20, 50])
def test_killed_while_it_moves(make: Make, durability: str, step: int) -> None:
    core = make(durability, attempts=1, io=FaultyIoThread(stepped=True))
    bodies = [b"%d" % number for number in range(10)]
    client = prepared(core, *bodies)
    stopped_at(core, client, step)
    found = places(killed(make, core, durability, attempts=1))
    assert found.keys() == set(bodies)
    assert all(len(each) == 1 for each in found.values())
    core.settle()
    assert places(core) == {body: ["dead"] for body in bodies}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_killed_and_killed_again(make: Make, durability: str) -> None:
    core = make(durability, attempts=1, topics=(("dead", {"max_depth": 2}),))
    bodies = [b"%d" % number for number in range(6)]
    client = prepared(core, *bodies)
    fail(client, 2)
    for _ in range(3):
        core = killed(make, core, durability, attempts=1, topics=(("dead", {"max_depth": 3}),))
        core.advance(3 * SECOND)
        assert core.counters("dead", "look")["depth"] == 3
        assert core.counters("t", "c")["in_flight_count"] == 3
    dead(core)
    core = killed(make, core, durability, attempts=1)
    assert places(core) == {body: ["dead"] for body in bodies}
    assert ledger(core)["in_flight"] == 0


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_clean_exit_while_it_moves(make: Make, durability: str) -> None:
    core = make(durability, attempts=1, topics=(("dead", {"max_depth": 2}),))
    bodies = [b"%d" % number for number in range(6)]
    fail(prepared(core, *bodies), 2)
    core = restarted(make, core, durability, attempts=1)
    assert core.counters("t", "c")["depth"] == 0
    assert places(core) == {body: ["dead"] for body in bodies}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_later_moves_are_others(make: Make, durability: str) -> None:
    """The numbers of transfers after a restart do not identify transfers from before it."""
    bodies = []
    core = None
    for life, room in enumerate([3, 8, 100, 100, 100]):
        topics = (("dead", {"max_depth": room}),)
        core = (
            killed(make, core, durability, attempts=1, topics=topics)
            if core
            else make(durability, attempts=1, topics=topics)
        )
        core.advance(3 * SECOND)
        client = prepared(core)
        for number in range(5):
            bodies.append(b"%d %d" % (life, number))
            assert core.client().publish("t", bodies[-1]) == OK
            core.settle()
            fail(client, 2)
    assert core is not None
    assert places(core) == {body: ["dead"] for body in bodies}


def test_one_with_a_delay_is_in_one_place(make: Make) -> None:
    core = make("os", attempts=1)
    client = prepared(core)
    core.client().publish("t", b"later", 1000)
    core.advance(2 * SECOND)
    fail(client, 2)
    core = killed(make, core, "os", attempts=1)
    assert places(core) == {b"later": ["dead"]}


def test_out_of_attempts_at_a_start(make: Make) -> None:
    core = make("os", attempts=0)
    fail(prepared(core, b"poison"), 5)
    core = restarted(make, core, "os", attempts=5)
    client = core.client().subscribe("t", "c", 1)
    core.settle()
    assert client.messages() == []
    assert [each.body for each in dead(core)] == [b"poison"]


def test_a_journal_that_cannot_be_written(make: Make) -> None:
    core = make("os", attempts=1)
    client = prepared(core, b"one")
    core.io.fault("pwrite", error=errno.EIO)
    fail(client, 1)
    assert core.counters("dead", "look")["depth"] == 0
    core.io.clear_faults()
    core.advance(5 * SECOND)
    assert places(core) == {b"one": ["dead"]}


# ---- redrive ----


def back(core: Core, limit: int = 0) -> int:
    count: int = core.topic("dead").channels["look"].redrive(limit)
    core.settle()
    return count


@pytest.mark.parametrize("durability", DURABILITIES)
def test_redrive_puts_them_back(make: Make, durability: str) -> None:
    core = make(durability, attempts=2)
    core.create("t").channel("other")
    bodies = [b"%d" % number for number in range(400)]
    client = prepared(core, *bodies, kind="x")
    client.ready(1000)
    assert fail(client, 4) == 800
    assert back(core) == 400
    core.advance(SECOND)
    assert back(core) == 0
    core.settle()
    found = client.delivered()
    assert [each.body for each in found] == bodies
    assert {each.attempts for each in found} == {1}
    assert all(each.headers == {"kind": "x"} for each in found)
    assert dead(core) == []
    # Only that channel is affected.
    assert core.counters("t", "other")["depth"] == 400
    assert ledger(core, "t", "other")["received"] == 400
    assert ledger(core)["received"] == 800
    assert ledger(core, "dead", "look")["redriven"] == 400
    other = core.client().subscribe("t", "other", 2500)
    core.settle()
    assert len(other.messages()) == 400
    core.settle()
    assert core.counters("t", "other")["depth"] == 0


def test_some_of_them(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"1", b"2", b"3"), 1)
    core.settle()
    assert back(core, 2) == 2
    core.advance(1)
    assert [each.body for each in dead(core)] == [b"3"]


@pytest.mark.parametrize(
    ("targets", "moved"), [(("u", "x*"), False), ((), False), (("x", "t*"), True), (None, True)]
)
def test_only_to_permitted_topics(make: Make, targets: tuple[str, ...] | None, moved: bool) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"1"), 1)
    core.settle()
    channel = core.topic("dead").channels["look"]
    assert channel.redrive(0, targets) == 1
    core.settle()
    assert [each.body for each in dead(core)] == ([] if moved else [b"1"])


def test_a_redrive_does_not_extend_that_of_another_user(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"1", b"2"), 1)
    core.settle()
    channel = core.topic("dead").channels["look"]
    assert channel.redrive(0, ("other",)) == 2
    assert channel.redrive(0, None) == 0
    assert channel.redrive(1, ("other",)) == 1
    core.settle()
    assert len(dead(core)) == 2


def taken_out(core: Core, body: bytes, drop: bool) -> list[str | None]:
    """Take a message out of the dead-letter channel; return the results."""
    results: list[str | None] = []
    id = next((int(each.id, 16) for each in dead(core) if each.body == body), 1)
    assert core.topic("dead").channels["look"].take_out(id, drop, results.append)
    core.settle()
    core.advance(SECOND)
    return results


@pytest.mark.parametrize("durability", DURABILITIES)
def test_one_of_them(make: Make, durability: str) -> None:
    core = make(durability, attempts=1)
    client = prepared(core, b"1", b"2", b"3", b"4")
    fail(client, 1)
    core.settle()
    assert taken_out(core, b"3", drop=False) == [None]
    assert [each.body for each in dead(core)] == [b"1", b"2", b"4"]
    assert ledger(core, "dead", "look")["redriven"] == 1
    client.ready(1)
    core.settle()
    assert [each.body for each in client.delivered()] == [b"3"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_one_is_dropped(make: Make, durability: str) -> None:
    core = make(durability, attempts=1)
    fail(prepared(core, b"1", b"2", b"3"), 1)
    core.settle()
    assert taken_out(core, b"1", drop=True) == [None]
    assert taken_out(core, b"1", drop=True) == ["MESSAGE_NOT_FOUND"]
    assert [each.body for each in dead(core)] == [b"2", b"3"]
    counts = ledger(core, "dead", "look")
    assert (counts["dropped"]["cancelled"], counts["redriven"]) == (1, 0)
    assert core.counters("dead", "look")["depth"] == 2


def test_one_that_came_from_nowhere_stays(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"letter"), 1)
    core.client().publish("dead", b"plain")
    core.settle()
    assert taken_out(core, b"plain", drop=False) == ["NOT_A_DEAD_LETTER"]
    assert [each.body for each in dead(core)] == [b"letter", b"plain"]


def test_one_of_none(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"1"), 1)
    core.settle()
    assert taken_out(core, b"1", drop=True) == [None]
    assert taken_out(core, b"1", drop=False) == ["MESSAGE_NOT_FOUND"]


def test_one_while_others_are_redriven(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"1", b"2"), 1)
    core.settle()
    channel = core.topic("dead").channels["look"]
    channel.redrive(0)
    assert not channel.take_out(1, False, lambda _: None)


def test_what_came_from_nowhere_stays(make: Make) -> None:
    core = make(attempts=1)
    fail(prepared(core, b"letter"), 1)
    core.client().publish("dead", b"plain")
    core.topic("t").channel("gone")
    core.settle()
    assert back(core) == 2
    core.advance(SECOND)
    assert [each.body for each in dead(core)] == [b"plain"]


def test_of_a_channel_that_is_gone_they_stay(make: Make) -> None:
    core = make("os", attempts=1)
    fail(prepared(core, b"1", b"2"), 1)
    core.settle()
    core.topic("t").delete_channel("c")
    assert back(core) == 2
    core.advance(SECOND)
    assert [each.body for each in dead(core)] == [b"1", b"2"]
    assert ledger(core, "dead", "look")["redriven"] == 0


def test_of_a_paused_topic_they_wait_over_a_restart(make: Make) -> None:
    core = make("os", attempts=1)
    core.create("t").channel("other")
    fail(prepared(core, b"1", b"2"), 1)
    core.settle()
    core.topic("t").pause(True)
    back(core)
    core.advance(SECOND)
    assert dead(core) == []
    core = restarted(make, core, "os")
    core.topic("t").pause(False)
    core.advance(SECOND)
    assert core.counters("t", "c")["depth"] == 2
    assert core.counters("t", "other")["depth"] == 2
    core = killed(make, core, "os")
    core.advance(SECOND)
    assert core.counters("t", "c")["depth"] == 2
    assert core.counters("t", "other")["depth"] == 2


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_killed_while_they_go_back(make: Make, durability: str, step: int) -> None:
    core = make(durability, attempts=1, io=FaultyIoThread(stepped=True))
    bodies = [b"%d" % number for number in range(10)]
    client = prepared(core, *bodies)
    fail(client, 2)
    client.transport.end()
    core.settle()
    core.topic("dead").channels["look"].redrive(0)
    for _ in range(step):
        core.manager.run_turn(core.now, core.wall)
        core.io.step_now()
    found = places(killed(make, core, durability, attempts=1))
    assert found.keys() == set(bodies)
    assert all(len(each) == 1 for each in found.values())


# ---- headers ----


def letter(own: bytes, **other: Any) -> bytes:
    values: dict[str, Any] = {
        "topic": "t",
        "channel": "c",
        "id": 255,
        "attempts": 5,
        "first_time": 7,
        "client": "me",
        "reason": "attempts",
    }
    return dead_letter_headers.headers_of(own, **values | other)


def test_there_and_back() -> None:
    own = dead_letter_headers._bytes({"a": "1", "ttl": "50"})
    origin = dead_letter_headers.origin_of(letter(own))
    assert origin is not None
    assert (origin.topic, origin.channel) == ("t", "c")
    assert dead_letter_headers.decode_headers(origin.headers) == {"a": "1", "ttl": "50"}
    assert dead_letter_headers.origin_of(own) is None
    assert dead_letter_headers.origin_of(letter(b"")) == ("t", "c", b"")


def test_ours_win() -> None:
    own = dead_letter_headers._bytes({"reason": "mine", "b": "2"})
    found = dead_letter_headers.decode_headers(letter(own))
    assert (found["reason"], found["b"]) == ("attempts", "2")


@pytest.mark.parametrize(
    "own", [{f"h{number}": "" for number in range(30)}, {"long": 4000 * "x"}], ids=["many", "long"]
)
def test_without_room_its_own_are_dropped(own: dict[str, str]) -> None:
    found = dead_letter_headers.decode_headers(letter(dead_letter_headers._bytes(own)))
    assert found["headers-dropped"] == "true"
    assert found["origin-id"] == "00000000000000ff"
    assert not own.keys() & found.keys()


def test_a_long_client_is_cut() -> None:
    assert (
        dead_letter_headers.decode_headers(letter(b"", client=600 * "é"))["last-client"]
        == 256 * "é"
    )
