"""A worker's copied topics, tested without other nodes."""

from pathlib import Path
from typing import Any

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.copies.group import Group
from nsqcy.nsqd.copies.topics import CopiedTopics
from support.worker_core import SECOND, Core

GROUP = Group("g", 1, "a", "a/1", ("a", "b"), 2, 2, "n", "fsync")
POLICIES = Policies(TopicPolicy(), [("t*", {"durability": "fsync", "copies": 2})])


class Groups:
    def owner(self, group_id: str) -> None:
        return None


def copied_topics(core: Core, directory: Path) -> CopiedTopics:
    """Return the topics of a worker that owns GROUP."""
    topics = CopiedTopics(
        core.shard, POLICIES, lambda *_: None, lambda *_: None, lambda: None, core.log
    )
    groups: Any = Groups()
    topics.attach(groups)
    topics.begun(GROUP, core.io, directory)
    return topics


def test_a_topics_damaged_journal_is_written_again(tmp_path: Path) -> None:
    home = tmp_path / "0"
    home.mkdir()
    core = Core(home, policies=POLICIES)
    topics = copied_topics(core, home)
    client = core.client().subscribe("t", "c", ready=1)
    for body in (b"1", b"2"):
        client.publish("t", body)
    core.settle()
    client.finish(client.messages()[0].id)
    topics.created(core.create("t"))
    core.advance(60 * SECOND)
    (home / "t.topic" / "journal").write_bytes(b"damaged")
    topics.write_journal("g", "another")
    topics.write_journal("g", "t")
    core.settle()
    again = Core(core.copied())
    again.load_all()
    assert again.counters("t", "c")["depth"] == 1
    for each in (again, core):
        each.close()
