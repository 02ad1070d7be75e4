"""IDENTIFY: from the JSON a client sends to the settings of its connection.

Owns the rules of NSQ's IDENTIFY (which fields there are, what they may hold, in which order they
are checked) and the answer. Pure; knows no connection. See the tests of case ids C050 to C083.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nsqcy import NSQ_VERSION
from nsqcy.errors import ClientError
from nsqcy.nsqd.options import NsqdOptions

MILLISECOND = 1_000_000
DEFLATE_LEVEL = 6

INT64 = 63
INT32 = 31


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
        "auth_required": False,
        "output_buffer_size": size,
        "output_buffer_timeout": timeout,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    return json.dumps(agreed, separators=(",", ":"), ensure_ascii=False).encode()


# -- JSON as Go reads it


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    # A lone surrogate, escaped in JSON, has no place in UTF-8.
    return value.encode("utf-8", "replace").decode()


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _integer(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -(1 << bits) <= value < 1 << bits:
            raise ValueError("not an integer of that size")
        return value

    return read


FIELDS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "client_id": (_text, ""),
    "hostname": (_text, ""),
    "user_agent": (_text, ""),
    "feature_negotiation": (_flag, False),
    "heartbeat_interval": (_integer(INT64), 0),
    "output_buffer_size": (_integer(INT64), 0),
    "output_buffer_timeout": (_integer(INT64), 0),
    "tls_v1": (_flag, False),
    "deflate": (_flag, False),
    "deflate_level": (_integer(INT64), 0),
    "snappy": (_flag, False),
    "sample_rate": (_integer(INT32), 0),
    "msg_timeout": (_integer(INT64), 0),
    "topology_region": (_text, ""),
    "topology_zone": (_text, ""),
}


def _decode(body: bytes) -> dict[str, Any]:
    """Every field, read or at its default: keys in any case, null as if absent, the last of
    several; anything else that is not what it should be is an error."""
    try:
        pairs = json.loads(
            body.decode("utf-8", "replace"),
            object_pairs_hook=_Pairs,
            parse_constant=_refuse_constant,
        )
        if pairs is None:
            pairs = _Pairs()
        if not isinstance(pairs, _Pairs):
            raise ValueError("not an object")
        fields = {name: default for name, (_, default) in FIELDS.items()}
        for key, value in pairs:
            name = key.lower()
            if name in FIELDS and value is not None:
                fields[name] = FIELDS[name][0](value)
    except (ValueError, RecursionError):
        raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    return fields


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, so that neither order nor repeats are lost."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
