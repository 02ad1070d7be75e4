"""Selection of the first few of many messages, ordered by time.

Selects them from the offered entries, which must stay in place until they are read.
"""


@cython.final
cdef class Listing:
    """limit: maximum number of messages. after: select only messages after this (time, seq); None:
    all."""

    def __cinit__(self, int limit, after, uint32_t left_out):
        self.slots = <HeapSlot *>malloc(max(1, limit) * sizeof(HeapSlot))
        if self.slots == NULL:
            raise MemoryError()
        self.limit = limit
        self.left_out = left_out
        self.border.due = -0x7fffffffffffffff
        if after is not None:
            self.border.due, self.border_seq = after

    def __dealloc__(self):
        free(self.slots)

    cdef inline bint is_later(self, const HeapSlot *one, const HeapSlot *other) noexcept:
        if one.due != other.due:
            return one.due > other.due
        return (<const Deferred *>one.node).seq > (<const Deferred *>other.node).seq

    cdef inline bint is_wanted(self, const HeapSlot *slot) noexcept:
        """Return whether to select a node. Reads the node only if its due time is not decisive,
        because a million nodes may be scattered in memory."""
        cdef const HeapSlot *last = &self.slots[0]
        if slot.due < self.border.due or (self.count == self.limit and slot.due > last.due):
            return False
        if slot.node.tag & self.left_out:
            return False
        if slot.due == self.border.due and (<const Deferred *>slot.node).seq <= self.border_seq:
            return False
        return self.count < self.limit or self.is_later(last, slot)

    cdef bint is_beyond(self, int64_t due) noexcept:
        return self.count == self.limit and due > self.slots[0].due

    cdef void offer(self, const HeapSlot *slot) noexcept:
        if not self.is_wanted(slot):
            return
        if self.count < self.limit:
            self.count += 1
            self.sift_up(self.count - 1, slot)
        else:
            self.sift_down(slot)

    cdef void sift_up(self, int hole, const HeapSlot *slot) noexcept:
        cdef int parent
        while hole:
            parent = (hole - 1) // 2
            if not self.is_later(slot, &self.slots[parent]):
                break
            self.slots[hole] = self.slots[parent]
            hole = parent
        self.slots[hole] = slot[0]

    cdef void sift_down(self, const HeapSlot *slot) noexcept:
        """Replace the latest selected message."""
        cdef int hole = 0
        cdef int child
        while 2 * hole + 1 < self.count:
            child = 2 * hole + 1
            if child + 1 < self.count and self.is_later(
                    &self.slots[child + 1], &self.slots[child]):
                child += 1
            if not self.is_later(&self.slots[child], slot):
                break
            self.slots[hole] = self.slots[child]
            hole = child
        self.slots[hole] = slot[0]

    def sorted_indices(self):
        """Return the selected messages in order."""
        cdef int i
        keys = []
        for i in range(self.count):
            keys.append((self.slots[i].due, (<Deferred *>self.slots[i].node).seq, i))
        return [key[2] for key in sorted(keys)]
