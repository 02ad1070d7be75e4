"""A snapshot of a topic's journal: who is where, and every message that is not finished.

It says what was so when it was begun: of a message that has been finished since it may or may not
speak. It is made over as many turns as it takes, as there may be a million deferred messages; the
channels see to it that none is left out (`Channel.pack`).
"""

from nsqcy.storage import journal
from nsqcy.broker.channel cimport Channel
from nsqcy.storage.log cimport Log
from nsqcy.storage.log_tasks cimport log_done
from nsqcy.broker.checkpoint_entries cimport Packing


cdef class Snapshot:
    def __init__(self, Log log not None, bytes head not None, list channels not None,
                 bint records_wait):
        """
        head: the snapshot but for the entries of the channels
        records_wait: see there
        """
        cdef Channel channel
        self.log = log
        self.channels = channels
        self.deltas = []
        self.records_wait = records_wait
        log.begin_snapshot()
        log.add_to_snapshot(head)
        for channel in channels:
            channel.begin_packing(Packing())

    cdef int step(self, int budget) except -1:
        cdef Channel channel
        while budget > 0 and not self.is_complete():
            channel = <Channel>self.channels[self.packed]
            budget = channel.pack_more(budget)
            self.write_entries(channel)
            self.packed += channel.is_packed()
        return budget

    cdef bint is_complete(self) noexcept:
        return self.packed == len(self.channels)

    cdef int write_entries(self, Channel channel) except -1:
        cdef tuple packed
        if channel.packing.count:
            packed = channel.packing.take()
            self.log.add_to_snapshot(journal.encode_entries(channel.name, packed[0], packed[1]))
        return 0

    cdef int end(self, log_done done, void *arg) except -1:
        """All of them are packed: have it take the place of the journal."""
        cdef Channel channel
        for channel in self.channels:
            if channel.packing.failed:
                self.give_up()
                raise MemoryError("a snapshot of the journal")
            self.write_entries(channel)
            channel.packing = None
        return self.log.end_snapshot(self.deltas, self.records_wait, done, arg)

    cdef int give_up(self) except -1:
        """The journal stays as it was."""
        cdef Channel channel
        for channel in self.channels:
            channel.packing = None
        return self.log.give_up_snapshot()
