"""Retention: records that are kept after every channel has finished them, and the named cursors.

Decides how long a topic's log keeps records that only replays read: by age, by size, and for as
long as a named cursor needs them.
"""

cimport cython

from nsqcy.broker.checkpoint cimport Checkpoints
from nsqcy.storage.block cimport SEALED
from nsqcy.storage.record cimport Record

from nsqcy.broker.named_cursors import NamedCursors
from nsqcy.storage import journal


cdef uint64_t NOTHING_HELD = <uint64_t>-1


cdef Block *block_behind(const Cursor *keeper) noexcept:
    """Return the first block that a retention cursor has not passed.

    Such a cursor is at the start of a block, or at the end of the last one.
    """
    cdef Block *block = keeper.block
    return block if block == NULL or keeper.offset == 0 else block.next


@cython.no_gc_clear      # as RecordWindow requires
cdef class Retention(OverflowLog):
    def __cinit__(self):
        self.named = NamedCursors()

    # -- policy --

    cdef int set_retention(self, int64_t time, uint64_t size) except -1:
        """Set how long finished records are kept, by age and size; 0 and 0 drop them
        immediately."""
        self.retention_time = time
        self.retention_bytes = size
        return self.update_retains()

    cdef int update_retains(self) except -1:
        """Start or stop keeping records that every channel has finished.

        The policy and the named cursors decide. Keeping starts with the oldest available record.
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
        """Drop the messages of a topic without a channel that are beyond its retention: no channel
        has to read them, and they would fill the disk."""
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

    @property
    def first_seq(self):
        """Return the oldest record that a channel could start with."""
        return self.first_kept()

    cdef uint64_t first_kept(self) noexcept:
        if self.oldest == NULL:
            return self.next_seq
        if self.retention_time or self.retention_bytes:
            return max(self.oldest.first_seq, self.kept.seq)
        return self.oldest.first_seq

    # -- named cursors --

    def cursor_facts(self):
        """Return facts about the named cursors, for operators."""
        return self.named.facts(self.first_seq, self.visible.seq, self.scheduler.wall)

    def set_cursor(self, str name not None, bytes log_id not None, uint64_t seq, done not None):
        """Place a named cursor before record `seq`, which must exist or be the next record.

        The cursor keeps the records from there on. Calls done(None) once the journal records it as
        safely as the topic's class promises, or done(reason).
        Raises nsqcy.broker.named_cursors.TooManyCursors, leaving everything unchanged.
        """
        cursor = journal.NamedCursor(name, log_id, seq, self.scheduler.wall)
        self.named.set(cursor)
        self.update_retains()
        if self.retains and seq < self.kept.seq:
            self.keep_all()     # so far, only a channel keeps the record
        self.journal_cursor(cursor, False, done)

    def find_cursor(self, str name not None):
        """Return a named cursor (storage.journal.NamedCursor) and mark it as used, or None."""
        self.journal_stale = True
        return self.named.use(name, self.scheduler.wall)

    def delete_cursor(self, str name not None, done not None):
        """Delete a named cursor; return whether it existed.

        If so, calls `done` as set_cursor() does.
        """
        cursor = self.named.delete(name)
        if cursor is None:
            return False
        self.update_retains()
        self.journal_cursor(cursor, True, done)
        return True

    cdef int expire_cursors(self) except -1:
        if self.named.expire(self.scheduler.wall - self.host.log_cursor_expiry):
            self.journal_stale = True
            self.update_retains()
        return 0

    cdef uint64_t held_seq(self) except? 0:
        """Return the first record that a named cursor keeps."""
        if not self.named:
            return NOTHING_HELD
        seq = self.named.held(self.first_seq)
        return NOTHING_HELD if seq is None else seq

    cdef int journal_cursor(self, cursor, bint deleted, done) except -1:
        self.journal_stale = True
        if self.log is None:
            done(None)
            return 0
        return self.journal_delta(
            journal.Delta(journal.Kind.CURSOR_NAMED, "", cursor=cursor, deleted=deleted),
            self.when_synced(done))

    cdef bint is_kept(self) noexcept:
        return Checkpoints.is_kept(self) or len(self.named) > 0
