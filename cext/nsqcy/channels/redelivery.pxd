# The queue of a channel: messages that are due, were requeued or timed out, oldest first.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nsqcy.base.heap cimport heap_remove
from nsqcy.channels.channel_consumers cimport ChannelConsumers
from nsqcy.channels.checkpoint_entries cimport Packing
from nsqcy.storage.block cimport LOADING
from nsqcy.storage.entry cimport Deferred, Entry
from nsqcy.storage.readahead cimport ReadAhead
from nsqcy.storage.record cimport Record


# Position of a walk over a channel's entries that takes many turns. Meanwhile, entries come and go:
# an entry that moves may be missed, or visited twice.
ctypedef struct Walk:
    uint8_t part            # WalkPart
    uint32_t left           # in the timers or the table: slots before this one remain
    Entry *queued           # in the queue: the next entry


cdef enum WalkPart:
    WALK_TIMERS = 0
    WALK_QUEUE = 1
    WALK_TABLE = 2


cdef class Redelivery(ChannelConsumers):
    cdef readonly bint ephemeral
    cdef uint64_t mem_queue_size            # maximum number of messages, from the policy
    cdef Entry *queue_first                 # redelivery, oldest first
    cdef Entry *queue_last
    cdef readonly uint64_t queued
    cdef ReadAhead prefetch                 # of the queue; None: all its blocks are in memory
    cdef readonly uint64_t dropped_count    # dropped messages of an ephemeral channel
    cdef Walk place                         # position of the compaction in progress
    cdef Entry *unpacked                    # its next entry in the queue

    cdef uint64_t depth(self) noexcept
    cdef uint64_t held(self) noexcept
    cdef int queue_record(self, const Entry *addressed) except -1
    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept
    cdef void unqueue_first(self) noexcept
    cdef bint at_hand(self, const Entry *entry) except -1
    cdef int read_ahead(self) except -1
    cdef Record *record_of(self, const Entry *entry) noexcept
    cdef void begin_walk(self) noexcept
    cdef bint walk(self, Deferred **entry) noexcept
    cdef void begin_packing(self, Packing packing) noexcept
    cdef int pack_more(self, int budget) noexcept
    cdef bint is_packed(self) noexcept

    cdef inline void drop_entry(self, Entry *entry) noexcept:
        self.window.unref(entry.block)
        self.pool.free_entry(entry)

    cdef inline bint queue_is_next(self, const Entry *first) noexcept:
        """Return whether the first message in the queue, if any, precedes the cursor's."""
        return first != NULL and (<size_t>first.in_flight_list <= self.cursor.seq
                                  or self.cursor.seq >= self.window.fanout.seq)

    cdef inline Entry *take_queued(self) except? NULL:
        """Return the first message in the queue; NULL if its record must be read first."""
        cdef Entry *entry = self.queue_first
        if (entry.block.data == NULL or entry.block.flags & LOADING) and not self.at_hand(entry):
            return NULL
        self.unqueue_first()
        return entry

    cdef inline int queue_due(self, Deferred *deferred) except -1:
        """Handle a deferred message that is due: make it an entry at the tail of the queue."""
        cdef Entry *entry = self.pool.new_entry()
        cdef uint32_t size = deferred.node.tag
        heap_remove(&self.timers, &deferred.node)
        self.deferred_count -= 1
        (<Deferred *>entry)[0] = deferred[0]
        self.pool.free_deferred(&self.pages, deferred)
        self.queue_entry(entry, size)
        return 0
