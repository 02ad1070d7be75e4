"""What a job that publishes has planned and done: a file beside it, which a repeated run reads.

A replay goes in rounds, each a part of one log. Its rows are in tasks and in an order that depend
on their seqs alone, and are published under a name of the round; so nsqds know again what a round
that was cut short has published. A round that is noted as done is not begun again.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsqcy.errors import UsageError
from nsqcy.pipeline.manifests import sync_folder
from nsqcy.pipeline.rows import Part, pieces

VERSION = 1

Asked = dict[str, Any]  # what was asked for, as JSON has it


class Damaged(Exception):
    """A file that is no plan, in one line."""


class Busy(Exception):
    """Another run of the same replay."""


@dataclass(frozen=True)
class Plan:
    """`done` rounds of it are over, with which `rows` were published."""

    name: str
    asked: Asked
    nsqds: tuple[str, ...]  # where to; a round that is repeated has the same
    tasks: int
    round_rows: int
    parts: tuple[Part, ...]
    done: int = 0
    rows: int = 0

    def rounds(self) -> list[Part]:
        return pieces(self.parts, self.round_rows)

    def producer(self, number: int) -> str:
        return f"{self.name}-{number}"

    def after(self, rows: int) -> "Plan":
        """The same, a round later."""
        return replace(self, done=self.done + 1, rows=self.rows + rows)


def new_name() -> str:
    """Nobody has published under it: the same replay, asked for anew, publishes anew."""
    return f"replay-{uuid.uuid4().hex[:16]}"


def default_path(job: str, to: str, asked: Asked) -> Path:
    """The same for the same work."""
    text = json.dumps(asked, sort_keys=True)
    return Path(f"{job}-{to}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}.json")


def load(path: Path, asked: Asked) -> Plan | None:
    """The plan that is there; raises UsageError if it is of something else."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            raise Damaged(f"{path}: version {found['v']!r}, and this nsqcy knows {VERSION}")
        plan = Plan(
            name=found["name"],
            asked=found["asked"],
            nsqds=tuple(found["nsqds"]),
            tasks=found["tasks"],
            round_rows=found["round_rows"],
            parts=tuple(Part(*part) for part in found["parts"]),
            done=found["done"],
            rows=found["rows"],
        )
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{path} is no plan of a replay") from None
    for name in sorted(plan.asked.keys() | asked.keys()):
        if plan.asked.get(name) != asked.get(name):
            raise UsageError(
                f"{path} is of another replay: --{name} was {plan.asked.get(name)!r} and is "
                f"{asked.get(name)!r}; name another --state"
            )
    return plan


def save(path: Path, plan: Plan) -> None:
    found = {
        "v": VERSION,
        "name": plan.name,
        "asked": plan.asked,
        "nsqds": plan.nsqds,
        "tasks": plan.tasks,
        "round_rows": plan.round_rows,
        "parts": plan.parts,
        "done": plan.done,
        "rows": plan.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(json.dumps(found, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One run at a time; raises Busy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another run works on {path}") from None
        yield
