"""Overflow: records that must be in the log before they are visible, and all other log writes.

Decides when a topic overflows, which runs of records the log writes, and what is undone when a
write fails. Owns the copies that compactions make. Knows publishers only as pending
acknowledgements.
"""

cimport cython
from libc.stdlib cimport free, malloc

from nsqcy.broker.compaction cimport IDLE, is_worthwhile
from nsqcy.broker.durability cimport FSYNC
from nsqcy.broker.topic_host cimport FIRST_READ_PAUSE
from nsqcy.storage.segment cimport RUN_HAS_DELAYED, RUN_SURVIVORS
from nsqcy.storage.block cimport IN_WINDOW, SEALED, SURVIVORS
from nsqcy.storage.record cimport RECORD_DELAYED, Record
from nsqcy.storage.record_window cimport Cursor
from nsqcy.storage.entry cimport Entry


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


cdef int write_done(void *arg, int error) except -1:
    cdef Write *write = <Write *>arg
    cdef OverflowLog topic = <OverflowLog>write.topic
    try:
        topic.on_written(write, error)
    finally:
        free(write)
        Py_DECREF(topic)
    return 0


cdef enum:
    OVERFLOW_BUDGET = 64            # blocks passed to the log per turn


@cython.no_gc_clear      # as RecordWindow requires
cdef class OverflowLog(Checkpoints):
    def __cinit__(self):
        self.minimum = 1
        self.stable = 1
        self.acks = PendingAcks()

    cdef int log_grew(self) except -1:
        """Called when more records have become visible or reached the disk."""
        return 0

    cdef int unpublish(self) except -1:
        """Undo the publishes whose records are not visible."""
        return 0

    @property
    def oldest_pending(self):
        """Return the record that the oldest unanswered publish waits for; 0 if there is none."""
        return self.acks.oldest()

    def announced(self):
        """Answer the publishes that waited until consumers can find this new topic."""
        self.unannounced = False
        if self.visible.seq:
            self.acks.answer(self.visible.seq - 1, None)

    # -- overflow --

    cdef int write_overflow(self) except -1:
        """Write waiting records to the log, one run per block, up to the budget.

        End the overflow when all are written and the queue is short again. An incomplete batch is
        not written: the log accepts or rejects a publish as a whole.
        """
        cdef Block *block = self.newest
        cdef int budget = OVERFLOW_BUDGET
        if not self.overflowing:
            if self.pool.resident_bytes > self.pool.budget:
                self.spill()
            return 0
        if self.failing:
            return 0
        if self.pending_messages == 0 and not self.gathering:
            self.gate = max(self.promised, self.floor)
            self.minimum = self.min_seq()
            if not self.must_overflow():
                self.overflowing = False
                self.seal()
                self.check_droppable(self.newest)
            return 0
        while block != NULL and block.first_seq > self.visible.seq and block.prev != NULL:
            block = block.prev
        while block != NULL and not (self.gathering and block.first_seq >= self.gathered_from):
            if block.written < block.size and block.last_seq >= self.visible.seq:
                if budget == 0:
                    self.host.unsettled.append(self)
                    break
                if self.write_run(block, True):
                    break
                budget -= 1
            block = block.next
        return self.log.commit()

    cdef int spill(self) except -1:
        """Write sealed blocks that are only in memory, so that their memory can be released."""
        cdef Block *block = self.last_reader().block
        cdef int budget = 16
        while block != NULL and budget:
            if block.flags & SEALED and block.written < block.size \
                    and block.last_seq < self.visible.seq:
                if self.write_run(block, False):
                    break
                budget -= 1
            block = block.next
        return 0

    cdef int undo_pending(self) except -1:
        """Undo the publishes that were waiting for the log, because the log failed."""
        cdef str error = self.error
        cdef Entry *entry = self.delayed_first
        cdef Entry *last = NULL
        cdef Entry *following
        while entry != NULL and entry.seq < self.visible.seq:
            last = entry
            entry = entry.next
        if last == NULL:
            self.delayed_first = NULL
        else:
            last.next = NULL
        self.delayed_last = last
        while entry != NULL:
            following = entry.next
            self.unref(entry.block)
            self.pool.free_entry(entry)
            self.delayed_count -= 1
            entry = following
        if self.unannounced:
            self.announced()
        self.unpublish()
        self.truncate(self.visible.seq)
        self.pending_messages = 0
        self.failing = False
        self.error = None
        self.acks.answer(<uint64_t>-1, error)
        return 0

    # -- runs of records --

    cdef int write_run(self, Block *block, bint gated, bint at_once=False) except -1:
        """Queue bytes [written, size) of a block for the log; return whether some must wait.

        Runs fit into a segment unless a single publish is larger. A publish that may be refused
        is written to a single segment, because otherwise its first part could not be undone. If a
        write fails, the writes after it must fail too, so writes are queued only for the same file.
        This does not apply with `at_once`, which is for copies, because copies have no waiter.
        """
        cdef uint64_t maximum = self.log.room()
        cdef uint32_t start = block.written
        cdef uint32_t at = start
        cdef uint32_t count = 0
        cdef int flags = 0
        cdef uint64_t first_seq = 0
        cdef uint64_t last_seq = 0
        cdef Record *record
        while at < block.size:
            record = <Record *>(block.data + at)
            if count and at + record.length - start > maximum \
                    and not (gated and self.acks.publish_goes_on(last_seq)):
                if self.writes and not at_once and self.log.rolls(at - start):
                    return 1
                self.write_part(block, start, at, first_seq, last_seq, count, flags, gated)
                maximum = self.log.room()
                start = at
                count = 0
                flags = 0
            if count == 0:
                first_seq = record.seq
            if record.attributes & RECORD_DELAYED:
                flags |= RUN_HAS_DELAYED
            last_seq = record.seq
            count += 1
            at += record.length
        if self.writes and not at_once and self.log.rolls(at - start):
            return 1
        self.write_part(block, start, at, first_seq, last_seq, count, flags, gated)
        return 0

    cdef int write_part(self, Block *block, uint32_t start, uint32_t end, uint64_t first_seq,
                        uint64_t last_seq, uint32_t count, int flags, bint gated) except -1:
        cdef Write *write = <Write *>malloc(sizeof(Write))
        if write == NULL:
            raise MemoryError()
        write.topic = <void *>self
        write.block = block
        write.start = start
        write.end = end
        write.first_seq = first_seq
        write.last_seq = last_seq
        write.count = count
        write.gated = gated
        Py_INCREF(self)
        block.written = end
        self.pin(block)
        self.writes += 1
        if gated:
            self.pending_writes += 1
        if block.flags & SURVIVORS:
            flags |= RUN_SURVIVORS
        if self.log.journal_lost and not self.log.is_telling():
            # Its last write failed, and no publisher has requested a write since.
            self.journal_due = True
        if (self.was_restored or self.log.journal_lost) and (
                self.journal_due or self.waits_for_journal()):
            # The journal of an earlier process must not refer to these records.
            if self.journal_due:
                self.write_journal(True)
            self.finish_journal()
        self.log.append(block.data + start, end - start, first_seq, last_seq, count, flags,
                        self.gate == FSYNC, gated and self.acks.publish_goes_on(last_seq),
                        &block.extent, write_done, write)
        return 0

    cdef int write_all(self, Block *block) except -1:
        """Write the rest of a block; wait for the disk between files."""
        cdef uint32_t written = block.written
        cdef bint tried
        while self.write_run(block, False):
            tried = block.written > written
            self.host.io.drain()
            if tried and block.written <= written:
                # The write failed, and there is no publisher left to notify.
                return 0
            written = block.written
        return 0

    cdef int write_down(self) except -1:
        """Write visible records that are only in memory."""
        cdef Block *block = self.newest
        self.rolling = False
        if self.failing:
            return 0
        while block != NULL and block.prev != NULL and block.first_seq > self.stable:
            block = block.prev
        while block != NULL and block.first_seq < self.visible.seq:
            if block.written < block.size and not (
                    self.overflowing and block.last_seq >= self.visible.seq) \
                    and self.write_run(block, False):
                self.rolling = True
                break
            block = block.next
        return 0

    cdef int on_written(self, Write *write, int error) except -1:
        cdef Block *block = write.block
        cdef Cursor end
        self.writes -= 1
        if error == 0:
            block.stored = write.end
            self.host.set_health(None)
            if write.first_seq <= self.stable <= write.last_seq:
                self.stable = write.last_seq + 1
                self.stable_moved(block)
        else:
            self.host.set_health(self.log.last_error_text)
            self.log.retract(&block.extent, write.end - write.start, write.first_seq, write.count)
            block.written = min(block.written, write.start)
            if self.log.journal_lost:
                self.journal_due = True
        if not self.gone and write.gated:
            self.pending_writes -= 1
            if error:
                self.failing = True
                self.error = self.log.last_error_text
            elif not self.failing:
                end.block = block
                end.offset = write.end
                end.seq = write.last_seq + 1
                self.move_cursor(&self.visible, &end)
                if self.visible.seq == self.next_seq:
                    self.pending_messages = 0
                self.fan_out()
                if not self.unannounced:
                    self.acks.answer(write.last_seq, None)
                self.log_grew()
            if self.failing and self.pending_writes == 0:
                self.undo_pending()
        if write.gated or error == 0:
            self.touch_dirty()
        if block.flags & SURVIVORS and self.compaction is not None and self.compaction.written():
            self.host.compacting.append(self)
        self.check_droppable(block)
        self.unpin(block)
        return 0

    cdef void check_droppable(self, Block *block) noexcept:
        if block != NULL and block.data != NULL and block.flags & SEALED \
                and block.size and block.stored == block.size:
            self.pool.droppable(block)

    # -- the stable position --

    cdef void pass_written(self, Block *block) noexcept:
        """Advance the stable position from this block over records already written.

        Later blocks may have been written before earlier records.
        """
        cdef Record *record
        cdef uint32_t at = 0
        while block != NULL and block.stored == block.size and block.flags & IN_WINDOW:
            self.stable = max(self.stable, block.last_seq + 1)
            block = block.next
        if block == NULL or not block.flags & IN_WINDOW:
            return
        while at < block.stored:
            record = <Record *>(block.data + at)
            self.stable = max(self.stable, record.seq + 1)
            at += record.length

    cdef int stable_moved(self, Block *block) except -1:
        """Advance the stable position: the next records, up to this block, are on disk."""
        if block.stored == block.size and block.flags & IN_WINDOW:
            self.pass_written(block.next)
        return self.log_grew()

    # -- copies of stragglers --

    cdef int on_loaded(self, Block *block) except -1:
        if block.relocations != NULL and self.compaction.loaded():
            self.host.compacting.append(self)
        if not self.gone and not self.stalled:
            self.wake_channels()
        return 0

    cdef int read_failed(self) except -1:
        """Wait before the next try."""
        self.stalled = True
        if self.read_pause or self.gone:
            return 0
        bad = self.log.unreadable
        if bad is None:
            return 0        # it has been read in the meantime
        self.unreadable_since = self.scheduler.wall
        self.read_pause = FIRST_READ_PAUSE
        self.read_due = self.scheduler.now + FIRST_READ_PAUSE
        self.host.unreadable.append(self)
        self.host.read_at(self.read_due)
        return self.host.report_unreadable(self.name, bad.path, bad.error)

    cdef int try_reads(self) except -1:
        """Let blocks be loaded again after a failed read."""
        self.stalled = False
        self.wake_channels()
        return 0

    cdef int compact(self) except -1:
        """Begin to copy still-needed records out of mostly dead blocks.

        Keeps memory and disk usage below about four times the size of the needed records.
        """
        if self.stragglers == NULL or self.stalled or not is_worthwhile(self):
            return 0
        if self.compaction is None:
            self.compaction = Compaction(self)
        if self.compaction.stage != IDLE:
            return 0
        self.compaction.choose()
        if self.compaction.count and self.compaction.begin(list(self.channels.values())):
            self.host.compacting.append(self)
        return 0

    cdef int compact_now(self) except -1:
        """End the current compaction, then copy the needed records of stragglers that are only in
        memory."""
        cdef Block *block
        if self.stragglers == NULL:
            return 0
        if self.compaction is None:
            self.compaction = Compaction(self)
        self.finish_compaction()
        block = self.stragglers
        while block != NULL:
            if block.written == 0 and block.refs and not block.flags & SURVIVORS:
                self.compaction.add(block)
            block = block.next
        if self.compaction.count:
            self.compaction.begin(list(self.channels.values()))
            self.finish_compaction()
        return 0

    cdef int finish_compaction(self) except -1:
        self.compaction.finish()
        while self.compaction.stage != IDLE:
            self.host.io.drain()
            self.compaction.finish()
        return 0

    cdef int write_copies(self, Block *block) except -1:
        # The write has no waiter, so it need not fail with earlier writes.
        self.write_run(block, False, True)
        return 0

    cdef int copies_written(self) except -1:
        return self.write_journal(False)

    cdef void end_compaction(self) noexcept:
        if self.compaction is not None:
            self.compaction.stop()
            self.compaction.close_survivor()
            self.compaction = None
