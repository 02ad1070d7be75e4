"""Policies of topics: which patterns match which names, and the way to another process."""

import fnmatch
import json
from pathlib import Path

import pytest
from core import Core
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.policies import Policies, TopicPolicy, can_match

NAMES = st.text("abc.-_", min_size=1, max_size=6)
PATTERNS = st.text("abc.-_*?[]!", min_size=1, max_size=6)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "durability": st.sampled_from(["memory", "os", "fsync"]),
        "retention_time": st.integers(0, 5),
        "retention_bytes": st.integers(0, 5),
    },
)


@given(st.lists(st.tuples(PATTERNS.filter(can_match), VALUES), max_size=4), NAMES)
def test_of_the_sections_that_match_the_last_word_on_each_key_counts(
    sections: list[tuple[str, dict[str, object]]], name: str
) -> None:
    expected: dict[str, object] = {"durability": "os", "retention_time": 7, "retention_bytes": 0}
    for pattern, values in sections:
        if fnmatch.fnmatchcase(name, pattern):
            expected |= values
    policies = Policies(TopicPolicy("os", 7), sections)
    assert policies.topic(name)._asdict() == expected
    there = Policies.from_json(json.loads(json.dumps(policies.to_json())))
    assert there.topic(name) == policies.topic(name)


def test_an_ephemeral_topic_has_no_policy() -> None:
    policies = Policies(TopicPolicy("fsync", 5, 5), [("*", {"durability": "os"})])
    assert policies.topic("x#ephemeral") == TopicPolicy()
    assert policies.topic("x") == TopicPolicy("os", 5, 5)


@pytest.mark.parametrize(
    "pattern", ["x", "*", "?", "a.b-c_D9", "[a-z]*", "[!x]", "x[-a]y", "*" * 80, "x" * 64 + "*"]
)
def test_patterns_that_are_good(pattern: str) -> None:
    assert can_match(pattern)


@pytest.mark.parametrize(
    "pattern", ["", " ", "a b", "a/b", "x#*", "[", "]", "[]", "[!]", "[z-a]", "x\n", "é", "x" * 65]
)
def test_patterns_that_no_topic_has_a_name_for(pattern: str) -> None:
    assert not can_match(pattern)


def test_a_topic_gets_its_policy_when_it_is_made(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=Policies(sections=[("a*", {"durability": "fsync"})]))
    shown = [core.create(name).counters() for name in ("ab", "b")]
    assert [each.get("durability") for each in shown] == ["fsync", None]
    core.close()
