"""Every option and argument of the client with values that are not allowed."""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from decimal import Decimal
from typing import Any

import pytest

from nsqcy.client.codec import Codec
from nsqcy.client.errors import Error
from nsqcy.client.flow import FlowSettings
from nsqcy.client.options import CONSUMER_PARTS, PRODUCER_PARTS
from nsqcy.options.fields import declared
from support.client_interfaces import FACES, Face
from support.fake_nsqd import delivery

NOT_NUMBERS: list[Any] = ["x", "", b"x", [], [1], {}, {1}, (), object(), Decimal(1), 1j, print]
NOT_TEXT: list[Any] = [b"x", 1, 1.5, True, [], {}, object(), Decimal(1), print]
NOT_WHOLE: list[Any] = [*NOT_NUMBERS, 1.5, True, math.nan, math.inf, -1 << 70, 1 << 70]
NOT_DURATIONS: list[Any] = [*NOT_NUMBERS, True, math.nan, math.inf, -math.inf, 1e300, 1 << 70]
ODD_TEXT: list[Any] = ["\ud800", "\x00", "a\nb", "\x1b[31m"]
NOT_FLAGS: list[Any] = ["yes", "", 0, 1, None, [], b"", 1.0, object()]
WRONG = {
    "bool": NOT_FLAGS,
    "int": [*NOT_WHOLE, -2],
    "float": [*NOT_DURATIONS, -2, -0.5],
    "str": [*NOT_TEXT, *ODD_TEXT],
}
NOT_ADDRESSES: list[Any] = [1, b"h:1", [1], [b"h:1"], {"h:1": 1}, object(), ":1", "h:0", "h:x"]
NOT_ADDRESSES += ["h:99999", "\ud800:1", "a\nb:1", "a b:1", "[::1", ["h:1", ""]]
NOT_NAMES: list[Any] = [None, 1, b"t", "", "a b", "x" * 65, "\ud800", [1], object(), True]
NOT_FUNCTIONS: list[Any] = [1, "f", [], object(), True]
NOT_TLS: list[Any] = [
    1,
    "file",
    [("ca_certs", "x")],
    {"no_such": 1},
    {1: 2},
    {"ca_certs": 1},
    {"ca_certs": b"x"},
    {"ca_certs": "/no/such/file"},
    {"ca_certs": "\0"},
    {"ca_certs": "\ud800"},
    {"certfile": True},
    {"certfile": "/no/such/file"},
    {"keyfile": []},
    {"cert_reqs": "required"},
    {"cert_reqs": 7},
    {"cert_reqs": True},
    {"check_hostname": "no"},
    {"check_hostname": 0},
    {"ciphers": 1},
    {"ciphers": "no such cipher"},
]


def wrong_options(parts: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        for each in declared(part):
            for value in WRONG[each.kind.typed]:
                # Settings of the flow may be any finite number of seconds.
                if part is not FlowSettings or value not in (1e300, 1 << 70) or value is True:
                    yield each.name, value
        assert {each.name for each in fields(part)} - {each.name for each in declared(part)} <= {
            "tls_options",
            "tls_context",
        }
    for value in NOT_TLS:
        yield "tls_options", value


ARGUMENTS: dict[str, list[Any]] = {
    "name": [*NOT_TEXT, *ODD_TEXT],
    "codec": [1, "xml", b"json", object(), [], True],
    "on_error": NOT_FUNCTIONS,
}
CONSUMER_ARGUMENTS = ARGUMENTS | {
    "concurrency": [*NOT_WHOLE, 0, -1],
    "dead_letter_topic": NOT_NAMES[1:],
    "message_handler": NOT_FUNCTIONS,
    "on_exception": NOT_FUNCTIONS,
    "on_giving_up": NOT_FUNCTIONS,
    "on_heartbeat": NOT_FUNCTIONS,
    "on_ready": NOT_FUNCTIONS,
}
PRODUCER_ARGUMENTS = ARGUMENTS | {"on_retry": NOT_FUNCTIONS}


@pytest.fixture(scope="module", params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = request.param()
    yield face
    face.end()


def refused(
    face: Face, what: str, value: Any, call: Callable[..., Any], *args: Any, **more: Any
) -> None:
    """The call raises TypeError, ValueError or an error of the client, with a message."""
    try:
        result = face.call(call, *args, **more)
    except (TypeError, ValueError, Error) as error:
        assert str(error)
    else:
        pytest.fail(f"{what}={value!r} was accepted: {result!r}")


def test_options_of_a_consumer(face: Face) -> None:
    for name, value in wrong_options(CONSUMER_PARTS):
        options = {"tls_v1": True} if name.startswith("tls_o") else {}
        given = options | {name: value}
        refused(face, name, value, face.module.Consumer, "t", "c", "h:1", **given)


def test_options_of_a_producer(face: Face) -> None:
    for name, value in wrong_options(PRODUCER_PARTS):
        options = {"tls_v1": True} if name.startswith("tls_o") else {}
        refused(face, name, value, face.module.Producer, "h:1", **options | {name: value})


def test_arguments_of_a_consumer(face: Face) -> None:
    make = face.module.Consumer
    for value in NOT_NAMES:
        refused(face, "topic", value, make, value, "c", "h:1")
        refused(face, "channel", value, make, "t", value, "h:1")
    for value in [1, b"t", [], "(", object(), True, re.compile(b"t")]:
        more = {"lookupd_http_addresses": "h:1", "topics_pattern": value}
        refused(face, "topics_pattern", value, make, channel="c", **more)
    for value in NOT_ADDRESSES:
        refused(face, "nsqd_tcp_addresses", value, make, "t", "c", value)
        refused(face, "lookupd_http_addresses", value, make, "t", "c", (), value)
    for name, values in CONSUMER_ARGUMENTS.items():
        for value in values:
            refused(face, name, value, make, "t", "c", "h:1", **{name: value})


def test_arguments_of_a_producer(face: Face) -> None:
    make = face.module.Producer
    for value in NOT_ADDRESSES:
        refused(face, "nsqd_tcp_addresses", value, make, value)
        refused(face, "lookupd_http_addresses", value, make, (), value)
    for name, values in PRODUCER_ARGUMENTS.items():
        for value in values:
            refused(face, name, value, make, "h:1", **{name: value})


def test_an_error_shows_no_secret(face: Face) -> None:
    for value in ("s3cret\n", b"s3cret", ["s3cret"]):
        with pytest.raises((TypeError, ValueError)) as caught:
            face.call(face.module.Producer, "h:1", auth_secret=value)
        assert "s3cret" not in str(caught.value)


NOT_TIMEOUTS = [*NOT_DURATIONS, -1]


def test_methods_of_a_consumer(face: Face) -> None:
    consumer = face.call(face.module.Consumer, "t", "c", "127.0.0.1:1", codec="json")
    for value in NOT_TIMEOUTS:
        refused(face, "timeout", value, consumer.get, value)
        refused(face, "timeout", value, consumer.join, value)
        refused(face, "within", value, consumer.batches, 1, within=value)
        refused(face, "timeout", value, consumer.batches, 1, timeout=value)
    refused(face, "within", None, consumer.batches, 1, within=None)
    for value in [*NOT_WHOLE, 0, None]:
        refused(face, "max_messages", value, consumer.batches, value)
    for value in [*NOT_WHOLE, -1, None]:
        refused(face, "max_in_flight", value, consumer.set_max_in_flight, value)
    for value in [*NOT_TEXT, *ODD_TEXT, "", None]:
        refused(face, "host", value, consumer.connect_to_nsqd, value, 1)
    for value in [*NOT_WHOLE, 0, 65536, None]:
        refused(face, "port", value, consumer.connect_to_nsqd, "h", value)
    for value in [None, 1, b"{}", object()]:
        refused(face, "message", value, consumer.decode, value)
    check_flags(face, consumer)
    if face.name == "blocking":
        for value in NOT_FLAGS:
            refused(face, "block", value, consumer.start, value)
    face.call(consumer.close, graceful=False)


def check_flags(face: Face, closing: Any) -> None:
    """Try to close with wrong flags."""
    names = ["graceful", "wait"] if face.name == "blocking" else ["graceful"]
    for name in names:
        for value in NOT_FLAGS:
            refused(face, name, value, closing.close, **{name: value})


NOT_HEADERS: list[Any] = [
    1,
    "x",
    b"x",
    [("a", "b")],
    [1],
    {1: "a"},
    {"a": 1},
    {"a": b"b"},
    {"A": "b"},
]
NOT_HEADERS += [{"a": "\ud800"}, {"": "b"}, {b"a": "b"}, {"a": None}, object()]
NOT_BODIES: list[Any] = [None, 1, "x", "", b"", [], [1], {}, object(), True, 1.5]


def test_methods_of_a_producer(face: Face) -> None:
    producer = face.call(face.module.Producer, "127.0.0.1:1", headers=True)
    for publish in (producer.publish, producer.publish_nowait):
        for value in NOT_NAMES:
            refused(face, "topic", value, publish, value, b"m", timeout=0)
        for value in NOT_BODIES:
            refused(face, "data", value, publish, "t", value, timeout=0)
        for value in [*NOT_WHOLE, 1e300]:
            refused(face, "defer", value, publish, "t", b"m", value, 0)
        for value in NOT_TIMEOUTS:
            refused(face, "timeout", value, publish, "t", b"m", timeout=value)
        for value in NOT_HEADERS:
            refused(face, "headers", value, publish, "t", b"m", timeout=0, headers=value)
    for publish in (producer.multipublish, producer.multipublish_nowait):
        for value in NOT_NAMES:
            refused(face, "topic", value, publish, value, [b"m"], timeout=0)
        for value in [None, 1, "x", b"", b"x", [], [1], ["x"], [b""], [None], object()]:
            refused(face, "messages", value, publish, "t", value, timeout=0)
        for value in NOT_TIMEOUTS:
            refused(face, "timeout", value, publish, "t", [b"m"], timeout=value)
        for value in NOT_HEADERS:
            refused(face, "headers", value, publish, "t", [b"m"], timeout=0, headers=value)
    for value in [*NOT_WHOLE, 0, None]:
        for name in ("batch_messages", "batch_bytes"):
            refused(face, name, value, producer.publish_all, "t", [], **{name: value})
    check_flags(face, producer)
    face.call(producer.close, graceful=False)


def test_exceptions_for_handlers(face: Face) -> None:
    for value in NOT_TIMEOUTS:
        refused(face, "delay", value, face.module.Requeue, value)
    for value in NOT_FLAGS:
        if value is not None:
            refused(face, "backoff", value, face.module.Requeue, backoff=value)
    for value in [None, *NOT_TEXT]:
        refused(face, "reason", value, face.module.DeadLetter, value)


def test_methods_of_a_message() -> None:
    codec = Codec("h:1")
    (message,), _ = codec.feed(delivery(b"m"))
    for value in [*NOT_DURATIONS, -1]:
        for name in ("delay", "time_ms"):
            with pytest.raises((TypeError, ValueError)):
                message.requeue(**{name: value})
    for value in NOT_FLAGS:
        with pytest.raises(TypeError, match="backoff cannot be"):
            message.requeue(1, backoff=value)
    for value in [None, *NOT_TEXT]:
        with pytest.raises(TypeError):
            message.dead_letter(value)
    assert not message.has_responded()


def test_administration(face: Face) -> None:
    make = face.module.NsqdAdmin
    limits = [*NOT_TIMEOUTS, 0, None]
    for value in [None, *NOT_TEXT, *ODD_TEXT, "", "h", "ftp://h", "h:99999"]:
        refused(face, "nsqd_http_address", value, make, value)
    for value in [*NOT_TEXT, *ODD_TEXT]:
        refused(face, "auth_secret", value, make, "h:1", auth_secret=value)
    for value in limits:
        refused(face, "timeout", value, make, "h:1", timeout=value)
    admin = make("127.0.0.1:1")
    names = {name for name in vars(make) if not name.startswith("_")}
    for name in names:
        method = getattr(admin, name)
        parameters = list(inspect.signature(method).parameters)
        for value in NOT_NAMES:
            if value is None and name == "stats":  # all
                continue
            more = {"to": 1} if "to" in parameters else {}
            rest = {"channel": "c"} if "channel" in parameters else {}
            refused_early(face, method, topic=value, **rest, **more)
            if rest:
                refused_early(face, method, topic="t", channel=value, **more)
    refused_early(face, admin.stats, channel="c")
    for value in [*NOT_TEXT, *ODD_TEXT, "", None]:
        refused_early(face, admin.peek, topic="t", channel="c", state=value)
    for value in [*NOT_WHOLE, -1, None]:
        refused_early(face, admin.peek, topic="t", channel="c", count=value)
    for value in [
        *NOT_TEXT,
        *ODD_TEXT,
        "",
        "x" * 16,
        "0" * 15,
        "0" * 17,
        "0" * 16 + "\n",
        b"0" * 16,
    ]:
        refused_early(face, admin.redrive, topic="t", channel="c", id=value)
    for value in [*NOT_WHOLE, 0, -1]:
        refused_early(face, admin.redrive, topic="t", channel="c", limit=value)
    refused_early(face, admin.redrive, topic="t", channel="c", id="0" * 16, limit=1)
    for value in [None, 1.5, True, b"x", "", "\ud800", [], object()]:
        refused_early(face, admin.seek, topic="t", channel="c", to=value)
    for value in [object(), {1}, b"x", math.nan, math.inf]:
        refused_early(face, admin.topic_policy, topic="t", key=value)
        refused_early(face, admin.channel_policy, topic="t", channel="c", key=value)


def test_cancelling(face: Face) -> None:
    cancel = face.module.cancel
    for value in NOT_NAMES:
        refused_early(face, cancel, value, "c", "k", "127.0.0.1:1")
        refused_early(face, cancel, "t", value, "k", "127.0.0.1:1")
    for value in [*NOT_TEXT, "", None]:
        refused_early(face, cancel, "t", "c", value, "127.0.0.1:1")
        refused_early(face, cancel, "t", "c", "k", "127.0.0.1:1", header=value)
    for value in [*NOT_ADDRESSES, (), None]:
        refused_early(face, cancel, "t", "c", "k", value)
    for value in [*NOT_TIMEOUTS, 0, None]:
        refused_early(face, cancel, "t", "c", "k", "127.0.0.1:1", timeout=value)
    for value in [*NOT_TEXT, *ODD_TEXT]:
        refused_early(face, cancel, "t", "c", "k", "127.0.0.1:1", auth_secret=value)


def refused_early(face: Face, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """The call raises TypeError or ValueError, and nothing is sent."""
    try:
        result = face.call(call, *args, **options)
    except (TypeError, ValueError) as error:
        assert str(error)
    except Error as error:
        pytest.fail(f"{args}, {options} reached the network: {error}")
    else:
        pytest.fail(f"{args}, {options} was accepted: {result!r}")
