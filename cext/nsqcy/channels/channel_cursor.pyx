"""The cursor of a channel: the topic's next record for this channel.

Owns the position in the window, the ranges at or after it that the channel skips, and the number of
records to skip. Independent of consumers and of records that have been taken.
"""

cdef inline Record *cursor_record(ChannelCursor *cursor) except? NULL:
    """Return the next record; NULL if there is none or its block must be loaded first."""
    cdef const Cursor *at = &cursor.at
    cdef Block *block = at.block
    cdef Record *record
    if (block != NULL and 0 < at.offset < block.size and block.data != NULL
            and not block.flags & LOADING and cursor.finished_count == 0
            and at.seq < (<RecordWindow>cursor.window).fanout.seq
            and (<RecordWindow>cursor.window).hole_count == 0):
        # Within a block, only a gap can follow.
        record = <Record *>(block.data + at.offset)
        if record.seq == at.seq:
            return record
    return cursor_find(cursor)


cdef inline void cursor_step(ChannelCursor *cursor, const Record *record) noexcept:
    cursor.at.offset += record.length
    cursor.at.seq = record.seq + 1


# ---- numbers ----

cdef uint64_t cursor_ahead(const ChannelCursor *cursor) noexcept:
    """Return the number of records to skip that have not been fanned out yet. Recovery found these
    records finished."""
    cdef uint64_t end = max(<uint64_t>(<RecordWindow>cursor.window).fanout.seq,
                            <uint64_t>cursor.at.seq)
    cdef uint64_t count = 0
    cdef uint32_t i
    for i in range(cursor.finished_count):
        count += max(cursor.finished[i].end, end) - max(cursor.finished[i].start, end)
    return count


cdef uint64_t cursor_surplus(const ChannelCursor *cursor) noexcept:
    """Return how many of the records to skip are missing on disk.

    Each missing record was subtracted from the number of restored records, whenever and wherever it
    was lost. The number is known only when the cursor approaches the end.
    """
    cdef uint64_t end = (<RecordWindow>cursor.window).fanout.seq
    cdef uint64_t room = cursor_ahead(cursor)
    if cursor.at.seq < end:
        room += end - cursor.at.seq
    return cursor.skipped - room if cursor.skipped > room else 0


# ---- reading ----

cdef Record *cursor_find(ChannelCursor *cursor) except? NULL:
    """Like cursor_record(), but for any position of the cursor."""
    cdef RecordWindow window = <RecordWindow>cursor.window
    cdef Block *block
    cdef Record *record
    cdef uint64_t seq
    while True:
        if window.hole_count or cursor.finished_count:
            skip_holes(cursor, window)
        seq = cursor.at.seq
        if not window.settle(&cursor.at) or cursor.at.seq >= window.fanout.seq:
            if cursor.skipped and cursor.at.seq >= window.fanout.seq:
                cursor.carried += cursor_surplus(cursor)
                cursor.skipped = cursor_ahead(cursor)
            return NULL
        if cursor.at.seq != seq and (window.hole_count or cursor.finished_count):
            # First, skip the records that are missing on disk, which may be in the middle of a
            # range.
            skip_missing(cursor, seq, cursor.finished, cursor.finished_count)
            skip_missing(cursor, seq, window.holes, window.hole_count)
            continue
        block = cursor.at.block
        if block.data == NULL or block.flags & LOADING:
            window.load(block)
            return NULL
        if cursor.at.offset == 0 and block.next != NULL and block.next.data == NULL \
                and window.pool.resident_bytes < window.pool.budget:
            window.load(block.next)
        record = <Record *>(block.data + cursor.at.offset)
        if record.seq >= cursor.at.seq:
            return record
        # The cursor was restored to the middle of the block, or jumped there over a hole.
        cursor.at.offset += record.length


cdef int cursor_add_finished(ChannelCursor *cursor, uint64_t start, uint64_t end) except -1:
    """Mark records start .. end - 1, which follow those in earlier ranges, as not for this
    channel."""
    cdef Hole *grown = <Hole *>realloc(
        cursor.finished, (cursor.finished_count + 1) * sizeof(Hole))
    if grown == NULL:
        raise MemoryError()
    cursor.finished = grown
    cursor.finished[cursor.finished_count].start = start
    cursor.finished[cursor.finished_count].end = end
    cursor.finished_count += 1
    return 0


cdef void skip_holes(ChannelCursor *cursor, RecordWindow window) noexcept:
    skip_ranges(cursor, cursor.finished, cursor.finished_count)
    if cursor.finished_count \
            and cursor.finished[cursor.finished_count - 1].end <= cursor.at.seq:
        cursor.finished_count = 0
    skip_ranges(cursor, window.holes, window.hole_count)


cdef void skip_ranges(ChannelCursor *cursor, const Hole *ranges, uint32_t count) noexcept:
    cdef uint32_t i
    for i in range(count):
        if ranges[i].start <= cursor.at.seq < ranges[i].end:
            cursor.skipped -= ranges[i].end - cursor.at.seq
            cursor.at.seq = ranges[i].end


cdef void skip_missing(ChannelCursor *cursor, uint64_t seq, const Hole *ranges,
                       uint32_t count) noexcept:
    """Drop the parts of ranges between record `seq` and the cursor, which need not be skipped."""
    cdef uint64_t start
    cdef uint64_t end
    cdef uint32_t i
    for i in range(count):
        start = max(ranges[i].start, seq)
        end = min(ranges[i].end, <uint64_t>cursor.at.seq)
        if start < end:
            cursor.skipped -= end - start


cdef bint cursor_passes(const ChannelCursor *cursor, const Record *record) noexcept:
    """Return whether a record is not for the cursor, because it is damaged or already an entry."""
    return record.attributes & RECORD_DAMAGED or record.attributes & RECORD_DELAYED and (
        record.seq >= cursor.replay_end
        or record.attributes & RECORD_ADDRESSED and record_address(record) != cursor.address)


cdef void cursor_step_over(ChannelCursor *cursor, Record *record) noexcept:
    """Skip a record that is not for this cursor: delayed (deferred when it was fanned out) or
    damaged."""
    # If this branch were inlined into dispatch, it would add a dozen instructions to every
    # delivery.
    cursor.skipped -= (cursor.skipped != 0 and record.attributes & RECORD_DELAYED != 0
                       and record.seq >= cursor.replay_end)
    cursor_step(cursor, record)
