"""Final guarantees, according to the nsqds: nothing is left, and everything is accounted for; only
processes killed by the test have died, and the files are intact."""

import re
import subprocess
import sys
from typing import Any

from loadtest.chaos.cluster import PLACES, TOPICS, Node

LEFT = ("depth", "in_flight_count", "deferred_count")
DIED = re.compile(r"worker \d+: (?:killed by signal|exited with|silent) .*")
TRACEBACK = re.compile(r"^Traceback \(.*\n(?: .*\n)*(.*)", re.M)  # the last line contains the error
PANIC = re.compile(r"panic in HTTP handler - (.*)")  # a traceback on one line
BY_OUR_HAND = "killed by signal 9 "
SHOWN = 5


def left(node: Node) -> dict[str, int]:
    """Return the number of messages still to be delivered, by channel, including those in the
    topics themselves."""
    found = {}
    topics = node.web.topics()
    for name in TOPICS:
        topic = topics.get(name)
        if topic is None:  # the topic's worker is restarting
            found[name] = -1
            continue
        if topic["depth"]:
            found[name] = topic["depth"]
        for channel in topic["channels"]:
            if waits := sum(channel[each] for each in LEFT):
                found[f"{name}/{channel['channel_name']}"] = waits
    return found


def unbalanced(node: Node) -> list[str]:
    """Return the channels whose ledgers do not balance: everything received must be finished,
    because nothing is dropped here. If a worker was killed, messages may be missing after its
    restart: they were lost with the worker, or were finished just before and their files are
    gone."""
    found = []
    stats = node.web.stats(ledger="true")
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            place = topic["topic_name"], channel["channel_name"]
            if place in PLACES and not balances(channel["ledger"], misses=node.killed > 0):
                name = f"nsqd {node.number} {'/'.join(place)}"
                found.append(f"{name}: the books do not balance: {channel['ledger']}")
    return found


def balances(ledger: dict[str, Any], misses: bool) -> bool:
    """Return whether a channel has finished all messages that it received or, if some may be
    missing, at most that number. nsqd counts missing messages as damaged."""
    others = {name: count for name, count in ledger["dropped"].items() if name != "damaged"}
    left = ("queued", "in_flight", "deferred", "dead_lettered", "expired", "redriven", "sampled")
    if any(others.values()) or any(ledger[name] for name in left):
        return False
    missing = ledger["received"] - ledger["finished"]
    return missing == ledger["dropped"]["damaged"] and (missing == 0 or (misses and missing > 0))


def complaints(name: str, log: str, killed: int) -> list[str]:
    """Return the lines that a daemon must not log, given the number of its killed workers."""
    deaths = [each[0] for each in DIED.finditer(log)]
    found = [each for each in deaths if BY_OUR_HAND not in each]
    if (others := len(deaths) - len(found) - killed) > 0:
        found.append(f"{others} workers were killed by somebody else")
    found += [f"Traceback: {each[1]}" for each in TRACEBACK.finditer(log)]
    panics = [each[1].split("\\n")[-2] for each in PANIC.finditer(log)]
    found += [f"panic: {each}" for each in panics]
    told = [f"{name}: {line.strip()}" for line in found[:SHOWN]]
    return told + [f"{name}: {len(found) - SHOWN} more such lines"] * (len(found) > SHOWN)


def damaged(node: Node) -> list[str]:
    """Return the result of `nsqcy data check` for an exited nsqd's data path."""
    words = [sys.executable, "-m", "nsqcy", "data", "check", str(node.data)]
    checked = subprocess.run(words, capture_output=True, text=True)
    if checked.returncode == 0 and "unreadable parts: 0\n" in checked.stdout:
        return []
    return [f"nsqd {node.number}: data check says {checked.stdout}{checked.stderr}"]
