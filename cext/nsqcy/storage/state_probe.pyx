"""The parts of a state memory: owners without topics, and the cells that a dead process has left.
Only tests import this.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nsqcy.storage.core cimport (
    PAGE_SIZE, Block, BlockPool, Entry, LeftChannel, LeftMemory, LeftTopic, Note, Owner,
    Owners, Position, next_position, note_bytes, page_of, turn_position,
)

from nsqcy.storage.core import crc32c


cdef class OwnersProbe:
    """Owners by number."""
    cdef Owners owners
    cdef dict known             # number -> address

    def __cinit__(self, BlockPool pool not None):
        self.owners = Owners(pool)
        self.known = {}

    @property
    def in_use(self):
        """Return the numbers of owners and notes."""
        return self.owners.in_use

    cdef Owner *owner(self, uint32_t number) except NULL:
        if number not in self.known:
            raise KeyError(number)
        return <Owner *><size_t>self.known[number]

    cdef uint32_t know(self, Owner *owner) except 0:
        self.known[owner.number] = <size_t>owner
        return owner.number

    def add(self, bytes name not None, uint32_t topic=0):
        """Add an owner; return its number."""
        return self.know(self.owners.add(name, topic))

    def remove(self, uint32_t number):
        cdef Owner *owner = self.owner(number)
        del self.known[number]
        self.owners.remove(owner)

    def renumber(self, uint32_t number):
        """Give an owner a new number, and return it."""
        cdef Owner *owner = self.owner(number)
        del self.known[number]
        self.owners.renumber(owner)
        return self.know(owner)

    def note_offset(self, uint32_t number):
        """Return where the content of an owner's note begins in the state memory."""
        cdef Owner *owner = self.owner(number)
        cdef Note *note = owner.positions[owner.current].note
        if note == NULL:
            raise ValueError("no note")
        return note_bytes(note) - self.owners.pool.state.range.base

    def set_log(self, uint32_t number, bytes log_id not None, uint64_t first, uint64_t visible):
        cdef Owner *owner = self.owner(number)
        if len(log_id) != sizeof(owner.log_id):
            raise ValueError(log_id)
        memcpy(owner.log_id, <const char *>log_id, sizeof(owner.log_id))
        owner.log_first = first
        owner.visible = visible

    def move(self, uint32_t number, uint64_t seq, *, bytes note=None, bint turn=True):
        """Write the next position, with a note or without one. turn: it becomes valid."""
        cdef Owner *owner = self.owner(number)
        cdef Position *saved = &owner.positions[owner.current]
        cdef Position *to = next_position(owner)
        to.seq = seq
        to.skipped = seq + 1
        to.replay_end = seq + 2
        to.note = self.new_note(note)
        if not turn:
            if to.note != NULL:
                self.owners.free_note(to.note)
            to.note = saved.note
            return
        turn_position(owner)
        if saved.note != NULL:
            self.owners.free_note(saved.note)
        saved.note = to.note

    cdef Note *new_note(self, bytes content) except? NULL:
        cdef Note *note
        if content is None:
            return NULL
        note = self.owners.new_note(<uint32_t>len(content))
        if note == NULL:
            raise MemoryError()
        memcpy(note_bytes(note), <const char *>content, len(content))
        note.crc = crc32c(content)
        return note


def cells(LeftMemory left not None):
    """Return (topic, kind, offset, size) for each cell of the topics in a left memory, without
    owners and notes."""
    cdef LeftTopic topic
    cdef LeftChannel channel
    cdef const uint8_t *base = left.state.range.base
    cdef size_t i
    found = set()
    for topic in left.topics.values():
        for i in range(topic.block_count):
            found.add((topic.key, "block", <const uint8_t *>topic.blocks[i] - base, sizeof(Block)))
        for channel in topic.channels.values():
            for i in range(channel.entry_count):
                found.add((topic.key, "entry", <const uint8_t *>channel.entries[i] - base,
                           sizeof(Entry)))
            for i in range(channel.deferred_count):
                found.add((topic.key, "page", <const uint8_t *>page_of(channel.deferred[i]) - base,
                           PAGE_SIZE))
    return sorted(found)


def block_bytes(LeftMemory left not None):
    """Return (topic, offset, capacity) for the bytes of each block, which are in the records'
    memory."""
    cdef LeftTopic topic
    cdef size_t i
    found = []
    for topic in left.topics.values():
        for i in range(topic.block_count):
            if topic.blocks[i].data != NULL:
                found.append((topic.key, <uint64_t>topic.blocks[i].data - left.records_base,
                              topic.blocks[i].capacity))
    return sorted(found)


def sizes():
    """Return the sizes of an owner, and of the header of a note, in bytes."""
    return sizeof(Owner), sizeof(Note)
