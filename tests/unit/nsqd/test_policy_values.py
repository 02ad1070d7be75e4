"""Policies in JSON, and the file that stores them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.config.policies import CHANNEL_KEYS, TOPIC_KEYS, Policies
from nsqcy.nsqd.http import policy_values
from nsqcy.nsqd.http.policy_values import BadPolicy
from nsqcy.nsqd.master import policy_file
from nsqcy.nsqd.options import NSQD, NsqdOptions

OPTIONS = NsqdOptions(NSQD.defaults())
KEYS = st.sampled_from(sorted(TOPIC_KEYS | CHANNEL_KEYS)) | st.text(max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["5s", "1h", "os", "fsync", "drop-oldest", "dead", 0, 5, 1 << 63, "-1s"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
NAMES = st.sampled_from(["t", "t/c", "t#ephemeral", "t/c#ephemeral"])


class Lines:
    """Log that keeps its errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, text: str, **_: object) -> None:
        self.errors.append(text)


@given(st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    try:
        found = policy_values.parse(body)
    except BadPolicy as bad:
        assert "(allowed: " in str(bad)
        str(bad).encode()
    else:
        assert found == json.loads(body)


@example("t", {"msg_timeout": "0\x1f"})
@given(NAMES, OBJECTS)
def test_any_object_is_taken_whole_or_refused(name: str, said: dict[str, Any]) -> None:
    try:
        values = policy_values.read_all(name, said, OPTIONS)
    except BadPolicy as bad:
        assert "(allowed: " in str(bad)
        assert str(bad).isprintable()
        return
    assert values.keys() == {key for key, value in said.items() if value is not None}
    policies = Policies()
    policies.set(name, values)
    topic, _, channel = name.partition("/")
    view = policy_values.view(policies, OPTIONS, topic, channel)
    ephemeral = {"durability", "retention_time", "retention_bytes"} if "#" in topic else set()
    for key in values.keys() - ephemeral:
        assert view["config"][key]["from"] == "http"
        again = policy_values.read(name, key, view["config"][key]["value"], OPTIONS)
        assert again == values[key], "shown values can be set"


@pytest.mark.slow
@given(OBJECTS, OBJECTS)
def test_null_takes_a_key_back(before: dict[str, Any], said: dict[str, Any]) -> None:
    found = policy_values.merged(before, said)
    assert None not in found.values()
    for key in before.keys() | said.keys():
        value = said.get(key, before.get(key))
        assert found.get(key) is value


@pytest.mark.slow
@given(st.binary(max_size=40) | OBJECTS.map(lambda each: json.dumps(each).encode()))
def test_any_file_is_read_or_set_aside(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("kept")
    file = path / policy_file.FILE
    file.write_bytes(data)
    lines = Lines()
    policy_file.load(str(path), lines)  # type: ignore[arg-type]
    assert not file.exists()
    aside = path / "policies.json.damaged"
    assert aside.read_bytes() == data
    assert str(file) in lines.errors[0] and str(aside) in lines.errors[1]


@pytest.mark.slow
@given(st.dictionaries(NAMES, OBJECTS, max_size=3))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, dict[str, Any]]
) -> None:
    path = str(tmp_path_factory.mktemp("kept"))
    kept = policy_file.SavedPolicies(path)
    for name, values in said.items():
        kept = kept.change(name, values)
    kept.write()
    lines, again = Lines(), Lines()
    values = kept.values(OPTIONS, lines)  # type: ignore[arg-type]
    found = policy_file.load(path, again)  # type: ignore[arg-type]
    assert again.errors == []
    assert found.values(OPTIONS, again) == values  # type: ignore[arg-type]
    assert sorted(again.errors) == sorted(lines.errors)


def test_the_names_of_a_topic(tmp_path: Path) -> None:
    kept = policy_file.SavedPolicies(str(tmp_path))
    for name in ("a", "a/c", "a/d", "ab", "ab/c"):
        kept = kept.change(name, {"max_depth": 1})
    assert sorted(kept.names("a")) == ["a", "a/c", "a/d"]
    assert sorted(kept.change("a/c", None).names("a")) == ["a", "a/d"]
    assert kept.change("a", {"max_depth": None}).names("a") == ["a/c", "a/d"]


def test_a_file_that_cannot_be_opened_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / policy_file.FILE).mkdir()
    lines = Lines()
    assert policy_file.load(str(tmp_path), lines).version == policy_file.MISSING  # type: ignore[arg-type]
    assert [line for line in lines.errors if "cannot be read: is a directory" in line]
    assert os.listdir(tmp_path) == [policy_file.FILE]
