"""nsqd's /metrics as a black box: formats, values, and the limit on the number of series."""

import re
from functools import partial

import pytest

from conftest import Starter, one_worker
from nsqcy.metrics.families import OF_NSQD
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn
from support.metrics_scraper import OPENMETRICS, check_by_promtool, check_names, scrape
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours

LATEST = f"{OPENMETRICS};version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def use(daemon: Nsqd, topic: str, channel: str, count: int = 1) -> Conn:
    """Publish and finish this number of messages; the consumer stays connected."""
    consumer = daemon.connect()
    consumer.sub(topic, channel)
    consumer.rdy(count)
    daemon.connect().pub(topic, *[b"x"] * count)
    for _ in range(count):
        consumer.fin(consumer.message().id)
    daemon.web.await_counts(topic, channel, depth=0, in_flight_count=0, message_count=count)
    return consumer


def test_what_was_done_is_counted(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c", "idle")
    consumer = shared.connect()
    consumer.sub(topic, "c")
    consumer.rdy(3)
    shared.web.mpub(topic, [b"12345"] * 5)
    first, second, third = (consumer.message() for _ in range(3))
    consumer.rdy(0)
    consumer.fin(first.id)
    consumer.fin(second.id)
    consumer.req(third.id, 60_000)
    shared.web.do("pause", topic, "idle")
    shared.web.await_counts(topic, "c", deferred_count=1, in_flight_count=0)
    found = scrape(shared.web)
    of_topic = partial(found.value, topic=topic)
    assert of_topic("nsqd_topic_messages_total") == 5
    assert of_topic("nsqd_topic_message_bytes_total") == 25
    assert of_topic("nsqd_topic_e2e_latency_seconds_count") == 2
    assert of_topic("nsqd_topic_e2e_latency_seconds_bucket", le="+Inf") == 2
    figures = {
        "messages_total": 5,
        "deliveries_total": 3,
        "finishes_total": 2,
        "requeues_total": 1,
        "timeouts_total": 0,
        "depth": 2,
        "in_flight_messages": 0,
        "deferred_messages": 1,
        "consumers": 1,
    }
    of_channel = partial(found.value, topic=topic, channel="c")
    assert {name: of_channel(f"nsqd_channel_{name}") for name in figures} == figures
    assert found.value("nsqd_channel_paused", topic=topic, channel="idle") == 1
    assert {"topic": topic, "channel": "c"} not in found.labels("nsqd_channel_paused")
    consumer.close()


def test_the_whole_of_nsqd(shared: Nsqd, workers: int) -> None:
    found = scrape(shared.web)
    each = {str(index) for index in range(workers)}
    assert {labels["worker"] for labels in found.labels("nsqd_worker_up")} == each
    assert found.total("nsqd_worker_up") == workers
    resident = list(found.labels("nsqd_process_resident_memory_bytes"))
    assert {labels["process"] for labels in resident} == each | {"master"}
    assert found.total("nsqd_connections", kind="http") >= 1
    assert found.total("nsqd_turn_duration_seconds_count") > 0
    assert found.value("nsqd_disk_size_bytes") > found.value("nsqd_disk_free_bytes") > 0
    assert found.value("nsqd_refusing_publishes", reason="draining") == 0
    (build,) = found.labels("nsqd_build_info")
    assert build["nsq"] == "1.3.0"
    assert re.fullmatch("[0-9a-f]{8}|unknown", build["commit"])


def test_saturated_consumers(shared: Nsqd, topic: str) -> None:
    consumer = shared.connect()
    consumer.sub(topic, "c", rdy=1)
    shared.connect().pub(topic, b"x", b"y")
    consumer.message()

    def saturated() -> float:
        found = scrape(shared.web)
        return found.value("nsqd_channel_saturated_consumers", topic=topic, channel="c")

    eventually(lambda: saturated() == 1, 20.0)
    consumer.close()


def test_syncs_are_timed(shared: Nsqd, topic: str) -> None:
    shared.web.pub(topic, b"x", durability="fsync")
    found = scrape(shared.web)
    assert found.total("nsqd_sync_duration_seconds_count") >= 1
    assert found.total("nsqd_sync_duration_seconds_sum") > 0
    assert found.value("nsqd_topic_disk_bytes", topic=topic) > 0


@one_worker
def test_forms(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    plain = scrape(shared.web)
    assert plain.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert not plain.was_compressed
    latest = scrape(shared.web, accept=LATEST, gzipped=True)
    assert latest.content_type.startswith(f"{OPENMETRICS}; version=1.0.0; charset=utf-8")
    assert latest.was_compressed and latest.text.endswith("\n# EOF\n")
    check_names(latest, OF_NSQD)
    assert {name.removesuffix("_info") for name in plain.families} == latest.families.keys()
    for found in (plain, latest):
        assert found.value("nsqd_channel_depth", topic=topic, channel="c") == 0
        assert {"topic": topic, "channel": "c"} in found.labels("nsqd_channel_depth")
    assert scrape(shared.web, gzipped=True).content_type == plain.content_type
    dots = scrape(shared.web, accept=f"{OPENMETRICS};version=1.0.0;escaping=dots")
    assert dots.content_type.endswith("escaping=underscores")
    assert dots.families.keys() == latest.families.keys()


@one_worker
def test_routes(shared: Nsqd) -> None:
    web = shared.web
    answer = web.post("/metrics")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    assert web.get("/metrics/").status == 301
    assert web.get("/metrics/nope").status == 404


@one_worker
def test_promtool_finds_nothing_to_say(shared: Nsqd, topic: str) -> None:
    use(shared, topic, "c").close()
    check_by_promtool(scrape(shared.web))


def test_so_many_series_and_no_more(nsqd: Starter, workers: int) -> None:
    """Later topics and channels share one series, and nothing is lost."""
    limit = 4 * workers
    daemon = nsqd(metrics_max_series=limit)
    topics = [f"t{number}" for number in range(limit + 3)]
    for name in topics:
        daemon.web.create(name, "c")
        daemon.web.pub(name, b"x")
    found = scrape(daemon.web)
    shown = [labels["topic"] for labels in found.labels("nsqd_topic_messages_total")]
    channels = list(found.labels("nsqd_channel_depth"))
    assert len(shown) + len(channels) <= limit + 2
    assert found.total("nsqd_topic_messages_total") == len(topics)
    assert found.total("nsqd_channel_messages_total") == len(topics)
    assert found.value("nsqd_channel_depth", topic="(other)", channel="(other)") > 0
    summed = partial(found.value, "nsqd_metrics_summed", series="(other)")
    assert summed(kind="topic") == len(topics) - (len(shown) - 1)
    assert summed(kind="channel") == len(topics) - (len(channels) - 1)
    # A topic that has its own series keeps it. Topics in the shared series do not get their own
    # later, because the sum would decrease.
    for name in topics[:limit]:
        daemon.web.do("delete", name)
    assert scrape(daemon.web).value("nsqd_topic_messages_total", topic="(other)") == found.value(
        "nsqd_topic_messages_total", topic="(other)"
    )


def test_what_is_ephemeral_has_one_series(nsqd: Starter) -> None:
    """All ephemeral channels share one series, whose counts remain when consumers disconnect."""
    daemon = nsqd()
    daemon.web.create("t", "c")
    for number in range(3):
        use(daemon, "t", f"tail{number}#ephemeral").close()
    eventually(lambda: len((daemon.web.topic("t") or {})["channels"]) == 1)
    found = scrape(daemon.web)
    ours = partial(found.value, topic="t", channel="#ephemeral")
    assert ours("nsqd_channel_finishes_total") == 3
    assert ours("nsqd_channel_consumers") == 0
    channels = [labels["channel"] for labels in found.labels("nsqd_channel_depth")]
    assert sorted(channels) == ["#ephemeral", "c"]
    use(daemon, "gone#ephemeral", "c").close()
    daemon.web.do("delete", "gone#ephemeral")
    found = scrape(daemon.web)
    assert found.value("nsqd_topic_messages_total", topic="#ephemeral") == 1
    name = "nsqd_channel_finishes_total"
    assert found.value(name, topic="#ephemeral", channel="#ephemeral") == 1


def test_a_worker_that_is_restarted_takes_nothing_from_sums(nsqd: Starter, workers: int) -> None:
    daemon = nsqd()
    for number in range(2 * workers):
        use(daemon, f"t{number}#ephemeral", "c").close()
    before = scrape(daemon.web)
    name = "nsqd_topic_messages_total"
    assert before.value(name, topic="#ephemeral") == 2 * workers
    daemon.kill_worker(0)

    def is_back() -> bool:
        found = scrape(daemon.web)
        assert found.value(name, topic="#ephemeral") >= 2 * workers
        restarted = found.value("nsqd_worker_restarts_total", worker="0") == 1
        return restarted and found.total("nsqd_worker_up") == workers

    eventually(is_back, timeout=30)
