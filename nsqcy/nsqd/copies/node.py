"""A worker's identity among the nodes of a cluster, stored next to its copies.

An empty disk makes a new node. A node's file contains the names of its processes. This reveals a
disk that has been replaced with an older one: the registry then has a name that is not in the file.
"""

import json
import secrets
from pathlib import Path
from typing import Any

from nsqcy.errors import StartError
from nsqcy.logging.types import Lines
from nsqcy.storage import state_file
from nsqcy.storage.state_file import StateFile, parse_object


class Node:
    """A worker's node, for the lifetime of its process. The methods block."""

    def __init__(self, root: Path, machine: str, worker: int, boot: str, log: Lines) -> None:
        """
        root: directory for all workers' copies
        machine: see `machine_id`
        boot: id of the machine's boot

        Raises OSError.
        """
        self.boot = boot
        self.machine = machine
        self.name = f"{self.machine}.{worker}"
        self.process = f"{self.name}.{secrets.token_hex(4)}"
        self._file = StateFile(str(root), f"node.{worker}.json")
        found = self._file.look(parse_object)
        state_file.report(found, log)
        self.names, self.revision = _names(found.value or {})
        self._saved = self.revision
        self.names.append(self.process)
        self._save()

    def registered(self) -> None:
        """Forget all earlier processes, because this one is now in the registry."""
        self.names = [self.process]
        self._save()

    def saw(self, revision: int) -> None:
        """Note a revision of the registry, which the next save stores."""
        self.revision = max(self.revision, revision)

    def save_revision(self) -> None:
        """Store the latest revision: a group has changed."""
        if self.revision > self._saved:
            self._save()

    def _save(self) -> None:
        content = {"processes": self.names, "revision": self.revision}
        _write(self._file, content)
        self._saved = self.revision


def machine_id(root: Path, log: Lines) -> str:
    """Return the id of a data path, which is created at the first startup. No worker may be
    running.

    root: directory for all workers' copies

    Raises StartError if no version of the file is good, and OSError.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = StateFile(str(root), "machine.json")
    found = file.look(_parse_machine)
    state_file.report(found, log)
    if found.value is None and found.faults:
        raise StartError(
            f"{found.faults[0].text}: restore it, or remove it and {file.previous} to make "
            "this a new node"
        )
    machine = found.value or secrets.token_hex(8)
    if found.path != file.path:
        # The file never changes, so the version before it is its copy.
        _write(file, {"id": machine})
        _write(file, {"id": machine})
    return machine


def _parse_machine(content: bytes) -> str:
    machine = parse_object(content).get("id")
    if not isinstance(machine, str):
        raise ValueError("it has no id")
    return machine


def _names(found: dict[str, Any]) -> tuple[list[str], int]:
    """Return the names of processes, and the latest revision of the registry."""
    names, revision = found.get("processes"), found.get("revision")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []  # the registry has a name that is not here: no copy counts as complete
    return names, revision if isinstance(revision, int) else 0


def forget_revision(root: Path) -> None:
    """Accept an older registry at the next start. Blocks; raises OSError.

    root: directory for all workers' copies; the workers must not be running
    """
    for path in root.glob("node.*.json"):
        file = StateFile(str(root), path.name)
        _write(file, (file.look(parse_object).value or {}) | {"revision": 0})


def _write(file: StateFile, content: dict[str, Any]) -> None:
    file.write(state_file.signed(json.dumps(content).encode()))
