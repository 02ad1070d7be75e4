"""Left memory: what a dead process has left in its state memory.

Reads the owners, blocks, entries and deferred messages according to the rules in owners.pyx.
Checks everything, because the process may have died of damaged memory: a part that is not sound is
left out and counted. Decides nothing about messages. Independent of topics and files; changes
nothing that a later reader uses.
"""

cdef int grow_list(void ***items, size_t count) except -1:
    """Make room for one more pointer. Lists have room for 2^n pointers."""
    cdef void *grown
    if count & (count - 1) == 0:
        grown = realloc(items[0], max(<size_t>1, 2 * count) * sizeof(void *))
        if grown == NULL:
            raise MemoryError()
        items[0] = <void **>grown
    return 0


cdef int compare_firsts(const void *a, const void *b) noexcept nogil:
    """Order cells by the numbers of their ids."""
    cdef uint64_t one = (<IdCell **>a)[0].first
    cdef uint64_t other = (<IdCell **>b)[0].first
    return (one > other) - (one < other)


@cython.final
cdef class LeftChannel:
    """A channel, and its messages that are not waiting in the log."""

    def __dealloc__(self):
        free(self.entries)
        free(self.deferred)


@cython.final
@cython.no_gc_clear      # __dealloc__ needs the pool
cdef class LeftTopic:
    """A topic, its channels, and its blocks."""

    def __dealloc__(self):
        self.let_go()
        free(self.blocks)
        free(self.id_cells)

    cdef bint adopt(self, size_t number, Block *into, BlockPool pool) except -1:
        """Give a new block the bytes of a block; return False if they are not there."""
        cdef Block *block = self.blocks[number]
        cdef uint64_t offset = <uint64_t>block.data - self.memory.records_base
        if self.held == NULL:
            return offset < pool.records.range.size \
                and pool.adopt_memory(into, offset, block.capacity)
        if self.held[number] == NULL:
            return False
        into.data = self.held[number].data
        into.capacity = self.held[number].capacity
        into.arena = self.held[number].arena
        self.held[number].data = NULL
        pool.free_block(self.held[number])
        self.held[number] = NULL
        return True

    cdef int hold(self, BlockPool pool) except -1:
        """Keep the bytes of all blocks when the pool's adoption ends, because the topic cannot be
        restored yet."""
        cdef size_t i
        cdef Block *block
        if self.held != NULL or self.block_count == 0:
            return 0
        self.held = <Block **>calloc(self.block_count, sizeof(Block *))
        if self.held == NULL:
            raise MemoryError()
        self.pool = pool
        for i in range(self.block_count):
            if self.blocks[i].data == NULL:
                continue
            block = pool.new_block(0)
            if pool.adopt_memory(
                    block, <uint64_t>self.blocks[i].data - self.memory.records_base,
                    self.blocks[i].capacity):
                self.held[i] = block
            else:
                pool.free_block(block)
        return 0

    cdef uint64_t memory_records(self) noexcept:
        """Return the number of records in blocks that are not entirely on disk."""
        cdef uint64_t count = 0
        cdef size_t i
        for i in range(self.block_count):
            if self.blocks[i].data != NULL and self.blocks[i].stored < self.blocks[i].size:
                count += self.blocks[i].count
        return count

    cdef void let_go(self) noexcept:
        """Release the bytes that hold() has kept."""
        cdef size_t i
        if self.held == NULL:
            return
        for i in range(self.block_count):
            if self.held[i] != NULL:
                self.pool.free_block(self.held[i])
        free(self.held)
        self.held = NULL


@cython.final
cdef class LeftMemory:
    """The memory of one dead process. Its topics refer to it."""

    def __cinit__(self, MemoryRange state not None):
        """state: a range over the memfd that the process has used as its pool's state."""
        self.state = state
        self.topics = {}
        self._numbers = {}

    def read(self):
        """Find what is left. Raises OSError and MemoryError."""
        cdef StateHead *head = NULL
        self.state.open()
        for offset in self.slabs(UNIT_HEAD):
            head = <StateHead *>(self.state.range.base + <uint64_t>offset)
            if is_head(head):
                break
        if head == NULL:
            self.refusal = "it had not begun to use its memory"
            return
        if not formats.WORKER_MEMORY.reads(head.format):
            self.refusal = formats.WORKER_MEMORY.refusal(head.format)
            return
        if not is_head(head):
            self.refusal = "the head of its memory is damaged"
            return
        self.state_base = head.state_base
        self.records_base = head.records_base
        self.read_owners()
        self.read_blocks()
        self.read_entries()
        self.read_pages()
        self.read_ids()

    cdef int leave_out_ephemerals(self) except -1:
        """Leave out topics and channels that end with their process."""
        cdef LeftTopic topic
        for key in [key for key in self.topics if is_ephemeral(key)]:
            del self.topics[key]
        for topic in self.topics.values():
            for name in [name for name in topic.channels if is_ephemeral(name)]:
                del topic.channels[name]
        return 0

    cdef void forget(self) noexcept:
        """Keep only the topics that are still in `topics`: the memory is unmapped with the last
        reference to one of them."""
        self._numbers = {}

    # -- addresses --

    cdef list slabs(self, int kind):
        """Return the offsets of all slabs of a kind."""
        return [offset for each, offset, _ in self.state.pieces() if each == kind]

    cdef void *local(self, const void *address, int kind, size_t cell, size_t first) noexcept:
        """Return where the cell at an address of the dead process is in this process; NULL if the
        address is not that of a cell in a slab of this kind."""
        cdef uint64_t offset = <uint64_t>address - self.state_base
        cdef uint64_t within = offset % SLAB_SIZE
        if address == NULL or offset >= self.state.range.size \
                or self.state.range.base[offset // RANGE_UNIT] != kind \
                or within < first or (SLAB_SIZE - within) % cell:
            return NULL
        return self.state.range.base + offset

    cdef Note *note(self, const Note *address) noexcept:
        """Return a note; NULL if it is not sound."""
        cdef uint64_t offset = <uint64_t>address - self.state_base
        cdef uint64_t room = 0
        cdef RangePiece piece
        cdef Note *note
        cdef int kind
        if address == NULL or offset >= self.state.range.size:
            return NULL
        kind = self.state.range.base[offset // RANGE_UNIT]
        if UNIT_NOTES <= kind < UNIT_NOTES + NOTE_CLASSES:
            room = (SMALL_NOTE, MEDIUM_NOTE, BIG_NOTE)[kind - UNIT_NOTES]
            note = <Note *>self.local(address, kind, room, sizeof(Slab))
        elif kind == UNIT_LONG_NOTE and offset % RANGE_UNIT == 0 \
                and self.state.next_piece(offset, &piece) and piece.offset == offset:
            room = <uint64_t>piece.units * RANGE_UNIT
            note = <Note *>(self.state.range.base + offset)
        else:
            return NULL
        return NULL if note == NULL or note.size > room - sizeof(Note) else note

    cdef bytes note_content(self, const Note *address):
        """Return what a note contains; None if there is no note."""
        cdef Note *note
        if address == NULL:
            return None
        note = self.note(address)
        if note == NULL:
            self.damaged += 1
            return None
        content = (<const char *>note_bytes(note))[:note.size]
        if crc32c(content) != note.crc:
            self.damaged += 1
            return None
        return content

    cdef bytes bits_of(self, const Position *position):
        """Return a position's bits in the order of the records; b"" if there are none."""
        cdef Note *note
        cdef const uint64_t *words
        cdef uint64_t first = position.seq >> 6
        cdef uint64_t end = position.bits_end >> 6
        cdef uint64_t at
        cdef bytes found
        cdef uint64_t *into
        if position.bits == NULL or end <= first:
            return b""
        note = self.note(position.bits)
        if note == NULL or position.words == 0 or position.words & (position.words - 1) \
                or position.words > note.size // sizeof(uint64_t) or end - first > position.words:
            self.damaged += 1
            return b""
        words = <const uint64_t *>note_bytes(note)
        found = PyBytes_FromStringAndSize(NULL, (end - first) * sizeof(uint64_t))
        into = <uint64_t *>PyBytes_AS_STRING(found)
        for at in range(first, end):
            into[at - first] = words[at & (position.words - 1)]
        return found

    # -- owners --

    cdef int read_owners(self) except -1:
        cdef const Owner *owner
        cdef uint8_t *slab
        cdef size_t at
        cdef list channels = []
        for offset in self.slabs(UNIT_OWNERS):
            slab = self.state.range.base + <uint64_t>offset
            at = SLAB_SIZE
            while at >= sizeof(Slab) + sizeof(Owner):
                at -= sizeof(Owner)
                owner = <const Owner *>(slab + at)
                if owner.number == 0:
                    continue
                if owner.topic:
                    channels.append(<size_t>owner)
                else:
                    self.add_owner(owner)
        for address in channels:
            self.add_owner(<const Owner *><size_t>address)
        return 0

    cdef int add_owner(self, const Owner *owner) except -1:
        """Add a topic, or a channel of a topic that was added before."""
        cdef const Position *position = &owner.positions[owner.current & 1]
        cdef LeftTopic topic
        cdef LeftChannel channel
        cdef bytes name = (<const char *>owner.name)[:min(owner.name_length, <uint32_t>NAME_ROOM)]
        if owner.number in self._numbers or owner.name_length > NAME_ROOM or owner.current > 1 \
                or not is_valid_name(name):
            self.damaged += 1
            return 0
        if owner.topic == 0:
            if name in self.topics:
                self.damaged += 1
                return 0
            topic = LeftTopic.__new__(LeftTopic)
            topic.memory = self
            topic.key = name
            topic.visible = owner.visible
            topic.seq = position.seq
            topic.log_first = owner.log_first
            topic.log_id = (<const char *>owner.log_id)[:16]
            topic.note = self.note_content(position.note)
            topic.channels = {}
            self.topics[name] = topic
            topic.number = owner.number
            self._numbers[owner.number] = topic
            return 0
        of = self._numbers.get(owner.topic)
        if not isinstance(of, LeftTopic):
            return 0                # the topic was being deleted
        topic = <LeftTopic>of
        channel = LeftChannel.__new__(LeftChannel)
        channel.name = name.decode()
        channel.seq = position.seq
        channel.skipped = position.skipped
        channel.replay_end = position.replay_end
        channel.note = self.note_content(position.note)
        channel.bits = self.bits_of(position)
        if channel.name in topic.channels:
            self.damaged += 1
            return 0
        topic.channels[channel.name] = channel
        self._numbers[owner.number] = channel
        return 0

    # -- cells --

    cdef int read_blocks(self) except -1:
        cdef Block *block
        cdef LeftTopic topic
        cdef uint8_t *slab
        cdef size_t at
        for offset in self.slabs(UNIT_BLOCKS):
            slab = self.state.range.base + <uint64_t>offset
            at = SLAB_SIZE
            while at >= sizeof(Slab) + sizeof(Block):
                at -= sizeof(Block)
                block = <Block *>(slab + at)
                of = self._numbers.get(block.owner) if block.owner else None
                if not isinstance(of, LeftTopic):
                    continue
                topic = <LeftTopic>of
                grow_list(<void ***>&topic.blocks, topic.block_count)
                topic.blocks[topic.block_count] = block
                topic.block_count += 1
        return 0

    cdef int read_entries(self) except -1:
        cdef Entry *entry
        cdef LeftChannel channel = None
        cdef uint32_t number = 0            # of `channel`
        cdef uint8_t *slab
        cdef size_t at
        for offset in self.slabs(UNIT_ENTRIES):
            slab = self.state.range.base + <uint64_t>offset
            at = SLAB_SIZE
            while at >= sizeof(Slab) + sizeof(Entry):
                at -= sizeof(Entry)
                entry = <Entry *>(slab + at)
                if entry.owner == 0:
                    continue
                if entry.owner != number:
                    of = self._numbers.get(entry.owner)
                    if not isinstance(of, LeftChannel):
                        continue
                    channel = <LeftChannel>of
                    number = entry.owner
                grow_list(<void ***>&channel.entries, channel.entry_count)
                channel.entries[channel.entry_count] = entry
                channel.entry_count += 1
        return 0

    cdef int read_pages(self) except -1:
        cdef Page *page
        cdef Deferred *deferred
        cdef LeftChannel channel
        cdef uint8_t *slab
        cdef size_t at
        cdef uint32_t i
        for offset in self.slabs(UNIT_PAGES):
            slab = self.state.range.base + <uint64_t>offset
            at = SLAB_SIZE
            while at >= 2 * PAGE_SIZE:
                at -= PAGE_SIZE
                page = <Page *>(slab + at)
                of = self._numbers.get(page.owner) if page.owner else None
                if not isinstance(of, LeftChannel):
                    continue
                channel = <LeftChannel>of
                deferred = deferred_of(page)
                for i in range(min(page.made, <uint32_t>PAGE_ROOM)):
                    if deferred[i].block != NULL:
                        grow_list(<void ***>&channel.deferred, channel.deferred_count)
                        channel.deferred[channel.deferred_count] = &deferred[i]
                        channel.deferred_count += 1
        return 0

    cdef int read_ids(self) except -1:
        cdef IdCell *cell
        cdef LeftTopic topic
        cdef uint8_t *slab
        cdef size_t at
        for offset in self.slabs(UNIT_IDS):
            slab = self.state.range.base + <uint64_t>offset
            at = SLAB_SIZE
            while at >= sizeof(Slab) + sizeof(IdCell):
                at -= sizeof(IdCell)
                cell = <IdCell *>(slab + at)
                of = self._numbers.get(cell.owner) if cell.owner else None
                if not isinstance(of, LeftTopic):
                    continue
                topic = <LeftTopic>of
                grow_list(<void ***>&topic.id_cells, topic.id_cell_count)
                topic.id_cells[topic.id_cell_count] = cell
                topic.id_cell_count += 1
        for each in self.topics.values():
            topic = each
            if topic.id_cell_count:
                qsort(topic.id_cells, topic.id_cell_count, sizeof(IdCell *), compare_firsts)
        return 0
