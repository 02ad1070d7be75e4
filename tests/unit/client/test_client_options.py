"""Options of consumers and producers: invalid ones are refused when the object is created."""

import math
import ssl
from pathlib import Path
from typing import Any

import pytest

from nsqcy import __version__
from nsqcy.client.errors import NsqdError, Requeue
from nsqcy.client.options import (
    Address,
    ConnectionOptions,
    consumer_options,
    lookupd_addresses,
    nsqd_addresses,
    producer_options,
)
from nsqcy.testing import certificates


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("a", "a", 4150, "a:4150"),
        ("a:1", "a", 1, "a:1"),
        ("10.0.0.1:65535", "10.0.0.1", 65535, "10.0.0.1:65535"),
        ("::1", "::1", 4150, "[::1]:4150"),
        ("[::1]", "::1", 4150, "[::1]:4150"),
        ("[::1]:5", "::1", 5, "[::1]:5"),
    ],
)
def test_addresses(text: str, host: str, port: int, shown: str) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:0", "a:65536", "a:b", "a:-1", "http://a", "a/b:1", "[::1", "[::1]5", "[]:1"],
)
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|has no port"):
        Address.parse(text)


def test_one_address_or_many_each_once() -> None:
    assert nsqd_addresses("a:1") == (Address("a", 1),)
    assert nsqd_addresses(each for each in ["b", "a:1", "b:4150"]) == (
        Address("b", 4150),
        Address("a", 1),
    )
    assert nsqd_addresses(()) == ()
    for wrong in ([b"a:1"], b"a:1", [("a", 1)]):
        with pytest.raises(TypeError, match="an address must be a str"):
            nsqd_addresses(wrong)  # type: ignore[arg-type]


def test_blanks_around_an_address_are_no_part_of_it() -> None:
    assert nsqd_addresses([" a:1", "a:1 "]) == (Address("a", 1),)
    assert lookupd_addresses([" a:4161", "a:4161 "]) == ("a:4161",)
    with pytest.raises(ValueError, match="is not an address"):
        nsqd_addresses("a:1, b:2")


def test_addresses_of_lookupds_are_looked_at_when_they_are_given() -> None:
    good = ("a:4161", "http://a:4161/lookup?x=1", "https://a")
    assert lookupd_addresses([*good, good[0]]) == good
    for wrong in ("a", "", "ftp://a:1"):
        with pytest.raises(ValueError, match="address"):
            lookupd_addresses(wrong)


IDENTITY = {
    "client_id": "box",
    "hostname": "box.lan",
    "short_id": "box",
    "long_id": "box.lan",
    "user_agent": f"nsqcy/{__version__}",
    "feature_negotiation": True,
    "heartbeat_interval": 30000,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "limits": True,
    "dead_letters": True,
    "goodbye": True,
}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, {}),
        ({"client_id": "c"}, {"client_id": "c", "short_id": "c"}),
        ({"heartbeat_interval": -1}, {"heartbeat_interval": -1}),
        ({"heartbeat_interval": 0.5}, {"heartbeat_interval": 500}),
        ({"user_agent": "u"},) * 2,
        ({"output_buffer_size": -1, "output_buffer_timeout": -1},) * 2,
        ({"msg_timeout": 1.5}, {"msg_timeout": 1500}),
        ({"msg_timeout": 0}, {}),
        ({"deflate": True, "deflate_level": 9},) * 2,
        ({"snappy": True, "sample_rate": 42},) * 2,
        ({"durability": "fsync"},) * 2,
        ({"tls_v1": True}, {"tls_v1": True}),
        ({"topology_zone": "z"}, {"topology_region": "", "topology_zone": "z"}),
    ],
)
def test_the_fields_of_identify(options: dict[str, Any], changed: dict[str, Any]) -> None:
    assert ConnectionOptions(hostname="box.lan", **options).identity == IDENTITY | changed


@pytest.mark.case("CL-048")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"deflate": True, "snappy": True}, "cannot be combined"),
        ({"deflate_level": 0}, "deflate_level cannot be 0 .allowed: 1 to 9"),
        ({"deflate_level": 10}, "deflate_level"),
        ({"sample_rate": 100}, "sample_rate"),
        ({"sample_rate": -1}, "sample_rate"),
        ({"heartbeat_interval": 0}, "heartbeat_interval cannot be 0 .allowed: more than 0, or -1"),
        ({"heartbeat_interval": math.inf}, "heartbeat_interval"),
        ({"heartbeat_interval": math.nan}, "heartbeat_interval"),
        ({"timeout": 0}, "timeout"),
        ({"msg_timeout": -1}, "msg_timeout"),
        ({"max_msg_size": -1}, "max_msg_size"),
        ({"durability": "disk"}, "durability cannot be 'disk' .allowed: memory, os, fsync"),
        ({"output_buffer_size": -2}, "output_buffer_size"),
        ({"tls_options": {}}, "requires tls_v1"),
        ({"tls_v1": True, "tls_options": {"keyfle": "x"}}, 'tls_options has no "keyfle"'),
        (
            {"tls_v1": True, "tls_options": {"ca_certs": "/nowhere"}},
            "tls_options: .*/nowhere: No such file",
        ),
        ({"tls_v1": True, "tls_options": {"ciphers": "none"}}, "tls_options: .*cipher"),
        ({"local_address": "a:b"}, "no port"),
    ],
)
def test_invalid_connection_options(options: dict[str, Any], error: str) -> None:
    for make in (consumer_options, producer_options):
        with pytest.raises(ValueError, match=error):
            make(options)


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": "30"},
        {"heartbeat_interval": None},
        {"timeout": True},
        {"output_buffer_size": 1.5},
        {"deflate_level": "6"},
        {"client_id": 1},
        {"auth_secret": b"x"},
        {"local_address": ("a", 1)},
        {"lookupd_poll_interval": "60"},
        {"no_such_option": 1},
        {"tls_context": None},
    ],
)
def test_values_and_names_of_the_wrong_kind(options: dict[str, Any]) -> None:
    for make in (consumer_options, producer_options):
        with pytest.raises(TypeError, match=next(iter(options))):
            make(options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tries": -1},
        {"requeue_strategy": "quadratic"},
        {"requeue_delay": -1},
        {"max_requeue_delay": math.inf},
        {"close_timeout": -1},
        {"max_in_flight": -1},
        {"lookupd_poll_interval": 0},
        {"lookupd_poll_jitter": 1.1},
        {"lookupd_request_timeout": 0},
    ],
)
def test_invalid_consumer_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        consumer_options(options)


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"max_pending": 0},
        {"reconnect_interval": 0},
        {"max_reconnect_interval": -1},
        {"close_timeout": math.nan},
    ],
)
def test_invalid_producer_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        producer_options(options)


def test_two_names_of_one_option() -> None:
    assert consumer_options({"max_attempts": 7})[0].max_tries == 7
    with pytest.raises(TypeError, match="the same option"):
        consumer_options({"max_attempts": 7, "max_tries": 7})


@pytest.mark.case("CL-023")
@pytest.mark.parametrize(
    ("strategy", "attempts", "delay"),
    [
        *[("exponential", 1, 2000), ("exponential", 2, 4000), ("exponential", 5, 32_000)],
        *[("exponential", 10, 900_000), ("exponential", 65535, 900_000)],
        *[("linear", 0, 0), ("linear", 1, 2000), ("linear", 5, 10_000), ("linear", 65535, 900_000)],
    ],
)
def test_the_delay_of_a_failed_message(strategy: str, attempts: int, delay: int) -> None:
    options, *_ = consumer_options({"requeue_delay": 2, "requeue_strategy": strategy})
    assert options.delay_of(attempts) == delay


def test_where_a_connection_comes_from() -> None:
    for text, local in {
        "10.0.0.1": ("10.0.0.1", 0),
        "10.0.0.1:0": ("10.0.0.1", 0),
        "10.0.0.1:7": ("10.0.0.1", 7),
        "[::1]:7": ("::1", 7),
        "[::1]:0": ("::1", 0),
        "::1": ("::1", 0),
    }.items():
        assert ConnectionOptions(local_address=text).local == local
    assert ConnectionOptions().local is None


def test_tls_is_verified_by_default() -> None:
    context = ConnectionOptions(tls_v1=True).tls_context
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    given = ssl.create_default_context()
    assert ConnectionOptions(tls_v1=True, tls_options=given).tls_context is given
    assert ConnectionOptions().tls_context is None
    lax = ConnectionOptions(tls_v1=True, tls_options={"cert_reqs": ssl.CERT_NONE}).tls_context
    assert lax is not None and lax.verify_mode is ssl.CERT_NONE and not lax.check_hostname
    unnamed = ConnectionOptions(tls_v1=True, tls_options={"check_hostname": False}).tls_context
    assert unnamed is not None
    assert unnamed.verify_mode is ssl.CERT_REQUIRED and not unnamed.check_hostname


def test_tls_files(tmp_path: Path) -> None:
    files = certificates.make("mine").save(tmp_path)
    options = {"certfile": files.certificate, "keyfile": files.key, "ca_certs": files.certificate}
    assert ConnectionOptions(tls_v1=True, tls_options=options).tls_context is not None
    files.key.write_text("nonsense")
    with pytest.raises(ValueError, match="tls_options"):
        ConnectionOptions(tls_v1=True, tls_options=options)


def test_errors_of_nsqd() -> None:
    error = NsqdError("E_BAD_TOPIC PUB topic name is bad")
    assert (error.code, error.description) == ("E_BAD_TOPIC", "PUB topic name is bad")
    assert error.fatal and not NsqdError("E_FIN_FAILED").fatal


@pytest.mark.parametrize("delay", [-1, -0.1, math.nan, math.inf])
def test_a_requeue_that_cannot_be(delay: float) -> None:
    with pytest.raises(ValueError, match="delay cannot be"):
        Requeue(delay)
