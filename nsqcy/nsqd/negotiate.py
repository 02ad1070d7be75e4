"""IDENTIFY: from the JSON a client sends to the settings of its connection.

Owns the rules of NSQ's IDENTIFY (which fields there are, what they may hold, in which order they
are checked) and the answer. Pure; knows no connection. See the tests of case ids C050 to C083.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    tls: bool
    snappy: bool
    deflate: bool
    deflate_level: int
    answer: bytes


class Current(Protocol):
    """What holds on the connection so far; a field that is 0 or absent leaves it as it is."""

    heartbeat_interval: int
    output_buffer_size: int
    output_buffer_timeout: int
    msg_timeout: int
    upgraded: bool


def negotiate(body: bytes, options: NsqdOptions, current: Current) -> Identity:
    """Read the body of an IDENTIFY; raises ClientError (E_BAD_BODY, E_IDENTIFY_FAILED)."""
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
    negotiated = wanted["feature_negotiation"]
    # What a connection has been upgraded to stays as it is, and nothing is added.
    upgrades = negotiated and not current.upgraded
    identity = Identity(
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
        tls=upgrades and wanted["tls_v1"] and bool(options.tls_cert),
        snappy=upgrades and wanted["snappy"] and options.snappy,
        deflate=upgrades and wanted["deflate"] and options.deflate,
        deflate_level=_deflate_level(wanted["deflate_level"], options),
        answer=b"OK",
    )
    if identity.snappy and identity.deflate:
        raise ClientError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    return replace(identity, answer=_answer(identity, options)) if negotiated else identity


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


def _deflate_level(wanted: int, options: NsqdOptions) -> int:
    return min(wanted if wanted > 0 else DEFLATE_LEVEL, options.max_deflate_level)


def _invalid(what: str, value: int) -> ClientError:
    return ClientError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _answer(identity: Identity, options: NsqdOptions) -> bytes:
    agreed = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout // MILLISECOND,
        "msg_timeout": identity.msg_timeout // MILLISECOND,
        "tls_v1": identity.tls,
        "deflate": identity.deflate,
        "deflate_level": identity.deflate_level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": identity.snappy,
        "sample_rate": identity.sample_rate,
        "auth_required": False,
        "output_buffer_size": identity.output_buffer_size,
        "output_buffer_timeout": identity.output_buffer_timeout // MILLISECOND,
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
