"""A consumer of several topics or of a pattern, on a simulated network: which connections it has,
when it queries nsqlookupds, and the names in its errors."""

import re
from random import Random
from typing import Any

import pytest

from nsqcy.client import aio, blocking
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.dead_letters import keep_dead_letters
from nsqcy.client.errors import Error
from nsqcy.client.flow import Flow
from nsqcy.client.flow_across_topics import SharedFlow
from nsqcy.client.lookups import Lookups
from nsqcy.client.options import Address, ConnectionOptions, LookupOptions
from nsqcy.client.topics import Topics
from nsqcy.cluster.discovery import Found, Producer
from nsqcy.cluster.parallel import Outcome
from nsqcy.errors import RequestError
from support.fake_lookup_http import LookupPages
from support.fake_network import Net, Wire
from support.fake_nsqd import Peer

A, B = Address("a", 4150), Address("b", 4150)


def consumer(
    topic: Any = (), nsqds: Any = (), lookupds: Any = (), pattern: Any = None, **options: Any
) -> tuple[Net, ConsumerCore]:
    net = Net()
    core = net.core = ConsumerCore(
        net,
        topic,
        "c",
        nsqds,
        lookupds,
        topics_pattern=pattern,
        keywords=options,
        rng=Random(0),
    )
    core.start(net.time)
    return net, core


def accept(net: Net) -> list[Wire]:
    """Accept all pending connections; return them."""
    wires = net.pending()
    for each in wires:
        each.accept()
    return wires


def subscribed(net: Net) -> set[tuple[str, str]]:
    """Return host and topic of all live subscriptions."""
    return {
        (wire.connection.address.host, wire.peer.said("SUB")[0].split()[1]) for wire in net.live()
    }


# -- names and patterns


def test_one_topic_is_as_before() -> None:
    for topic in ("t", ["t"], ("t", "t")):
        net, core = consumer(topic, "a")
        accept(net)
        assert type(core.flow) is Flow
        assert (core.name, core.topics.only, list(core.nsqds)) == ("t:c", "t", [A])
        assert [wire.connection.topic for wire in net.wires] == ["t"]


def test_several_topics_at_each_nsqd() -> None:
    net, core = consumer(["t", "u"], ["a", "b"], max_in_flight=8)
    accept(net)
    assert subscribed(net) == {("a", "t"), ("a", "u"), ("b", "t"), ("b", "u")}
    assert type(core.flow) is SharedFlow
    net.tick(1)
    assert [each.ready for each in core.connections] == [2] * 4
    assert core.name == "t,u:c"
    core.add_nsqd(Address("d", 1), net.time)
    accept(net)
    assert {("d", "t"), ("d", "u")} < subscribed(net)


@pytest.mark.parametrize(
    ("topic", "pattern", "text"),
    [
        ((), None, "needs a topic, several topics or topics_pattern"),
        ([], None, "needs a topic, several topics or topics_pattern"),
        ("t", "t.*", "topic and topics_pattern cannot be combined"),
        (["t", "a b"], None, '"a b" is not a valid topic name'),
        ((), "(", r"topics_pattern '\(' is invalid: missing \), unterminated"),
    ],
)
def test_topics_that_are_refused(topic: Any, pattern: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Topics(topic, pattern)


def test_a_topic_of_another_type() -> None:
    with pytest.raises(TypeError, match="a topic must be a str, not int"):
        Topics(["t", 1])  # type: ignore[list-item]


@pytest.mark.parametrize("pattern", [r"orders\..*", re.compile(r"orders\..*")])
def test_a_pattern_matches_the_entire_name(pattern: Any) -> None:
    topics = Topics((), pattern)
    names = ["orders.eu", "orders", "orders.eu#ephemeral", "x.orders.eu", "orders.eu.2"]
    assert [*filter(topics.matches, names)] == ["orders.eu", "orders.eu.2"]
    assert str(topics) == r"orders\..*"


@pytest.mark.parametrize(
    ("dead_letters", "left"),
    [
        ("orders.dead", ["orders.eu", "orders.eu.dead"]),
        ("{topic}.dead", ["orders.eu", "orders.dead"]),
        ("dead", ["orders.eu", "orders.dead", "orders.eu.dead"]),
    ],
)
def test_a_pattern_excludes_its_own_dead_letters(dead_letters: str, left: list[str]) -> None:
    _, core = consumer(pattern=r"orders\..*", lookupds="l:4161", max_tries=1)
    keep_dead_letters(core, dead_letters, None)
    found = filter(core.topics.matches, ["orders.eu", "orders.dead", "orders.eu.dead"])
    assert [*found] == left


@pytest.mark.parametrize("name", ["u", "{topic}", "{topic} x", "x" * 64 + "{topic}"])
def test_topics_for_dead_letters_that_are_refused(name: str) -> None:
    _, core = consumer(["t", "u"], "a")
    with pytest.raises(ValueError, match="dead_letter_topic"):
        keep_dead_letters(core, name, None)


def test_where_a_pattern_looks() -> None:
    with pytest.raises(ValueError, match="needs nsqd_tcp_addresses or lookupd_http_addresses"):
        consumer(pattern="t")
    for nsqds, lookupds in (("a", ()), ("a", "l:4161")):
        with pytest.raises(ValueError, match="nsqd_http_addresses"):
            consumer(pattern="t", nsqds=nsqds, lookupds=lookupds)
    with pytest.raises(ValueError, match="requires topics_pattern"):
        ConsumerCore(Net(), "t", "c", "a", nsqd_http_addresses="a:4151", keywords={})
    with pytest.raises(ValueError, match="has no port"):
        ConsumerCore(Net(), (), "c", "a", topics_pattern="t", nsqd_http_addresses="a", keywords={})
    core = ConsumerCore(
        Net(), (), "c", "a", topics_pattern="t", nsqd_http_addresses="a:4151", keywords={}
    )
    assert core.can_ask
    assert core.nsqd_http_addresses == {A: "a:4151"}
    for face in (blocking, aio):
        made = face.Consumer(topics_pattern="t", channel="c", lookupd_http_addresses="l:4161")
        with pytest.raises(ValueError, match="cannot use connect_to_nsqd"):
            made.connect_to_nsqd("b", 4150)


# -- nsqlookupds


def test_a_topic_is_looked_for_sooner_until_all_are_known() -> None:
    net, core = consumer(["t", "u"], lookupds="l:4161")
    core.found([A.of_topic("t")], [], net.time)
    net.tick(1.1)
    assert net.lookups == 2
    core.found([A.of_topic("t"), B.of_topic("u")], [], net.time)
    accept(net)
    assert subscribed(net) == {("a", "t"), ("b", "u")}
    net.tick(50)
    assert net.lookups == 2


def pattern_at_two(**options: Any) -> tuple[Net, ConsumerCore]:
    net, core = consumer(pattern="t.*", lookupds="l:4161", **{"heartbeat_interval": -1} | options)
    core.found([A.of_topic("t1"), A.of_topic("t2")], [], net.time)
    accept(net)
    return net, core


def test_new_topics_of_a_pattern() -> None:
    net, core = pattern_at_two()
    assert subscribed(net) == {("a", "t1"), ("a", "t2")}
    net.tick(80)
    core.found([A.of_topic("t1"), A.of_topic("t2"), A.of_topic("t3")], [], net.time)
    accept(net)
    assert subscribed(net) == {("a", "t1"), ("a", "t2"), ("a", "t3")}


def test_a_deleted_topic_is_left() -> None:
    """The consumer waits for the next query, because reconnecting would create the topic again."""
    net, core = pattern_at_two()
    errors: list[Error] = []
    core.on_error = errors.append
    net.wires[0].lose()
    net.tick(30)
    assert (len(net.wires), net.lookups) == (2, 2)
    core.found([A.of_topic("t2")], [], net.time)
    net.tick(30)
    assert len(net.wires) == 2
    assert [str(each) for each in errors] == ["a:4150/t1: lost"]
    assert list(core.nsqds) == [A.of_topic("t2")]


def test_a_lost_connection_of_a_pattern_returns_if_the_topic_is_still_there() -> None:
    net, core = pattern_at_two()
    net.wires[0].lose()
    net.tick(0.3)
    core.found([A.of_topic("t1"), A.of_topic("t2")], [], net.time)
    net.tick(1.1)
    accept(net)
    assert subscribed(net) == {("a", "t1"), ("a", "t2")}


@pytest.mark.parametrize("wait", [0, 0.3], ids=["at once", "when the next query is due"])
def test_only_a_query_after_the_loss_counts(wait: float) -> None:
    net, core = pattern_at_two()
    core.ask_now(net.time)  # the response to this query may be older than the loss
    net.wires[0].lose()
    net.tick(wait)
    core.found([A.of_topic("t1"), A.of_topic("t2")], [], net.time)
    net.tick(30)
    assert len(net.wires) == 2
    core.found([A.of_topic("t2")], [], net.time)
    net.tick(30)
    assert len(net.wires) == 2


def test_without_lookupds_a_lost_topic_may_still_be_there() -> None:
    net, core = pattern_at_two()
    net.wires[0].lose()
    net.tick(0.3)
    core.found([], ["l:4161: connection refused"], net.time)
    net.tick(1.1)
    accept(net)
    assert subscribed(net) == {("a", "t1"), ("a", "t2")}


def test_an_nsqd_that_refuses_is_tried_less_and_less() -> None:
    def refuse(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("SUB"):
            peer.error("E_UNAUTHORIZED no")
        return line.startswith("SUB")

    net, core = consumer(pattern="t.*", lookupds="l:4161", lookupd_poll_interval=1)
    net.peers = {"script": refuse}
    for _ in range(300):
        if core._asking:
            core.found([A.of_topic("t1")], [], net.time)
        accept(net)
        net.tick(1)
    assert 8 <= len(net.wires) <= 20


# -- texts of errors and logs


def test_errors_name_the_topic(caplog: pytest.LogCaptureFixture) -> None:
    net, core = consumer(["t", "u"], "a", close_timeout=5)
    errors: list[Error] = []
    core.on_error = errors.append
    accept(net)
    net.wires[1].peer.error("E_FIN_FAILED no", close=False)
    net.wires[1].run()
    assert errors[0].__notes__ == ["from a:4150/u"]
    assert "a:4150/u: E_FIN_FAILED no" in caplog.text
    net.tick(1)
    wire = next(each for each in net.wires if each.connection.ready)
    wire.deliver(b"1")
    core.log_failure(net.delivered[0], ValueError("no"), was_answered=False)
    assert f"handling message {'0' * 16} of {wire.connection.topic} failed" in caplog.text
    core.stop(net.time)
    for each in net.wires:
        each.run()
    net.tick(2)
    assert f"{wire.connection.address} (unanswered messages: 1)" in caplog.text


def test_a_long_list_of_topics_is_cut() -> None:
    assert str(Topics([f"t{number}" for number in range(50)])) == "t0,t1,t2 and 47 more"


# -- queries


def test_all_topics_are_queried_in_one_round(caplog: pytest.LogCaptureFixture) -> None:
    with LookupPages(("a", 4150)) as one, LookupPages(status=404) as other:
        lookups = Lookups(
            (one.address, other.address), Topics(["t", "u"]), LookupOptions(), ConnectionOptions()
        )
        assert lookups.ask() == ([A.of_topic("t"), A.of_topic("u")], [])
        assert sorted(path for path, _ in one.asked) == ["/lookup?topic=t", "/lookup?topic=u"]
        assert f"lookupd {other.address} has no topic u" in caplog.text


@pytest.mark.parametrize("every_nsqd", [False, True])
def test_a_pattern_is_one_query(monkeypatch: pytest.MonkeyPatch, every_nsqd: bool) -> None:
    """Topics with a tombstone are left out, unless another nsqlookupd lists them."""

    def nodes(addresses: Any, **_: Any) -> Found:
        queries.append(addresses)
        return Found(
            {
                "l": [
                    Producer("a", 4150, 4151, topics={"t1": False, "t2": True, "x": False}),
                    Producer("b", 4150, 4151, topics={"t3": True}),
                ],
                "m": [Producer("b", 4150, 4151, topics={"t3": False})],
            }
        )

    queries: list[Any] = []
    monkeypatch.setattr("nsqcy.client.lookups.nodes", nodes)
    lookups = Lookups(
        ("l", "m"),
        Topics((), "t."),
        LookupOptions(),
        ConnectionOptions(),
        every_nsqd=every_nsqd,
    )
    found, errors = lookups.ask()
    everywhere = {each.of_topic(topic) for each in (A, B) for topic in ("t1", "t3")}
    assert {*found} == (everywhere if every_nsqd else {A.of_topic("t1"), B.of_topic("t3")})
    assert (errors, queries) == ([], [("l", "m")])


def test_an_nsqd_that_does_not_respond_keeps_its_topics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics that are missing from an nsqd's response are not kept."""
    answers: dict[str, Any] = {"a:1": ["t1"], "b:1": ["t1", "t2"]}

    def topics_of(addresses: Any, **_: Any) -> Outcome[str, list[str]]:
        outcome: Outcome[str, list[str]] = Outcome()
        for each in addresses:
            if isinstance(answers[each], list):
                outcome.values[each] = answers[each]
            else:
                outcome.errors[each] = answers[each]
        return outcome

    monkeypatch.setattr("nsqcy.client.lookups.nsqd_topics", topics_of)
    lookups = Lookups(
        (),
        Topics((), "t."),
        LookupOptions(),
        ConnectionOptions(),
        nsqds={A: "a:1", B: "b:1"},
    )
    assert lookups.ask()[0] == [A.of_topic("t1"), B.of_topic("t1"), B.of_topic("t2")]
    answers |= {"a:1": RequestError("connection refused"), "b:1": ["t2"]}
    assert lookups.ask() == ([A.of_topic("t1"), B.of_topic("t2")], [])
    assert "nsqd a:1: connection refused" in caplog.text
