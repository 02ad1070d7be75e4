"""What nsqadmin asks of nsqds, and tells them, beyond what NSQ's can: one of them, or all that
have a topic.

Whoever fails or refuses is a warning of the gathering, with the reason in its own words; only where
nobody answered, knows what is meant or did it is there an error.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.nsqadmin import answer_forms
from nsqcy.nsqadmin.actions import ON_MESSAGES, target
from nsqcy.nsqadmin.answer_forms import LOG, PEEKED, POLICY
from nsqcy.nsqadmin.gathering import Gathering, Node
from nsqcy.nsqadmin.saying import Said

ON_NODE = (*ON_MESSAGES, "delete")
DRAIN = "config/drain"


# What is asked


def peek(
    gathering: Gathering, topic: str, channel: str, node: str, look: Mapping[str, str]
) -> list[Said]:
    """Messages of a channel, or without one of the topic itself."""
    what, names = target(topic, channel)
    nodes = gathering.nodes_with(topic, node)
    said = gathering.ask_each(nodes, f"{what}/peek", {**names, **look}, form=PEEKED)
    return _heard(gathering, said)


def policies(gathering: Gathering, topic: str, channel: str, node: str = "") -> list[Said]:
    what, names = target(topic, channel)
    nodes = gathering.nodes_with(topic, node)
    return _heard(gathering, gathering.ask_each(nodes, f"{what}/config", names, form=POLICY))


def dead_letter_topics(said: Iterable[Said]) -> list[str]:
    """Where these policies of a channel send its dead letters."""
    values = [each.value["config"].get("dead_letter_topic", {}) for each in said if each.is_done]
    return sorted({each["value"] for each in values if each.get("value")})


def dead_letter_places(gathering: Gathering, topics: Iterable[str]) -> list[tuple[str, str]]:
    """The channels of these topics, as (topic, channel); a topic without channels is one itself."""
    found: list[tuple[str, str]] = []
    for topic in topics:
        try:
            rows = gathering.topic(topic)
        except HttpError as error:
            if error.status != 404:
                raise
            continue  # it comes with the first dead letter
        channels = sorted({name for row in rows.topics for name in row.channels})
        found += [(topic, channel) for channel in channels or ("",)]
    return found


def places(gathering: Gathering, topic: str, to: str) -> list[Said]:
    """The logs of a topic, and where in each of them a place is."""
    nodes = gathering.nodes_with(topic)
    said = gathering.ask_each(nodes, "topic/log", {"topic": topic, "at": to}, form=LOG)
    return _heard(gathering, said)


def drain_state(gathering: Gathering, node: Node) -> Said | None:
    """None: it does not answer."""
    return next(iter(gathering.ask_each([node], DRAIN, {}, form=answer_forms.DRAIN)), None)


# What is told


def redrive(
    gathering: Gathering, topic: str, channel: str, limit: str = "", node: str = ""
) -> list[Said]:
    """Send what waits in a channel of dead letters back to where it came from."""
    query = {"limit": limit} if limit else {}
    return _post(gathering, "channel/redrive", topic, channel, query, node)


def seek(gathering: Gathering, topic: str, channel: str, to: str, node: str = "") -> list[Said]:
    return _post(gathering, "channel/seek", topic, channel, {"to": to}, node)


def cancel(gathering: Gathering, topic: str, channel: str, id: str, node: str) -> list[Said]:
    """Drop one deferred message."""
    return _post(gathering, "message/cancel", topic, channel, {"id": id}, node)


def set_policy(
    gathering: Gathering,
    topic: str,
    channel: str,
    values: Mapping[str, Any] | None,
    node: str = "",
) -> list[Said]:
    """Set keys, or take them back (a key's None, or None for all)."""
    what, names = target(topic, channel)
    nodes = gathering.nodes_with(topic, node)
    method = "DELETE" if values is None else "PUT"
    body = b"" if values is None else json.dumps(values).encode()
    return _told(gathering, gathering.ask_each(nodes, f"{what}/config", names, method, body))


def set_rate(
    gathering: Gathering, topic: str, channel: str, rate: str, node: str = ""
) -> list[Said]:
    return _post(gathering, "channel/rate", topic, channel, {"rate": rate}, node)


def drain(gathering: Gathering, node: str, on: bool, timeout: str = "") -> list[Said]:
    """Have a node take no more publishes, and exit when it is empty; or end that."""
    query = {"timeout": timeout} if timeout else {}
    body = b"true" if on else b"false"
    found = [gathering.find(node)]
    return _told(gathering, gathering.ask_each(found, DRAIN, query, "PUT", body))


def act_on_node(
    gathering: Gathering, node: str, action: str, topic: str, channel: str = ""
) -> list[Said]:
    """Pause, unpause, empty or delete a topic, or a channel of it, on one node."""
    what, names = target(topic, channel)
    said = gathering.ask_each([gathering.find(node)], f"{what}/{action}", names, "POST", b"")
    return _told(gathering, said)


def _post(
    gathering: Gathering,
    path: str,
    topic: str,
    channel: str,
    query: Mapping[str, str],
    node: str,
) -> list[Said]:
    """Told to all nsqds that have the topic, or to that one of them."""
    nodes = gathering.nodes_with(topic, node)
    _, names = target(topic, channel)
    return _told(gathering, gathering.ask_each(nodes, path, {**names, **query}, "POST", b""))


def _heard(gathering: Gathering, said: list[Said]) -> list[Said]:
    """If nobody answers, or nobody has what is meant, that is an error."""
    if not said:
        raise gathering.nobody_answers()
    if all(each.unknown for each in said):
        raise gathering.not_found(said[0].unknown)
    return said


def _told(gathering: Gathering, said: list[Said]) -> list[Said]:
    """Those who refuse are warnings; if nobody did it, that is an error."""
    _heard(gathering, said)
    refused = [each for each in said if not each.is_done]
    if refused and len(refused) == len(said):
        raise HttpError(refused[0].status, refusals(refused))
    if refused:
        gathering.warn(refusals(refused))
    return said


def refusals(said: Sequence[Said]) -> str:
    """What they say, once if all say the same."""
    reasons = list(dict.fromkeys(each.reason for each in said))
    if len(reasons) == 1:
        return reasons[0]
    return "\n".join(f"{each.node}: {each.reason}" for each in said)
