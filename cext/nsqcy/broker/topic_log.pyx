"""Topic log: which records of a topic are in its log, how long they stay there, and who reads them.

Decides when a topic overflows, which runs of records the log writes, and what is undone when a
write fails. Decides how long the log keeps records that only replays read: by age, by size, and for
as long as a named cursor needs them. Owns the copies that compactions make, the position where
readers stop, and the named cursors. The reads themselves are in log_fetch.pyx. Sees publishers only
as pending acknowledgements.
"""

cdef int write_done(void *arg, int error) except -1:
    cdef Write *write = <Write *>arg
    cdef TopicLog topic = <TopicLog>write.topic
    try:
        topic.on_written(write, error)
    finally:
        free(write)
        Py_DECREF(topic)
    return 0


cdef enum:
    OVERFLOW_BUDGET = 64            # blocks passed to the log per turn

cdef uint64_t NOTHING_HELD = <uint64_t>-1


cdef Block *block_behind(const Cursor *keeper) noexcept:
    """Return the first block that a retention cursor has not passed.

    Such a cursor is at the start of a block, or at the end of the last one.
    """
    cdef Block *block = keeper.block
    return block if block == NULL or keeper.offset == 0 else block.next


@cython.no_gc_clear      # as RecordWindow requires
cdef class TopicLog(Checkpoints):
    def __cinit__(self):
        self.stable = 1
        self.log_first = 1

    # -- overflow --

    cdef int write_overflow(self) except -1:
        """Write waiting records to the log, one run per block, up to the budget.

        End the overflow when all records are written and the queue is short again. Skip an
        incomplete batch: the log accepts or rejects a publish as a whole.
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
        """Undo the publishes that were waiting for the log, after the log has failed."""
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
        """Queue bytes [written, size) of a block for the log; return whether some bytes must wait.

        Runs fit into a segment unless a single publish is larger. A publish that may be refused is
        written to a single segment: across segments, its first part could not be undone. If a write
        fails, the later writes must also fail, so writes are queued only for the same file. This
        does not apply to copies, which use `at_once`, because copies have no waiter.
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
            # The last write failed, and no publisher has requested a write since then.
            self.journal_due = True
        if (self.was_restored or self.log.journal_lost) and (
                self.journal_due or self.is_as_saved or self.waits_for_journal()):
            # The journal of an earlier process must not refer to these records.
            if self.journal_due or self.is_as_saved:
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
            if block.written == block.size and block.next == NULL:
                return 0     # nothing is left to write: the caller waits for all topics at once
            tried = block.written > written
            self.host.io.drain()
            if tried and block.written <= written:
                # The write failed, and no publisher is left to notify.
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
                self.state_visible()
                if self.visible.seq == self.next_seq:
                    self.pending_messages = 0
                self.fan_out()
                if not self.unannounced:
                    self.acks.answer(write.last_seq, None)
                if self.has_polls():
                    self.answer_polls()
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

        Blocks may have been written out of order.
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
        """Advance the stable position to this block: the records before it are on disk."""
        if block.stored == block.size and block.flags & IN_WINDOW:
            self.pass_written(block.next)
        return self.answer_polls() if self.has_polls() else 0

    # -- copies of stragglers --

    cdef int on_loaded(self, Block *block) except -1:
        if block.relocations != NULL and self.compaction.loaded():
            self.host.compacting.append(self)
        if not self.gone and not self.stalled:
            self.wake_channels()
        return 0

    cdef int read_failed(self) except -1:
        """Wait before the next attempt."""
        self.stalled = True
        if self.read_pause or self.gone:
            return 0
        bad = self.log.unreadable
        if bad is None:
            return 0        # the block has been read in the meantime
        self.unreadable_since = self.scheduler.wall
        self.read_pause = FIRST_READ_PAUSE
        self.read_due = self.scheduler.now + FIRST_READ_PAUSE
        self.host.unreadable.append(self)
        self.host.read_at(self.read_due)
        return self.host.report_unreadable(self.name, bad.path, bad.error)

    cdef int try_reads(self) except -1:
        """Allow blocks to be loaded again after a failed read."""
        self.stalled = False
        self.wake_channels()
        return 0

    cdef int compact(self) except -1:
        """Begin to copy still-needed records out of mostly dead blocks.

        Compaction keeps memory and disk usage below about four times the size of the needed
        records.
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

    cdef int compact_more(self, int budget) except? -1:
        """Continue the compaction up to the budget; return the unused budget."""
        cdef Compaction compaction = self.compaction
        cdef Block *copies
        while budget > 0 and not compaction.waits():
            if compaction.stage == WRITE:
                copies = compaction.next_copies(&budget)
                if copies != NULL:
                    # The write has no waiter, so it need not fail with earlier writes.
                    self.write_run(copies, False, True)
                continue
            budget = compaction.step(budget)
            if compaction.stage == REDIRECTED:
                # Write the journal before the old blocks are released.
                self.write_journal(False)
                compaction.stop()
        return budget

    cdef int finish_compaction(self) except -1:
        self.compact_more(INT_MAX)
        while self.compaction.stage != IDLE:
            self.host.io.drain()
            self.compact_more(INT_MAX)
        return 0

    cdef void end_compaction(self) noexcept:
        if self.compaction is not None:
            self.compaction.stop()
            self.compaction.close_survivor()
            self.compaction = None

    # -- retention --

    cdef int set_retention(self, int64_t time, uint64_t size) except -1:
        """Set how long finished records are kept, by age and size; 0 and 0 drop them
        immediately."""
        self.retention_time = time
        self.retention_bytes = size
        return self.update_retains()

    cdef int update_retains(self) except -1:
        """Start or stop keeping records that every channel has finished.

        The policy and the named cursors determine this. Keeping starts at the oldest available
        record.
        """
        cdef bint wanted = (self.retention_time or self.retention_bytes
                            or self.held_seq() != NOTHING_HELD)
        if wanted == self.retains:
            return 0
        self.retains = wanted
        if wanted:
            self.watch(&self.kept)
            self.watch(&self.outdated)
            self.keep_all()
        else:
            self.unwatch(&self.kept)
            self.unwatch(&self.outdated)
        return 0

    cdef void keep_all(self) noexcept:
        """Keep all available records."""
        cdef Cursor start
        self.held_bytes = 0
        if self.oldest != NULL:
            start.block = self.oldest
            start.offset = 0
            start.seq = self.oldest.first_seq
            self.move_cursor(&self.kept, &start)
            self.move_cursor(&self.outdated, &start)

    # -- dropping records --

    cdef int retain(self) except -1:
        """Write blocks that exist only in memory, drop outdated ones, and evict the rest from
        memory."""
        self.write_down()
        self.drop_outdated()
        self.drop_unread()
        self.trim()
        self.cool()
        return 0

    cdef int drop_outdated(self) except -1:
        """Drop outdated blocks, except up to log-hold-max-bytes of blocks that named cursors
        keep."""
        cdef Block *block = block_behind(&self.outdated)
        cdef uint64_t held = self.log.disk_bytes - min(self.log.disk_bytes, self.held_bytes)
        cdef uint64_t held_seq
        while block != NULL and self.is_outdated(block, held):
            held -= min(held, <uint64_t>block.size)
            self.held_bytes += block.size
            self.move_past(&self.outdated, block)
            block = block.next
        held_seq = self.held_seq()
        block = block_behind(&self.kept)
        while block != NULL and block.last_seq < self.outdated.seq:
            if block.last_seq >= held_seq:
                if self.held_bytes <= self.host.log_hold_max_bytes:
                    break
                self.move_past(&self.kept, block)
                self.host.report_overrun(self.name, self.named.overrun(self.kept.seq))
                held_seq = self.held_seq()
            else:
                self.move_past(&self.kept, block)
            self.held_bytes -= min(self.held_bytes, <uint64_t>block.size)
            block = block.next
        return self.update_retains()

    cdef int drop_unread(self) except -1:
        """Drop messages that exceed the retention of a topic without channels. No channel needs
        these messages, and they would fill the disk."""
        cdef uint64_t seq = min(self.outdated.seq, self.visible.seq)
        if self.channels or self.held_until or self.fanout.seq >= seq:
            return 0
        if self.retention_time or self.retention_bytes:
            self.expired_count += seq - self.fanout.seq
            self.drop_front(seq)
        return 0

    cdef void move_past(self, Cursor *keeper, Block *block) noexcept:
        cdef Cursor to
        to.block = block.next
        to.offset = 0
        to.seq = self.next_seq if block.next == NULL else block.next.first_seq
        if block.next == NULL:
            to.block = block
            to.offset = block.size
        self.move_cursor(keeper, &to)

    cdef bint is_outdated(self, Block *block, uint64_t held) noexcept:
        if not block.flags & SEALED or block.last_time == 0:
            return False
        if not self.retention_time and not self.retention_bytes:
            return True
        return (self.retention_time and block.last_time < self.scheduler.wall - self.retention_time
                or self.retention_bytes and held > self.retention_bytes)

    cdef void cool(self) noexcept:
        """Evict from memory the blocks that every reader has passed: only replays read them
        again."""
        cdef Block *block = self.last_reader().block
        if block != NULL:
            block = block.prev
        while block != NULL and block.data != NULL:
            if block.refs == 0 and block.pins == 0 and block.flags & SEALED \
                    and block.stored == block.size:
                self.pool.take_memory(block)
            block = block.prev

    cdef void date_blocks(self) noexcept:
        """Store the current time as the upper bound of the blocks sealed since the last call."""
        cdef Block *block = self.newest
        while block != NULL and block.last_time == 0:
            if block.flags & SEALED:
                block.last_time = self.scheduler.wall
                if block.data != NULL and block.size:
                    block.first_time = (<Record *>block.data).timestamp
            block = block.prev

    # -- named cursors --

    def cursor_facts(self):
        """Return facts about the named cursors, for operators."""
        return self.named.facts(self.first_seq, self.visible.seq, self.scheduler.wall)

    def set_cursor(self, str name not None, bytes log_id not None, uint64_t seq, done not None):
        """Place a named cursor before record `seq`, which must exist or be the next record.

        The cursor keeps that record and all later ones. Calls done(None) once the cursor is as
        durable as the topic's class requires, or done(reason). Raises
        nsqcy.broker.named_cursors.TooManyCursors, without changing anything, if there are too many
        cursors.
        """
        cursor = journal.NamedCursor(name, log_id, seq, self.scheduler.wall)
        self.named.set(cursor)
        self.update_retains()
        if self.retains and seq < self.kept.seq:
            self.keep_all()     # until now, only a channel keeps the record
        self.journal_cursor(cursor, False, done)

    def find_cursor(self, str name not None):
        """Return a named cursor (storage.journal.NamedCursor) and mark it as used; None if it does
        not exist."""
        self.cursors_changed()
        return self.named.use(name, self.scheduler.wall)

    def delete_cursor(self, str name not None, done not None):
        """Delete a named cursor; return whether it existed.

        If it did, calls `done` as in set_cursor().
        """
        cursor = self.named.delete(name)
        if cursor is None:
            return False
        self.update_retains()
        self.journal_cursor(cursor, True, done)
        return True

    cdef int expire_cursors(self) except -1:
        if self.named.expire(self.scheduler.wall - self.host.log_cursor_expiry):
            self.cursors_changed()
            self.update_retains()
        return 0

    cdef void cursors_changed(self) noexcept:
        self.journal_stale = self.note_due = True
        self.touch_dirty()

    cdef uint64_t held_seq(self) except? 0:
        """Return the first record that a named cursor keeps."""
        if not self.named:
            return NOTHING_HELD
        seq = self.named.held(self.first_seq)
        return NOTHING_HELD if seq is None else seq

    cdef int journal_cursor(self, cursor, bint deleted, done) except -1:
        self.cursors_changed()
        if self.log is None:
            done(None)
            return 0
        return self.journal_delta(
            journal.Delta(journal.Kind.CURSOR_NAMED, "", cursor=cursor, deleted=deleted),
            self.when_synced(done))

    # -- available logs --

    cdef uint64_t safe_seq(self) except? 0:
        cdef uint64_t seq = self.visible.seq
        cdef Block *block = self.stragglers
        if self.is_last:
            return seq
        seq = min(seq, self.stable_seq())
        while block != NULL:
            if block.stored < block.size and not block.flags & SURVIVORS:
                seq = min(seq, block.first_seq)
            block = block.next
        return seq

    cdef uint64_t stable_seq(self) except? 0:
        """Return the position where readers of the log stop.

        Records before it are on disk, as durable as the topic's class requires.
        """
        cdef uint64_t first = self.first_kept()
        if self.stable < first:
            # The records before `first` were dropped before they were written.
            self.stable = first
            self.pass_written(self.block_of(first))
        return min(self.stable, self.visible.seq)

    cdef list logs(self):
        """Return the logs with available records, as (log_id, first, end), oldest first.

        The list contains the logs of earlier processes and the current log, up to the stable
        position.
        """
        cdef uint64_t first = self.first_kept()
        cdef uint64_t stable = self.stable_seq()
        found = [(one.log_id, max(one.first_seq, first), one.end)
                 for one in self.past if one.end > first]
        found.append((self.log.log_id, min(max(self.log_first, first), stable), stable))
        return found

    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end):
        """Store the available range of a log in `first` and `end`, or return an error."""
        names = []
        for known, begin, stop in self.logs():
            if known.hex().encode() == log_id:
                first[0] = begin
                end[0] = stop
                return None
            names.append(known.hex())
        return f"E_LOG_ID {' '.join(names)}".encode()

    def log_meta(self):
        """Return the log's metadata for readers, as JSON."""
        logs = self.logs()
        log_id, first, end = logs[len(logs) - 1]
        return json.dumps({
            "topic": self.name,
            "log_id": log_id.hex(),
            "first_seq": first,
            "next_seq": end,
            "first_time": self.time_of(first) if first < end else 0,
            "last_time": self.time_of(end - 1) if first < end else 0,
            "bytes": self.log_bytes,
            "durability": self.durability,
            "retention": {"time": self.retention_time, "bytes": self.retention_bytes}
            if self.retention_time or self.retention_bytes else None,
            "incarnations": [
                {"log_id": one[0].hex(), "first_seq": one[1], "next_seq": one[2]} for one in logs],
            "cursors": self.cursor_facts(),
        }, separators=(",", ":")).encode()

    @property
    def log_bytes(self):
        """Return the size of the records on disk, in bytes."""
        return 0 if self.log is None else self.log.disk_bytes

    cdef int64_t time_of(self, uint64_t seq) except? 0:
        """Return when a record was published. If its block is not in memory, return the time of the
        block's first or last record."""
        cdef Block *block = self.block_of(seq)
        cdef uint32_t at
        if block == NULL:
            return 0
        if block.data == NULL or block.flags & LOADING:
            return block.first_time if seq == block.first_seq else block.last_time
        at = offset_of(block, seq)
        return 0 if at == block.size else (<Record *>(block.data + at)).timestamp

    def seq_at(self, int64_t time):
        """Return the first record published at `time` (wall clock, ns) or later.

        Return None if a block must be read first; in that case, call this again afterwards.
        """
        cdef Block *block = self.oldest
        cdef Record *record
        cdef uint32_t at
        while block != NULL and block.last_time and block.last_time < time:
            block = block.next
        while block != NULL:
            if block.data == NULL or block.flags & LOADING:
                self.load(block)
                self.host.io.kick()
                return None
            at = 0
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.timestamp >= time:
                    return min(record.seq, self.fanout.seq)
                at += record.length
            block = block.next
        return self.fanout.seq

    # -- reads --

    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after):
        """Send log_meta() to the waiter as soon as the log extends beyond `after`."""
        self.touch_dirty()
        return self.begin_read(Poll(self, waiter, ticket, after))

    cdef int answer_polls(self) except -1:
        cdef uint64_t stable = self.stable_seq()
        cdef LogRead read
        cdef bytes answer = None
        for read in list(self.reads.open):
            if isinstance(read, Poll) and (<Poll>read).after < stable:
                answer = answer or self.log_meta()
                read.answer(answer, None)
        return 0

    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time):
        """Send the waiter the position of the first record in a log that was published at `time` or
        later. Return the read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        return error or self.begin_read(Seek(self, waiter, ticket, first, end, time))

    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t maximum, uint32_t columns):
        """Send records from a log to the waiter, as a block. Return the read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef uint64_t room
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        if error is not None:
            return error
        if start < first:
            return b"E_LOG_GONE %d" % first
        if start >= end or stop <= start:
            return b"E_LOG_RANGE %d" % end
        room = self.host.answer_room(maximum)
        self.host.reserved += room
        return self.begin_read(Fetch(
            self, waiter, ticket, bytes.fromhex(log_id.decode()), start, min(stop, end), room,
            columns))

    def peek(self, str channel not None, str state not None, int limit, after,
             uint32_t max_body, done, bytes key not None=b""):
        """View messages in a channel, or in the topic itself if `channel` is "".

        Calls done(None) on success or done(reason) on failure: see peek.pyx.
        """
        return self.begin_read(Peek(
            self, self.channels[channel] if channel else None, state, limit, after, max_body,
            done, key))

    cdef LogRead begin_read(self, LogRead read):
        if self.reads is None:
            self.reads = OpenReads(self.host)
        self.reads.begin(read)
        return read
