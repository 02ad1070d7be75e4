"""Spark's micro-batch engine from a source's view: its order of calls, as traced, and its state
across a crash. Offsets are passed as JSON texts, readers and tasks pickled, as in Spark."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle

from nsqcy.spark.source import NsqStreamReader


class Crash(Exception):
    """The driver has ended."""


@dataclass
class Checkpoint:
    """State on disk. The sink has each batch once and replaces earlier attempts at it."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]


class Engine:
    """One run of a query."""

    def __init__(
        self,
        reader: Callable[[], NsqStreamReader],
        checkpoint: Checkpoint,
        *,
        available_now: bool = False,
    ) -> None:
        self._make = reader
        self.reader = reader()
        self.checkpoint = checkpoint
        self.available_now = available_now
        self.calls: list[str] = []
        if available_now:
            self._call("prepareForTriggerAvailableNow")
        self._limit = self._call("getDefaultReadLimit")
        self._start = ""
        self._resume()

    def close(self) -> None:
        self.reader._opened().close()

    def _call(self, name: str, *args: Any) -> Any:
        self.calls.append(name)
        return getattr(self.reader, name)(*args)

    def _resume(self) -> None:
        disk = self.checkpoint
        if len(disk.offsets) > disk.commits:  # planned, but not known to be written
            number = len(disk.offsets) - 1
            start = disk.offsets[number - 1] if number else self._initial()
            self._run(number, start, disk.offsets[number])
        elif disk.offsets:
            self._start = disk.offsets[-1]

    def _initial(self) -> str:
        return json.dumps(self._call("initialOffset"))

    def trigger(self, crash: str = "") -> bool:
        """Run one trigger; return False if there was nothing to do. `crash` names the stage at
        which to crash: plan, read, commit."""
        disk = self.checkpoint
        start = self._start or self._initial()
        end = json.dumps(self._call("latestOffset", json.loads(start), self._limit))
        if self._start and end == start:
            return False
        if not self._start:
            assert self._initial() == start
        number = len(disk.offsets)
        disk.offsets.append(end)
        if number:
            self._call("commit", json.loads(start))
        if crash == "plan":
            raise Crash
        self._run(number, start, end, crash)
        return True

    def run(self) -> None:
        """Run triggers until there is no more data."""
        while self.trigger():
            pass

    def _run(self, number: int, start: str, end: str, crash: str = "") -> None:
        parts = self._call("partitions", json.loads(start), json.loads(end))
        assert isinstance(parts, list)
        task = cloudpickle.loads(cloudpickle.dumps(self._make().read))
        rows = []
        for part in parts:
            for batch in task(pickle.loads(cloudpickle.dumps(part))):
                batch.validate(full=True)
                rows += batch.to_pylist()
                if crash == "read":
                    raise Crash
        self.checkpoint.sink[number] = rows
        if crash == "commit":
            raise Crash
        self.checkpoint.commits = number + 1
        self._start = end
