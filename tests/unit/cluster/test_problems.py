"""Problems of a cluster, from constructed statistics."""

from typing import Any

import pytest

from nsqcy.cluster import problems
from nsqcy.cluster.problems import NodeState, Place, Problem, Severity
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import (
    ChannelFigures,
    ChannelStats,
    ClientStats,
    TopicFigures,
    TopicStats,
)


def channel(
    depth: int = 0,
    clients: int = 1,
    rates: Rates | None = None,
    saturated: int = 0,
    name: str = "c",
    dead: str = "",
    consumers: tuple[ClientStats, ...] | None = None,
    **figures: Any,
) -> ChannelStats:
    counts = ChannelFigures(depth=depth, client_count=clients, **figures)
    return ChannelStats("t", name, "n", "h", counts, (), None, consumers, dead, rates, saturated)


def topic(*channels: ChannelStats, name: str = "t", **values: Any) -> TopicStats:
    published = values.pop("publish_rate", None)
    found = {each.name: each for each in channels}
    return TopicStats(name, "n", "h", TopicFigures(**values), found, publish_rate=published)


def found(*topics: TopicStats, **others: Any) -> list[Problem]:
    return problems.find({each.name: each for each in topics}, **others)


def kinds(*topics: TopicStats) -> list[tuple[str, str]]:
    return [(each.severity.name, each.kind) for each in found(*topics)]


GROWING = Rates(received=100.0, finished=40.0, growth=60.0)
STEADY = Rates(received=100.0, finished=100.0)


def test_nothing_is_wrong() -> None:
    assert found(topic(channel(), channel(50, rates=STEADY, name="d"))) == []
    assert found(topic(channel(1, clients=0, name="c#ephemeral"))) == []
    assert found(topic(channel(paused=True), paused=True)) == []


def test_falling_behind() -> None:
    (one,) = found(topic(channel(5000, rates=GROWING)))
    assert (one.severity, one.kind) == (Severity.WARNING, "falling-behind")
    assert one.place == Place(topic="t", channel="c")
    assert one.label == "falling behind by 60/s"
    assert one.text == (
        "channel t/c is falling behind by 60/s: it receives 100/s and finishes 40/s,"
        " and 5,000 messages are waiting"
    )
    assert "backoff" in one.advice


@pytest.mark.parametrize(
    ("depth", "rates"),
    [
        (599, GROWING),  # a backlog of less than ten seconds of growth is a burst
        (5000, Rates(received=10.0, growth=0.9)),
        (5000, Rates(received=10_000.0, finished=9_900.0, growth=100.0)),
        (5000, Rates(finished=50.0, growth=-50.0)),
        (5000, None),
    ],
)
def test_not_falling_behind(depth: int, rates: Rates | None) -> None:
    assert found(topic(channel(depth, rates=rates, clients=2, saturated=2))) == []


def test_consumers_that_do_not_know_all_nsqds() -> None:
    nodes = tuple(
        channel(depth, clients)._replace(node=f"n{number}:4151")
        for number, (depth, clients) in enumerate([(0, 2), (30, 0), (0, 0), (12, 0)])
    )
    (one,) = found(topic(channel(4000, 2, rates=GROWING)._replace(nodes=nodes)))
    assert (one.severity, one.kind) == (Severity.WARNING, "no-consumer-on-nsqd")
    assert one.label == "no consumer on 2 nsqds"
    assert one.text == (
        "channel t/c has no consumer on nsqd n1:4151, n3:4151, and 42 messages are waiting there"
    )
    growing = (nodes[0], nodes[1]._replace(rates=GROWING))
    (one,) = found(topic(channel(4000, 2)._replace(nodes=growing)))
    assert one.severity == Severity.ERROR
    assert one.text.endswith(" and 30 messages are waiting there, growing by 60/s")
    many = channel(90, 1)._replace(nodes=tuple(nodes[1]._replace(node=f"m{n}") for n in range(5)))
    (one,) = found(topic(many))
    assert "on nsqd m0, m1, m2 and 2 more, and 150 messages" in one.text
    unread = channel(30, 1, name="c#ephemeral")._replace(nodes=nodes[1:2])
    assert found(topic(unread)) == []


def test_how_to_keep_up() -> None:
    (one,) = found(topic(channel(5000, clients=2, rates=GROWING, saturated=2)))
    assert "add consumers" in one.advice
    hanging = GROWING._replace(finished=0.0)
    (one,) = found(topic(channel(5000, clients=2, rates=hanging, saturated=1)))
    assert "finish no messages" in one.advice


def test_no_consumer() -> None:
    assert kinds(topic(channel(3, clients=0))) == [("WARNING", "no-consumer")]
    assert kinds(topic(channel(clients=0, deferred_count=3))) == [("WARNING", "no-consumer")]
    (one,) = found(topic(channel(3, clients=0, rates=GROWING)))
    assert one.severity == Severity.ERROR
    assert one.text == "channel t/c has no consumer, and 3 messages are waiting, growing by 60/s"


def test_waiting_messages_may_be_dead_letters() -> None:
    """A lost machine may have had the policy that names the dead-letter topic."""
    (channel_problem,) = found(topic(channel(3, clients=0)))
    assert "look at its messages: nsqcy peek t c" in channel_problem.advice
    assert "nsqcy redrive t c" in channel_problem.advice
    (topic_problem,) = found(topic(depth=3))
    assert topic_problem.kind == "no-channel"
    assert "look at its messages: nsqcy peek t" in topic_problem.advice
    (known,) = found(topic(channel(dead="t"), depth=3))
    assert known.kind == "dead-letters"
    for each in (channel_problem, topic_problem, known):
        assert "delete" not in each.advice and "empty" not in each.advice


def test_paused_with_a_backlog() -> None:
    (one,) = found(topic(channel(1, clients=0, paused=True)))
    assert (one.kind, one.text) == (
        "paused",
        "channel t/c is paused, has no consumer, and 1 message is waiting",
    )
    (one,) = found(topic(channel(2, paused=True)))
    assert one.text == "channel t/c is paused, and 2 messages are waiting"
    assert one.advice == "if this is not intended: nsqcy channel unpause t c"
    assert kinds(topic(channel(paused=True), depth=7, paused=True)) == [("WARNING", "paused")]


def test_a_topic_without_a_channel() -> None:
    (one,) = found(topic(depth=1))
    assert (one.kind, one.place) == ("no-channel", Place(topic="t"))
    assert one.text == "topic t has no channel, and 1 message is waiting"


def test_dead_letters() -> None:
    """A dead-letter topic needs no consumers."""
    source = topic(channel(dead="dead"))
    waiting = topic(channel(4, clients=0, name="look"), name="dead")
    assert kinds(source, waiting) == [("WARNING", "dead-letters")]
    assert kinds(source, waiting._replace(publish_rate=0.5)) == [("ERROR", "dead-letters")]
    assert kinds(source, topic(name="dead", publish_rate=1.0)) == []


def test_messages_that_fail() -> None:
    failing = Rates(finished=1.0, requeued=2.0, timed_out=0.5)
    (one,) = found(topic(channel(rates=failing)))
    assert (one.kind, one.label) == ("failing", "failing 2.5/s")
    slow = Rates(finished=10.0, timed_out=1.0)
    assert kinds(topic(channel(rates=slow))) == [("WARNING", "timeouts")]
    assert kinds(topic(channel(rates=slow._replace(finished=100.0)))) == []
    assert kinds(topic(channel(rates=Rates(requeued=0.05)))) == []


def consumer(
    port: int, rate: float | None, saturated: bool = True, ready_count: int = 1
) -> ClientStats:
    return ClientStats(
        remote_address=f"h:{port}",
        finish_rate=rate,
        saturated=saturated,
        ready_count=ready_count,
    )


def test_slow_consumers() -> None:
    others = (consumer(1, 100.0), consumer(2, 90.0))
    (one,) = found(topic(channel(consumers=(*others, consumer(3, 2.0)))))
    assert one.kind == "slow-consumer"
    assert "(90/s): h:3 (2.0/s)" in one.text
    for last in (consumer(3, 20.0), consumer(3, 0.0, saturated=False), consumer(3, None)):
        assert found(topic(channel(consumers=(*others, last)))) == []


def test_consumers_that_back_off() -> None:
    failing = consumer(1, 0.0, saturated=False, ready_count=0)
    failed = {"requeue_count": 4, "timeout_count": 1, "rates": Rates(requeued=1.0)}
    (one,) = found(topic(channel(3, consumers=(failing,), **failed)))
    assert (one.severity, one.kind) == (Severity.WARNING, "backing-off")
    assert one.text == (
        "all consumers of channel t/c refuse messages at the moment (RDY 0), after 5 failed"
        " attempts, and 3 messages are waiting"
    )
    assert "nsqcy peek t c" in one.advice
    working = consumer(2, 1.0, saturated=False)
    assert found(topic(channel(3, clients=2, consumers=(failing, working)))) == []
    reported = channel(3, clients=2)._replace(backing_off=2)  # the list of consumers is missing
    assert kinds(topic(reported)) == [("WARNING", "backing-off")]
    assert found(topic(channel(0, consumers=(failing,)))) == []


def test_daemons() -> None:
    nodes = [
        NodeState("a:1", disk_free=0.5),
        NodeState("b:1", error="timed out"),
        NodeState("c:1", health="NOK - no space left", disk_free=0.01),
        NodeState("d:1", disk_free=0.09, unregistered=("l:4160",)),
    ]
    told = found(nodes=nodes, lookupd_errors={"l:1": "refused"})
    assert [(each.severity.name, each.kind, each.place) for each in told] == [
        ("ERROR", "lookupd-unreachable", Place(lookupd="l:1")),
        ("ERROR", "node-unreachable", Place(node="b:1")),
        ("ERROR", "node-unhealthy", Place(node="c:1")),
        ("ERROR", "disk-nearly-full", Place(node="c:1")),
        ("ERROR", "unregistered", Place(node="d:1")),
        ("WARNING", "disk-nearly-full", Place(node="d:1")),
    ]
    assert told[-1].label == "disk 91% full"


def test_the_most_severe_problems_come_first() -> None:
    told = found(topic(channel(1, clients=0)), nodes=[NodeState("b:1", error="timed out")])
    assert [each.kind for each in told] == ["node-unreachable", "no-consumer"]


def test_every_problem_has_advice() -> None:
    told = found(
        topic(channel(5000, rates=GROWING, saturated=1), depth=4, paused=True),
        nodes=[NodeState("b:1", error="timed out")],
    )
    assert told and all(each.advice and each.label for each in told)
