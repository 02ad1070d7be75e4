"""Owners: the topics and channels of a worker, as another process finds them after its death.

Owns the cells that state which numbers exist, where each topic and channel is, and what a journal
would say about it. Independent of what a note contains. The rules for everything in the state
memory of a block pool, which a process may stop changing at any instruction:

- A block, an entry or a page of deferred messages belongs to the owner whose number it states. The
  number is written last and cleared first. A number without an owner is that of a deleted topic or
  channel, or of what a channel had before it was emptied: a channel gets a new number then, so that
  all its messages end at once.
- A deferred message exists while its `block` is not NULL.
- A message that changes its form may exist in both for a moment, but never in neither.
- What an owner's position contains is written at the end of a turn, to the copy that is not
  `current`. So a process that dies leaves what the end of its last turn stated.
- A record exists once its topic's `visible` is beyond it. Records after it were not acknowledged.
"""

cdef enum:
    SMALL_NOTE = 256
    MEDIUM_NOTE = 2048
    BIG_NOTE = 16368                # four in a slab

cdef uint64_t STATE_MAGIC = 0x6574617473796371      # "qcystate"


cdef void write_head(StateHead *head, const void *state, const void *records) noexcept:
    head.magic = 0
    head.format = FORMAT_WORKER_MEMORY
    head.block_size = sizeof(Block)
    head.entry_size = sizeof(Entry)
    head.deferred_size = sizeof(Deferred)
    head.owner_size = sizeof(Owner)
    head.state_base = <uint64_t>state
    head.records_base = <uint64_t>records
    keep_store_order()
    head.magic = STATE_MAGIC


cdef bint is_head(const StateHead *head) noexcept:
    """Return whether this is the begin of a state memory with the structs of this version."""
    return (head.magic == STATE_MAGIC
            and head.block_size == sizeof(Block) and head.entry_size == sizeof(Entry)
            and head.deferred_size == sizeof(Deferred) and head.owner_size == sizeof(Owner))


@cython.no_gc_clear      # __dealloc__ needs the pool
cdef class Owners:
    def __cinit__(self, BlockPool pool not None):
        self.pool = pool
        pool.set_cells(&self.owner_slabs, sizeof(Owner), UNIT_OWNERS)
        pool.set_cells(&self.note_slabs[0], SMALL_NOTE, UNIT_NOTES)
        pool.set_cells(&self.note_slabs[1], MEDIUM_NOTE, UNIT_NOTES + 1)
        pool.set_cells(&self.note_slabs[2], BIG_NOTE, UNIT_NOTES + 2)

    def __dealloc__(self):
        cdef int kind
        if self.pool is not None:
            self.pool.free_slabs(&self.owner_slabs)
            for kind in range(NOTE_CLASSES):
                self.pool.free_slabs(&self.note_slabs[kind])

    cdef Owner *add(self, bytes name, uint32_t topic) except NULL:
        """Return a new owner. topic: the number of a channel's topic; 0: the owner is a topic."""
        cdef Owner *owner
        cdef size_t length = len(name)
        if length > NAME_ROOM:
            raise NsqError(f"a name of {length} bytes is too long for an owner")
        owner = <Owner *>self.pool.new_cell(&self.owner_slabs)
        memset(owner, 0, sizeof(Owner))
        memcpy(owner.name, <const char *>name, length)
        owner.name_length = <uint32_t>length
        owner.topic = topic
        owner.visible = owner.log_first = owner.positions[0].seq = 1
        keep_store_order()
        owner.number = self.new_number()
        self.count += 1
        return owner

    cdef void remove(self, Owner *owner) noexcept:
        """Remove an owner with its notes; its blocks and entries no longer exist for others."""
        cdef Position *position = &owner.positions[owner.current]
        owner.number = 0
        keep_store_order()
        if position.note != NULL:
            self.free_note(position.note)
        if position.bits != NULL:
            self.free_note(position.bits)
        self.pool.free_cell(&self.owner_slabs, owner)
        self.count -= 1

    cdef uint32_t renumber(self, Owner *owner) noexcept:
        """Give an owner a new number: what has the old one no longer exists for others."""
        owner.number = self.new_number()
        return owner.number

    cdef uint32_t new_number(self) noexcept:
        self.last_number += self.last_number != <uint32_t>-1
        return self.last_number

    cdef Note *new_note(self, uint32_t size) noexcept:
        """Return a note of this many bytes, which are not set; NULL if there is no memory."""
        cdef uint64_t whole = sizeof(Note) + <uint64_t>size
        cdef Note *note = NULL
        cdef int kind
        if whole > BIG_NOTE:
            note = <Note *>self.pool.state.take(whole, UNIT_LONG_NOTE, False)
        else:
            kind = (whole > SMALL_NOTE) + (whole > MEDIUM_NOTE)
            try:
                note = <Note *>self.pool.new_cell(&self.note_slabs[kind])
            except MemoryError:
                return NULL
        if note != NULL:
            note.size = size
            note.crc = 0
            self.notes += 1
        return note

    cdef void free_note(self, Note *note) noexcept:
        cdef uint64_t whole = sizeof(Note) + <uint64_t>note.size
        self.notes -= 1
        if whole > BIG_NOTE:
            self.pool.state.release(note, units_of(whole), False)
        else:
            self.pool.free_cell(&self.note_slabs[(whole > SMALL_NOTE) + (whole > MEDIUM_NOTE)],
                                note)

    @property
    def in_use(self):
        """Return the numbers of owners and notes."""
        return self.count, self.notes
