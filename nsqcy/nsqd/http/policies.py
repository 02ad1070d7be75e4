"""Routes that set the policy of a topic or a channel; policy_values owns the values."""

from typing import TYPE_CHECKING, Any

from nsqcy import names
from nsqcy.config.policies import RATE
from nsqcy.daemon.topic_params import names_of_channel, topic_and_channel
from nsqcy.errors import HttpError
from nsqcy.http.parser import JSON, Fault, Head, Reply
from nsqcy.http.router import Request, required, whole
from nsqcy.nsqd.http import policy_values
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import topic_of
from nsqcy.nsqd.process_messages import topic_verbs as verbs
from nsqcy.nsqd.process_messages.master_verbs import SetPolicy
from nsqcy.util.gotext import json_bytes

if TYPE_CHECKING:  # not imported without --auth-file
    from nsqcy.users.user import User

MAX_POLICY_BYTES = 64 << 10  # maximum size of a request body that sets a policy

_RATES = f"{RATE.kind.allowed}: {RATE.rule.text if RATE.rule else 'any'}"


def get_topic_policy(api: Context, request: Request) -> Reply:
    return _policy(api, topic_of(whole(request)))


def put_topic_policy(api: Context, request: Request) -> Reply:
    return _put_policy(api, request, topic_of(request.params))


def delete_topic_policy(api: Context, request: Request) -> Reply:
    topic = topic_of(whole(request))
    _set_policy(api, topic, "", None)
    return _policy(api, topic)


def get_channel_policy(api: Context, request: Request) -> Reply:
    return _policy(api, *topic_and_channel(request))


def put_channel_policy(api: Context, request: Request) -> Reply:
    return _put_policy(api, request, *names_of_channel(request.params))


def delete_channel_policy(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    _set_policy(api, topic, channel, None)
    return _policy(api, topic, channel)


def set_rate(api: Context, request: Request) -> None:
    """Set the retention: a shorthand for PUT /channel/config."""
    topic, channel = topic_and_channel(request)
    text = required(request.params, "rate")
    api.backend.at_owner(verbs.FindChannel(topic, channel))
    try:
        rate = RATE.kind.parse(text)
        _set_policy(api, topic, channel, {RATE.name: rate})
    except (ValueError, policy_values.BadPolicy):
        raise HttpError(400, f"INVALID_RATE {names.quote(text)} (allowed: {_RATES})") from None


def _put_policy(api: Context, request: Request, topic: str, channel: str = "") -> Reply:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "BODY_TOO_BIG")
    try:
        values = policy_values.parse(bytes(body.data))
        _check_target(request.user, values.get("dead_letter_topic"))
        _set_policy(api, topic, channel, values)
    except policy_values.BadPolicy as bad:
        raise HttpError(400, f"INVALID_CONFIG {bad}") from None
    return _policy(api, topic, channel)


def _check_target(user: "User | None", topic: object) -> None:
    """Raise HttpError if the user may neither publish to the dead-letter topic nor administer it:
    nsqd would publish there on the user's behalf."""
    if user is None or not isinstance(topic, str) or not topic:
        return
    if not (user.may_publish(topic) or user.may_administer(topic)):
        raise HttpError(403, "FORBIDDEN")


def _set_policy(api: Context, topic: str, channel: str, values: dict[str, Any] | None) -> None:
    """Set or unset keys: a value of None unsets its key, and None instead of the keys unsets all of
    them. Raises BadPolicy."""
    name = f"{topic}/{channel}" if channel else topic
    if values is not None:
        policy_values.read_all(name, values, api.options)
    api.backend.at_master(SetPolicy(name, values))


def _policy(api: Context, topic: str, channel: str = "") -> Reply:
    return Reply(200, json_bytes(api.backend.policy(topic, channel)), JSON)


def policy_limit(api: Context, head: Head) -> int:
    if head.length > MAX_POLICY_BYTES:
        raise HttpError(413, "BODY_TOO_BIG")
    return MAX_POLICY_BYTES
