"""Converts an nsqd's response to `GET /node` into the state that is checked for problems. Pure.
Only nsqcy's nsqd has /node; a response that cannot be read leaves the state unknown.
"""

from collections.abc import Mapping
from typing import Any

from nsqcy.cluster.problems import NodeState
from nsqcy.util import gojson

DAY = 86_400.0  # seconds

_DISK: gojson.Fields = {"size": (gojson.int64, 0), "free": (gojson.int64, 0)}
FIELDS: gojson.Fields = {
    "disk": (gojson.structure(_DISK), None),
    "lookupds": (gojson.flags, {}),
    "certificate_expires": (gojson.int64, None),
}
_read = gojson.structure(FIELDS)


def state_of(name: str, answer: Mapping[str, Any], now: float) -> NodeState:
    """Return the state of an nsqd. now: seconds since the epoch."""
    try:
        return of_fields(name, _read(dict(answer)), now)
    except ValueError:
        return NodeState(name)


def of_fields(name: str, node: Mapping[str, Any], now: float) -> NodeState:
    """Return the state of an nsqd from a response that was read with FIELDS."""
    disk, expires = node["disk"], node["certificate_expires"]
    return NodeState(
        name,
        disk_free=disk["free"] / disk["size"] if disk and disk["size"] > 0 else None,
        unregistered=[each for each, registered in node["lookupds"].items() if not registered],
        certificate_days=None if expires is None else (expires - now) / DAY,
    )
