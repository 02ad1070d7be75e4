# Messages in flight: in a table by id, and for each consumer in a list by deadline.
from libc.stdint cimport uint32_t, uint64_t

from nsqcy.base.core cimport HeapNode
from nsqcy.storage.entry cimport Entry


cdef enum:
    MOVED_SLOTS = 8                 # slots of an outgrown table moved per new entry


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


cdef inline void list_enter(InFlightList *in_flight_list, Entry *entry) noexcept nogil:
    """Add a message in order of deadline: it is nearly always the last."""
    cdef Entry *before = in_flight_list.last
    while before != NULL and before.due > entry.due:
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


cdef inline void list_leave(InFlightList *in_flight_list, Entry *entry) noexcept nogil:
    if entry.prev == NULL:
        in_flight_list.first = entry.next
    else:
        entry.prev.next = entry.next
    if entry.next == NULL:
        in_flight_list.last = entry.prev
    else:
        entry.next.prev = entry.prev
    in_flight_list.count -= 1


# Entries by id: open addressing. A table that has become too small moves its entries to a larger
# one gradually: a few slots with each new entry, and every entry that is looked up.
ctypedef struct InFlightTable:
    Entry **slots
    uint32_t mask               # the number of slots, less one
    Entry **outgrown            # the previous slots, while entries remain; NULL: none
    uint32_t outgrown_mask
    uint32_t outgrown_left      # its slots from this one on are empty


cdef int table_init(InFlightTable *table) except -1
cdef void table_free(InFlightTable *table) noexcept
cdef void table_forget_all(InFlightTable *table) noexcept
cdef int table_grow(InFlightTable *table) except -1
cdef void table_move_some(InFlightTable *table, uint32_t slots) noexcept
cdef uint32_t table_find_outgrown(InFlightTable *table, uint64_t id, uint32_t slot) noexcept


cdef inline uint32_t home_slot(uint32_t mask, uint64_t id) noexcept nogil:
    return <uint32_t>((id * 0x9E3779B97F4A7C15u) >> 32) & mask


cdef inline uint32_t find_slot(Entry **slots, uint32_t mask, uint64_t id) noexcept nogil:
    """Return the slot of an id, or of the NULL that ends the search."""
    cdef uint32_t slot = home_slot(mask, id)
    while slots[slot] != NULL and slots[slot].id != id:
        slot = (slot + 1) & mask
    return slot


cdef inline void enter_slot(Entry **slots, uint32_t mask, Entry *entry) noexcept nogil:
    cdef uint32_t slot = home_slot(mask, entry.id)
    while slots[slot] != NULL:
        slot = (slot + 1) & mask
    slots[slot] = entry


cdef inline void clear_slot(Entry **slots, uint32_t mask, uint32_t slot) noexcept nogil:
    """Empty a slot, and move up later entries that had been pushed past it."""
    cdef uint32_t hole = slot
    cdef uint32_t home
    while True:
        slot = (slot + 1) & mask
        if slots[slot] == NULL:
            break
        home = home_slot(mask, slots[slot].id)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            slots[hole] = slots[slot]
            hole = slot
    slots[hole] = NULL


cdef inline int table_add(InFlightTable *table, Entry *entry, uint64_t count) except -1:
    """Add an entry; `count`: the number of those in the table."""
    if 2 * count > table.mask:
        table_grow(table)
    if table.outgrown != NULL:
        table_move_some(table, MOVED_SLOTS)
    enter_slot(table.slots, table.mask, entry)
    return 0


cdef inline uint32_t table_find(InFlightTable *table, uint64_t id) noexcept:
    """Return the slot of an id, or of the NULL that ends the search."""
    cdef uint32_t slot = find_slot(table.slots, table.mask, id)
    if table.slots[slot] == NULL and table.outgrown != NULL:
        return table_find_outgrown(table, id, slot)
    return slot


cdef inline void table_clear(InFlightTable *table, uint32_t slot) noexcept:
    clear_slot(table.slots, table.mask, slot)
