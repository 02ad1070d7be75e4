"""A worker's identity among the nodes of a cluster, stored next to its copies.

A process with an empty disk becomes a new node. A node's file contains the names of its processes.
This reveals a disk that has been replaced with an older version: the registry then has a name
that is not in the file. The file also contains the registry's identity, and the values of the
node's groups, so that a different or an older registry is detected, and the values can be restored
(`nsqcy.copies.recall`).
"""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from nsqcy.copies.identity import Identity, Memory
from nsqcy.copies.recall import Known
from nsqcy.copies.values import (
    InvalidValue,
    decode_identity,
    encode_identity,
    known_as_json,
    known_from_json,
)
from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.storage import state_file
from nsqcy.storage.state_file import StateFile, parse_object

FLUSH_LIMIT = 2.0  # maximum seconds to wait for the disk


class Node:
    """A worker's node, for the lifetime of its process.

    A thread writes the file, always with the latest content, so that changes share a write. Call
    `flush` before any action that requires the content to be in the file.

    If the disk cannot be written, the process still follows the registry: it hands over its groups,
    and acknowledges nothing. The file is written again later.
    """

    def __init__(
        self, root: Path, home: Path, machine: str, worker: int, boot: str, log: Lines
    ) -> None:
        """
        root: directory for all workers' copies
        home: directory for this worker's copies, which is created before the file is written
        machine: see `machine_id`
        boot: id of the machine's boot

        Raises OSError if the file cannot be read.
        """
        self._home = home
        self.boot = boot
        self.machine = machine
        self.name = f"{self.machine}.{worker}"
        self.process = f"{self.name}.{secrets.token_hex(4)}"
        self._file = StateFile(str(root), f"node.{worker}.json")
        stored = self._file.look(parse_object)
        state_file.report(stored, log)
        for fault in stored.faults:
            if fault.is_unreadable:
                raise OSError(fault.text)  # the file may be intact, and would be replaced
        found = stored.value or {}
        self.names = _names(found)
        self.revision = _integer(found, "revision")
        self.identity = _identity(found)
        self.mark = _integer(found, "mark")
        """The node's mark in the registry."""
        self.is_repaired = found.get("repaired") is True
        self.since: int | None = 0 if stored.value is None else found.get("since")
        """The node remembers all of its groups' values from this generation on; None if it has not
        used another registry since it lost some. Older versions do not store values."""
        self.known: Mapping[str, Known] = {}
        self._is_damaged = bool(stored.faults)
        try:
            self.known = known_from_json(found.get("groups", {}))
        except InvalidValue:
            self._is_damaged = True
        if self._is_damaged:
            self.since = None
        self._saved = self.revision
        self.names.append(self.process)
        self._log = log
        self.is_named = False
        """Whether the file contains the name of this process. Until it does, the registry must not
        contain the name: the next process would mistake the disk for an older one."""
        self._is_failing = False
        self._wanted = self._written = 0
        """Numbers of the latest content, and of the latest content in the file."""
        self._pool = ThreadPool(1)
        self._writer: gevent.Greenlet | None = None
        self._save()

    @property
    def is_saved(self) -> bool:
        """Whether the file is complete; a node on a failing disk continues without it."""
        return self._written == self._wanted

    @property
    def is_idle(self) -> bool:
        """Whether no thread writes the file."""
        return self._writer is None

    def flush(self) -> bool:
        """Wait briefly until the file contains the current state; return whether it does."""
        wanted = self._wanted
        if self._writer is not None:
            self._writer.join(FLUSH_LIMIT)
        return self._written >= wanted

    def close(self) -> None:
        """Write the remaining changes. Waits up to FLUSH_LIMIT."""
        if self.flush():
            self._pool.kill()  # otherwise, kill() would wait for a hung disk

    def memory(self) -> Memory:
        """Return the disk's information about the registry."""
        generation = max((each.stamp[0] for each in self.known.values()), default=0)
        return Memory(self.identity, self.revision, self.remembered(), self.mark, generation)

    def registered(self) -> None:
        """Remove all earlier processes, because this one is now in the registry."""
        self.names = [self.process]
        self._save()

    def saw(self, revision: int) -> None:
        """Record a revision of the registry, which the next save stores."""
        self.revision = max(self.revision, revision)

    def save_revision(self) -> None:
        """Store the latest revision: a group has changed."""
        if self.revision > self._saved:
            self._save()

    # -- the registry

    def adopt(self, identity: Identity) -> None:
        """Use another registry."""
        if self.since is None:
            # A registry that an older version has used contains all of this node's groups.
            self.since = identity.generation + self._is_damaged
        self.identity = identity
        self.revision = self.mark = 0
        self._save()

    def remember(self, known: Mapping[str, Known]) -> None:
        self.known = dict(known)
        self._save()

    def remembered(self) -> dict[str, int]:
        """Return the revision of each remembered value of the current registry, by group."""
        generation = self.identity.generation if self.identity is not None else 0
        return {
            group_id: revision
            for group_id, ((its, revision), _) in self.known.items()
            if its == generation
        }

    def marked(self, revision: int) -> None:
        """Record the node's mark in the registry."""
        self.mark = revision
        self._save()

    def repaired(self) -> None:
        """Record that all groups are registered again."""
        self.is_repaired = False
        self._save()

    def retry(self) -> None:
        """Retry the failed write."""
        if not self.is_saved and self._writer is None:
            self._save()

    def _save(self) -> None:
        self._saved = self.revision
        self._wanted += 1
        if self._writer is None:
            self._writer = gevent.spawn(self._write_all)

    def _write_all(self) -> None:
        """Write until the file has the latest content, or cannot be written."""
        error: OSError | None = None
        while error is None and not self.is_saved:
            number = self._wanted
            error = self._pool.apply(_outcome, (self._file, self._home, self._content()))
            if error is None:
                self._written = number
                self.is_named = True
        self._writer = None
        if error is not None and not self._is_failing:
            reason = (error.strerror or str(error)).lower()
            events.copies_node_not_saved(self._log, path=self._file.path, error=reason)
        self._is_failing = error is not None

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "processes": self.names,
            "revision": self.revision,
            "mark": self.mark,
            "repaired": self.is_repaired,
            "since": self.since,
            "groups": known_as_json(self.known),
        }
        if self.identity is not None:
            content["registry"] = json.loads(encode_identity(self.identity))
        return content


def machine_id(root: Path, log: Lines) -> str:
    """Return the id of a data path, which is created at the first startup. No worker may be
    running.

    root: directory for all workers' copies

    Raises StartError if no version of the file is intact, and OSError.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = StateFile(str(root), "machine.json")
    found = file.look(_parse_machine)
    state_file.report(found, log)
    if found.value is None and found.faults:
        raise StartError(
            f"{found.faults[0].text}: restore the file, or remove it and {file.previous} to make "
            "this a new node"
        )
    machine = found.value or secrets.token_hex(8)
    if found.path != file.path:
        # The file never changes, so its previous version is a copy of it.
        try:
            _write(file, {"id": machine})
            _write(file, {"id": machine})
        except OSError:
            if found.value is None:
                raise  # a new machine must not forget its id
    return machine


def memberships(root: Path) -> list[tuple[int, str]]:
    """Return the worker and the id of each group that the nodes of a stopped nsqd are members of,
    as far as their files are intact. Blocks.

    root: directory for all workers' copies
    """
    machine = StateFile(str(root), "machine.json").look(_parse_machine).value
    found = []
    for path in sorted(root.glob("node.*.json")):
        worker = path.name.split(".")[1]
        stored = StateFile(str(root), path.name).look(parse_object).value or {}
        try:
            known = known_from_json(stored.get("groups", {}))
        except InvalidValue:
            continue
        for group_id, (_, group) in known.items():
            if f"{machine}.{worker}" in group.members and not group.done:
                found.append((int(worker), group_id))
    return found


def _parse_machine(content: bytes) -> str:
    machine = parse_object(content).get("id")
    if not isinstance(machine, str):
        raise ValueError("it has no id")
    return machine


def _names(found: Mapping[str, Any]) -> list[str]:
    """Return the names of processes."""
    names = found.get("processes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []  # the registry has a name that the file lacks, so no copy is complete
    return names


def _identity(found: Mapping[str, Any]) -> Identity | None:
    if "registry" not in found:
        return None
    try:
        return decode_identity(json.dumps(found["registry"]).encode())
    except InvalidValue:
        return None


def _integer(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) else 0


def accept_registry(root: Path) -> bool:
    """Accept any registry at the next start, and restore the remembered groups in it. Return
    whether the nodes of all workers remember their groups. Blocks; raises OSError.

    root: directory for all workers' copies; the workers must not be running
    """
    remember = True
    for path in root.glob("node.*.json"):
        file = StateFile(str(root), path.name)
        found = file.look(parse_object).value or {}
        remember = remember and "groups" in found
        found.pop("registry", None)
        _write(file, found | {"revision": 0, "mark": 0, "repaired": True})
    return remember


def _outcome(file: StateFile, home: Path, content: dict[str, Any]) -> OSError | None:
    """Write the file in a thread. Return the error, because the pool logs exceptions raised
    there."""
    try:
        home.mkdir(exist_ok=True, mode=0o700)
        _write(file, content)
    except OSError as error:
        return error
    return None


def _write(file: StateFile, content: dict[str, Any]) -> None:
    file.write(state_file.signed(json.dumps(content).encode()))
