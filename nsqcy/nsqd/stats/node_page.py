"""nsqd's /node object: the health of its processes and its disk, as nsqadmin shows it.

Owns the object's form. The size of the object does not depend on the number of topics, so it can be
requested often. Workers return their figures; the master adds its own.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from nsqcy import __version__


class Whole(NamedTuple):
    """The master's own figures. `workers` is the result of WorkerLifecycle.describe()."""

    workers: Sequence[Mapping[str, Any]]
    lookupds: Mapping[str, bool]
    draining: bool
    disk_refuses: bool
    started: int  # wall clock, ns
    certificate_expires: int | None = None  # seconds since the epoch; None without TLS
    accept_pauses: int = 0
    upgrades: Mapping[str, int] = MappingProxyType({})  # by result


class Disk(NamedTuple):
    size: int
    free: int


def page(
    whole: Whole,
    figures: Mapping[int, Mapping[str, Any]],
    master: Mapping[str, float],
    disk: Disk,
) -> dict[str, Any]:
    """Return the object. figures: of the workers that answered, by worker. master: the master's
    memory and CPU time."""
    refusing = {"draining": whole.draining, "disk": whole.disk_refuses}
    return {
        "nsqcy": __version__,
        "start_time": whole.started // 1_000_000_000,
        "refusing_publishes": [reason for reason, holds in refusing.items() if holds],
        "disk": disk._asdict(),
        "master": dict(master),
        "workers": [_worker(each, figures.get(each["worker"])) for each in whole.workers],
        "lookupds": dict(whole.lookupds),
        "certificate_expires": whole.certificate_expires,
    }


def _worker(child: Mapping[str, Any], figures: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a worker; without its own figures if it has not answered."""
    known = {"worker": child["worker"], "up": figures is not None, "restarts": child["restarts"]}
    return known | (dict(figures) if figures is not None else {})
