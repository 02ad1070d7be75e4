"""Output of dlq, without Spark; test_more_jobs.py tests its input."""

import datetime

import pytest

from nsqcy.broker.dead_letter_headers import NAMES
from nsqcy.pipeline import dlq
from nsqcy.pipeline.__main__ import main

AT = datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC)
GROUP = {
    "origin_topic": "orders",
    "origin_channel": "billing",
    "reason": "attempts",
    "last_client": "worker-7",
    "letters": 1234,
    "most_attempts": 5,
    "first": AT,
    "last": AT + datetime.timedelta(hours=1),
    "last_id": "0f3b5d2c1a000001",
}


def test_a_group_in_words() -> None:
    assert dlq.described(GROUP) == (
        "     1,234  orders/billing  attempts  worker-7  up to 5 attempts, "
        "2026-01-31 07:00 to 2026-01-31 08:00"
    )
    assert "  nobody  " in dlq.described(GROUP | {"last_client": None})
    assert dlq.as_fields(GROUP)["last"] == "2026-01-31T08:00:00+00:00"


def test_what_the_lines_do_not_show() -> None:
    assert list(dlq.summary([GROUP], 20, 0)) == []
    assert list(dlq.summary([GROUP] * 3, 1, 7)) == [
        "2,468 dead letters in 2 more groups; raise --top to show them",
        "7 messages in the topic are not dead letters",
    ]


def test_all_of_our_headers_are_taken_away() -> None:
    assert all(f"'{name}'" in dlq.own_headers() for name in NAMES)


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in [
        ([], "exactly one of --topic, --topics and --topics-pattern is required"),
        (["--topic=dead", "--top=0"], "--top is '0': expected a whole number of at least 1"),
        (["--topic=dead", "--republish=a b"], "--republish is 'a b': expected a topic name"),
    ]:
        assert main(["dlq", *words]) == 2
        assert said in capsys.readouterr().err
