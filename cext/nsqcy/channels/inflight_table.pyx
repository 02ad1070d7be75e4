"""The in-flight table of a channel: messages held by consumers, by id, until they finish or time
out.

Owns the slots and their growth. Independent of consumers and deadlines: the channel owns the
entries, and their lists by deadline (InFlightList).
"""

cdef enum:
    MOVED_SLOTS = 8                 # slots of an outgrown table moved per new entry


cdef inline uint32_t home_slot(uint32_t mask, uint64_t id) noexcept nogil:
    return <uint32_t>((id * 0x9E3779B97F4A7C15u) >> 32) & mask


cdef inline uint32_t find_slot(Entry **slots, uint32_t mask, uint64_t id) noexcept nogil:
    """Return the slot of an id, or the empty slot that ends the search."""
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
    """Empty a slot, and move up later entries that had been displaced past it."""
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
    """Add an entry; `count`: the number of entries in the table."""
    if 2 * count > table.mask:
        table_grow(table)
    if table.outgrown != NULL:
        table_move_some(table, MOVED_SLOTS)
    enter_slot(table.slots, table.mask, entry)
    return 0


# Call through a pointer: with a direct call, each finish would save two more registers.
cdef uint32_t (*find_outgrown)(InFlightTable *, uint64_t, uint32_t) noexcept
find_outgrown = table_find_outgrown


cdef inline uint32_t table_find(InFlightTable *table, uint64_t id) noexcept:
    """Return the slot of an id, or the empty slot that ends the search."""
    cdef uint32_t slot = find_slot(table.slots, table.mask, id)
    if table.slots[slot] == NULL and table.outgrown != NULL:
        return find_outgrown(table, id, slot)
    return slot


cdef inline void table_clear(InFlightTable *table, uint32_t slot) noexcept:
    clear_slot(table.slots, table.mask, slot)


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
    """Empty the table; the entries are owned elsewhere."""
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
    """Empty this many more slots of the outgrown table, from its end: as long as an entry is in the
    table, the entries before it on its search path must stay."""
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
