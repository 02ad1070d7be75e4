"""Actions that change a cluster, called by the API and by page forms.

An action checks its arguments, sends requests to the daemons, and reports to the notification
endpoint. If a daemon fails, the action adds a warning to the cluster view and still sends the
request to the other daemons. An action raises HttpError if no daemon can be found or the target is
unknown; actions beyond NSQ's also raise it if every nsqd refuses.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from nsqcy.cluster.web_client import Answer
from nsqcy.errors import HttpError
from nsqcy.http.router import Request
from nsqcy.names import is_valid_name
from nsqcy.nsqadmin.audit import Audit, audited
from nsqcy.nsqadmin.cluster.answers import NODE_NOT_FOUND, read_answer
from nsqcy.nsqadmin.cluster.view import DRAIN_PATH, ClusterView, Done, Posted, target
from nsqcy.nsqadmin.notifications import Notifier

ON_MESSAGES = ("pause", "unpause", "empty")
ON_NODE = (*ON_MESSAGES, "delete")
NO_LOOKUPD = "cannot create topics without an nsqlookupd"


class Context(Protocol):
    """The part of the application context that actions need."""

    @property
    def notifier(self) -> Notifier: ...
    @property
    def audit(self) -> Audit: ...
    def cluster(self) -> ClusterView: ...


# NSQ's


@audited
def create(
    app: Context, request: Request, topic: str, channel: str, *, on_nsqds: bool = False
) -> Done:
    """Register a topic and channel with all nsqlookupds. nsqds that have the topic create the
    channel; without on_nsqds, as in NSQ, no nsqd creates the topic before a message is published
    to it."""
    check_names(topic, channel)
    cluster = app.cluster()
    if on_nsqds:
        _create_everywhere(cluster, topic, channel)
    else:
        _create(cluster, topic, channel)
    app.notifier.send(request, "create_topic", topic)
    if channel:
        app.notifier.send(request, "create_channel", topic, channel)
    return Done(cluster)


def _create(cluster: ClusterView, topic: str, channel: str) -> None:
    if not cluster.by_lookupds:
        if channel:
            text = "failed to query any nsqlookupd: no nsqlookupd is configured"
            raise HttpError(502, f"UPSTREAM_ERROR: {text}")
        cluster.warnings.append(NO_LOOKUPD)
        return
    cluster.post_to_lookupds("topic/create", topic=topic)
    if channel:
        cluster.post_to_lookupds("channel/create", topic=topic, channel=channel)
        nodes = cluster.producers(topic)
        cluster.post_to_nodes(nodes, "channel/create", topic=topic, channel=channel)


def _create_everywhere(cluster: ClusterView, topic: str, channel: str) -> None:
    nodes = cluster.nodes()
    named: dict[str, dict[str, str]] = {"topic/create": {"topic": topic}}
    if channel:
        named["channel/create"] = {"topic": topic, "channel": channel}
    for path, names in named.items():
        cluster.post_to_lookupds(path, **names)
        cluster.post_to_nodes(nodes, path, **names)


@audited
def delete(app: Context, request: Request, topic: str, channel: str = "") -> Done:
    """Delete a topic or one of its channels, including the messages, on all nodes."""
    cluster = app.cluster()
    what, names = target(topic, channel)
    # nsqlookupds may list a topic that no nsqd has.
    find = cluster.producers if cluster.by_lookupds else cluster.nodes_with
    nodes = find(topic)
    _check_known(
        cluster.post_to_lookupds(f"{what}/delete", **names),
        cluster.post_to_nodes(nodes, f"{what}/delete", **names),
    )
    app.notifier.send(request, f"delete_{what}", topic, channel)
    return Done(cluster)


@audited
def act(app: Context, request: Request, action: str, topic: str, channel: str = "") -> Done:
    """Pause, unpause or empty a topic or one of its channels, on all nodes."""
    if action not in ON_MESSAGES:
        raise HttpError(400, "INVALID_ACTION")
    cluster = app.cluster()
    what, names = target(topic, channel)
    try:
        nodes = cluster.nodes_with(topic)
        _check_known(cluster.post_to_nodes(nodes, f"{what}/{action}", **names))
    finally:  # notify even on failure, as NSQ does
        app.notifier.send(request, f"{action}_{what}", topic, channel)
    return Done(cluster)


@audited
def tombstone(app: Context, request: Request, node: str, topic: str) -> Done:
    """Hide a node from a topic's consumers for a while, and delete the topic there. Only known
    nodes get a request, so that users cannot direct requests to other hosts."""
    check_names(topic)
    cluster = app.cluster()
    known = [each for each in cluster.nodes() if each.name == node]
    cluster.post_to_lookupds("topic/tombstone", topic=topic, node=node)
    if not known:
        raise cluster.not_found(NODE_NOT_FOUND)
    cluster.post_to_nodes(known, "topic/delete", topic=topic)
    app.notifier.send(request, "tombstone_topic_producer", topic, node=node)
    return Done(cluster)


def check_names(topic: str, channel: str = "") -> None:
    """Raise HttpError if a name is invalid."""
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise HttpError(400, "INVALID_CHANNEL")


def _check_known(*posted: Posted) -> None:
    """Raise HttpError (404) if every daemon reported that the topic or channel does not exist."""
    errors = [error for each in posted for error in each.errors.values()]
    codes = [read_answer("", Answer(each.status, {}, each.body)).unknown for each in errors]
    if codes and all(codes) and not any(each.values for each in posted):
        raise HttpError(404, codes[-1])


# nsqcy's own actions: on all nodes that have the topic, or on one of them


@audited
def redrive(
    app: Context, request: Request, topic: str, channel: str, limit: str, node: str
) -> Done:
    """Send the dead letters in a channel back to the channels they came from."""
    query = {"limit": limit} if limit else {}
    done = _post(app, "channel/redrive", topic, channel, query, node)
    app.notifier.send(request, "redrive_channel", topic, channel, node)
    return done


@audited
def seek(app: Context, request: Request, topic: str, channel: str, to: str, node: str) -> Done:
    """Move a channel to a position in its topic's log."""
    done = _post(app, "channel/seek", topic, channel, {"to": to}, node)
    app.notifier.send(request, "seek_channel", topic, channel, node)
    return done


@audited
def cancel(app: Context, request: Request, topic: str, channel: str, id: str, node: str) -> Done:
    """Drop one deferred message."""
    done = _post(app, "message/cancel", topic, channel, {"id": id}, node)
    app.notifier.send(request, "cancel_message", topic, channel, node)
    return done


@audited
def redrive_message(
    app: Context, request: Request, topic: str, channel: str, id: str, node: str
) -> Done:
    """Send one dead letter back to the channel it came from."""
    done = _post(app, "channel/redrive", topic, channel, {"id": id}, node)
    app.notifier.send(request, "redrive_message", topic, channel, node)
    return done


@audited
def delete_message(
    app: Context, request: Request, topic: str, channel: str, id: str, node: str
) -> Done:
    """Drop one waiting message."""
    done = _post(app, "message/delete", topic, channel, {"id": id}, node)
    app.notifier.send(request, "delete_message", topic, channel, node)
    return done


@audited
def pause_key(
    app: Context, request: Request, topic: str, channel: str, key: str, node: str
) -> Done:
    """Pause one key of a channel."""
    return _act_on_key(app, request, "pause", topic, channel, key, node)


@audited
def unpause_key(
    app: Context, request: Request, topic: str, channel: str, key: str, node: str
) -> Done:
    """Unpause one key of a channel."""
    return _act_on_key(app, request, "unpause", topic, channel, key, node)


@audited
def empty_key(
    app: Context, request: Request, topic: str, channel: str, key: str, node: str
) -> Done:
    """Drop the waiting messages of one key of a channel."""
    return _act_on_key(app, request, "empty", topic, channel, key, node)


def _act_on_key(
    app: Context, request: Request, verb: str, topic: str, channel: str, key: str, node: str
) -> Done:
    done = _post(app, f"channel/key/{verb}", topic, channel, {"key": key}, node)
    app.notifier.send(request, f"{verb}_key", topic, channel, node)
    return done


@audited
def publish(
    app: Context,
    request: Request,
    topic: str,
    body: bytes,
    *,
    defer: str = "",
    headers: Mapping[str, str],
    node: str = "",
) -> Done:
    """Publish a message on one node: the given one, or the first that has the topic. defer: in
    milliseconds. headers: by name; NSQ's nsqd ignores them."""
    check_names(topic)
    cluster = app.cluster()
    query = {"topic": topic, **({"defer": defer} if defer else {})}
    there = cluster.nodes_with(topic, node)[0]
    named = {f"X-Nsq-{name}": value for name, value in headers.items()}
    cluster.publish(there, query, named, body)
    app.notifier.send(request, "publish_message", topic, node=there.name)
    return Done(cluster)


@audited
def set_rate(
    app: Context, request: Request, topic: str, channel: str, rate: str, node: str
) -> Done:
    done = _post(app, "channel/rate", topic, channel, {"rate": rate}, node)
    app.notifier.send(request, "rate_channel", topic, channel, node)
    return done


@audited
def set_policy(
    app: Context,
    request: Request,
    topic: str,
    channel: str,
    values: Mapping[str, Any] | None,
    node: str = "",
) -> Done:
    """Set keys of a policy. A value of None resets its key; values=None resets all keys."""
    check_names(topic, channel)
    cluster = app.cluster()
    what, names = target(topic, channel)
    method = "DELETE" if values is None else "PUT"
    body = b"" if values is None else json.dumps(values).encode()
    nodes = cluster.nodes_with(topic, node)
    answers = cluster.command_each(nodes, f"{what}/config", names, method, body)
    verb = "reset" if values is None else "set"
    app.notifier.send(request, f"{verb}_{what}_policy", topic, channel, node)
    return Done(cluster, answers)


@audited
def drain(app: Context, request: Request, node: str, *, on: bool, timeout: str = "") -> Done:
    """Start or stop draining a node. A draining node refuses publishes, and exits when it is
    empty."""
    cluster = app.cluster()
    query = {"timeout": timeout} if timeout else {}
    body = b"true" if on else b"false"
    answers = cluster.command_each([cluster.find(node)], DRAIN_PATH, query, "PUT", body)
    app.notifier.send(request, "drain_node" if on else "undrain_node", "", node=node)
    return Done(cluster, answers)


@audited
def act_on_node(
    app: Context, request: Request, node: str, action: str, topic: str, channel: str
) -> Done:
    """Pause, unpause, empty or delete a topic or one of its channels, on one node."""
    if action not in ON_NODE:
        raise HttpError(400, "INVALID_ACTION")
    check_names(topic, channel)
    cluster = app.cluster()
    what, names = target(topic, channel)
    path = f"{what}/{action}"
    answers = cluster.command_each([cluster.find(node)], path, names, "POST", b"")
    app.notifier.send(request, f"{action}_{what}", topic, channel, node)
    return Done(cluster, answers)


def _post(
    app: Context, path: str, topic: str, channel: str, query: Mapping[str, str], node: str
) -> Done:
    check_names(topic, channel)
    cluster = app.cluster()
    nodes = cluster.nodes_with(topic, node)
    _, names = target(topic, channel)
    return Done(cluster, cluster.command_each(nodes, path, {**names, **query}, "POST", b""))
