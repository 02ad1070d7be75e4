"""Entries of a channel in journal format: locations of their records, and due times.

Collects entries as they are visited; the journal writer takes them in parts.
"""

cdef enum:
    MIN_ROOM = 64


cdef class Packing:
    def __dealloc__(self):
        free(self.entries)
        free(self.ids)

    cdef void add(self, const Deferred *entry, int64_t due) noexcept:
        cdef Block *block = entry.block
        cdef Extent *extent = &block.extent
        cdef uint32_t offset = entry.offset
        cdef PackedEntry *into
        if offset >= block.written or extent.bytes == 0:
            return
        if self.count == self.room and not self.grow():
            self.failed = True
            return
        while offset >= extent.bytes:
            offset -= extent.bytes
            extent = extent.next
        into = &self.entries[self.count]
        into.seq = entry.seq
        into.segment = extent.segment.number
        into.offset = extent.offset + offset
        into.due = due
        into.attempts = entry.attempts
        into.state = QUEUED
        into.reason = 0
        into.size = 0
        if entry.state == DEFERRED or entry.state == QUEUED:
            into.state = entry.state
            into.size = entry.node.tag >> 1
        elif entry.state == TRANSFERRING:
            into.state = TRANSFERRING
            into.reason = <uint8_t>entry.node.tag
            into.due = <int64_t>transfer_number(<const Entry *>entry)
        self.ids[self.count] = entry.id
        self.count += 1

    cdef bint grow(self) noexcept:
        cdef uint32_t room = max(2 * self.room, <uint32_t>MIN_ROOM)
        cdef void *grown = realloc(self.entries, room * sizeof(PackedEntry))
        if grown == NULL:
            return False
        self.entries = <PackedEntry *>grown
        grown = realloc(self.ids, room * sizeof(uint64_t))
        if grown == NULL:
            return False
        self.ids = <uint64_t *>grown
        self.room = room
        return True

    cdef tuple take(self):
        cdef bytes entries = (<const char *>self.entries)[:self.count * sizeof(PackedEntry)]
        cdef bytes ids = (<const char *>self.ids)[:self.count * sizeof(uint64_t)]
        self.count = 0
        return entries, ids
