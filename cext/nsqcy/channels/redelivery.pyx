"""The queue of a channel: messages that are not at its cursor.

Owns the queue, the read-ahead of records that are not in memory, and the walks over all entries of
the channel. Knows nothing about consumers or why a message was queued.
"""

from nsqcy.channels.deferral cimport IN_FLIGHT_TIMER
from nsqcy.base.heap cimport HeapNode
from nsqcy.channels.inflight cimport MOVED_SLOTS
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport QUEUED, Page, deferred_of
from nsqcy.storage.record cimport is_spoiled


cdef enum:
    READ_AHEAD = 1024               # maximum number of queued messages read concurrently


cdef class Redelivery(ChannelConsumers):
    cdef uint64_t depth(self) noexcept:
        """Return the number of messages waiting for a consumer, neither in flight nor deferred."""
        cdef uint64_t end = self.window.fanout.seq
        cdef uint64_t waiting = 0
        if end > self.cursor.seq + self.skipped:
            waiting = end - self.cursor.seq - self.skipped
        return waiting + self.queued

    cdef uint64_t held(self) noexcept:
        """Return the number of unfinished messages."""
        return self.depth() + self.in_flight_count + self.deferred_count

    # -- queueing --

    cdef int queue_record(self, const Entry *addressed) except -1:
        """Handle the fan-out of a record that is only for this channel."""
        cdef Entry *entry
        if self.cancelled is not None and self.was_cancelled(addressed.seq):
            return 0
        entry = self.pool.new_entry()
        entry.seq = addressed.seq
        entry.id = addressed.id
        entry.block = addressed.block
        entry.offset = addressed.offset
        entry.attempts = 0
        entry.round = self.round
        self.window.ref(entry.block)
        self.skipped += 1
        self.queue_entry(entry, addressed.node.tag)
        return 0

    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept:
        """Queue a message at the tail: after everything that has been fanned out so far. A full
        ephemeral channel drops it. `size`: the body's size, in the form of size_tag."""
        if self.ephemeral and self.queued >= self.mem_queue_size:
            self.dropped_count += 1
            self.drop_entry(entry)
            return
        entry.state = QUEUED
        entry.node.tag = size
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        entry.in_flight_list = <void *><size_t>self.window.fanout.seq
        entry.next = NULL
        if self.queue_last == NULL:
            self.queue_first = entry
        else:
            self.queue_last.next = entry
        self.queue_last = entry
        self.queued += 1
        self.touch_dirty()

    cdef void unqueue_first(self) noexcept:
        cdef Entry *entry = self.queue_first
        self.queue_first = entry.next
        if self.queue_first == NULL:
            self.queue_last = NULL
        if self.place.queued == entry:
            self.place.queued = entry.next
        if self.unpacked == entry:
            self.unpacked = entry.next
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.queued -= 1

    # -- records that are not in memory --

    cdef bint at_hand(self, const Entry *entry) except -1:
        """Return whether the first message in the queue, whose block is not in memory, can be
        delivered. If not, request its record."""
        cdef Block *block = entry.block
        if block.flags & LOADING:
            return False
        if self.prefetch is None:
            self.read_ahead()
        elif self.prefetch.reading:
            return False
        elif self.prefetch.find(entry.seq) != NULL:
            return True
        elif self.prefetch.first_seq == entry.seq:
            # The record is damaged, or could not be read; loading its block tells which.
            self.window.load(block)
        else:
            self.read_ahead()
        return False

    cdef int read_ahead(self) except -1:
        """Read the next messages in the queue that are not in memory."""
        cdef const Entry *entry = self.queue_first
        cdef ReadAhead prefetch = ReadAhead(self.window, entry.seq)
        cdef int left = READ_AHEAD
        self.prefetch = None
        if self.window.stalled:
            return 0
        while entry != NULL and left and prefetch.add(entry):
            entry = entry.next
            left -= 1
        if prefetch.read():
            self.prefetch = prefetch
        return 0

    cdef Record *record_of(self, const Entry *entry) noexcept:
        """Return the record for a message that is, or has just been, queued; NULL if it is not in
        memory, or damaged."""
        cdef Block *block = entry.block
        cdef Record *record
        if block.data != NULL and not block.flags & LOADING:
            record = <Record *>(block.data + entry.offset)
            return NULL if is_spoiled(record, entry.seq) else record
        return NULL if self.prefetch is None else self.prefetch.find(entry.seq)

    # -- walks --

    cdef void begin_walk(self) noexcept:
        """Restart the walk."""
        self.place.part = WALK_TIMERS
        self.place.left = self.timers.size
        self.place.queued = NULL

    cdef bint walk(self, Deferred **entry) noexcept:
        """Take one step of a walk; return the entry there, or NULL; False at the end.

        The walk visits arrays backwards, because the heap and the table fill their gaps from the
        end, so deferred messages move in that direction.
        """
        cdef Walk *place = &self.place
        cdef HeapNode *node
        entry[0] = NULL
        if place.part == WALK_TIMERS:
            place.left = min(place.left, self.timers.size)
            if place.left:
                place.left -= 1
                node = self.timers.slots[place.left].node
                if not node.tag & IN_FLIGHT_TIMER:
                    entry[0] = <Deferred *>node
                return True
            place.part = WALK_QUEUE
            place.queued = self.queue_first
        if place.part == WALK_QUEUE:
            if place.queued != NULL:
                entry[0] = <Deferred *>place.queued
                place.queued = place.queued.next
                return True
            place.part = WALK_TABLE
            place.left = self.table_mask + 1
        if self.outgrown != NULL:
            self.move_some(MOVED_SLOTS)
            return True
        place.left = min(place.left, self.table_mask + 1)
        if place.left:
            place.left -= 1
            entry[0] = <Deferred *>self.table[place.left]
            return True
        return False

    # -- journal snapshots --
    #
    # A snapshot contains every message that the channel had when the snapshot began and that is not
    # finished when the snapshot visits it. It visits messages in flight, the queue and deferred
    # messages, a few at a time; messages that move in the meantime are packed as they move. A
    # message has the channel's `round` once it no longer needs to be packed: either it was packed,
    # or it arrived after the snapshot began, and the snapshot records that the message is after the
    # cursor.

    cdef void begin_packing(self, Packing packing) noexcept:
        self.packing = packing
        self.round += 1
        self.visit_in_flight_list(self.in_flight_lists)
        self.unpacked = self.queue_first
        self.pages.walked = self.pages.first

    cdef int pack_more(self, int budget) noexcept:
        """Pack up to this many more entries; return the unused budget."""
        cdef Entry *entry
        cdef Page *page
        cdef Deferred *deferred
        cdef uint32_t i
        while self.unpacked_in_flight_list != NULL and budget > 0:
            entry = self.unpacked_in_flight
            budget -= 1
            if entry == NULL:
                self.visit_in_flight_list(self.unpacked_in_flight_list.next)
                continue
            self.unpacked_in_flight = entry.next
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.unpacked != NULL and budget > 0:
            entry = self.unpacked
            self.unpacked = entry.next
            budget -= 1
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.pages.walked != NULL and budget > 0:
            page = self.pages.walked
            self.pages.walked = page.next
            deferred = deferred_of(page)
            budget -= page.made
            for i in range(page.made):
                if deferred[i].block != NULL and deferred[i].round != self.round:
                    self.pack(&deferred[i])
        return max(0, budget)

    cdef bint is_packed(self) noexcept:
        return (self.unpacked_in_flight_list == NULL and self.unpacked == NULL
                and self.pages.walked == NULL)
