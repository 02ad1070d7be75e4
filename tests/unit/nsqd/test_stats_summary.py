"""Summaries of /stats: the totals and the busiest topics equal those of the complete page."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.names import is_ephemeral
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import page_buffer, stats_page
from nsqcy.nsqd.stats.page_buffer import SharedBuffer, Writer
from nsqcy.nsqd.stats.stats_formats import MEMORY_KEYS
from nsqcy.nsqd.stats.stats_page import Health
from nsqcy.server.core import Sampling
from support.worker_core import MILLISECOND, SECOND, Client, Core

POLICIES = Policies(TopicPolicy(), [], [("b*/*", {"max_attempts": 3, "dead_letter_topic": "dead"})])
NAMES = [*(f"{letter}{number}" for letter in "ab" for number in range(4)), "dead", "e#ephemeral"]
WORKERS = 3
HELD = ("depth", "in_flight_count", "deferred_count")
RATES = ("receive_rate", "finish_rate", "requeue_rate", "timeout_rate")


def body(cores: Sequence[Core], **options: Any) -> bytes:
    """Return the page of workers."""
    query = Query(**({"json": True, "include_mem": False, "include_clients": False} | options))
    shared, answers = SharedBuffer(), {}
    for worker, core in enumerate(cores):
        keys = [key for key in core.shard.topics if query.topic in ("", key.decode())]
        writer = Writer(shared.fd, stats_page.region(worker))
        written = stats_page.write_share(core.manager, keys, query, writer, 0, lambda: None)
        memory = dict.fromkeys(MEMORY_KEYS, 0)
        answers[worker] = stats_page.answer(
            written, known=bool(keys), health=Health("OK", 0), memory=memory
        )
    whole = stats_page.combine(shared, answers, max(1, len(cores)))
    plan = stats_page.page_plan(whole, query, started=0, now=0)
    return bytes(page_buffer.read(whole.shared.fd, plan, lambda: None))


def page(cores: Sequence[Core], **options: Any) -> Any:
    return json.loads(body(cores, **options))


class World:
    """Workers in which a list of steps has happened."""

    def __init__(self) -> None:
        self.cores = [Core(None, policies=POLICIES) for _ in range(WORKERS)]
        self.consumers: dict[str, Client] = {}

    def do(self, step: str, name: str, number: int) -> None:
        core = self.cores[NAMES.index(name) % WORKERS]
        topic = core.create(name)
        consumer = self.consumers.get(name)
        match step:
            case "channel":
                topic.channel(f"c{number % 3}")
            case "publish":
                core.client().publish(name, b"x" * number)
            case "defer":
                core.client().publish(name, b"x", delay=10_000)
            case "subscribe":
                self.consumers[name] = core.client().subscribe(name, "c1", ready=number)
            case "finish" | "requeue" if consumer:
                for message in consumer.messages()[:number]:
                    (consumer.finish if step == "finish" else consumer.requeue)(message.id)
            case "pause":
                topic.pause(number % 2 == 0)
            case "pause channel":
                topic.channel("c1")
                topic.pause_channel("c1", number % 2 == 0)
            case "sample":
                for each in self.cores:
                    each.advance(number * 100 * MILLISECOND)
                    Sampling(each.shard).go_on(1 << 20)
        core.settle()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("channel", "publish", "publish", "defer", "subscribe", "finish", "requeue"),
                *("pause", "pause channel", "sample"),
            ]
        ),
        st.sampled_from(NAMES),
        st.integers(0, 30),
    ),
    max_size=50,
)


def rank(topic: dict[str, Any]) -> tuple[float, ...]:
    """Return how busy a topic on a whole page is."""
    channels = topic["channels"]
    held = topic["depth"] + sum(each[key] for each in channels for key in HELD)
    rate = (topic["publish_rate"] or 0) + sum(each[key] or 0 for each in channels for key in RATES)
    notable = (
        topic["paused"]
        or (is_ephemeral(topic["topic_name"]) and not channels)
        or any(each["paused"] for each in channels)
        or any(is_ephemeral(each["channel_name"]) and not each["client_count"] for each in channels)
    )
    return held, rate, notable


def added(objects: Sequence[dict[str, Any]], key: str) -> Any:
    return pytest.approx(sum(each.get(key) or 0 for each in objects), rel=1e-4)


@pytest.mark.slow
@given(STEPS, st.integers(0, 12), st.booleans(), st.booleans())
def test_a_summary_equals_that_of_the_whole_page(
    steps: list[tuple[str, str, int]], count: int, names: bool, sparse: bool
) -> None:
    world = World()
    for step in steps:
        world.do(*step)
    for each in world.cores:
        each.advance(2 * SECOND)
    whole = page(world.cores)
    found = page(world.cores, busiest=count, names=names, sparse=sparse)
    same = page(world.cores, sparse=sparse)

    by_name = {topic["topic_name"]: topic for topic in same["topics"]}
    shown = [topic["topic_name"] for topic in found["topics"]]
    assert found["topics"] == [by_name[name] for name in shown]
    ranks = {topic["topic_name"]: rank(topic) for topic in whole["topics"]}
    in_order = sorted(ranks, key=lambda name: (*(-value for value in ranks[name]), name))
    assert shown == in_order[:count]

    totals, topics = found["totals"], whole["topics"]
    channels = [each for topic in topics for each in topic["channels"]]
    assert totals["topic_count"] == len(topics) and totals["channel_count"] == len(channels)
    assert totals["busy_topic_count"] == sum(any(each) for each in ranks.values())
    assert totals["topics"] == {key: added(topics, key) for key in totals["topics"]}
    assert totals["channels"] == {key: added(channels, key) for key in totals["channels"]}
    assert {*HELD, *RATES, "client_count", "message_count"} <= totals["channels"].keys()

    assert ("topic_names" in found) == names
    assert sorted(found.get("topic_names", by_name)) == sorted(by_name)
    origins = [
        {"topic_name": topic["topic_name"], "channel_name": each["channel_name"]}
        | {"dead_letter_topic": each["policy"]["dead_letter_topic"]}
        for topic in topics
        for each in topic["channels"]
        if each.get("policy", {}).get("dead_letter_topic")
    ]
    assert sorted(found["dead_letter_channels"], key=str) == sorted(origins, key=str)


def test_a_summary_is_small() -> None:
    core = Core(None)
    for number in range(3000):
        core.create(f"orders.{number:05d}").channel("work")
    for _ in range(2):
        core.client().publish("orders.02999", b"x")
    core.client().publish("orders.01000", b"x")
    core.settle()
    whole, found = body([core], sparse=True), body([core], sparse=True, busiest=2)
    assert len(found) < 2000 < len(whole) / 100
    assert [topic["topic_name"] for topic in json.loads(found)["topics"]] == [
        "orders.02999",
        "orders.01000",
    ]
    with_names = body([core], sparse=True, busiest=0, names=True)
    assert len(with_names) < 3000 * len('"orders.00000",') + 2000


def test_a_summary_of_one_topic_or_channel() -> None:
    core = Core(None)
    for name in ("one", "two"):
        core.create(name).channel("a")
        core.create(name).channel("b")
        core.client().publish(name, b"x")
    core.settle()
    found = page([core], busiest=5, topic="one", channel="b")
    assert (found["totals"]["topic_count"], found["totals"]["channel_count"]) == (1, 1)
    assert found["totals"]["channels"]["depth"] == 1
    assert [topic["topic_name"] for topic in found["topics"]] == ["one"]
    unknown = page([core], busiest=5, topic="three", names=True)
    assert unknown["topics"] is None and unknown["topic_names"] == []
    assert unknown["totals"]["topic_count"] == 0
    assert page([core], busiest=5, channel="c")["totals"]["topic_count"] == 0


def test_without_topics_or_workers_a_summary_has_zeros() -> None:
    empty, none = page([Core(None)], busiest=5, names=True), page([], busiest=5, names=True)
    assert empty["totals"] == none["totals"]
    assert set(empty["totals"]["channels"].values()) == {0}
    assert empty["topics"] == empty["topic_names"] == empty["dead_letter_channels"] == []


def test_text_has_no_summary() -> None:
    core = Core(None)
    core.create("t")
    assert body([core], json=False, busiest=0) == body([core], json=False)


def test_a_summary_is_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_page, "COUNTED", 8)
    monkeypatch.setattr(stats_page, "SLICE", 8)
    monkeypatch.setattr(stats_page, "RANKED", 8)
    core, shared, turns = Core(None, policies=POLICIES), SharedBuffer(), [0]
    for number in range(40):
        core.create(f"b{number}").channel("c")

    def give_way() -> None:
        turns[0] += 1

    query = Query(json=True, busiest=16, names=True)
    keys, writer = list(core.shard.topics), Writer(shared.fd, stats_page.region(0))
    written = stats_page.write_share(core.manager, keys, query, writer, 0, give_way)
    counted, shown, ranked = (80 + 16) // 8, 32 // 8, 1
    assert turns[0] >= counted + shown + ranked
    answer = stats_page.answer(
        written, known=True, health=Health("OK", 0), memory=dict.fromkeys(MEMORY_KEYS, 0)
    )
    turns[0] = 0
    whole = stats_page.combine(shared, {0: answer}, 1)
    plan = stats_page.page_plan(whole, query, started=0, now=0, give_way=give_way)
    assert turns[0] == 1
    found = json.loads(bytes(page_buffer.read(shared.fd, plan, lambda: None)))
    assert sorted(found["topic_names"]) == sorted(f"b{number}" for number in range(40))
    assert len(found["dead_letter_channels"]) == 40 and len(found["topics"]) == 16


def test_a_topic_deleted_during_a_summary_is_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_page, "COUNTED", 4)  # the first two topics
    core, shared = Core(None), SharedBuffer()
    for name in ("t0", "t1", "t2"):
        core.create(name).channel("a")

    def give_way() -> None:
        if core.topic("t1") is not None:
            core.shard.delete_topic(b"t1")
            core.settle()

    query = Query(json=True, busiest=3)
    written = stats_page.write_share(
        core.manager, [b"t0", b"t1", b"t2"], query, Writer(shared.fd, 1), 0, give_way
    )
    answer = stats_page.answer(
        written, known=True, health=Health("OK", 0), memory=dict.fromkeys(MEMORY_KEYS, 0)
    )
    whole = stats_page.combine(shared, {0: answer}, 1)
    plan = stats_page.page_plan(whole, query, started=0, now=0)
    found = json.loads(bytes(page_buffer.read(shared.fd, plan, lambda: None)))
    assert found["totals"]["topic_count"] == 3  # counted before
    assert [topic["topic_name"] for topic in found["topics"]] == ["t0", "t2"]
