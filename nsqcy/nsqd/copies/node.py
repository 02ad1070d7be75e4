"""A worker's identity among the nodes of a cluster, stored next to its copies.

An empty disk makes a new node. A node's file contains the names of its processes. This reveals a
disk that has been replaced with an older one: the registry then has a name that is not in the file.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Any

from nsqcy.errors import StartError
from nsqcy.util import files


class Node:
    """A worker's node, for the lifetime of its process. The methods block."""

    def __init__(self, root: Path, machine: str, worker: int, boot: str) -> None:
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
        self._root = root
        self._file = f"node.{worker}.json"
        self.names, self.revision = _names(root / self._file)
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
        files.replace(os.fspath(self._root), self._file, json.dumps(content).encode())
        self._saved = self.revision


def machine_id(root: Path) -> str:
    """Return the id of a data path, which is created at the first startup. No worker may be
    running.

    root: directory for all workers' copies

    Raises StartError if the file is damaged, and OSError.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = root / "machine.json"
    found = _read(path)
    if found is None:
        found = {"id": secrets.token_hex(8)}
        files.replace(os.fspath(root), path.name, json.dumps(found).encode())
    if not isinstance(found.get("id"), str):
        raise StartError(f"{path} is damaged: restore it, or remove it to make this a new node")
    machine: str = found["id"]
    return machine


def _names(path: Path) -> tuple[list[str], int]:
    """Return the names of processes, and the latest revision of the registry."""
    found = _read(path) or {}
    names, revision = found.get("processes"), found.get("revision")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []  # the registry has a name that is not here: no copy counts as complete
    return names, revision if isinstance(revision, int) else 0


def forget_revision(root: Path) -> None:
    """Accept an older registry at the next start. Blocks; raises OSError.

    root: directory for all workers' copies; the workers must not be running
    """
    for path in root.glob("node.*.json"):
        found = _read(path) or {}
        found["revision"] = 0
        files.replace(os.fspath(root), path.name, json.dumps(found).encode())


def _read(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is no file, and an empty object if it is
    damaged."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
