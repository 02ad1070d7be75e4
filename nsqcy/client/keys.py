"""Keys, deduplication ids and priorities of publishes: headers, and the nsqd that they choose.

Pure functions. The headers are the default sources of a topic's policy (docs/POLICIES.md).
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TypeVar

MAX_KEY = 255  # bytes
PRIORITIES = range(10)

A = TypeVar("A")


def keyed(
    headers: Mapping[str, str] | None, key: str | None, dedup_id: str | None, priority: int | None
) -> Mapping[str, str] | None:
    """Return the headers of a publish with a key, a deduplication id and a priority. Raises
    ValueError and TypeError."""
    if key is None and dedup_id is None and priority is None:
        return headers
    found = dict(headers or {})
    if key is not None:
        found["key"] = _checked("key", key)
    if dedup_id is not None:
        found["dedup-id"] = _checked("dedup_id", dedup_id)
    if priority is not None:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an int, not {type(priority).__name__}")
        if priority not in PRIORITIES:
            raise ValueError(f"priority must be from 0 to 9, not {priority}")
        found["priority"] = str(priority)
    return found


def _checked(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    size = len(value.encode("utf-8", "surrogateescape"))
    if not 0 < size <= MAX_KEY:
        raise ValueError(f"{name} must have from 1 to {MAX_KEY} bytes, not {size}")
    return value


def route_of(key: str | None, dedup_id: str | None) -> bytes | None:
    """Return what chooses the nsqd of a publish: its key, else its id; None: any nsqd."""
    chosen = dedup_id if key is None else key
    return None if chosen is None else chosen.encode("utf-8", "surrogateescape")


def ranked(route: bytes, addresses: Iterable[A]) -> list[A]:
    """Return the addresses in the order in which a publish tries them: by descending BLAKE2b digest
    (8 bytes) of the route, a zero byte and the address. The order of two addresses depends on no
    other address, so a missing nsqd moves only its own keys."""

    def weight(address: A) -> bytes:
        return blake2b(route + b"\0" + str(address).encode(), digest_size=8).digest()

    return sorted(addresses, key=weight, reverse=True)
