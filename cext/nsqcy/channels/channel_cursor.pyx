"""The cursor of a channel: the next record of its topic that is for this channel.

Owns the position in the window, the ranges at or after it that the channel skips, and the number of
records to skip. Knows nothing about consumers or what happens to a record that was taken.
"""

from libc.stdlib cimport free, realloc

from nsqcy.storage.record cimport (
    RECORD_ADDRESSED,
    RECORD_DAMAGED,
    RECORD_DELAYED,
    record_address,
)


cdef class ChannelCursor:
    """The position of one channel in its topic's window."""

    def __dealloc__(self):
        free(self.finished)

    # -- numbers --

    cdef uint64_t ahead(self) noexcept:
        """Return the number of records to skip that have not been fanned out yet: recovery found
        them finished."""
        cdef uint64_t end = max(<uint64_t>self.window.fanout.seq, <uint64_t>self.cursor.seq)
        cdef uint64_t count = 0
        cdef uint32_t i
        for i in range(self.finished_count):
            count += max(self.finished[i].end, end) - max(self.finished[i].start, end)
        return count

    cdef uint64_t surplus(self) noexcept:
        """Return how many of the records to skip are missing on disk.

        Each of these was subtracted from the number of restored records, whenever and wherever it
        was lost; their number is only known once the cursor approaches the end.
        """
        cdef uint64_t end = self.window.fanout.seq
        cdef uint64_t room = self.ahead()
        if self.cursor.seq < end:
            room += end - self.cursor.seq
        return self.skipped - room if self.skipped > room else 0

    # -- reading --

    cdef Record *find_record(self) except? NULL:
        """Return what record_at_cursor() returns, wherever the cursor is."""
        cdef Block *block
        cdef Record *record
        cdef uint64_t seq
        while True:
            if self.window.hole_count or self.finished_count:
                self.skip_holes()
            seq = self.cursor.seq
            if not self.window.settle(&self.cursor) or self.cursor.seq >= self.window.fanout.seq:
                if self.skipped and self.cursor.seq >= self.window.fanout.seq:
                    self.carried += self.surplus()
                    self.skipped = self.ahead()
                return NULL
            if self.cursor.seq != seq and (self.window.hole_count or self.finished_count):
                # This comes after skipping the records that are missing on disk, which may be in
                # the middle of a range.
                self.skip_missing(seq, self.finished, self.finished_count)
                self.skip_missing(seq, self.window.holes, self.window.hole_count)
                continue
            block = self.cursor.block
            if block.data == NULL or block.flags & LOADING:
                self.window.load(block)
                return NULL
            if self.cursor.offset == 0 and block.next != NULL and block.next.data == NULL \
                    and self.pool.resident_bytes < self.pool.budget:
                self.window.load(block.next)
            record = <Record *>(block.data + self.cursor.offset)
            if record.seq >= self.cursor.seq:
                return record
            # The cursor was restored, or jumped over a hole, to the middle of the block.
            self.cursor.offset += record.length

    cdef int add_finished(self, uint64_t start, uint64_t end) except -1:
        """Mark records start .. end - 1, which follow those in earlier ranges, as not for this
        channel."""
        cdef Hole *grown = <Hole *>realloc(
            self.finished, (self.finished_count + 1) * sizeof(Hole))
        if grown == NULL:
            raise MemoryError()
        self.finished = grown
        self.finished[self.finished_count].start = start
        self.finished[self.finished_count].end = end
        self.finished_count += 1
        return 0

    cdef void skip_holes(self) noexcept:
        self.skip_ranges(self.finished, self.finished_count)
        if self.finished_count and self.finished[self.finished_count - 1].end <= self.cursor.seq:
            self.finished_count = 0
        self.skip_ranges(self.window.holes, self.window.hole_count)

    cdef void skip_ranges(self, const Hole *ranges, uint32_t count) noexcept:
        cdef uint32_t i
        for i in range(count):
            if ranges[i].start <= self.cursor.seq < ranges[i].end:
                self.skipped -= ranges[i].end - self.cursor.seq
                self.cursor.seq = ranges[i].end

    cdef void skip_missing(self, uint64_t seq, const Hole *ranges, uint32_t count) noexcept:
        """Drop the parts of ranges between record `seq` and the cursor, which need not be
        skipped."""
        cdef uint64_t start
        cdef uint64_t end
        cdef uint32_t i
        for i in range(count):
            start = max(ranges[i].start, seq)
            end = min(ranges[i].end, <uint64_t>self.cursor.seq)
            if start < end:
                self.skipped -= end - start

    cdef bint passes(self, const Record *record) noexcept:
        """Return whether a record is not for the cursor: it is damaged, or already an entry."""
        return record.attributes & RECORD_DAMAGED or record.attributes & RECORD_DELAYED and (
            record.seq >= self.replay_end
            or record.attributes & RECORD_ADDRESSED and record_address(record) != self.address)

    cdef void step_over(self, Record *record) noexcept:
        """Skip a record that is not for this cursor: delayed (deferred when it was fanned out) or
        damaged."""
        # If this branch were inlined into dispatch, it would add a dozen instructions to every
        # delivery.
        self.skipped -= (self.skipped != 0 and record.attributes & RECORD_DELAYED != 0
                         and record.seq >= self.replay_end)
        self.window_step(record)
