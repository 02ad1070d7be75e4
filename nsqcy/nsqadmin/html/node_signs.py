"""Alerts for a node that needs attention: it does not answer, its disk is full, workers are down.

Pure. Alerts for topics and channels are in attention.py.
"""

from nsqcy.cluster import problems
from nsqcy.cluster.problems import DISK_WARNING, NodeState, Severity
from nsqcy.nsqadmin.cluster.health import NodeHealth
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.formatting import plural

FULL = 1 - DISK_WARNING  # share of a disk that is used
SILENT = Sign("does not answer", "nsqadmin receives no statistics from this nsqd", Severity.ERROR)

DRAINING = Sign("draining", "The nsqd refuses publishes, and exits when it is empty")

_REFUSING = {
    "draining": DRAINING,
    "disk": Sign("refuses publishes", "The disk has too little free space", Severity.ERROR),
}


def gone(ago: str) -> Sign:
    """Return the alert for a node that is no longer announced."""
    return Sign(f"gone for {ago}", "nsqadmin has samples of this nsqd, but can no longer find it")


def of_health(health: NodeHealth) -> list[Sign]:
    found = [sign for reason, sign in _REFUSING.items() if reason in health.refusing]
    down = len(health.workers) - health.workers_up
    if down:
        help = "A worker that does not answer is being restarted"
        found.append(Sign(f"{down} of {plural(len(health.workers), 'worker')} down", help))
    if any(each.is_failing for each in health.workers):
        found.append(Sign("writes fail", "The latest write to a log has failed", Severity.ERROR))
    return found + [attention.of_problem(each) for each in problems.of_node(_state(health))]


def _state(health: NodeHealth) -> NodeState:
    return NodeState(
        health.node,
        disk_free=1 - health.disk_used,
        unregistered=[name for name, is_registered in health.lookupds.items() if not is_registered],
        certificate_days=health.certificate_days,
    )
