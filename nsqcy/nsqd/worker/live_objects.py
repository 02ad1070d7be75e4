"""Live objects in a process's compiled modules: the counters of a debug build.

A debug build's worker logs them in one line, on SIGUSR1 and on a clean exit. Tests check that line:
every object that is counted on creation must be subtracted when it is freed. A release build counts
nothing.
"""

import gc
import json
import signal

import gevent

from nsqcy.channels import core as channels
from nsqcy.ipc import core as ipc
from nsqcy.logging.types import Lines
from nsqcy.protocol import core as protocol
from nsqcy.protocol import wire
from nsqcy.protocol.core import SessionManager
from nsqcy.storage import core as storage
from nsqcy.storage.core import BlockPool


def count(manager: SessionManager, pool: BlockPool) -> dict[str, int]:
    """Return the live objects by kind, after a garbage collection."""
    gc.collect()
    shard = manager.shard
    found = {
        "topics": len(shard.topics),
        "blocks": pool.blocks,
        "entries": pool.entries,
        "deferred": pool.deferred,
        "resident_bytes": pool.resident_bytes,
        "input_bytes": manager.input_bytes,
    }
    for module in (channels, storage, ipc, protocol, wire):
        found |= module.live()
    if shard.io is not None:
        found |= shard.io.live()
    return found


class LiveObjects:
    """Counts live objects on request. `name` names the process."""

    def __init__(self, name: str, manager: SessionManager, pool: BlockPool, log: Lines) -> None:
        self._name = name
        self._manager = manager
        self._pool = pool
        self._log = log
        self._watcher = gevent.get_hub().loop.signal(signal.SIGUSR1)
        self._watcher.start(self.tell)

    def tell(self) -> None:
        """Log the counts as one line of JSON."""
        self._log.info(f"{self._name}: alive: {json.dumps(count(self._manager, self._pool))}")
