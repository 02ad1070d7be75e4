"""How the keys of a cluster in etcd are read."""

import json

from nsqcy.etcd.messages import KeyValue
from nsqcy.nsqd.copies.registry import decoded, prefix_of


def session(name: str, port: int, revision: int) -> KeyValue:
    value = {"node": "n.0", "machine": "n", "address": f"127.0.0.1:{port}"}
    return KeyValue(f"{prefix_of('c')}sessions/{name}", json.dumps(value).encode(), revision)


def test_the_latest_session_of_a_node_comes_last() -> None:
    """A killed process leaves its session, with an old address, until its lease ends."""
    found = [session("a", 2, 9), session("z", 1, 5)]
    for keys in (found, found[::-1]):
        sessions = decoded(prefix_of("c"), keys).sessions
        assert [each.address for each in sessions] == ["127.0.0.1:1", "127.0.0.1:2"]
