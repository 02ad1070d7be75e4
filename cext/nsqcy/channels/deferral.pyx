"""Deferral: a channel's deferred messages, and the times when the channel wakes up.

Owns the pages of deferred messages, the heap of timers (for deferred messages and messages in
flight) and the scheduler's alarm for the earliest timer. Knows nothing about the queue or
consumers: the channel decides where a message goes when it is due.
"""

from nsqcy.base.heap cimport (
    HEAP_NOWHERE,
    heap_due,
    heap_first_due,
    heap_free,
    heap_init,
    heap_push,
    heap_remove,
    heap_update,
)
from nsqcy.channels.earliest cimport Listing
from nsqcy.storage.block cimport LOADING, Block
from nsqcy.storage.entry cimport DEFERRED, Page, deferred_of, size_tag
from nsqcy.storage.record cimport Record


cdef class Deferral(ChannelCursor):
    """One channel's deferred messages."""

    def __cinit__(self):
        heap_init(&self.timers)
        self.alarm.node.index = HEAP_NOWHERE
        self.alarm.owner = <void *>self

    def __dealloc__(self):
        heap_free(&self.timers)

    cdef void become_dirty(self) noexcept:
        self.dirty = True
        self.scheduler.dirty_channels.append(self)

    # -- the scheduler --

    cdef void set_alarm(self) noexcept:
        """Set the scheduler's timer for this channel to the channel's earliest due time."""
        cdef int64_t due = heap_first_due(&self.timers)
        if self.timers.size == 0:
            self.drop_alarm()
        elif self.alarm.node.index == HEAP_NOWHERE:
            heap_push(&self.scheduler.channel_timers, &self.alarm.node, due)
        elif heap_due(&self.scheduler.channel_timers, &self.alarm.node) != due:
            heap_update(&self.scheduler.channel_timers, &self.alarm.node, due)

    cdef void drop_alarm(self) noexcept:
        if self.alarm.node.index != HEAP_NOWHERE:
            heap_remove(&self.scheduler.channel_timers, &self.alarm.node)

    # -- deferring --

    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1:
        """Handle the fan-out of a record with a delay: defer it here until `due`."""
        cdef Deferred *deferred
        if delayed.seq < self.cursor.seq:
            # Recovery found that the record was fanned out before the channel was created.
            return 0
        if self.cancelled is not None and self.was_cancelled(delayed.seq):
            return 0
        deferred = self.defer(<const Deferred *>delayed, due)
        deferred.round = self.round
        self.window.ref(delayed.block)
        self.skipped += 1
        return 0

    cdef bint was_cancelled(self, uint64_t seq) except -1:
        if seq not in self.cancelled:
            return False
        self.cancelled.remove(seq)
        self.cancelled_count += 1
        self.skipped += 1
        return True

    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL:
        """Defer a message until `due`; its fields are copied."""
        cdef Deferred *deferred = self.pool.new_deferred(&self.pages, message.id)
        deferred[0] = message[0]
        deferred.state = DEFERRED
        deferred.node.index = HEAP_NOWHERE
        if heap_push(&self.timers, &deferred.node, due) < 0:
            self.pool.free_deferred(&self.pages, deferred)
            raise MemoryError()
        self.deferred_count += 1
        self.touch_dirty()
        return deferred

    cdef int defer_entry(self, Entry *entry, int64_t due) except -1:
        """Defer a message that was delivered; it becomes a smaller object."""
        cdef Deferred *deferred = self.defer(<const Deferred *>entry, due)
        cdef Block *block = entry.block
        deferred.node.tag = ENTRY_TIMER
        if block.data != NULL and not block.flags & LOADING:
            deferred.node.tag = size_tag((<Record *>(block.data + entry.offset)).body_length)
        self.pool.free_entry(entry)
        if deferred.round != self.round:
            self.pack(deferred)
        return 0

    # -- one by one --

    cdef Deferred *find_deferred(self, uint64_t id) noexcept:
        """Return the deferred message with this id; NULL if there is none."""
        cdef Page *page = self.pages.first
        cdef Deferred *deferred
        cdef uint32_t i
        while page != NULL:
            if page.min_id <= id <= page.max_id:
                deferred = deferred_of(page)
                for i in range(page.made):
                    if deferred[i].block != NULL and deferred[i].id == id:
                        return &deferred[i]
            page = page.next
        return NULL

    cdef uint64_t cancel(self, uint64_t id) noexcept:
        """Drop a deferred message; return its seq, or 0 if there is none."""
        cdef Deferred *deferred = self.find_deferred(id)
        cdef uint64_t seq
        if deferred == NULL:
            return 0
        seq = deferred.seq
        heap_remove(&self.timers, &deferred.node)
        self.deferred_count -= 1
        self.cancelled_count += 1
        self.window.unref(deferred.block)
        self.pool.free_deferred(&self.pages, deferred)
        self.touch_dirty()
        return seq

    def upcoming(self, int limit, after):
        """Return the next deferred messages in order of due time, at most `limit`: (place, seq,
        due, id, attempts, size) each, with the due time on the wall clock. `after`: return messages
        after this place; None: start from the beginning."""
        cdef Listing listing = Listing(limit, after, IN_FLIGHT_TIMER)
        cdef int64_t ahead = self.scheduler.wall - self.scheduler.now
        cdef const Deferred *deferred
        cdef uint32_t i
        for i in range(self.timers.size):
            listing.offer(&self.timers.slots[i])
        found = []
        for slot in listing.sorted_indices():
            i = slot
            deferred = <const Deferred *>listing.slots[i].node
            found.append(((listing.slots[i].due, deferred.seq), deferred.seq,
                          listing.slots[i].due + ahead, deferred.id, deferred.attempts,
                          deferred.node.tag >> 1))
        return found

    # -- checkpoints --

    cdef void pack(self, Deferred *entry) noexcept:
        """Include a message, in its current state, in a checkpoint in progress."""
        cdef int64_t due = 0
        if entry.state == DEFERRED:
            due = self.scheduler.wall - self.scheduler.now + heap_due(&self.timers, &entry.node)
        entry.round = self.round
        if self.packing is not None:
            self.packing.add(entry, due)
