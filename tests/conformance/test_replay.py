"""A log that keeps finished messages, and channels that start or continue within it. NSQ has no
such feature."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Starter, one_worker
from nsqcy.nsqd.process_messages.positions import EARLIEST, LATEST, Place, parse
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours

SECOND = 1_000_000_000


@pytest.fixture
def kept(nsqd: Starter) -> Nsqd:
    return nsqd(retention_time="1h")


def fill(daemon: Nsqd, topic: str, first: int, count: int) -> None:
    daemon.web.mpub(topic, [b"%d" % n for n in range(first, first + count)])


def read(daemon: Nsqd, topic: str, channel: str, count: int) -> list[int]:
    with daemon.connect() as conn:
        conn.sub(topic, channel, 2500)
        found = []
        for message in conn.messages(count):
            found.append(int(message.body))
            conn.fin(message)
        conn.cls()
        conn.expect_response(b"CLOSE_WAIT")  # the FINs have arrived
    return found


def seq(answer) -> int:
    assert answer.status == 200, answer.body
    return answer.json()["seq"]


def test_a_channel_begins_where_it_is_told(kept: Nsqd, topic: str) -> None:
    kept.web.create(topic, "c")
    fill(kept, topic, 0, 1000)
    assert sorted(read(kept, topic, "c", 1000)) == list(range(1000))
    half = datetime.now(UTC).isoformat()
    fill(kept, topic, 1000, 1000)
    assert sorted(read(kept, topic, "c", 1000)) == list(range(1000, 2000))

    def create(channel: str, start: object) -> int:
        return seq(kept.web.post("/channel/create", topic=topic, channel=channel, start=start))

    assert [create(*each) for each in (("e", "earliest"), ("s", 501), ("t", half))] == [
        1,
        501,
        1001,
    ]
    assert create("l", "latest") == 2001
    fill(kept, topic, 2000, 10)
    assert sorted(read(kept, topic, "e", 2010)) == list(range(2010))
    assert sorted(read(kept, topic, "s", 1510)) == list(range(500, 2010))
    assert sorted(read(kept, topic, "t", 1010)) == list(range(1000, 2010))
    assert sorted(read(kept, topic, "l", 10)) == list(range(2000, 2010))


def test_a_channel_goes_on_where_it_is_told(kept: Nsqd, topic: str) -> None:
    kept.web.create(topic, "c")
    fill(kept, topic, 0, 100)
    assert sorted(read(kept, topic, "c", 100)) == list(range(100))
    assert seq(kept.web.post("/channel/seek", topic=topic, channel="c", to=91)) == 91
    assert sorted(read(kept, topic, "c", 10)) == list(range(90, 100))
    kept = kept.restart()
    assert seq(kept.web.post("/channel/seek", topic=topic, channel="c", to="earliest")) == 1
    assert sorted(read(kept, topic, "c", 100)) == list(range(100))


def test_it_is_seen_before_where_a_place_is(kept: Nsqd, topic: str) -> None:
    kept.web.create(topic, "c")
    fill(kept, topic, 0, 10)
    half = datetime.now(UTC)
    # nsqd may have read the clock slightly before it receives a message.
    eventually(lambda: datetime.now(UTC) > half + timedelta(milliseconds=50))
    fill(kept, topic, 10, 10)

    def at(place: object) -> int:
        found: int = kept.web.get("/topic/log", topic=topic, at=place).json()["at"]
        return found

    assert [at(each) for each in ("earliest", 5, half.isoformat(), "latest", 99)] == [
        1,
        5,
        11,
        21,
        21,
    ]
    assert "at" not in kept.web.get("/topic/log", topic=topic).json()
    refused = kept.web.get("/topic/log", topic=topic, at="x")
    assert (refused.status, refused.json()["message"][:10]) == (400, "INVALID_AT")


def test_a_log_is_shown(kept: Nsqd, topic: str) -> None:
    kept.web.create(topic, "c")
    fill(kept, topic, 0, 100)
    shown = kept.web.get("/topic/log", topic=topic).json()
    assert shown["topic"] == topic and shown["durability"] == "memory"
    assert shown["retention_time"] == 3600 and shown["retention_bytes"] == 0
    assert (shown["first_seq"], shown["fanout_seq"], shown["next_seq"]) == (1, 101, 101)
    assert shown["channels"] == {"c": 1} and len(shown["log_id"]) == 32
    assert kept.web.get("/topic/log", topic="none").status == 404


@one_worker
def test_places_that_there_are_not(kept: Nsqd, topic: str) -> None:
    kept.web.create(topic, "c")
    times = ("2026-13-01T00:00:00Z", "2026-01-01T00:00:00")
    for text in ("", "now", "-1", "1.5", *times, "٣", "9" * 20):
        for path, param in (("/channel/create", "start"), ("/channel/seek", "to")):
            answer = kept.web.post(path, topic=topic, channel="c", **{param: text})
            assert answer.status == 400
            allowed = f"INVALID_{param.upper()} (allowed: earliest, "
            assert answer.json()["message"].startswith(allowed)


def test_channels_that_cannot_be_put_anywhere(kept: Nsqd, topic: str) -> None:
    def refusal(path: str, **query: object) -> tuple[int, str]:
        answer = kept.web.post(path, topic=query.pop("topic", topic), **query)
        return answer.status, answer.json()["message"]

    kept.web.create(topic, "c")
    exists = refusal("/channel/create", channel="c", start="earliest")
    assert exists == (409, "CHANNEL_EXISTS")
    assert refusal("/channel/seek", channel="d", to="earliest") == (404, "CHANNEL_NOT_FOUND")
    assert refusal("/channel/seek", channel="c") == (400, "MISSING_ARG_TO")
    for each in ("/channel/create", "/channel/seek"):
        query = {"start" if each.endswith("create") else "to": 1}
        assert refusal(each, topic="none", channel="c", **query) == (404, "TOPIC_NOT_FOUND")
        status, text = refusal(each, channel="x#ephemeral", **query)
        assert status == 400 and text.endswith(
            "ephemeral topics and channels have no log positions"
        )


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.timezones()))
def test_times_are_exact(moment: datetime) -> None:
    found = parse(moment.isoformat()).time
    assert found is not None
    assert datetime.fromtimestamp(found // SECOND, UTC) == moment.astimezone(UTC).replace(
        microsecond=0
    )
    assert found % SECOND == moment.microsecond * 1000


@given(st.text(max_size=30))
def test_any_text_is_a_place_or_is_refused(text: str) -> None:
    try:
        place = parse(text)
    except ValueError:
        return
    assert place in (EARLIEST, LATEST) or place == Place(place.seq, place.time)
