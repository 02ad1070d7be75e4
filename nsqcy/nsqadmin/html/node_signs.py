"""Signs that a node needs attention: it does not answer, its disk is full, workers are down.

Pure. Signs about topics and channels are in attention.py.
"""

from nsqcy.cluster.problems import DISK_ERROR, DISK_WARNING, Severity
from nsqcy.nsqadmin.cluster.health import NodeHealth
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.formatting import plural, share

FULL = 1 - DISK_WARNING  # share of a disk that is used
SILENT = Sign("does not answer", "nsqadmin gets no statistics from this nsqd", Severity.ERROR)

DRAINING = Sign("draining", "The nsqd refuses publishes, and exits when it is empty")

_REFUSING = {
    "draining": DRAINING,
    "disk": Sign("refuses publishes", "The disk has too little free space", Severity.ERROR),
}


def gone(ago: str) -> Sign:
    """Return the sign of a node that is no longer announced."""
    return Sign(f"gone for {ago}", "nsqadmin had samples of this nsqd, and no longer finds it")


def of_health(health: NodeHealth) -> list[Sign]:
    found = [sign for reason, sign in _REFUSING.items() if reason in health.refusing]
    if health.disk_used >= FULL:
        is_full = 1 - health.disk_used < DISK_ERROR
        severity = Severity.ERROR if is_full else Severity.WARNING
        text = f"disk {share(health.disk_used)} full"
        found.append(Sign(text, "Free space on the data path", severity))
    down = len(health.workers) - health.workers_up
    if down:
        help = "A worker that does not answer is being restarted"
        found.append(Sign(f"{down} of {plural(len(health.workers), 'worker')} down", help))
    if any(each.is_failing for each in health.workers):
        found.append(Sign("writes fail", "The latest write to a log has failed", Severity.ERROR))
    unregistered = [name for name, is_registered in health.lookupds.items() if not is_registered]
    if unregistered:
        help = f"Not all topics are registered with {', '.join(unregistered)}"
        found.append(Sign("not registered", help))
    return found
