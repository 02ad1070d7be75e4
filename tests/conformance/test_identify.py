"""IDENTIFY, and a check that TLS is not offered without a certificate (C090)."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.testing.wire_client import MESSAGE, RESPONSE, Message, sized
from support.nsqd_process import Nsqd

DEFAULTS = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
    "topology_region": "",
    "topology_zone": "",
}
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"
NEGOTIATE = {"feature_negotiation": True}


@one_worker
@pytest.mark.case("C050")
def test_without_negotiation(shared: Nsqd) -> None:
    assert shared.connect().identify() is None


@one_worker
@pytest.mark.case("C051")
def test_defaults(shared: Nsqd) -> None:
    answer = shared.connect().negotiate()
    assert list(answer.items()) == list(DEFAULTS.items())


@one_worker
@pytest.mark.case("C051")
def test_answer_is_compact_json(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.command("IDENTIFY", body=json.dumps(NEGOTIATE).encode())
    assert conn.frame() == (RESPONSE, json.dumps(DEFAULTS, separators=(",", ":")).encode())


@one_worker
@pytest.mark.case("C052")
def test_compression_needs_negotiation(shared: Nsqd) -> None:
    conn = shared.connect()
    assert conn.identify(snappy=True) is None
    conn.usable()


@one_worker
@pytest.mark.case("C053")
@pytest.mark.parametrize("body", [b"null", b" {} ", b"\r\n{}\t"])
def test_lenient_bodies(shared: Nsqd, body: bytes) -> None:
    conn = shared.connect()
    conn.command("IDENTIFY", body=body)
    conn.expect_ok()


@one_worker
@pytest.mark.case("C054", "C055", "C056")
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'"x"',
        b"5",
        b"true",
        b"not json",
        b"{}garbage",
        b" ",
        b"{",
        b'{"heartbeat_interval":1000.0}',
        b'{"heartbeat_interval":1e3}',
        b'{"heartbeat_interval":"1000"}',
        b'{"heartbeat_interval":true}',
        b'{"heartbeat_interval":NaN}',
        b'{"feature_negotiation":1}',
        b'{"feature_negotiation":"true"}',
        b'{"client_id":5}',
        b'{"sample_rate":3000000000}',
    ],
)
def test_undecodable_bodies(shared: Nsqd, body: bytes) -> None:
    conn = shared.connect()
    conn.command("IDENTIFY", body=body)
    conn.expect_error(UNDECODABLE)


@one_worker
@pytest.mark.case("C057")
@pytest.mark.parametrize(
    "body",
    [
        b'{"heartbeat_interval":null,"feature_negotiation":true}',
        b'{"short_id":1,"unheard_of":{"a":[1,2.5,{}]},"feature_negotiation":true}',
        b'{"FEATURE_NEGOTIATION":true,"HEARTBEAT_INTERVAL":2000}',
        b'{"feature_negotiation":false,"feature_negotiation":true}',
        b'{"client_id":"\xff","feature_negotiation":true}',
    ],
)
def test_lenient_fields(shared: Nsqd, body: bytes) -> None:
    conn = shared.connect()
    conn.command("IDENTIFY", body=body)
    assert conn.expect_json() == DEFAULTS


@one_worker
@pytest.mark.case("C058")
@pytest.mark.parametrize(("length", "shown"), [(b"\0\0\0\0", 0), (b"\xff\xff\xff\xff", -1)])
def test_no_body(shared: Nsqd, length: bytes, shown: int) -> None:
    conn = shared.connect()
    conn.send(b"IDENTIFY\n", length)
    conn.expect_error(f"E_BAD_BODY IDENTIFY invalid body size {shown}")


@one_worker
@pytest.mark.case("C059")
@pytest.mark.parametrize(("size", "maximum"), [(65537, 65536), (5242881, 5242880)])
def test_body_too_big(shared: Nsqd, size: int, maximum: int) -> None:
    conn = shared.connect()
    conn.send(b"IDENTIFY\n", size.to_bytes(4, "big"))
    conn.expect_error(f"E_BAD_BODY IDENTIFY body too big {size} > {maximum}")


@one_worker
@pytest.mark.case("C083")
def test_body_too_big_for_a_smaller_limit(tuned: Nsqd) -> None:
    conn = tuned.connect()
    conn.send(b"IDENTIFY\n", (1001).to_bytes(4, "big"))
    conn.expect_error("E_BAD_BODY IDENTIFY body too big 1001 > 1000")


@one_worker
@pytest.mark.case("C060", "C061")
@pytest.mark.parametrize(
    ("sent", "text"),
    [(b"\0", "failed to read body size"), (b"\0\0\0\x05{", "failed to read body")],
)
def test_cut_short(shared: Nsqd, sent: bytes, text: str) -> None:
    conn = shared.connect()
    conn.send(b"IDENTIFY\n", sent)
    conn.half_close()
    conn.expect_error(f"E_BAD_BODY IDENTIFY {text}")


def refused(daemon: Nsqd, text: str, **fields: Any) -> None:
    for negotiation in ({}, NEGOTIATE):
        conn = daemon.connect()
        conn.command("IDENTIFY", body=json.dumps(fields | negotiation).encode())
        conn.expect_error(f"E_BAD_BODY IDENTIFY {text}")


@one_worker
@pytest.mark.case("C062")
@pytest.mark.parametrize("value", [-2, 1, 999, 60001])
def test_bad_heartbeat_interval(shared: Nsqd, value: int) -> None:
    refused(shared, f"heartbeat interval ({value}) is invalid", heartbeat_interval=value)


@one_worker
@pytest.mark.case("C063")
@pytest.mark.parametrize("value", [-1, 0, 1000, 60000])
def test_good_heartbeat_interval(shared: Nsqd, value: int) -> None:
    assert shared.connect().negotiate(heartbeat_interval=value) == DEFAULTS


@one_worker
@pytest.mark.case("C064")
@pytest.mark.parametrize("value", [-2, 1, 24, 30001])
def test_bad_output_buffer_timeout(shared: Nsqd, value: int) -> None:
    refused(shared, f"output buffer timeout ({value}) is invalid", output_buffer_timeout=value)


@one_worker
@pytest.mark.case("C065")
@pytest.mark.parametrize(("value", "effective"), [(-1, 0), (0, 250), (25, 25), (30000, 30000)])
def test_good_output_buffer_timeout(shared: Nsqd, value: int, effective: int) -> None:
    answer = shared.connect().negotiate(output_buffer_timeout=value)
    assert answer == DEFAULTS | {"output_buffer_timeout": effective}


@one_worker
@pytest.mark.case("C066")
@pytest.mark.parametrize("value", [-2, 1, 63, 65537])
def test_bad_output_buffer_size(shared: Nsqd, value: int) -> None:
    refused(shared, f"output buffer size ({value}) is invalid", output_buffer_size=value)


@one_worker
@pytest.mark.case("C067")
@pytest.mark.parametrize(
    ("value", "size", "timeout"), [(-1, 1, 0), (0, 16384, 250), (64, 64, 250), (65536, 65536, 250)]
)
def test_good_output_buffer_size(shared: Nsqd, value: int, size: int, timeout: int) -> None:
    answer = shared.connect().negotiate(output_buffer_size=value)
    assert answer == DEFAULTS | {"output_buffer_size": size, "output_buffer_timeout": timeout}


@one_worker
@pytest.mark.case("C068")
def test_sample_rate(shared: Nsqd) -> None:
    for value in (-1, 100):
        refused(shared, f"sample rate ({value}) is invalid", sample_rate=value)
    for value in (0, 99):
        assert shared.connect().negotiate(sample_rate=value)["sample_rate"] == value


@pytest.mark.ours
def test_durability(shared: Nsqd) -> None:
    for value in ("disk", "FSYNC", "x" * 100):
        shown = value[:32]
        text = f'durability ("{shown}") is invalid (allowed: memory, os, fsync)'
        refused(shared, text, durability=value)
    refused(shared, UNDECODABLE.removeprefix("E_BAD_BODY IDENTIFY "), durability=2)
    for value in ("memory", "os", "fsync"):
        answer = shared.connect().negotiate(durability=value)
        assert list(answer.items()) == [*DEFAULTS.items(), ("durability", value)]
    for absent in ("", None):
        answer = shared.connect().negotiate(durability=absent)
        assert list(answer.items()) == list(DEFAULTS.items())


@one_worker
@pytest.mark.case("C069")
@pytest.mark.parametrize("value", [-1, 1, 999, 900001])
def test_bad_msg_timeout(shared: Nsqd, value: int) -> None:
    refused(shared, f"msg timeout ({value}) is invalid", msg_timeout=value)


@one_worker
@pytest.mark.case("C070")
@pytest.mark.parametrize(("value", "effective"), [(0, 60000), (1000, 1000), (900000, 900000)])
def test_good_msg_timeout(shared: Nsqd, value: int, effective: int) -> None:
    assert shared.connect().negotiate(msg_timeout=value)["msg_timeout"] == effective


@one_worker
@pytest.mark.case("C071")
def test_order_of_the_checks(shared: Nsqd) -> None:
    fields = {
        "msg_timeout": 1,
        "sample_rate": 100,
        "output_buffer_size": 1,
        "output_buffer_timeout": 1,
        "heartbeat_interval": 1,
    }
    for name, text in [
        ("heartbeat_interval", "heartbeat interval (1)"),
        ("output_buffer_timeout", "output buffer timeout (1)"),
        ("output_buffer_size", "output buffer size (1)"),
        ("sample_rate", "sample rate (100)"),
        ("msg_timeout", "msg timeout (1)"),
    ]:
        refused(shared, f"{text} is invalid", **fields)
        del fields[name]


@one_worker
@pytest.mark.case("C073", "C080", "C179")
def test_limits_of_the_daemon_are_reported(tuned: Nsqd) -> None:
    answer = tuned.connect().negotiate(topology_zone="x")
    assert (answer["deflate_level"], answer["max_deflate_level"]) == (4, 4)
    assert (answer["topology_region"], answer["topology_zone"]) == ("r", "z")
    assert (answer["max_rdy_count"], answer["max_msg_timeout"]) == (50, 3000)


@pytest.mark.case("C080")
def test_stats_show_the_place_of_the_client(tuned: Nsqd, topic: str) -> None:
    conn = tuned.connect()
    conn.identify(topology_zone="x", topology_region="y")
    conn.sub(topic, "c")
    client = tuned.web.client(topic, "c")
    assert (client["topology_zone"], client["topology_region"]) == ("x", "y")


@one_worker
@pytest.mark.case("C076")
def test_not_after_sub(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command("IDENTIFY", body=b"{}")
    conn.expect_error("E_INVALID cannot IDENTIFY in current state", reset=True)


@one_worker
@pytest.mark.case("C077", "F4")
def test_repeated(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    for timeout in (1000, 2000, 3000):
        assert conn.negotiate(msg_timeout=timeout)["msg_timeout"] == timeout
    conn.sub(topic, "c")
    conn.usable()


@pytest.mark.case("C078")
def test_stats_of_a_client_that_never_identified(shared: Nsqd, topic: str) -> None:
    shared.connect().sub(topic, "c")
    client = shared.web.client(topic, "c")
    assert (client["client_id"], client["hostname"]) == ("127.0.0.1", "127.0.0.1")
    assert client["user_agent"] == ""


@pytest.mark.case("C079")
def test_stats_of_a_client_that_said_nothing_of_itself(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.identify()
    conn.sub(topic, "c")
    client = shared.web.client(topic, "c")
    assert (client["client_id"], client["hostname"]) == ("", "")


@pytest.mark.case("C079")
def test_stats_of_a_client_that_told_all(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.identify(client_id="me", hostname="h<&>", user_agent="probe/1", sample_rate=42)
    conn.sub(topic, "c", rdy=7)
    conn.barrier()
    client = shared.web.client(topic, "c")
    assert (client["client_id"], client["hostname"]) == ("me", "h<&>")
    assert (client["user_agent"], client["sample_rate"]) == ("probe/1", 42)
    assert (client["version"], client["state"], client["ready_count"]) == ("V2", 3, 7)
    host, port = conn.socket.getsockname()
    assert client["remote_address"] == f"{host}:{port}"


@one_worker
@pytest.mark.case("C081")
def test_longer_heartbeat_interval(tuned: Nsqd) -> None:
    tuned.connect().identify(heartbeat_interval=300000)
    refused(tuned, "heartbeat interval (300001) is invalid", heartbeat_interval=300001)


@pytest.mark.case("C082", "F12")
def test_pipelined_with_sub_and_rdy(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect()
    identify = json.dumps(NEGOTIATE | {"msg_timeout": 1000}).encode()
    conn.send(b"IDENTIFY\n", sized(identify), f"SUB {topic} c\nRDY 1\n".encode())
    assert conn.expect_json()["msg_timeout"] == 1000
    conn.expect_ok()
    frame = conn.frame()
    assert frame.kind == MESSAGE and Message.parse(frame.data).body == b"x"


@one_worker
@pytest.mark.case("C090")
def test_no_tls_without_a_certificate(shared: Nsqd) -> None:
    conn = shared.connect()
    assert conn.negotiate(tls_v1=True)["tls_v1"] is False
    conn.usable()


def test_limits_for_publishes(tmp_path: Path) -> None:
    """Only clients that request these fields receive them."""
    limits = {
        "max_msg_size": 10,
        "max_body_size": 100,
        "max_defer_timeout": 2000,
        "longest_msg_timeout": 60_000,
    }
    daemon = Nsqd(tmp_path, max_msg_size=10, max_body_size=100, max_defer_timeout="2s").start()
    try:
        assert "limits" not in daemon.connect().negotiate(limits=False)
        answer = daemon.connect().negotiate(limits=True)
    finally:
        daemon.destroy()
    assert list(answer.items())[-1] == ("limits", limits)


@one_worker
@pytest.mark.ours
def test_the_limit_of_delays_is_that_of_requeues_by_default(shared: Nsqd) -> None:
    answer = shared.connect().negotiate(limits=True)
    assert answer["limits"]["max_defer_timeout"] == 3_600_000


@one_worker
@pytest.mark.ours
def test_a_goodbye_is_agreed_on_request(shared: Nsqd) -> None:
    assert "goodbye" not in shared.connect().negotiate(goodbye=False)
    answer = shared.connect().negotiate(goodbye=True)
    assert list(answer.items())[-1] == ("goodbye", True)
