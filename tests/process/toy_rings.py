"""A stand-in for nsqcy.ipc.ring: the slots alone, in Python."""

import mmap
import struct
from typing import NamedTuple

_SLOT = struct.Struct("<QQQQQQ")


class SlotView(NamedTuple):
    pid: int
    generation: int
    beat: int
    state: int
    busy: int
    connections: int


def map_size(workers):
    return 4096


def format(buffer, workers):
    pass


class Shared:
    def __init__(self, memfd, workers):
        self.workers = workers
        self._map = mmap.mmap(memfd, 4096)

    def view(self, worker):
        return SlotView(*_SLOT.unpack_from(self._map, worker * 64))

    def _put(self, worker, **values):
        view = self.view(worker)._replace(**values)
        _SLOT.pack_into(self._map, worker * 64, *view)

    def enter(self, worker, pid, state):
        self._put(worker, pid=pid, state=state)

    def beat(self, worker, now, busy, connections):
        self._put(worker, beat=now, busy=busy, connections=connections)

    def reset(self, worker):
        generation = self.view(worker).generation + 1
        self._put(worker, pid=0, generation=generation, beat=0, state=0, busy=0, connections=0)
        return generation
