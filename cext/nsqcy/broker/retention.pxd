# Retention: the records in a topic's log that are kept for later readers.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.broker.overflow cimport OverflowLog
from nsqcy.storage.block cimport Block
from nsqcy.storage.record_window cimport Cursor


cdef class Retention(OverflowLog):
    cdef int64_t retention_time         # ns; 0: no time limit
    cdef uint64_t retention_bytes       # 0: no size limit
    cdef bint retains                   # the log keeps records that every channel has finished
    cdef object named                   # nsqcy.broker.named_cursors.NamedCursors
    cdef uint64_t held_bytes            # between `kept` and `outdated`: kept only for named cursors

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
    cdef uint64_t first_kept(self) noexcept
    cdef int expire_cursors(self) except -1
    cdef uint64_t held_seq(self) except? 0
    cdef int journal_cursor(self, cursor, bint deleted, done) except -1
