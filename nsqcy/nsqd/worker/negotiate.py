"""IDENTIFY: converts a client's JSON to the settings of its connection.

Owns the rules of NSQ's IDENTIFY (fields, limits, order of checks) and the response. Pure functions,
independent of connections. See the tests with the case IDs C050 to C083.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from nsqcy import NSQ_VERSION
from nsqcy.config.policies import DURABILITIES
from nsqcy.config.publish_limits import publish_limits
from nsqcy.errors import ClientError
from nsqcy.names import quote
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.util import gojson

MILLISECOND = 1_000_000
DEFLATE_LEVEL = 6
TOPIC_LOG = 1  # version of the LOG_ commands
MAX_TEXT = 1024  # maximum bytes of each string; nsqd keeps the strings until the connection ends


@dataclass(frozen=True, slots=True)
class Identity:
    """Result of a negotiation. Durations are in ns; a heartbeat_interval of 0 means no heartbeats.
    Without a durability, the connection keeps its current one. asked_timeout: the client has set
    msg_timeout, so a channel's timeout does not apply."""

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
    asked_timeout: bool
    durability: str
    headers: bool
    limits: bool
    dead_letters: bool
    goodbye: bool
    topic_log: bool
    tls: bool
    snappy: bool
    deflate: bool
    deflate_level: int
    answer: bytes


class Current(Protocol):
    """The connection's current settings; a field that is 0 or absent leaves its setting
    unchanged."""

    heartbeat_interval: int
    output_buffer_size: int
    output_buffer_timeout: int
    msg_timeout: int
    asked_timeout: bool
    upgraded: bool


def negotiate(
    body: bytes,
    options: NsqdOptions,
    current: Current,
    longest_timeout: int = 0,
    started: int = 0,
) -> Identity:
    """Parse an IDENTIFY body. longest_timeout: the maximum of all policies, in ns. started: when
    nsqd started, in ns since 1970. Raises ClientError (E_BAD_BODY, E_IDENTIFY_FAILED)."""
    wanted = _decode(body)
    _check_texts(wanted)
    heartbeat = _heartbeat(wanted["heartbeat_interval"], options, current)
    timeout = _buffer_timeout(wanted["output_buffer_timeout"], options, current)
    size = _buffer_size(wanted["output_buffer_size"], options, current)
    if wanted["output_buffer_size"] == -1:
        timeout = 0
    sample_rate = wanted["sample_rate"]
    if not 0 <= sample_rate <= 99:
        raise _invalid("sample rate", sample_rate)
    msg_timeout = _msg_timeout(wanted["msg_timeout"], options, current)
    durability = _durability(wanted["durability"])
    negotiated = wanted["feature_negotiation"]
    # An upgraded connection keeps its layers; none is added.
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
        asked_timeout=current.asked_timeout or wanted["msg_timeout"] != 0,
        durability=durability,
        headers=negotiated and wanted["headers"],
        limits=wanted["limits"],
        dead_letters=negotiated and wanted["dead_letters"],
        goodbye=wanted["goodbye"],
        topic_log=wanted["topic_log"],
        tls=upgrades and wanted["tls_v1"] and bool(options.tls_cert),
        snappy=upgrades and wanted["snappy"] and options.snappy,
        deflate=upgrades and wanted["deflate"] and options.deflate,
        deflate_level=_deflate_level(wanted["deflate_level"], options),
        answer=b"OK",
    )
    if identity.snappy and identity.deflate:
        raise ClientError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    if not negotiated:
        return identity
    return replace(identity, answer=_answer(identity, options, longest_timeout, started))


# -- the fields, in the order in which they are checked


def _check_texts(wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if isinstance(value, str) and len(value) * 4 > MAX_TEXT:
            size = len(value.encode())
            if size > MAX_TEXT:
                raise ClientError("E_BAD_BODY", f"IDENTIFY {name} too long {size} > {MAX_TEXT}")


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
    minimum = options.min_output_buffer_timeout // MILLISECOND
    if not minimum <= wanted <= options.max_output_buffer_timeout // MILLISECOND:
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


def _durability(wanted: str) -> str:
    if wanted and wanted not in DURABILITIES:
        raise ClientError(
            "E_BAD_BODY",
            f"IDENTIFY durability ({quote(wanted[:32])}) is invalid"
            f" (allowed: {', '.join(DURABILITIES)})",
        )
    return wanted


def _deflate_level(wanted: int, options: NsqdOptions) -> int:
    return min(wanted if wanted > 0 else DEFLATE_LEVEL, options.max_deflate_level)


def _invalid(what: str, value: int) -> ClientError:
    return ClientError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _answer(identity: Identity, options: NsqdOptions, longest_timeout: int, started: int) -> bytes:
    agreed: dict[str, object] = {
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
        "auth_required": options.wants_auth,
        "output_buffer_size": identity.output_buffer_size,
        "output_buffer_timeout": identity.output_buffer_timeout // MILLISECOND,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    if identity.durability:
        agreed["durability"] = identity.durability
    if identity.headers:
        agreed["headers"] = True
    if identity.limits:
        agreed["limits"] = publish_limits(options).announced() | {
            "longest_msg_timeout": max(longest_timeout, options.msg_timeout) // MILLISECOND
        }
    if identity.dead_letters:
        agreed["dead_letters"] = True
    if identity.goodbye:
        agreed["goodbye"] = True
    if identity.topic_log:
        # A copy of a data path has the same log ids: this id distinguishes the nsqd on the copy
        # from the original nsqd.
        agreed["instance"] = f"{started:x}"
        agreed["topic_log"] = TOPIC_LOG
    return gojson.encode(agreed)


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
    "durability": (gojson.text, ""),
    "headers": (gojson.flag, False),
    "limits": (gojson.flag, False),
    "dead_letters": (gojson.flag, False),
    "goodbye": (gojson.flag, False),
    "topic_log": (gojson.flag, False),
}


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return gojson.decode(body, FIELDS)
    except ValueError:
        raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
