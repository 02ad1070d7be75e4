# A channel's cursor over the window of its topic, and the records that it skips.
from libc.stdint cimport uint32_t, uint64_t

from nsqcy.storage.block cimport LOADING, Block
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport Cursor, Hole, RecordWindow


ctypedef struct ChannelCursor:
    void *window                # RecordWindow; borrowed from the channel
    Cursor at
    uint64_t address            # seqs of records that are only for this channel
    uint64_t skipped            # records at or after the cursor that it will skip
    Hole *finished              # ranges at or after the cursor that it skips
    uint32_t finished_count
    uint64_t replay_end         # earlier records with a delay are not deferred again
    uint64_t carried            # messages from before a restart


cdef uint64_t cursor_ahead(const ChannelCursor *cursor) noexcept
cdef uint64_t cursor_surplus(const ChannelCursor *cursor) noexcept
cdef Record *cursor_find(ChannelCursor *cursor) except? NULL
cdef int cursor_add_finished(ChannelCursor *cursor, uint64_t start, uint64_t end) except -1
cdef bint cursor_passes(const ChannelCursor *cursor, const Record *record) noexcept
cdef void cursor_step_over(ChannelCursor *cursor, Record *record) noexcept


cdef inline Record *cursor_record(ChannelCursor *cursor) except? NULL:
    """Return the next record; NULL if there is none or its block must be loaded first."""
    cdef const Cursor *at = &cursor.at
    cdef Block *block = at.block
    cdef Record *record
    if (block != NULL and 0 < at.offset < block.size and block.data != NULL
            and not block.flags & LOADING and cursor.finished_count == 0
            and at.seq < (<RecordWindow>cursor.window).fanout.seq
            and (<RecordWindow>cursor.window).hole_count == 0):
        # In the middle of a block, only a gap is possible.
        record = <Record *>(block.data + at.offset)
        if record.seq == at.seq:
            return record
    return cursor_find(cursor)


cdef inline void cursor_step(ChannelCursor *cursor, const Record *record) noexcept:
    cursor.at.offset += record.length
    cursor.at.seq = record.seq + 1
