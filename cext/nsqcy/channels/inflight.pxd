# A channel's in-flight messages: by id, and by consumer and deadline.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.base.heap cimport (
    HEAP_NOWHERE, HeapNode, heap_check, heap_due, heap_push, heap_update,
)
from nsqcy.channels.deferral cimport Deferral
from nsqcy.storage.entry cimport IN_FLIGHT, Entry


cdef enum:
    MOVED_SLOTS = 8                 # slots of an outgrown table moved per new entry


cdef Py_ssize_t in_flight_lists_alive() noexcept


# One consumer's in-flight messages, in order of deadline. The list outlives the consumer: messages
# of a dead client stay in flight until they time out. `timer` is never later than the first
# deadline.
ctypedef struct InFlightList:
    HeapNode timer
    Entry *first
    Entry *last
    uint32_t count
    void *consumer              # borrowed; NULL after the consumer has left
    InFlightList *prev
    InFlightList *next


# Tables of entries by id: open addressing. `mask`: the number of slots, less one.
cdef inline uint32_t home_slot(uint32_t mask, uint64_t id) noexcept nogil:
    return <uint32_t>((id * 0x9E3779B97F4A7C15u) >> 32) & mask


cdef inline uint32_t find_slot(Entry **table, uint32_t mask, uint64_t id) noexcept nogil:
    """Return the slot of an id, or of the NULL that ends the search."""
    cdef uint32_t slot = home_slot(mask, id)
    while table[slot] != NULL and table[slot].id != id:
        slot = (slot + 1) & mask
    return slot


cdef inline void enter_slot(Entry **table, uint32_t mask, Entry *entry) noexcept nogil:
    cdef uint32_t slot = home_slot(mask, entry.id)
    while table[slot] != NULL:
        slot = (slot + 1) & mask
    table[slot] = entry


cdef inline void clear_slot(Entry **table, uint32_t mask, uint32_t slot) noexcept nogil:
    """Empty a slot, and move up later entries that had been pushed past it."""
    cdef uint32_t hole = slot
    cdef uint32_t home
    while True:
        slot = (slot + 1) & mask
        if table[slot] == NULL:
            break
        home = home_slot(mask, table[slot].id)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            table[hole] = table[slot]
            hole = slot
    table[hole] = NULL


# A table that has become too small moves its entries to a larger one gradually: a few slots with
# each new entry, and every entry that is looked up.
cdef class InFlight(Deferral):
    cdef readonly uint64_t in_flight_count
    cdef Entry **table                      # in flight, by id: open addressing
    cdef uint32_t table_mask
    cdef Entry **outgrown                   # the previous table, while entries remain; NULL: none
    cdef uint32_t outgrown_mask
    cdef uint32_t outgrown_left             # its slots from this one on are empty
    cdef InFlightList *in_flight_lists
    cdef InFlightList *unpacked_in_flight_list  # next list that a checkpoint visits, or NULL
    cdef Entry *unpacked_in_flight          # its next message; NULL: the end of the list

    cdef int list_add_uninlined(
        self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1
    cdef InFlightList *new_in_flight_list(self, void *consumer) except NULL
    cdef void free_in_flight_list(self, InFlightList *in_flight_list) noexcept
    cdef void visit_in_flight_list(self, InFlightList *in_flight_list) noexcept
    cdef int grow_table(self) except -1
    cdef void move_some(self, uint32_t slots) noexcept
    cdef void move_one(self, uint32_t slot) noexcept
    cdef uint32_t find_outgrown(self, uint64_t id, uint32_t slot) noexcept
    cdef int64_t age_of(self, uint64_t id) noexcept

    cdef inline int list_add(
            self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1:
        """Add a message to a consumer's list, in order of deadline: it is nearly always the
        last."""
        cdef Entry *before = in_flight_list.last
        entry.state = IN_FLIGHT
        entry.due = deadline
        entry.node.tag = <uint32_t>(<uint64_t>(self.scheduler.now + 999999) // 1000000)
        entry.in_flight_list = in_flight_list
        while before != NULL and before.due > deadline:
            before = before.prev
        entry.prev = before
        if before == NULL:
            entry.next = in_flight_list.first
            in_flight_list.first = entry
        else:
            entry.next = before.next
            before.next = entry
        if entry.next == NULL:
            in_flight_list.last = entry
        else:
            entry.next.prev = entry
        in_flight_list.count += 1
        if in_flight_list.timer.index == HEAP_NOWHERE:
            heap_check(heap_push(&self.timers, &in_flight_list.timer, deadline))
            self.touch_dirty()
        elif heap_due(&self.timers, &in_flight_list.timer) > deadline:
            heap_update(&self.timers, &in_flight_list.timer, deadline)
            self.touch_dirty()
        return 0

    cdef inline void list_remove(self, Entry *entry) noexcept:
        """Remove a message from its consumer's list."""
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        if self.unpacked_in_flight == entry:
            self.unpacked_in_flight = entry.next
        if entry.prev == NULL:
            in_flight_list.first = entry.next
        else:
            entry.prev.next = entry.next
        if entry.next == NULL:
            in_flight_list.last = entry.prev
        else:
            entry.next.prev = entry.prev
        in_flight_list.count -= 1
        if in_flight_list.count == 0 and in_flight_list.consumer == NULL:
            self.free_in_flight_list(in_flight_list)

    cdef inline int table_add(self, Entry *entry) except -1:
        if 2 * self.in_flight_count > self.table_mask:
            self.grow_table()
        if self.outgrown != NULL:
            self.move_some(MOVED_SLOTS)
        enter_slot(self.table, self.table_mask, entry)
        return 0

    cdef inline uint32_t table_find(self, uint64_t id) noexcept:
        """Return the slot of an id, or of the NULL that ends the search."""
        cdef uint32_t slot = find_slot(self.table, self.table_mask, id)
        if self.table[slot] == NULL and self.outgrown != NULL:
            return self.find_outgrown(id, slot)
        return slot

    cdef inline void table_clear(self, uint32_t slot) noexcept:
        clear_slot(self.table, self.table_mask, slot)
