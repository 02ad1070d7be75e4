"""Fan-out: pass published records to the channels; until then, keep them in the topic.

Owns the fan-out position and the delayed records at or after it. Knows channels, but nothing about
publishers, limits or the log.
"""

cimport cython

from nsqcy.channels.discarded cimport Discarded
from nsqcy.storage.entry cimport DEFERRED

from nsqcy.names import is_ephemeral


cdef enum:
    FAN_OUT_BUDGET = 4096           # delayed records fanned out per step
    DROP_AT_ONCE = 4096             # delayed records that are freed immediately


@cython.no_gc_clear      # as RecordWindow requires
cdef class FanOut(RecordWindow):
    def __cinit__(self, TopicHost host not None, bytes key not None):
        self.host = host
        self.scheduler = host.scheduler
        self.pool = host.pool
        self.key = key
        self.name = key.decode()
        self.ephemeral = is_ephemeral(self.name)
        self.channels = {}
        self.started = True
        self.watch(&self.visible)
        self.watch(&self.fanout)

    cdef void become_dirty(self) noexcept:
        self.dirty = True
        self.host.dirty_topics.append(self)

    cdef uint64_t depth(self) noexcept:
        """Return the number of messages that have not been fanned out yet."""
        return self.visible.seq - self.fanout.seq

    cdef void wake_channels(self) noexcept:
        """Wake the channels: records that they are waiting for may now be in memory or may be
        requested again."""
        cdef Channel channel
        for channel in self.channels.values():
            if channel.ephemeral:
                self.touch_dirty()
            channel.touch_dirty()

    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept:
        """Place a cursor before record `seq`, at the start of its block."""
        cdef Cursor to
        to.block = self.oldest
        to.offset = 0
        to.seq = seq
        while to.block != NULL and to.block.last_seq < seq and to.block.next != NULL:
            to.block = to.block.next
        if to.block != NULL and to.block.last_seq < seq:
            to.offset = to.block.size
        if to.block != NULL and to.seq < to.block.first_seq:
            # Earlier records were finished and dropped after the journal was written.
            to.seq = to.block.first_seq
        self.move_cursor(cursor, &to)

    # -- fan-out --

    @cython.final
    cdef bint fan_out_delayed(self) except -1:
        """Fan out delayed records, up to the budget; return whether any are left."""
        cdef Channel channel
        cdef Entry *entry = self.delayed_first
        cdef int64_t due
        cdef int budget = FAN_OUT_BUDGET
        cdef Cursor stop
        while entry != NULL and entry.seq < self.visible.seq:
            if budget == 0:
                stop.block = entry.block
                stop.offset = entry.offset
                stop.seq = entry.seq
                if stop.seq > self.fanout.seq:
                    self.move_cursor(&self.fanout, &stop)
                self.host.unsettled.append(self)
                return True
            budget -= 1
            due = self.scheduler.due_after(entry.due)
            for channel in self.channels.values():
                # A restored channel may be younger than the record.
                if channel.cursor.seq <= entry.seq:
                    if entry.timestamp == 0:
                        channel.defer_record(entry, due)
                    elif <uint64_t>entry.timestamp == channel.address:
                        channel.queue_record(entry)
                    else:
                        channel.pass_over()
            self.delayed_first = entry.next
            if entry.next == NULL:
                self.delayed_last = NULL
            self.delayed_count -= 1
            self.unref(entry.block)
            self.pool.free_entry(entry)
            entry = self.delayed_first
        return False

    def pass_on(self):
        """Fan out visible records now, up to a turn's share. Return whether some are left that the
        channels will receive without further action."""
        if self.fanout.seq == self.visible.seq or self.paused:
            return False
        return self.held_until != 0 or self.fan_out() != 0

    @property
    def held(self):
        """Return whether fan-out is held until channels that are known elsewhere have been
        created."""
        return self.held_until != 0

    def end_hold(self):
        """Start fan-out: the expected channels have been created, or will not be."""
        self.held_until = 0
        self.fan_out()

    # -- delayed records --

    @cython.final
    cdef void add_delayed(self, Entry *entry) noexcept:
        """Remember a delayed record until it is fanned out.

        `due` is its delay. `timestamp` is the address of its only channel, or 0 for all channels.
        """
        entry.state = DEFERRED
        entry.attempts = 0
        entry.next = NULL
        self.ref(entry.block)
        if self.delayed_last == NULL:
            self.delayed_first = entry
        else:
            self.delayed_last.next = entry
        self.delayed_last = entry
        self.delayed_count += 1

    cdef int drop_delayed(self, uint64_t seq) except -1:
        """Drop the delayed entries of records before `seq`. If these are all entries, only a few
        are freed immediately."""
        cdef Entry *entry
        cdef Discarded discarded
        if self.delayed_last != NULL and self.delayed_last.seq < seq:
            discarded = Discarded()
            discarded.window = self
            discarded.entries = self.delayed_first
            self.delayed_first = self.delayed_last = NULL
            self.delayed_count = 0
            if discarded.free_some(DROP_AT_ONCE) == 0:
                self.scheduler.discarded.append(discarded)
            return 0
        while self.delayed_first != NULL and self.delayed_first.seq < seq:
            entry = self.delayed_first
            self.delayed_first = entry.next
            self.unref(entry.block)
            self.pool.free_entry(entry)
            self.delayed_count -= 1
        if self.delayed_first == NULL:
            self.delayed_last = NULL
        return 0

    # -- the topic's own backlog --

    cdef int drop_front(self, uint64_t seq) except -1:
        """Drop records before `seq` that have not been fanned out yet."""
        cdef Channel channel
        cdef uint64_t dropped = seq - self.fanout.seq
        cdef Cursor to = self.fanout
        self.drop_delayed(seq)
        if self.channels:
            self.add_hole(self.fanout.seq, seq)
            for channel in self.channels.values():
                channel.skipped += dropped
                channel.born_seq += dropped
        while to.block.next != NULL and to.block.last_seq < seq:
            to.block = to.block.next
            to.offset = 0
        to.seq = seq
        self.move_cursor(&self.fanout, &self.visible if seq == self.visible.seq else &to)
        self.trim()
        self.touch_dirty()
        return 0
