"""The plan and progress of a publishing job, in a file that the next run reads.

A replay runs in rounds, each for one part of a log. The tasks of a round and the order of its rows
depend only on the seqs. The rows are published under the name of the round, so nsqds recognize the
chunks that an interrupted round has published. A round that is recorded as done does not run again.
"""

import fcntl
import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsqcy.errors import UsageError
from nsqcy.pipeline import state_files
from nsqcy.pipeline.rows import Part, pieces
from nsqcy.pipeline.state_files import Damaged as Damaged

VERSION = 1

Asked = dict[str, Any]  # the arguments, as JSON


class Busy(Exception):
    """Another run of the same replay is active."""


@dataclass(frozen=True)
class Plan:
    """Progress: `done` rounds have ended, and have published `rows` rows."""

    name: str
    asked: Asked
    nsqds: tuple[str, ...]  # destinations; a retried round uses the same ones
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
        """Return the plan after one more round."""
        return replace(self, done=self.done + 1, rows=self.rows + rows)


def new_name() -> str:
    """Return a new name, so that a repeated replay publishes the messages again."""
    return f"replay-{uuid.uuid4().hex[:16]}"


def default_path(job: str, to: str, asked: Asked) -> Path:
    """Return the default path of the state file; its name contains a hash of the request."""
    text = json.dumps(asked, sort_keys=True)
    return Path(f"{job}-{to}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}.json")


def load(path: Path, asked: Asked) -> Plan | None:
    """Read the existing plan. Raises Damaged, and UsageError if it belongs to a different
    replay."""
    what = "a replay plan"
    try:
        found = state_files.read_json(path, what, VERSION)
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
    except FileNotFoundError:
        return None
    except (KeyError, TypeError):
        raise Damaged(f"{path} is not {what}") from None
    for name in sorted(plan.asked.keys() | asked.keys()):
        if plan.asked.get(name) != asked.get(name):
            raise UsageError(
                f"{path} belongs to a replay with --{name} {plan.asked.get(name)!r}; "
                f"this replay has {asked.get(name)!r}: choose a different --state"
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
    state_files.write_json(path, found)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file, for one run at a time. Raises Busy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another run is using {path}") from None
        yield
