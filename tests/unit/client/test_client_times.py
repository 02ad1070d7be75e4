"""Durations as timedeltas, misspelt options, and the text representations of objects."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from nsqcy.client import aio, blocking
from nsqcy.client.common_interface import batched, batched_async
from nsqcy.client.connection import Connection
from nsqcy.client.errors import Requeue
from nsqcy.client.options import Address, ConnectionOptions, consumer_options, producer_options
from nsqcy.client.producer import dpub_head
from nsqcy.client.times import milliseconds, seconds

MINUTE = timedelta(minutes=1)

every_face = pytest.mark.parametrize("face", [aio, blocking])


def test_durations_are_numbers_or_timedeltas() -> None:
    assert seconds(MINUTE) == 60.0
    assert seconds(1.5) == 1.5
    assert seconds(None) is None
    assert milliseconds(timedelta(microseconds=1600)) == 2
    assert milliseconds(250) == 250
    assert Requeue(MINUTE).delay == 60.0
    assert dpub_head("t", MINUTE) == b"DPUB t 60000\n"


def test_text_is_no_duration() -> None:
    for value in ("10m", 0.5):
        with pytest.raises(TypeError, match="is not a duration"):
            milliseconds(value)  # type: ignore[arg-type]


def test_options_are_timedeltas() -> None:
    given = {"requeue_delay": MINUTE, "max_backoff_duration": MINUTE, "heartbeat_interval": MINUTE}
    consumer, flow, lookup, connection = consumer_options(
        given | {"lookupd_poll_interval": MINUTE, "output_buffer_timeout": MINUTE}
    )
    assert consumer.requeue_delay == flow.max_backoff_duration == 60.0
    assert lookup.lookupd_poll_interval == 60.0
    assert connection.identity["heartbeat_interval"] == 60_000
    assert connection.identity["output_buffer_timeout"] == 60_000


@pytest.mark.parametrize("name", ["max_in_flight", "client_id", "snappy", "tls_options"])
def test_other_options_are_no_durations(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} cannot be"):
        consumer_options({name: MINUTE})


def test_a_timedelta_out_of_range() -> None:
    with pytest.raises(ValueError, match="timeout cannot be"):
        producer_options({"timeout": timedelta(0)})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_inflight", ": did you mean 'max_in_flight'?"),
        ("requeue_dely", ": did you mean 'requeue_delay'?"),
        ("qqq", ""),
    ],
)
def test_a_misspelt_option(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as raised:
        consumer_options({name: 1})
    assert str(raised.value).replace('"', "'") == f"Consumer has no option '{name}'{hint}"


@every_face
def test_what_objects_show(face: Any) -> None:
    consumer = face.Consumer("orders", "billing", "a")
    assert repr(consumer) == "<Consumer orders:billing not started, 0 connections, 0 in flight>"
    producer = face.Producer(["a", "b:1"])
    assert repr(producer) == "<Producer to a:4150, b:1 not started, 0 bytes unanswered>"
    connection = Connection(Address("a", 1), ConnectionOptions(), consumer.core)
    assert repr(connection) == "<Connection to a:1, connecting, RDY 0, 0 in flight>"


@every_face
def test_help_lists_the_options(face: Any) -> None:
    for kind, names in (
        (face.Consumer, ("requeue_delay=1.0", "max_in_flight=1", "lookupd_poll_interval=60.0")),
        (face.Producer, ("retries=3", "max_pending=67108864", "heartbeat_interval=30.0")),
    ):
        for name in names:
            assert f"- {name}: " in kind.__doc__, name


def test_batches_of_an_async_generator() -> None:
    messages = [b"aa", b"b", b"cccccc", b"d", b"e", b"f"]

    async def generate() -> AsyncIterator[bytes]:
        for each in messages:
            yield each

    async def collect() -> list[list[bytes]]:
        return [each async for each in batched_async(generate(), 2, 3)]

    assert asyncio.run(collect()) == list(batched(messages, 2, 3))
    assert list(batched(messages, 2, 3)) == [[b"aa", b"b"], [b"cccccc"], [b"d", b"e"], [b"f"]]
