"""How a process reads and changes the keys of its cluster in etcd."""

import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.ports import Claim
from nsqcy.copies.recall import Known, Statement
from nsqcy.copies.values import encode_identity
from nsqcy.etcd.messages import Change, EtcdError, Expected, KeyValue, Put
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.registry import Registry, Session, decoded, prefix_of
from support.gevent_hub import Lines, wait_until

PREFIX = prefix_of("c")
IDENTITY = PREFIX + "identity"
GROUP = Group("g", 1, "m.0", "m.0.1", ("m.0",), 2, 2, "n", "os")
BUDGET = 30.0  # seconds that the calls of one test may take

# Arguments for each method that changes keys.
CHANGES: dict[str, tuple[Any, ...]] = {
    "propose": (GROUP, GROUP.unchanged("o"), "m.0.2"),
    "restore": (GROUP,),
    "forget": (GROUP,),
    "claim": ("g", Claim("n", 1, 5)),
    "state": (Statement({"g": Known((1, 7), GROUP)}),),
    "end_session": ("m.0.2",),
}


def session(name: str, port: int, revision: int) -> KeyValue:
    value = {"node": "n.0", "machine": "n", "address": f"127.0.0.1:{port}"}
    return KeyValue(f"{PREFIX}sessions/{name}", json.dumps(value).encode(), revision)


def test_the_latest_session_of_a_node_comes_last() -> None:
    """A killed process leaves its session, with an old address, until its lease ends."""
    found = [session("a", 2, 9), session("z", 1, 5)]
    for keys in (found, found[::-1]):
        sessions = decoded(PREFIX, keys).sessions
        assert [each.address for each in sessions] == ["127.0.0.1:1", "127.0.0.1:2"]


class Watch:
    """A watch that reports changes when the test has some."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._changes: list[Change] = []
        self._is_closed = False

    def report(self, key: str) -> None:
        with self._changed:
            self._changes.append(Change(key, None, 0))
            self._changed.notify()

    def read(self) -> list[Change]:
        with self._changed:
            self._changed.wait_for(lambda: self._changes or self._is_closed, BUDGET)
            if self._is_closed:
                raise EtcdError("watch ended")
            found, self._changes = self._changes, []
            return found

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()


class Etcd:
    """The keys of a cluster in this process. Its methods are called in threads."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyValue] = {}
        self.revision = 0
        self.conditions: dict[str, list[Sequence[Expected]]] = {}
        """The conditions of all transactions, by the key that they change."""
        self.watches: list[Watch] = []
        self.has_lease = True
        self.granting: Callable[[], object] = lambda: None

    def read(self, _prefix: str) -> tuple[list[KeyValue], int]:
        return list(self.keys.values()), self.revision

    def transact(
        self, expected: Sequence[Expected], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> bool:
        for changed in (*(put.key for put in puts), *deletes):
            self.conditions.setdefault(changed, []).append(expected)
        if any(self.value(each.key) != each.value for each in expected):
            return False
        self.revision += 1
        for put in puts:
            self.keys[put.key] = KeyValue(put.key, put.value, self.revision)
        for key in deletes:
            self.keys.pop(key, None)
        return True

    def value(self, key: str) -> bytes | None:
        found = self.keys.get(key)
        return found.value if found is not None else None

    def watch(self, _prefix: str, _revision: int) -> Watch:
        self.watches.append(Watch())
        return self.watches[-1]

    def grant(self, _seconds: int) -> int:
        self.granting()
        self.has_lease = True
        return 1

    def keep_alive(self, _lease: int) -> bool:
        return self.has_lease

    def has(self, kind: str) -> bool:
        return any(key.startswith(f"{PREFIX}{kind}/") for key in self.keys)


class Reader:
    """Ignores the values, but records which registry is in use when they arrive."""

    def __init__(self) -> None:
        self.generation = 0
        """Generation of the registry; 0 if there is none."""
        self.read_in: list[int] = []
        """The generation when values arrived."""
        self.left = threading.Event()

    def registry_entered(self, generation: int) -> None:
        self.generation = generation

    def registry_left(self) -> None:
        self.generation = 0
        self.left.set()

    def registry_read(self, _contents: object) -> None:
        self.read_in.append(self.generation)

    def group_changed(self, _group: object, _revision: int) -> bool:
        return False

    def claimed(self, *_: object) -> None:
        pass

    def knows(self, *_: object) -> bool:
        return False

    def registered(self, *, is_current: bool) -> None:
        pass


class Process:
    """A process that has registered in its own etcd."""

    def __init__(self, path: Path) -> None:
        self.etcd: Any = Etcd()
        self.reader = Reader()
        self.node = Node(path, path / "0", "m", 0, "boot", Lines())
        session = Session(self.node.process, self.node.name, "m", "127.0.0.1:9")
        self.registry = Registry(self.etcd, "c", session, self.node, BUDGET, self.reader, Lines())
        wait_until(lambda: self.etcd.watches)

    def replace(self, generation: int) -> None:
        """Give the registry another identity, and report the change."""
        value = encode_identity(Identity(f"r{generation}", generation, (self._identity().id,)))
        self.etcd.transact([], [Put(IDENTITY, value)])
        self.etcd.watches[-1].report(IDENTITY)

    def _identity(self) -> Identity:
        identity = decoded(PREFIX, self.etcd.keys.values()).identity
        assert identity is not None
        return identity

    def close(self) -> None:
        self.registry.close()
        self.node.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.close()


def test_every_transaction_requires_the_registrys_identity(process: Process) -> None:
    methods = inspect.getmembers(Registry, inspect.isfunction)
    changes = {name for name, _ in methods if name[0] != "_"} - {"close", "renew"}
    assert changes == CHANGES.keys()
    etcd, node = process.etcd, process.node
    node.remember({"g": Known((1, etcd.revision), GROUP)})
    for name, arguments in CHANGES.items():
        getattr(process.registry, name)(*arguments)
    keys = {
        "identity",
        f"processes/{node.name}",
        f"sessions/{node.process}",
        "sessions/m.0.2",
        "groups/g",
        f"claims/g/{node.name}",
        f"recalls/{node.name}",
        f"marks/{node.name}",
    }
    wait_until(lambda: etcd.conditions.keys() >= {PREFIX + each for each in keys})
    wait_until(lambda: len(etcd.conditions[PREFIX + "groups/g"]) == 3)
    assert etcd.conditions.keys() == {PREFIX + each for each in keys}
    identity = etcd.value(IDENTITY)
    assert etcd.conditions.pop(IDENTITY) == [[Expected(IDENTITY, None)]]
    for key, transactions in etcd.conditions.items():
        for each in transactions:
            assert each[0] == Expected(IDENTITY, identity), key


def test_the_registry_may_be_replaced_while_a_lease_is_granted(process: Process) -> None:
    etcd, reader = process.etcd, process.reader

    def replace() -> None:
        etcd.granting = lambda: None
        process.replace(2)
        assert reader.left.wait(BUDGET)

    etcd.granting = replace
    etcd.has_lease = False
    process.registry.end_session("m.0.2")  # the registry reads everything again after the answer
    wait_until(lambda: 2 in reader.read_in)
    assert set(reader.read_in) == {1, 2}
