# A topic's log: writes to it, what it keeps, and who reads it.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.checkpoint cimport Checkpoints
from nsqcy.broker.compaction cimport Compaction
from nsqcy.broker.log_fetch cimport LogRead, OpenReads
from nsqcy.storage.block cimport Block
from nsqcy.storage.record_window cimport Cursor


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


cdef class TopicLog(Checkpoints):
    cdef uint64_t writes                # pending
    cdef uint64_t pending_writes        # pending and gated
    cdef uint64_t stable                # all available records before it are on disk
    cdef bint rolling                   # the next file begins when pending writes end
    cdef int64_t unreadable_since       # wall clock
    cdef int64_t read_pause             # until failed reads are tried again; 0: none has failed
    cdef int64_t read_due               # when they are
    cdef Compaction compaction          # of stragglers; None before the first one
    cdef bint retains                   # the log keeps records that every channel has finished
    cdef uint64_t held_bytes            # between `kept` and `outdated`: kept only for named cursors
    cdef uint64_t log_first             # first record of this process's log
    cdef OpenReads reads                # None before the first one
    cdef bint hurried                   # write memory-only records before the next tick

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
    cdef int compact_more(self, int budget) except? -1
    cdef int compact_now(self) except -1
    cdef int finish_compaction(self) except -1
    cdef void end_compaction(self) noexcept

    cdef int set_retention(self, int64_t time, uint64_t size) except -1
    cdef int update_retains(self) except -1
    cdef void keep_all(self) noexcept
    cdef int retain(self) except -1
    cdef int drop_outdated(self) except -1
    cdef int drop_unread(self) except -1
    cdef void move_past(self, Cursor *keeper, Block *block) noexcept
    cdef bint is_outdated(self, Block *block, uint64_t held) noexcept
    cdef void cool(self) noexcept
    cdef void date_blocks(self) noexcept
    cdef int expire_cursors(self) except -1
    cdef uint64_t held_seq(self) except? 0
    cdef int journal_cursor(self, cursor, bint deleted, done) except -1

    cdef uint64_t stable_seq(self) except? 0
    cdef list logs(self)
    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end)
    cdef int64_t time_of(self, uint64_t seq) except? 0
    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after)
    cdef int answer_polls(self) except -1
    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time)
    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t maximum, uint32_t columns)
    cdef LogRead begin_read(self, LogRead read)

    cdef inline bint has_polls(self) noexcept:
        return self.reads is not None and self.reads.polls != 0
