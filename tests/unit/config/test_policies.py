"""Policies of topics: which patterns match which names, and how policies are passed to another
process."""

import fnmatch
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.config.policies import (
    CHANNEL_KEYS,
    TOPIC_KEYS,
    ChannelPolicy,
    Policies,
    TopicPolicy,
    can_match,
    can_match_channels,
)
from support.worker_core import Core

NAMES = st.text("abc.-_", min_size=1, max_size=6)
PATTERNS = st.text("abc.-_*?[]!", min_size=1, max_size=6).filter(can_match)
TOPIC_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "durability": st.sampled_from(["memory", "os", "fsync"]),
        "retention_time": st.integers(0, 5),
        "msg_timeout": st.integers(1, 5),
        "max_depth": st.integers(0, 5),
    },
)
CHANNEL_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "msg_timeout": st.integers(1, 5),
        "max_depth": st.integers(0, 5),
        "dead_letter_topic": st.sampled_from(["", "dead"]),
    },
)


def merged(
    name: str, sections: list[tuple[str, dict[str, Any]]], last: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Slow reference: return the values for a name, and the pattern that each one comes from."""
    values: dict[str, Any] = {}
    sources = {}
    for pattern, said in [*sections, (name, last)]:
        if all(
            fnmatch.fnmatchcase(one, other)
            for one, other in zip(name.split("/"), pattern.split("/"), strict=True)
        ):
            values |= said
            sources |= dict.fromkeys(said, pattern if said is not last else "")
    return values, sources


@pytest.mark.slow
@given(
    st.lists(st.tuples(PATTERNS, TOPIC_VALUES), max_size=4),
    st.lists(st.tuples(PATTERNS, PATTERNS, CHANNEL_VALUES), max_size=4),
    TOPIC_VALUES,
    CHANNEL_VALUES,
    NAMES,
    NAMES,
)
def test_of_all_that_match_the_last_word_on_each_key_counts(
    sections: list[tuple[str, dict[str, Any]]],
    channel_sections: list[tuple[str, str, dict[str, Any]]],
    set_for_topic: dict[str, Any],
    set_for_channel: dict[str, Any],
    topic: str,
    channel: str,
) -> None:
    of_channels = [(f"{one}/{two}", values) for one, two, values in channel_sections]
    policies = Policies(TopicPolicy("os", 7), sections, of_channels)
    policies.set(topic, set_for_topic)
    policies.set(f"{topic}/{channel}", set_for_channel)
    values, sources = merged(topic, sections, set_for_topic)
    assert policies.topic(topic) == TopicPolicy(
        **{"durability": "os", "retention_time": 7} | values
    )
    shown = {key: f"[topic {pattern}]" if pattern else "http" for key, pattern in sources.items()}
    assert policies.topic_sources(topic) == dict.fromkeys(TOPIC_KEYS, "default") | shown
    inherited = {"msg_timeout": values.get("msg_timeout")}
    values, sources = merged(f"{topic}/{channel}", of_channels, set_for_channel)
    assert policies.channel(topic, channel) == ChannelPolicy(**inherited | values)
    shown = {key: f"[channel {pattern}]" if pattern else "http" for key, pattern in sources.items()}
    if inherited["msg_timeout"]:
        shown.setdefault("msg_timeout", "topic")
    assert (
        policies.channel_sources(topic, channel) == dict.fromkeys(CHANNEL_KEYS, "default") | shown
    )
    there = Policies.from_json(json.loads(json.dumps(policies.to_json())))
    assert there.topic(topic) == policies.topic(topic)
    assert there.channel(topic, channel) == policies.channel(topic, channel)


def test_every_key_is_a_field_with_the_same_default() -> None:
    assert TopicPolicy._fields == tuple(TOPIC_KEYS)
    assert ChannelPolicy._fields == tuple(CHANNEL_KEYS)
    for policy, keys in ((TopicPolicy(), TOPIC_KEYS), (ChannelPolicy(), CHANNEL_KEYS)):
        defaults = {key: option.default for key, option in keys.items()}
        of_flags = {key for key, value in policy._asdict().items() if value is None}
        assert of_flags <= {"mem_queue_size", "max_msg_size", "max_defer_timeout", "msg_timeout"}
        assert {
            key: defaults[key] if key in of_flags else value
            for key, value in policy._asdict().items()
        } == defaults


def test_an_ephemeral_topic_has_no_log_to_keep_a_promise_with() -> None:
    said = {"durability": "os", "retention_bytes": 7, "ttl": 5}
    policies = Policies(TopicPolicy("fsync", 5, 5), [("*", said)])
    assert policies.topic("x#ephemeral") == TopicPolicy(ttl=5)
    assert policies.topic("x") == TopicPolicy("os", 5, 7, ttl=5)


def test_only_what_is_unusual_is_shown() -> None:
    policies = Policies(
        TopicPolicy("fsync"),
        [("a", {"durability": "fsync", "ttl": 90 * 10**9, "max_depth": 5})],
        [("*/c", {"rate": 7, "max_attempts": 0})],
    )
    assert policies.unusual_of_topic("a") == {"ttl": "1m30s", "max_depth": 5}
    assert policies.unusual_of_topic("b") == policies.unusual_of_topic("b#ephemeral") == {}
    assert policies.unusual_of_channel("a", "c") == {"rate": 7}


def test_the_longest_timeout_of_any_channel() -> None:
    """The longest timeout never decreases, because clients may have received it."""
    assert Policies().longest_timeout == 0
    found = Policies(TopicPolicy(msg_timeout=1), [("t*", {"msg_timeout": 2})])
    assert found.longest_timeout == 2
    found = Policies(channel_sections=[("t*/c", {"msg_timeout": 3}), ("t/*", {"max_depth": 9})])
    assert found.longest_timeout == 3
    found.set("t", {"msg_timeout": 4})
    found.set("t/c", {"msg_timeout": 5})
    found.set("t/c", {})
    assert found.longest_timeout == Policies.from_json(found.to_json()).longest_timeout + 1 == 5


def test_what_was_set_is_taken_back_with_nothing() -> None:
    policies = Policies()
    policies.set("a", {"ttl": 5})
    assert policies.topic("a").ttl == 5
    policies.set("a", {})
    assert policies.topic("a") == TopicPolicy()
    assert policies.to_json()["set"] == {}


@pytest.mark.parametrize(
    "pattern",
    [
        "x",
        "*",
        "?",
        "a.b-c_D9",
        "[a-z]*",
        "[!x]",
        "x[-a]y",
        "*" * 80,
        "x" * 64 + "*",
        "x#ephemeral",
        "*#ephemeral",
    ],
)
def test_patterns_that_are_good(pattern: str) -> None:
    assert can_match(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        " ",
        "a b",
        "a/b",
        "x#*",
        "[",
        "]",
        "[]",
        "[!]",
        "[z-a]",
        "x\n",
        "é",
        "x" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
    ],
)
def test_patterns_that_no_topic_has_a_name_for(pattern: str) -> None:
    assert not can_match(pattern)


def test_a_pattern_of_channels_has_a_topic_before_the_slash() -> None:
    assert can_match_channels("orders*/billing") and can_match_channels("*/*#ephemeral")
    for pattern in ("", "/", "a", "a/", "/b", "a/b/c", "a /b", "[/]", "a/[z-a]"):
        assert not can_match_channels(pattern)


def test_a_topic_gets_its_policy_when_it_is_made(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=Policies(sections=[("a*", {"durability": "fsync"})]))
    shown = [core.create(name).counters() for name in ("ab", "b")]
    assert [each.get("durability") for each in shown] == ["fsync", None]
    core.close()
