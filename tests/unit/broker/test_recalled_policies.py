"""Policies set over HTTP that are in a topic's journal, but not among the saved policies."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy, Version
from support.worker_core import SECOND, Core, mpub

MISSING = Version()
SMALL_FILES = {"max_bytes_per_file": 50_000, "sync_every": 2500, "sync_timeout": 2 * SECOND}
KEPT = {"retention_time": 7 * 24 * 3600 * SECOND}
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(policies: Policies, path: Path = tmp_path, **more: Any) -> Core:
        core = Core(path, policies=policies, log_options=SMALL_FILES, **more)
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def saved(version: Version, **values: dict[str, Any]) -> Policies:
    """Return the policies that a start finds in the file."""
    policies = Policies(TopicPolicy(durability="os"))
    for name, each in values.items():
        policies.set(name, each)
    policies.version = version
    return policies


def written(make: Make, policies: Policies) -> Core:
    """Return a core with a topic whose messages have all been finished."""
    core = make(policies)
    client = core.client().subscribe("t", "c", 2500)
    for _ in range(4):
        client.ask(mpub("t", [b"x" * 500] * 100))
    core.settle()
    for each in client.messages():
        client.finish(each.id)
    for _ in range(3):
        core.advance(2 * SECOND)
    assert core.counters("t", "c")["depth"] == 0
    return core


def again(make: Make, core: Core, policies: Policies, **more: Any) -> Core:
    """Start a core on the same files with these policies; return it after a while."""
    found = make(policies, core.copied(), now=core.now, wall=core.wall, **more)
    found.load_all()
    for _ in range(3):
        found.advance(2 * SECOND)
    return found


def first_seq(core: Core) -> int:
    topic = core.topic("t")
    assert topic is not None
    seq: int = topic.log_facts()["first_seq"]
    return seq


def test_without_a_policy_the_log_goes(make: Make) -> None:
    core = written(make, saved(Version("f", 3), t={"ttl": SECOND}))
    assert first_seq(core) > 1


@pytest.mark.parametrize(
    "found",
    [MISSING, Version("f", 2), Version("", 1)],
    ids=["missing", "older", "older and without a name"],
)
def test_a_retention_that_is_not_saved_still_holds(make: Make, found: Version) -> None:
    core = written(make, saved(Version("f", 3), t=KEPT, **{"t/c": {"max_depth": 7}}))
    assert first_seq(core) == 1
    events: list[Any] = []
    policies = saved(found, t={"ttl": SECOND})
    later = again(make, core, policies, on_event=lambda *event: events.append(event))
    assert first_seq(later) == 1
    assert policies.topic("t").retention_time == KEPT["retention_time"]
    assert policies.topic("t").ttl == 0
    assert policies.channel("t", "c").max_depth == 7
    assert policies.recalled == {"t": KEPT, "t/c": {"max_depth": 7}}
    assert ("policies_recalled", "t", None) in events
    assert [line for line in later.log.lines if "using those in the topic's journal" in line]


@pytest.mark.parametrize(
    "found", [Version("f", 4), Version("other", 1)], ids=["newer", "another file"]
)
def test_what_is_saved_counts(make: Make, found: Version) -> None:
    core = written(make, saved(Version("f", 3), t=KEPT))
    policies = saved(found)
    assert first_seq(again(make, core, policies)) > 1
    assert policies.recalled == {}


def test_a_policy_that_was_unset_stays_so(make: Make) -> None:
    """The previous version has a time to live."""
    core = written(make, saved(Version("f", 3)))
    policies = saved(Version("f", 2), t={"ttl": SECOND})
    again(make, core, policies)
    assert policies.topic("t").ttl == 0
    assert policies.recalled == {"t": {}}


def test_the_journal_notes_a_change(make: Make) -> None:
    core = written(make, saved(Version("f", 3), t=KEPT))
    policies = core.shard.policies
    assert policies is not None
    policies.set("t", KEPT | {"max_depth": 9})
    policies.version = Version("f", 4)
    core.shard.policies_changed("t")
    core.advance(2 * SECOND)
    core.advance(2 * SECOND)
    policies = saved(MISSING)
    again(make, core, policies)
    assert policies.topic("t").max_depth == 9


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b"{}", b'{"version":1,"set":{}}', b'{"version":["f",9],"set":[]}']
)
def test_a_note_of_a_later_version_is_ignored(note: bytes) -> None:
    policies = saved(MISSING)
    assert not policies.recall("t", note)


def test_keys_of_a_later_version_are_ignored() -> None:
    policies = saved(MISSING)
    assert policies.recall("t", b'{"version":["f",9],"set":{"t":{"ttl":5,"later":1}}}')
    assert policies.recalled == {"t": {"ttl": 5}}
