"""Policy values as JSON: in requests, in the file, and in responses.

A value has the same form everywhere: numbers and booleans are JSON numbers and booleans, and a
duration is a string with its unit. Pure functions, independent of HTTP and the file.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nsqcy.config.hints import unknown_key
from nsqcy.config.options import BOOL, DURATION, FLOAT, INT, int64
from nsqcy.config.policies import CHANNEL_KEYS, TOPIC_KEYS, Policies, shown
from nsqcy.config.publish_limits import publish_limits
from nsqcy.names import quote
from nsqcy.nsqd.options import NsqdOptions, policy_rule
from nsqcy.options.option import Option, Value


class BadPolicy(Exception):
    """Error: a value is invalid. The text contains the allowed values."""

    def __init__(self, problem: str, allowed: str) -> None:
        super().__init__(f"{problem} (allowed: {allowed})")


def keys_of(name: str) -> Mapping[str, Option]:
    """Return the policy keys of a topic, or of `topic/channel`."""
    return CHANNEL_KEYS if "/" in name else TOPIC_KEYS


def parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object that a client sent. Raises BadPolicy."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise BadPolicy("nested too deeply", "an object of keys and values") from None
    except ValueError as error:
        raise BadPolicy(f"not JSON: {error}", "an object of keys and values") from None
    if not isinstance(found, dict):
        raise BadPolicy(f"{_json(found)} is not an object", "an object of keys and values")
    return found


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadPolicy(f"{quote(key)} is set twice", "each key once")
        found[key] = value
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def read(name: str, key: str, value: Any, options: NsqdOptions) -> Value:
    """Parse the value of a topic's or a `topic/channel`'s key. Raises BadPolicy."""
    keys = keys_of(name)
    option = keys.get(key)
    if option is None:
        raise BadPolicy(*unknown_key(key, keys))
    try:
        found = _value(option, value)
    except ValueError as error:
        raise BadPolicy(f"{key}: invalid value {_json(value)}: {error}", _allowed(option)) from None
    rule = policy_rule(options, keys, key)
    if rule is not None and not rule.holds(found):
        raise BadPolicy(f"{key}: invalid value {_json(value)}", rule.text)
    if key == "dead_letter_topic" and found == name.partition("/")[0]:
        raise BadPolicy(f"{key}: invalid value {_json(value)}", "another topic")
    return found


def _value(option: Option, value: Any) -> Value:
    kind = option.kind
    if kind is BOOL and isinstance(value, bool):
        return value
    if kind is INT and isinstance(value, int) and not isinstance(value, bool):
        return int64(value)
    if kind is FLOAT and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind not in (BOOL, INT, FLOAT) and isinstance(value, str):
        read: Value = kind.parse(value)
        return read
    raise ValueError("invalid value type")


def _allowed(option: Option) -> str:
    if option.kind is INT:
        return "an integer"
    if option.kind is DURATION:
        return f"a string: {option.kind.allowed}"
    return option.kind.allowed


def read_all(name: str, said: Mapping[str, Any], options: NsqdOptions) -> dict[str, Value]:
    """Return the keys that are not null, with checked values. Raises BadPolicy for the first
    invalid key, and for an unknown key even if it is null."""
    found = {}
    for key, value in said.items():
        if value is not None:
            found[key] = read(name, key, value, options)
        elif key not in keys_of(name):
            read(name, key, value, options)
    return found


def merged(before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a client's changes: null unsets a key."""
    return {key: value for key, value in {**before, **said}.items() if value is not None}


def view(policies: Policies, options: NsqdOptions, topic: str, channel: str) -> dict[str, Any]:
    """Return a topic's or a channel's policy, with the origin of each value."""
    if channel:
        name: dict[str, str] = {"topic": topic, "channel": channel}
        policy: Any = policies.channel(topic, channel)
        sources = policies.channel_sources(topic, channel)
    else:
        name, policy, sources = (
            {"topic": topic},
            policies.topic(topic),
            policies.topic_sources(topic),
        )
    config = {}
    limits = publish_limits(options)
    for key, option in (CHANNEL_KEYS if channel else TOPIC_KEYS).items():
        value = getattr(policy, key)
        if value is None:
            value = getattr(limits if key in limits._fields else options, key)
        config[key] = {"value": shown(option, value), "from": sources[key]}
    return {**name, "config": config}


def _json(value: Any) -> str:
    """Return an abbreviated form of any value, for error texts sent to the client."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
