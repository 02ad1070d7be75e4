"""Names, URLs and options of the kombu transport, without a broker."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib.metadata import entry_points
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

pytest.importorskip("kombu")

from kombu import Connection
from kombu.transport import virtual

import nsqcy.integrations.celery
from nsqcy.client import Closed
from nsqcy.integrations.kombu.channel import Channel
from nsqcy.integrations.kombu.inbox import Inbox
from nsqcy.integrations.kombu.payloads import encoded, payload_of, seconds_until, task_of
from nsqcy.integrations.kombu.rejected import ERROR_HEADER, Unacked
from nsqcy.integrations.kombu.settings import settings
from nsqcy.integrations.kombu.topics import Source, Topics
from nsqcy.integrations.kombu.transport import Transport
from nsqcy.integrations.queue_names import nsq_name
from nsqcy.names import is_valid_name

nsqcy.integrations.celery.register()


@pytest.mark.parametrize("name", ["celery", "mail.high-1_x", "a" * 64])
def test_a_valid_name_stays(name: str) -> None:
    assert nsq_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "ü", "a" * 65, "w@host.celery.pidbox", "x#ephemeral"])
@pytest.mark.parametrize("ephemeral", [False, True])
def test_any_other_name_becomes_valid_and_stays_unique(name: str, ephemeral: bool) -> None:
    found = nsq_name(name, ephemeral=ephemeral)
    assert is_valid_name(found)
    assert found.endswith("#ephemeral") == ephemeral
    assert found != nsq_name(f"{name}!", ephemeral=ephemeral)


@pytest.mark.parametrize(
    ("url", "nsqds", "lookupds"),
    [
        ("nsqcy://", ("127.0.0.1:4150",), ()),
        ("nsqcy://a", ("a:4150",), ()),
        ("nsqcy://a:1,b:2", ("a:1", "b:2"), ()),
        ("nsqcy://a:1;nsqcy://b:2", ("a:1", "b:2"), ()),
        ("nsqcy://:secret@a:1/ignored", ("a:1",), ()),
        ("nsqcy+lookupd://a:1,b", (), ("a:1", "b:4161")),
    ],
)
def test_urls(url: str, nsqds: tuple[str, ...], lookupds: tuple[str, ...]) -> None:
    found = settings(Connection(url))
    assert (found.nsqds, found.lookupds) == (nsqds, lookupds)
    assert found.producer.get("auth_secret") == ("secret" if "secret" in url else None)


def test_a_clone_has_the_same_nsqds() -> None:
    with Connection("nsqcy+lookupd://a:1") as connection:
        assert settings(connection.clone()).lookupds == ("a:1",)


def test_the_secret_is_masked() -> None:
    assert "secret" not in Connection("nsqcy://:secret@a:1").as_uri()


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="no option 'msg_timeuot'"):
        settings(Connection("nsqcy://a", transport_options={"msg_timeuot": 3}))


@pytest.mark.parametrize(
    "options",
    [
        {"priority_steps": []},
        {"priority_steps": [3, 0]},
        {"priority_steps": [0, 10]},
        {"rejected_queue": "{queues}"},
        {"rejected_queue": "{}"},
        {"rejected_queue": "}"},
        {"msg_timeout": 0},
        {"max_defer": "soon"},
    ],
    ids=str,
)
def test_an_invalid_value_is_refused(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        settings(Connection("nsqcy://a", transport_options=options))


def test_priorities_have_topics_of_their_own() -> None:
    options = {"priority_steps": [0, 3, 9]}
    with Connection("nsqcy://a", transport_options=options) as connection:
        steps = settings(connection).options
    topics = Topics(virtual.Channel, steps, set())  # type: ignore[arg-type]
    assert topics.all_of_queue("mail") == ["mail", "mail.p3", "mail.p9"]
    found = [topics.of_queue("mail", priority) for priority in (-1, 0, 2, 3, 8, 9, 255)]
    assert found == ["mail", "mail", "mail", "mail.p3", "mail.p3", "mail.p9", "mail.p9"]


def test_options_reach_the_client() -> None:
    options = {"tls_options": {"cert_reqs": 0}, "snappy": True, "retries": 7}
    found = settings(Connection("nsqcy://a", ssl=True, transport_options=options))
    assert found.consumer["tls_v1"] and found.producer["tls_v1"]
    assert found.consumer["snappy"] and found.producer["retries"] == 7
    assert "retries" not in found.consumer


@pytest.mark.parametrize(
    ("eta", "delay"),
    [
        (None, 0),
        ("2026-01-01T00:00:10+00:00", 10),
        ("2026-01-01T01:00:10+01:00", 10),
        ("2025-01-01T00:00:00+00:00", 0),
        ("2026-01-01T00:00:10", 0),  # unknown time zone
        ("tomorrow", 0),
        (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=3), 3),
    ],
)
def test_the_delay_until_an_eta(eta: object, delay: float) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert seconds_until({"headers": {"eta": eta}}, now) == delay


class Received:
    """A message of nsqd."""

    def __init__(self, body: bytes) -> None:
        self.body = body


def payload(**headers: Any) -> dict[str, Any]:
    properties = {"correlation_id": headers.get("id"), "delivery_info": {"exchange": ""}}
    return {"body": "W10=", "headers": headers, "properties": properties}


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        date(2026, 1, 2),
        UUID(int=7),
        Decimal("1.50"),
        b"text",
        b"\x00\xff",
        {"inner": [UUID(int=8)]},
        {"__type__": "of another program", "__value__": 1},
        {"__type__": "uuid", "__value__": "malformed"},
    ],
    ids=str,
)
def test_headers_and_ids_have_the_types_of_kombus_json(value: object) -> None:
    sent = payload(id=value, other=[value])
    received: Any = Received(encoded(sent))
    assert payload_of(received) == sent
    rejected: Any = Received(Unacked(received, "q", None).dead_letter("why"))  # type: ignore[arg-type]
    assert payload_of(rejected)["headers"] == sent["headers"] | {ERROR_HEADER: "why"}


def test_a_dead_letter_has_the_key_and_the_priority_of_its_message() -> None:
    headers = {"key": "customer-7", "priority": "5", "dedup-id": "mail-17"}
    message: Any = Mock(headers=headers, id=b"0" * 16, attempts=3, timestamp=1)
    found = Unacked(message, "mail", Source("mail", "celery")).headers(None)
    assert found.items() >= {"key": "customer-7", "priority": "5", "reason": "rejected"}.items()
    assert "dedup-id" not in found


def test_a_consumer_that_has_failed_makes_the_program_connect_again() -> None:
    channel = Mock(is_full=True)
    channel._transport.inbox = Inbox()
    Channel._connection_failed(channel, Closed("the consumer has failed: KeyError()"))
    delivery = channel._transport.inbox.get(0)
    assert delivery is not None
    with pytest.raises(Transport.connection_errors, match="the consumer has failed"):
        delivery.deliver()


def test_a_task_with_a_uuid_as_its_id_is_found() -> None:
    assert task_of(encoded(payload(id=UUID(int=7)))) == str(UUID(int=7))
    assert task_of(encoded(payload(id="7"))) == "7"
    assert task_of(encoded(payload())) is None
    assert task_of(b"no JSON") is None


def test_a_value_that_kombu_cannot_encode_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        encoded(payload(other=object()))


@pytest.mark.skipif(
    not any(each.name == "nsqcy" for each in entry_points(group="kombu.serializers")),
    reason="the installed nsqcy does not have the entry point: install it again",
)
def test_celery_knows_the_url_without_an_import() -> None:
    pytest.importorskip("celery")
    program = """
from celery import Celery
print(Celery(broker="nsqcy://a").connection().transport.driver_type)
"""
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["nsqcy"]
