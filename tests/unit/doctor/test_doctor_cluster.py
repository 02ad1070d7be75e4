"""Findings of doctor for a cluster, from constructed facts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import (
    ChannelFigures,
    ChannelStats,
    ClientStats,
    TopicFigures,
    TopicStats,
)
from nsqcy.cluster.summaries import complete_summary
from nsqcy.doctor import cluster, speed, topics
from nsqcy.doctor.checks import run
from nsqcy.doctor.cluster import DAY
from nsqcy.doctor.facts import Attempted, Cluster, Door, Lookupd, Nsqd, Offset, Policy
from nsqcy.doctor.findings import Finding
from support.copies_reports import group, worker

NOW = 1_800_000_000.0
EXACT = Offset(0.0, 0.5)
CHECKS = (*cluster.CHECKS, *topics.CHECKS, *speed.CHECKS)
Channels = Mapping[str, ChannelStats]


def node(number: int = 1, version: str = "1.3.0", **announced: bool) -> Producer:
    host = f"10.0.0.{number}"
    return Producer(host, 4150, 4151, f"h{number}", version, topics=announced)


def nsqd(number: int = 1, *stats: TopicStats, **values: Any) -> Nsqd:
    one = values.pop("node", node(number))
    known = {"lookupds": ["l1"], "offset": EXACT, "door": Door(one.tcp_address)} | values
    return Nsqd(one.http_address, one, topics=stats, **known)


def lookupd(name: str = "l1", *producers: Producer, **values: Any) -> Lookupd:
    names = frozenset(topic for each in producers for topic in each.topics)
    known = {"version": "1.3.0", "offset": EXACT, "topics": names} | values
    return Lookupd(name, producers=producers, **known)


def topic(name: str, depth: int = 0, *channels: ChannelStats, paused: bool = False) -> TopicStats:
    figures = TopicFigures(depth=depth, paused=paused)
    return TopicStats(name, "n", "h", figures, {each.name: each for each in channels})


def channel(
    name: str,
    depth: int = 0,
    *clients: ClientStats,
    of: str = "t",
    at: str = "n",
    rates: Rates | None = None,
    **values: Any,
) -> ChannelStats:
    figures = ChannelFigures(depth=depth, client_count=len(clients), **values)
    return ChannelStats(of, name, at, "h", figures, clients=clients, rates=rates)


def client(port: int = 1, ready: int = 1, **values: Any) -> ClientStats:
    known = {"connect_ts": int(NOW) - 3600} | values
    return ClientStats(node="n", remote_address=f"c:{port}", ready_count=ready, **known)


def of(*nsqds: Nsqd, lookupds: Iterable[Lookupd] = (), watched: float = 0.0) -> Cluster:
    return Cluster(NOW, list(lookupds), list(nsqds), watched)


def said(check: Callable[[Cluster], Iterable[Finding]] | str, facts: Cluster) -> list[str]:
    """Return the texts of a check's findings. check: the check, or its name."""
    if isinstance(check, str):
        (check,) = (each.judge for each in CHECKS if each.name == check)
    found = list(check(facts))
    assert all(each.advice for each in found)
    return [f"{each.level}: {each.text} -> {each.advice}" for each in found]


def only(check: Callable[[Cluster], Iterable[Finding]] | str, facts: Cluster) -> str:
    (one,) = said(check, facts)
    return one


FEW = Attempted("t", "c", "0123", 2)
STEADY = Rates(received=5.0, finished=5.0)
GOOD = of(
    nsqd(1, topic("t", 0, channel("c", 3, client(), rates=STEADY)), disk_free=0.5, attempted=[FEW]),
    nsqd(2, topic("t", 0, channel("c", 0, client(2), rates=STEADY))),
    lookupds=[lookupd(name, node(1, t=False), node(2, t=False)) for name in ("l1", "l2")],
)


def test_a_good_cluster_has_one_line_for_each_check() -> None:
    found = run(CHECKS, GOOD)
    assert [each.check for each in found] == [each.name for each in CHECKS]
    assert {each.finding.level for each in found} == {"ok"}


def test_of_a_dead_cluster_only_that_is_said() -> None:
    dead = of(
        nsqd(1, error="Connection refused", door=Door("x", "refused")),
        lookupds=[lookupd("l1", error="timed out")],
    )
    found = run(CHECKS, dead)
    assert [(each.check, each.finding.level) for each in found] == [
        ("lookupds", "error"),
        ("nsqds", "error"),
    ]
    assert run(CHECKS, of())[0].finding.text == "no nsqd found"


def test_nobody_at_the_usual_addresses_is_no_error() -> None:
    nobody = of(
        Nsqd("127.0.0.1:4151", Producer("", 0, 0), error="refused", assumed=True),
        lookupds=[Lookupd("127.0.0.1:4161", error="refused", assumed=True)],
    )
    assert [each.finding.level for each in run(CHECKS, nobody)] == ["note", "note"]


# -- reachability


def test_a_broadcast_address_that_is_not_reached() -> None:
    silent = nsqd(1, error="timed out", door=Door("10.0.0.1:4150", "timed out"))
    told = only(cluster.nsqds, of(silent))
    assert told.startswith("error: nsqd 10.0.0.1:4151, announced by l1, does not answer: timed")
    assert "10.0.0.1 is its --broadcast-address" in told

    answers = Nsqd("far:4151", node(1), offset=EXACT)
    assert (
        "an nsqd on the same host answers at far:4151"
        in said(cluster.nsqds, of(silent, answers))[0]
    )

    own = Producer("127.0.0.1", 4150, 4151)
    told = only(cluster.nsqds, of(nsqd(node=own, error="refused", door=Door("x", "refused"))))
    assert "127.0.0.1 is local to each machine" in told


def test_one_port_of_two() -> None:
    told = only(cluster.nsqds, of(nsqd(1, error="refused", door=Door("10.0.0.1:4150"))))
    assert "its TCP port is reachable: also open HTTP port 4151" in told
    told = only(cluster.nsqds, of(nsqd(1, door=Door("10.0.0.1:4150", "refused"))))
    assert "answers over HTTP, but not to clients at 10.0.0.1:4150: refused" in told


def test_an_unannounced_nsqd() -> None:
    facts = of(nsqd(1, topic("t")), lookupds=[lookupd()])
    assert "10.0.0.1:4151 is not announced by any nsqlookupd" in only(cluster.registration, facts)
    facts = of(nsqd(1, topic("t"), topic("u")), lookupds=[lookupd("l1", node(1, t=True))])
    assert "no nsqlookupd announces these topics of nsqd 10.0.0.1:4151: u" in only(
        cluster.registration, facts
    )


# -- consistency


def test_versions() -> None:
    facts = of(*(nsqd(each, node=node(each, f"1.{each // 3}.0")) for each in (1, 2, 3)))
    told = only(cluster.versions, facts)
    assert "nsqds run 2 versions: most run 1.0.0, 10.0.0.3:4151 runs 1.1.0" in told
    facts = of(lookupds=[lookupd("l1"), lookupd("l2", version="")])
    assert "l2 runs an unknown version" in only(cluster.versions, facts)
    # nsqlookupds may be newer than nsqds.
    assert not said(cluster.versions, of(nsqd(), lookupds=[lookupd(version="1.2.0")]))


def test_agreement() -> None:
    full = lookupd("l1", node(1, t=False), node(2, t=False))
    lacking = lookupd("l2", node(1, t=False), topics=frozenset({"t", "u"}))
    lacks_topic, lacks_nsqd = said(cluster.agreement, of(lookupds=[full, lacking]))
    assert lacks_nsqd.startswith("error: nsqlookupd l2 does not list nsqd 10.0.0.2:4150")
    assert "nsqlookupd l1 lacks topics that other nsqlookupds have: u" in lacks_topic
    assert not said(cluster.agreement, of(lookupds=[full, lookupd("l3", error="refused")]))


def test_tombstones_of_some() -> None:
    facts = of(lookupds=[lookupd("l1", node(1, t=True)), lookupd("l2", node(1, t=False))])
    assert "only some nsqlookupds have a tombstone for t of 10.0" in only(cluster.agreement, facts)


@pytest.mark.parametrize(
    ("seconds", "within", "level"),
    [(2.4, 0.5, ""), (2.6, 0.5, "warning"), (-2.6, 0.5, "warning"), (9, 8, ""), (31, 0, "error")],
)
def test_clocks(seconds: float, within: float, level: str) -> None:
    told = said(cluster.clocks, of(nsqd(1, offset=Offset(seconds, within)), nsqd(2, offset=None)))
    assert [each.partition(":")[0] for each in told] == ([level] if level else [])


def test_clocks_apart() -> None:
    """Each clock is close enough to ours, but the two are too far apart."""
    two = of(nsqd(1, offset=Offset(-2, 0.5)), nsqd(2, offset=Offset(2, 0.5)))
    assert "10.0.0.2:4151 is at least 3 s ahead of 10.0.0.1:4151" in only(cluster.clocks, two)


@pytest.mark.parametrize(
    ("days", "says"),
    [
        (31, ""),
        (29.9, "warning: the TLS certificate of nsqd 10.0.0.1:4151, at h:1, expires in 30"),
        (-2, "error: the TLS cert"),
    ],
)
def test_certificates(days: float, says: str) -> None:
    door = Door("h:1", tls=True, expires=NOW + days * DAY)
    told = said(cluster.certificates, of(nsqd(1, door=door)))
    assert len(told) == bool(says) and all(each.startswith(says) for each in told)
    assert len(said(cluster.certificates, of(nsqd(1, expires=door.expires)))) == bool(says)


def test_a_certificate_that_cannot_be_seen() -> None:
    door = Door("h:1", tls=True, tls_error="SSLError")
    assert only(cluster.certificates, of(nsqd(1, door=door))).startswith("note: ")


def test_health() -> None:
    facts = of(
        nsqd(1, health="NOK - no space left", unready="worker 0: no space left"),
        nsqd(2, health="NOK - input/output error"),
        nsqd(3, draining=True, unready="draining: 5 messages left"),
    )
    told = said(cluster.health, facts)
    assert [each.partition(":")[0] for each in told] == ["error", "error", "note"]
    assert "is not ready: worker 0: no space left" in told[0]
    assert "is unhealthy: NOK - input/output error" in told[1]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("worker 0: disk hangs: sync /data/x has not returned for 9 s", "slow-syncs.md"),
        ("worker 0: NOK - write /data/x: no space left on device", "disk-full.md"),
        ("fewer than 1000 bytes are free on disk", "--min-free-disk refuses publishes"),
        ("worker 0: NOK - write /data/x: read-only file system", "remount"),
        ("worker 0: NOK - open /data/x: too many open files", "LimitNOFILE="),
    ],
)
def test_what_to_do_about_a_disk(reason: str, advice: str) -> None:
    for facts in (of(nsqd(1, unready=reason)), of(nsqd(1, health=reason))):
        assert advice in only(cluster.health, facts)


def test_a_topic_that_cannot_be_read() -> None:
    text = (
        "worker 0: topic t has been unreadable since 2026-01-01T00:00:00Z: read x: "
        "input/output error"
    )
    told = only(cluster.health, of(nsqd(1, unready=text)))
    assert told.startswith("error: ") and text in told
    assert told.endswith(
        "-> no message is lost: check the disk, and docs/runbooks/unreadable-topic.md"
    )


# -- topics and channels


def test_copies_of_a_disk() -> None:
    logs = {"t": "5b0e", "u": "77aa"}
    one, other, again = (
        nsqd(number, door=Door("", instance=instance), logs=logs)
        for number, instance in enumerate(("a", "b", "a"), 1)
    )
    own = nsqd(4, door=Door("", instance="c"), logs={"t": "1f3c"})
    (told,) = said("copied-disks", of(one, other, own))
    assert told.startswith("error: nsqd 10.0.0.1:4151 and nsqd 10.0.0.2:4151 both have log 5b0e")
    assert not said("copied-disks", of(one, again, own))


def test_ghost_topics() -> None:
    names = frozenset({"t", "ghost", "gone#ephemeral"})
    facts = of(nsqd(1), lookupds=[lookupd("l1", node(1, t=False), topics=names)])
    assert "list topics that no nsqd has: ghost ->" in only(topics.ghost_topics, facts)
    assert "without consumers: gone#ephemeral" in only(topics.ephemeral, facts)
    # A topic that nsqlookupds do not list yet is not a ghost.
    assert not said(topics.ghost_topics, of(nsqd(1, *map(topic, names)), lookupds=[lookupd()]))


def summed(*shown: TopicStats, names: Iterable[str] = (), **values: Any) -> Nsqd:
    """Return an nsqd whose summary has totals of more topics than it shows."""
    known = complete_summary(shown)
    busy = values.pop("busy", known.totals.busy)
    totals = known.totals._replace(topics=10, busy=busy)
    summary = replace(known, totals=totals, names=[*names], **values)
    return nsqd(1, *shown, summary=summary)


def test_topics_that_are_not_among_the_busiest() -> None:
    names, known = frozenset({"t", "quiet"}), lookupd("l1", node(1, t=False, quiet=False))
    facts = of(summed(topic("t"), names=names), lookupds=[known])
    assert not said(topics.ghost_topics, facts) and not said(cluster.registration, facts)
    facts = of(summed(topic("t"), names=names), lookupds=[lookupd("l1", node(1, t=False))])
    assert "of nsqd 10.0.0.1:4151: quiet ->" in only(cluster.registration, facts)
    listed = lookupd("l1", topics=names)
    assert not said(topics.ghost_topics, of(summed(topic("t"), names=names), lookupds=[listed]))


def test_topics_that_are_not_examined() -> None:
    assert not said("unexamined-topics", of(summed(topic("t", 1)), nsqd(2)))
    told = only("unexamined-topics", of(summed(topic("t", 1), busy=1201)))
    assert told.startswith("note: 1,200 topics of nsqd 10.0.0.1:4151 with messages or traffic are")


def test_dead_letters_of_channels_that_are_not_examined() -> None:
    facts = of(summed(topic("dead", 3), origins={"dead": [("quiet", "c")]}))
    assert "3 messages are waiting in dead-letter topic dead of quiet/c" in only(
        "dead-letters", facts
    )
    assert not said("unread-topics", facts)


def test_topics_of_a_lost_nsqd_are_not_to_be_deleted() -> None:
    names = frozenset({"t", "ghost"})
    known = lookupd("l1", node(1, t=False), topics=names)
    workers = [worker("n1.0", group("owner", owner="n1.0", topics=["kept"]))]
    for facts in (
        of(nsqd(1), nsqd(2, lookupds=[], left="l1", error="refused"), lookupds=[known]),
        of(nsqd(1), nsqd(2, lookupds=[], error="refused"), lookupds=[known]),
        of(nsqd(1), lookupds=[known, Lookupd("l2", error="refused")]),
        of(nsqd(1, unready="worker 0 is being restarted"), lookupds=[known]),
        of(nsqd(1, copies=workers), lookupds=[known]),
        of(lookupds=[known]),
    ):
        told = only(topics.ghost_topics, facts)
        assert told.startswith("warning: nsqlookupds list topics that no responding nsqd has: ")
        assert "-> do not delete them: " in told
    told = only(topics.ghost_topics, of(nsqd(1), lookupds=[known]))
    assert "-> first check that no nsqd is stopped or unregistered" in told
    # Another machine has copies of the topic.
    copied = lookupd("l1", node(1, t=False), topics=frozenset({"t", "kept"}))
    assert not said(topics.ghost_topics, of(nsqd(1, copies=workers), lookupds=[copied]))


def test_a_lost_nsqd() -> None:
    left = {"lookupds": [], "left": "l1 until 12 s ago", "error": "refused"}
    told = only(cluster.nsqds, of(nsqd(1, door=Door("x", "refused"), **left)))
    assert told.startswith(
        "error: nsqd 10.0.0.1:4151 is lost: it was registered with nsqlookupd l1 until 12 s ago,"
        " and does not answer: refused ->"
    )
    assert "lost-node.md" in told


def test_an_nsqd_that_hangs() -> None:
    facts = of(nsqd(1, error="timed out", hangs="worker 0 does not answer"))
    told = only(cluster.nsqds, facts)
    assert told.startswith("error: nsqd 10.0.0.1:4151 hangs: worker 0 does not answer -> do not")
    assert "worker-restarted.md" in told
    told = only(cluster.health, of(nsqd(1, unready="worker 0 does not answer")))
    assert "worker-restarted.md" in told


def test_topics_without_a_channel() -> None:
    before = topic("t", 5)
    after = topic("t", 7)._replace(figures=TopicFigures(depth=7, message_count=2))
    assert "warning: topic t has no channel, and 5 messages are waiting ->" in only(
        "unread-topics", of(nsqd(1, before))
    )
    growing = of(nsqd(1, before, later=[after]), watched=2.0)
    assert only("unread-topics", growing).startswith(
        "warning: topic t has no channel, and 7 messages are waiting, growing by 1.0/s ->"
    )
    # The second nsqd loses the topic in the meantime: the 10 messages become 7, not 12.
    shrinking = of(nsqd(1, before, later=[after]), nsqd(2, before, later=[]), watched=2.0)
    assert "and 7 messages are waiting" in only("unread-topics", shrinking)
    assert not said("unread-topics", of(nsqd(1, topic("t", 0), topic("u", 1, channel("c")))))


def test_channels_without_a_consumer() -> None:
    facts = of(
        nsqd(1, topic("t", 0, channel("c", 1, deferred_count=4), channel("idle"))),
        nsqd(2, topic("t", 0, channel("c"))),
    )
    told = only("idle-channels", facts)
    assert "channel t/c has no consumer, and 1 message is waiting, 4 deferred" in told
    # A consumer at one of the nsqds is enough.
    facts = of(
        nsqd(1, topic("t", 0, channel("c", 1))), nsqd(2, topic("t", 0, channel("c", 0, client())))
    )
    assert not said("idle-channels", facts)


def test_consumers_at_some_nsqds_only() -> None:
    with_one = nsqd(1, topic("t", 0, channel("c", 3, client(), at="n1")))
    facts = of(with_one, nsqd(2, topic("t", 0, channel("c", 1, at="n2"))))
    text = "channel t/c has no consumer on nsqd n2, and 1 message is waiting there"
    assert text in only("uneven-consumers", facts)
    empty = of(with_one, nsqd(2, topic("t", 0, channel("c", 0, at="n2"))))
    assert not said("uneven-consumers", empty)


def test_consumers_that_ask_for_nothing() -> None:
    def facts(depth: int, *clients: ClientStats) -> Cluster:
        return of(nsqd(1, topic("t", 0, channel("c", depth, *clients))))

    silent = client(7, 0, client_id="me")
    told = only(topics.stuck_consumers, facts(1, silent))
    assert "all consumers of channel t/c refuse messages at the moment (RDY 0)" in told
    assert not said(topics.stuck_consumers, facts(1, client(), silent))
    assert not said(topics.stuck_consumers, facts(0, silent))


def test_consumers_that_finish_nothing() -> None:
    def facts(before: ClientStats, after: ClientStats, watched: float = 2.0) -> Cluster:
        tops = [topic("t", 0, channel("c", 1, each)) for each in (before, after)]
        return of(nsqd(1, tops[0], later=[tops[1]]), watched=watched)

    full = client(1, 2, in_flight_count=2, finish_count=9)
    assert "finished nothing within 2 s: c:1" in only(topics.stuck_consumers, facts(full, full))
    assert not said(topics.stuck_consumers, facts(full, full, watched=0.0))
    for other in (
        client(1, 2, in_flight_count=2, finish_count=10),
        client(1, 2, in_flight_count=1, finish_count=9),
        client(2, 2, in_flight_count=2, finish_count=9),
    ):
        assert not said(topics.stuck_consumers, facts(full, other))


def test_a_paused_channel_is_one_finding() -> None:
    facts = of(nsqd(1, topic("u", 0, channel("d", 1, paused=True, of="u"))))
    assert said("idle-channels", facts) == []


def test_paused() -> None:
    facts = of(
        nsqd(
            1,
            topic("t", 2, channel("c", paused=True), paused=True),
            topic("u", 0, channel("d", 1, paused=True, of="u"), channel("e", of="u")),
        )
    )
    told = said(topics.paused, facts)
    assert [each.partition(" ->")[0] for each in told] == [
        "warning: topic t is paused, and 2 messages are waiting",
        "warning: channel u/d is paused, has no consumer, and 1 message is waiting",
        "note: channel t/c is paused",
    ]


def test_ephemeral_ones_that_are_left() -> None:
    facts = of(
        nsqd(
            1,
            topic("t", 0, channel("x#ephemeral", 3), channel("y#ephemeral", 0, client())),
            topic("e#ephemeral"),
        )
    )
    assert "e#ephemeral, t/x#ephemeral ->" in only(topics.ephemeral, facts)
    assert not said("idle-channels", facts)


def test_dead_letters() -> None:
    def source(dead: str) -> TopicStats:
        return topic("t", 0, channel("c")._replace(dead_letter_topic=dead))

    facts = of(
        nsqd(1, source("dead"), topic("dead", 0, channel("look", 2, of="dead"))),
        nsqd(2, source("dead"), topic("dead", 0, channel("look", 3, of="dead"))),
        nsqd(3, source("elsewhere"), topic("elsewhere")),
    )
    told = only("dead-letters", facts)
    assert "5 messages are waiting in dead-letter topic dead of t/c" in told


@pytest.mark.parametrize(
    ("depth", "on_full", "says"),
    [
        (7, "reject", ""),
        (8, "reject", "warning: 8 messages are waiting in topic t on 10.0.0.1:4151, and max_"),
        (10, "reject", "error: "),
        (10, "drop-oldest", "warning: "),
    ],
)
def test_limits(depth: int, on_full: str, says: str) -> None:
    policy = Policy(max_depth=10, on_full=on_full)
    stats = topic("t", 0, channel("c", depth))
    told = said(topics.limits, of(nsqd(1, stats, policies={("t", ""): policy})))
    assert len(told) == bool(says) and all(each.startswith(says) for each in told)
    own = said(topics.limits, of(nsqd(1, stats, policies={("t", "c"): policy})))
    assert len(own) == bool(says) and all("in channel t/c" in each for each in own)


# -- rates


def test_growing_backlogs() -> None:
    growing = Rates(received=9.0, finished=1.0, growth=8.0)
    facts = of(nsqd(1, topic("t", 0, channel("c", 500, client(), rates=growing))))
    told = only("growing-backlog", facts)
    assert told.startswith("warning: channel t/c is falling behind by 8.0/s: it receives 9.0/s")
    # An nsqd that reports no rates: 16 more messages within 2 s.
    before = topic("t", 0, channel("c", 500, client(), message_count=1000))
    after = topic("t", 0, channel("c", 516, client(), message_count=1018))
    facts = of(nsqd(1, before, later=[after]), watched=2.0)
    assert told.replace("500", "516") == only("growing-backlog", facts)
    assert not said("growing-backlog", of(nsqd(1, before)))


def test_slow_consumers() -> None:
    quick = [client(each, finish_rate=50.0) for each in (1, 2)]
    slow = client(3, finish_rate=1.0, saturated=True)
    facts = of(nsqd(1, topic("t", 0, channel("c", 9, *quick, slow, rates=STEADY))))
    assert "c:3 (1.0/s)" in only("slow-consumers", facts)


def test_failing_messages() -> None:
    failing = Rates(finished=1.0, requeued=4.0)
    facts = of(nsqd(1, topic("t", 0, channel("c", 9, client(), rates=failing))))
    assert "most attempts of channel t/c fail: 4.0/s are requeued" in only(
        "failing-messages", facts
    )
    slow = Rates(finished=9.0, timed_out=1.0)
    facts = of(nsqd(1, topic("t", 0, channel("c", 9, client(), rates=slow))))
    assert "messages of channel t/c time out: 1.0/s" in only("failing-messages", facts)


def test_poison_messages() -> None:
    def peeked(attempts: int, channel: str = "c") -> Attempted:
        return Attempted("t", channel, "0123", attempts)

    facts = of(
        nsqd(1, attempted=[peeked(5), peeked(4, "few")]), nsqd(2, attempted=[peeked(57)]), nsqd(3)
    )
    assert "message 0123 of channel t/c has had 57 attempts" in only(speed.poison_messages, facts)
    assert not said(speed.poison_messages, of(nsqd(1, attempted=[peeked(4)])))


def test_disks_of_nsqds() -> None:
    facts = of(nsqd(1, disk_free=0.01), nsqd(2, disk_free=0.09), nsqd(3, disk_free=0.5), nsqd(4))
    told = said(speed.disks, facts)
    assert [each.partition(" ->")[0] for each in told] == [
        "error: the disk of nsqd 10.0.0.1:4151 is 99% full",
        "warning: the disk of nsqd 10.0.0.2:4151 is 91% full",
    ]
