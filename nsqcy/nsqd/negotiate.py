"""IDENTIFY: from the JSON a client sends to the settings of its connection.

Owns the rules of NSQ's IDENTIFY (which fields there are, what they may hold, in which order they
are checked) and the answer. Pure; knows no connection. See the tests of case ids C050 to C083.
"""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from nsqcy import NSQ_VERSION
from nsqcy.errors import ClientError
from nsqcy.nsqd import gojson
from nsqcy.nsqd.options import NsqdOptions

MILLISECOND = 1_000_000
DEFLATE_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Identity:
    """What was agreed. Durations in ns; a heartbeat_interval of 0 means none."""

    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str
    heartbeat_interval: int
    output_buffer_size: int
    output_buffer_timeout: int
    sample_rate: int
    msg_timeout: int
    answer: bytes


class Current(Protocol):
    """What holds on the connection so far; a field that is 0 or absent leaves it as it is."""

    heartbeat_interval: int
    output_buffer_size: int
    output_buffer_timeout: int
    msg_timeout: int


def negotiate(body: bytes, options: NsqdOptions, current: Current) -> Identity:
    """Read the body of an IDENTIFY; raises ClientError (E_BAD_BODY)."""
    wanted = _decode(body)
    heartbeat = _heartbeat(wanted["heartbeat_interval"], options, current)
    timeout = _buffer_timeout(wanted["output_buffer_timeout"], options, current)
    size = _buffer_size(wanted["output_buffer_size"], options, current)
    if wanted["output_buffer_size"] == -1:
        timeout = 0
    sample_rate = wanted["sample_rate"]
    if not 0 <= sample_rate <= 99:
        raise _invalid("sample rate", sample_rate)
    msg_timeout = _msg_timeout(wanted["msg_timeout"], options, current)
    answer = b"OK"
    if wanted["feature_negotiation"]:
        answer = _answer(options, wanted["deflate_level"], msg_timeout, sample_rate, size, timeout)
    return Identity(
        client_id=wanted["client_id"],
        hostname=wanted["hostname"],
        user_agent=wanted["user_agent"],
        topology_region=wanted["topology_region"],
        topology_zone=wanted["topology_zone"],
        heartbeat_interval=heartbeat * MILLISECOND,
        output_buffer_size=size,
        output_buffer_timeout=timeout * MILLISECOND,
        sample_rate=sample_rate,
        msg_timeout=msg_timeout * MILLISECOND,
        answer=answer,
    )


# -- the fields, in the order in which they are checked


def _heartbeat(wanted: int, options: NsqdOptions, current: Current) -> int:
    if wanted == -1:
        return 0
    if wanted == 0:
        return current.heartbeat_interval // MILLISECOND
    if not 1000 <= wanted <= options.max_heartbeat_interval // MILLISECOND:
        raise _invalid("heartbeat interval", wanted)
    return wanted


def _buffer_timeout(wanted: int, options: NsqdOptions, current: Current) -> int:
    if wanted == -1:
        return 0
    if wanted == 0:
        return current.output_buffer_timeout // MILLISECOND
    least = options.min_output_buffer_timeout // MILLISECOND
    if not least <= wanted <= options.max_output_buffer_timeout // MILLISECOND:
        raise _invalid("output buffer timeout", wanted)
    return wanted


def _buffer_size(wanted: int, options: NsqdOptions, current: Current) -> int:
    if wanted == -1:
        return 1
    if wanted == 0:
        return current.output_buffer_size
    if not 64 <= wanted <= options.max_output_buffer_size:
        raise _invalid("output buffer size", wanted)
    return wanted


def _msg_timeout(wanted: int, options: NsqdOptions, current: Current) -> int:
    if wanted == 0:
        return current.msg_timeout // MILLISECOND
    if not 1000 <= wanted <= options.max_msg_timeout // MILLISECOND:
        raise _invalid("msg timeout", wanted)
    return wanted


def _invalid(what: str, value: int) -> ClientError:
    return ClientError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _answer(
    options: NsqdOptions, level: int, msg_timeout: int, sample_rate: int, size: int, timeout: int
) -> bytes:
    agreed = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout // MILLISECOND,
        "msg_timeout": msg_timeout,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": min(level if level > 0 else DEFLATE_LEVEL, options.max_deflate_level),
        "max_deflate_level": options.max_deflate_level,
        "snappy": False,
        "sample_rate": sample_rate,
        "auth_required": bool(options.auth_http_address),
        "output_buffer_size": size,
        "output_buffer_timeout": timeout,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    return json.dumps(agreed, separators=(",", ":"), ensure_ascii=False).encode()


# -- the body

FIELDS: gojson.Fields = {
    "client_id": (gojson.text, ""),
    "hostname": (gojson.text, ""),
    "user_agent": (gojson.text, ""),
    "feature_negotiation": (gojson.flag, False),
    "heartbeat_interval": (gojson.int64, 0),
    "output_buffer_size": (gojson.int64, 0),
    "output_buffer_timeout": (gojson.int64, 0),
    "tls_v1": (gojson.flag, False),
    "deflate": (gojson.flag, False),
    "deflate_level": (gojson.int64, 0),
    "snappy": (gojson.flag, False),
    "sample_rate": (gojson.int32, 0),
    "msg_timeout": (gojson.int64, 0),
    "topology_region": (gojson.text, ""),
    "topology_zone": (gojson.text, ""),
}


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return gojson.decode(body, FIELDS)
    except ValueError:
        raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
