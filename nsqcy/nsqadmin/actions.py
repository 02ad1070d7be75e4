"""What nsqadmin does to a cluster: which daemons are told what, and in which order.

Whoever fails is a warning of the gathering, and the others are told all the same. Only where nobody
knows whom to tell, or what is meant, is there an error, and nothing is done.
"""

from nsqcy.cluster.web_client import Answer
from nsqcy.errors import HttpError
from nsqcy.nsqadmin import saying
from nsqcy.nsqadmin.gathering import Gathering, Told

ON_MESSAGES = ("pause", "unpause", "empty")
NOBODY_TO_TELL = "there is no nsqlookupd that topics could be created at"


def create(gathering: Gathering, topic: str, channel: str = "") -> None:
    """Registers names with nsqlookupds. nsqds that have the topic make its channel; the topic
    itself none makes before it is published to."""
    if not gathering.by_lookupds:
        if channel:
            text = "failed to query any nsqlookupd: no nsqlookupd is configured"
            raise HttpError(502, f"UPSTREAM_ERROR: {text}")
        gathering.warnings.append(NOBODY_TO_TELL)
        return
    gathering.tell_lookupds("topic/create", topic=topic)
    if channel:
        gathering.tell_lookupds("channel/create", topic=topic, channel=channel)
        nodes = gathering.producers(topic)
        gathering.tell(nodes, "channel/create", topic=topic, channel=channel)


def delete(gathering: Gathering, topic: str, channel: str = "") -> None:
    """Deletes a topic, or a channel of it, with its messages, wherever it is."""
    what, names = target(topic, channel)
    # nsqlookupds may know a topic that no nsqd has.
    find = gathering.producers if gathering.by_lookupds else gathering.nodes_with
    nodes = find(topic)
    _known(
        gathering.tell_lookupds(f"{what}/delete", **names),
        gathering.tell(nodes, f"{what}/delete", **names),
    )


def act(gathering: Gathering, action: str, topic: str, channel: str = "") -> None:
    """Pauses, unpauses or empties a topic, or a channel of it, wherever it is."""
    what, names = target(topic, channel)
    _known(gathering.tell(gathering.nodes_with(topic), f"{what}/{action}", **names))


def _known(*told: Told) -> None:
    """404 if all that were told say that there is no such topic or channel."""
    errors = [error for each in told for error in each.errors.values()]
    codes = [saying.read("", Answer(each.status, {}, each.body)).unknown for each in errors]
    if codes and all(codes) and not any(each.values for each in told):
        raise HttpError(404, codes[-1])


def tombstone(gathering: Gathering, node: str, topic: str) -> None:
    """Hides a node from a topic's consumers for a while, and deletes the topic there. Only nodes
    that are known are told: this is no way to have requests sent to anybody."""
    known = [each for each in gathering.nodes() if each.name == node]
    gathering.tell_lookupds("topic/tombstone", topic=topic, node=node)
    if not known:
        raise gathering.not_found(saying.NODE_NOT_FOUND)
    gathering.tell(known, "topic/delete", topic=topic)


def target(topic: str, channel: str) -> tuple[str, dict[str, str]]:
    """What is meant, "topic" or "channel", and the parameters that name it."""
    if channel:
        return "channel", {"topic": topic, "channel": channel}
    return "topic", {"topic": topic}
