# Rebuilding a topic from its files.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.checkpoint_entries cimport PackedEntry
from nsqcy.broker.topic cimport Topic
from nsqcy.storage.log_recovery cimport Recovered
from nsqcy.storage.block cimport Block


# Location of a recovered block.
ctypedef struct Place:
    uint64_t segment
    uint64_t offset
    Block *block
    bint has_delayed
    bint has_produced


cdef class Recovery:
    """State that exists only while a topic is restored."""
    cdef Topic topic
    cdef Place *places                  # blocks, ordered by location
    cdef size_t place_count

    cdef int restore(self, channels) except -1
    cdef object restore_state(self, Recovered found, dict names)
    cdef int64_t restore_channel(self, Channel channel, saved) except? -1
    cdef bint is_whole(self, found, state) except -1
    cdef int name_logs(self, Recovered found, state) except -1
    cdef list stretches(self)
    cdef bint sync_found(self) except -1
    cdef int restore_blocks(self, Recovered found, uint64_t minimum) except -1
    cdef Block *block_at(self, uint64_t segment, uint64_t offset, uint32_t *within) noexcept
    cdef Block *restored_block(self, const PackedEntry *packed, uint32_t *within) noexcept
    cdef int find_missing(self, uint64_t seq, told) except -1
    cdef int release_unneeded(self) except -1
    cdef int load_now(self, Block *block) except -1
    cdef int finish_loads(self) except -1
    cdef int restore_entries(self, Channel channel, saved) except -1
    cdef int restore_entry(self, Channel channel, const PackedEntry *packed, uint64_t id,
                           Block *block, uint32_t within) except -1
    cdef int restore_transfer(self, Channel channel, const PackedEntry *packed, Block *block,
                              uint32_t within) except -1
    cdef int64_t restore_finished(self, Channel channel, finished) except -1
    cdef bint was_delayed(self, uint64_t seq) except -1
    cdef int restore_delayed(self, bytes entries) except -1
    cdef int restore_new_delays(self, uint64_t seq, bint fanned_out) except -1
    cdef uint64_t first_unjournaled(self, Recovered found, uint64_t seq) noexcept
    cdef int restore_produced(self, state, uint64_t seq) except -1
    cdef int find_produced(self, Block *block, uint64_t seq) except -1
    cdef int restore_survivors(self) except -1
    cdef int queue_survivors(self, Channel channel, Block *block) except -1
    cdef int defer_survivor(self, Channel channel, Block *block, uint32_t at) except -1


cdef int restore(Topic topic, channels) except -1
