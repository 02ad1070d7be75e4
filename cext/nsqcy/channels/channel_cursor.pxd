# A channel's cursor over the window of its topic, and the records that it skips.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nsqcy.storage.block cimport LOADING, Block
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport Cursor, Hole, RecordWindow


cdef class ChannelCursor:
    cdef RecordWindow window
    cdef BlockPool pool
    cdef uint64_t address                   # seqs of records that are only for this channel
    cdef uint8_t round                      # number of the latest checkpoint; see Deferral.pack()
    cdef Cursor cursor
    cdef uint64_t skipped                   # records at or after the cursor that it will skip
    cdef Hole *finished                     # ranges at or after the cursor that it skips
    cdef uint32_t finished_count
    cdef uint64_t replay_end                # earlier records with a delay are not deferred again
    cdef readonly uint64_t carried          # messages from before a restart

    cdef uint64_t ahead(self) noexcept
    cdef uint64_t surplus(self) noexcept
    cdef Record *find_record(self) except? NULL
    cdef int add_finished(self, uint64_t start, uint64_t end) except -1
    cdef void skip_holes(self) noexcept
    cdef void skip_ranges(self, const Hole *ranges, uint32_t count) noexcept
    cdef void skip_missing(self, uint64_t seq, const Hole *ranges, uint32_t count) noexcept
    cdef bint passes(self, const Record *record) noexcept
    cdef void step_over(self, Record *record) noexcept

    cdef inline Record *record_at_cursor(self) except? NULL:
        """Return the next record; NULL if there is none or its block must be loaded first."""
        cdef const Cursor *cursor = &self.cursor
        cdef Block *block = cursor.block
        cdef Record *record
        if (block != NULL and 0 < cursor.offset < block.size and block.data != NULL
                and not block.flags & LOADING and self.finished_count == 0
                and cursor.seq < self.window.fanout.seq and self.window.hole_count == 0):
            # In the middle of a block, only a gap is possible.
            record = <Record *>(block.data + cursor.offset)
            if record.seq == cursor.seq:
                return record
        return self.find_record()

    cdef inline void window_step(self, Record *record) noexcept:
        self.cursor.offset += record.length
        self.cursor.seq = record.seq + 1

    cdef inline Entry *entry_at_cursor(self, Record *record) except NULL:
        cdef Entry *entry = self.pool.new_entry()
        entry.block = self.cursor.block
        entry.offset = self.cursor.offset
        entry.seq = record.seq
        entry.id = record.id
        entry.attempts = 0
        entry.round = self.round
        self.window.ref(entry.block)
        return entry
