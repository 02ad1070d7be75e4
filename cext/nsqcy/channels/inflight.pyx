"""The in-flight table of a channel: messages with a consumer, by id, until they are finished or
time out.

Owns the slots and their growth. Knows nothing about consumers or deadlines: the channel owns the
entries, and their lists by deadline (InFlightList).
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef enum:
    MIN_TABLE = 16


cdef int table_init(InFlightTable *table) except -1:
    table.slots = <Entry **>calloc(MIN_TABLE, sizeof(Entry *))
    if table.slots == NULL:
        raise MemoryError()
    table.mask = MIN_TABLE - 1
    return 0


cdef void table_free(InFlightTable *table) noexcept:
    free(table.slots)
    free(table.outgrown)


cdef void table_forget_all(InFlightTable *table) noexcept:
    """Empty the table; the entries have other owners."""
    memset(table.slots, 0, (<size_t>table.mask + 1) * sizeof(Entry *))
    table.outgrown_left = 0
    table_move_some(table, 0)


cdef int table_grow(InFlightTable *table) except -1:
    cdef size_t size = 4 * (<size_t>table.mask + 1)
    cdef Entry **slots = <Entry **>calloc(size, sizeof(Entry *))
    if slots == NULL:
        raise MemoryError()
    table_move_some(table, table.outgrown_left)
    table.outgrown = table.slots
    table.outgrown_mask = table.mask
    table.outgrown_left = table.mask + 1
    table.slots = slots
    table.mask = <uint32_t>(size - 1)
    return 0


cdef void table_move_some(InFlightTable *table, uint32_t slots) noexcept:
    """Empty this many more slots of the outgrown table, starting from its end: the entries that a
    search passes must stay while its target does."""
    while slots and table.outgrown_left:
        slots -= 1
        while table.outgrown[table.outgrown_left - 1] != NULL:
            move_one(table, table.outgrown_left - 1)
        table.outgrown_left -= 1
    if table.outgrown_left == 0:
        free(table.outgrown)
        table.outgrown = NULL


cdef void move_one(InFlightTable *table, uint32_t slot) noexcept:
    enter_slot(table.slots, table.mask, table.outgrown[slot])
    clear_slot(table.outgrown, table.outgrown_mask, slot)


cdef uint32_t table_find_outgrown(InFlightTable *table, uint64_t id, uint32_t slot) noexcept:
    """Return `slot` for an id that is not in the table, after moving its entry to that slot if the
    entry is in the outgrown table."""
    cdef uint32_t before = find_slot(table.outgrown, table.outgrown_mask, id)
    if table.outgrown[before] != NULL:
        move_one(table, before)
    return slot
