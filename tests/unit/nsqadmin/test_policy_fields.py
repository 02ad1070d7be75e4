"""Fields of the policy form: conversion of values to numbers with units, and back."""

import json
from typing import Any

import pytest

from nsqcy.nsqadmin.views.policy_fields import changes, field


@pytest.mark.parametrize(
    ("key", "value", "text", "unit"),
    [
        ("retention_time", "48h", "2", "d"),
        ("msg_timeout", "1m30s", "90", "s"),
        ("ttl", "0s", "0", "s"),
        ("ttl", "1.5ms", "1500", "µs"),
        ("max_msg_size", 1 << 20, "1", "MiB"),
        ("retention_bytes", 1500, "1500", "B"),
        ("max_depth", 7, "7", ""),
        ("durability", "fsync", "fsync", ""),
        ("prune_messages", True, "true", ""),
    ],
)
def test_values_survive_the_form(key: str, value: Any, text: str, unit: str) -> None:
    found = field("", key, value, {})
    assert (found.text, found.unit) == (text, unit)
    form = {f"value.{key}": text, f"unit.{key}": unit, f"before.{key}": found.before}
    assert changes("", form) == {}


def test_only_changes_are_sent() -> None:
    form = {
        "value.msg_timeout": "2",
        "unit.msg_timeout": "min",
        "before.msg_timeout": json.dumps("1m"),
        "value.max_msg_size": "1.5",
        "unit.max_msg_size": "KiB",
        "before.max_msg_size": "1",
        "value.max_depth": "7",
        "before.max_depth": "7",
        "value.prune_messages": "true",
        "before.prune_messages": "false",
        "value.ttl": "1",
        "before.ttl": json.dumps("0s"),
        "reset.ttl": "1",
    }
    assert changes("", form) == {
        "msg_timeout": f"{120 * 10**9}ns",
        "max_msg_size": 1536,
        "prune_messages": True,
        "ttl": None,
    }


def test_nodes_that_differ_stay_unless_a_value_is_given() -> None:
    found = field("c", "on_full", None, {})
    assert (found.text, found.before, found.choices[0]) == ("", "", "")
    form = {"value.on_full": "", "before.on_full": ""}
    assert changes("c", form) == {}
    assert changes("c", form | {"value.on_full": "reject"}) == {"on_full": "reject"}


@pytest.mark.parametrize("text", ["fast", "", "NaN", "Infinity", "0.3"])
def test_what_is_no_number_is_left_to_nsqd(text: str) -> None:
    form = {"value.max_bytes": text, "unit.max_bytes": "B", "before.max_bytes": "0"}
    assert isinstance(changes("", form)["max_bytes"], str)
