# A topic's log writes.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.broker.checkpoint cimport Checkpoints
from nsqcy.broker.compaction cimport Compaction
from nsqcy.broker.durability cimport MEMORY
from nsqcy.broker.pending_acks cimport PendingAcks
from nsqcy.storage.block cimport Block


# A pending write: bytes [start, end) of a block.
cdef struct Write:
    void *topic                 # owned reference
    Block *block
    uint32_t start
    uint32_t end
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    bint gated                  # the records become visible when it ends


cdef class OverflowLog(Checkpoints):
    cdef uint64_t minimum               # min_seq at the end of the last turn
    cdef bint failing                   # a write failed; waiting records are being undone
    cdef str error
    cdef uint64_t writes                # pending
    cdef uint64_t pending_writes        # pending and gated
    cdef uint64_t pending_messages      # appended, not visible yet
    cdef PendingAcks acks               # publishes waiting to become visible
    cdef bint gathering                 # a large batch is being appended: nothing becomes visible
    cdef uint64_t gathered_from         # its first record
    cdef uint64_t stable                # all available records before it are on disk
    cdef bint rolling                   # the next file begins when pending writes end
    cdef int64_t unreadable_since       # wall clock
    cdef int64_t read_pause             # until failed reads are tried again; 0: none has failed
    cdef int64_t read_due               # when they are
    cdef Compaction compaction          # of stragglers; None before the first one

    cdef int write_overflow(self) except -1
    cdef int spill(self) except -1
    cdef int undo_pending(self) except -1
    cdef int write_run(self, Block *block, bint gated, bint at_once=*) except -1
    cdef int write_part(self, Block *block, uint32_t start, uint32_t end, uint64_t first_seq,
                        uint64_t last_seq, uint32_t count, int flags, bint gated) except -1
    cdef int write_all(self, Block *block) except -1
    cdef int write_down(self) except -1
    cdef int on_written(self, Write *write, int error) except -1
    cdef void check_droppable(self, Block *block) noexcept
    cdef void pass_written(self, Block *block) noexcept
    cdef int stable_moved(self, Block *block) except -1
    cdef int on_loaded(self, Block *block) except -1
    cdef int read_failed(self) except -1
    cdef int try_reads(self) except -1
    cdef int compact(self) except -1
    cdef int compact_now(self) except -1
    cdef int finish_compaction(self) except -1
    cdef void end_compaction(self) noexcept
    cdef int log_grew(self) except -1
    cdef int unpublish(self) except -1

    cdef inline bint must_overflow(self) noexcept:
        return (self.gate != MEMORY
                or self.next_seq - self.minimum >= self.mem_queue_size
                or self.pool.resident_bytes > self.pool.budget)
