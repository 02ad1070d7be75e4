"""The memory of one worker: arenas of blocks, slabs of entries, and the list of droppable blocks.

Owns every byte of a message between `recv` and `send`, and decides when the bytes of a block leave
memory: a block whose records are all on disk may be dropped at any time, unless `pins` (writes,
read-backs and sends in progress) is not zero. Adopts the memory of blocks that a dead process has
left. Independent of windows, channels and the clock. Does no file I/O.
"""

cdef enum:
    TRIM_ARENAS = 32                # maximum arenas freed or thinned at a time
    SPARE_SLABS = 16                # empty slabs to keep: consumers soon need as many entries again

cdef int64_t ARENA_REST = 10 * 1000000000       # ns for which an empty arena or large block is kept


cdef inline bint has_bit(const uint64_t *bits, uint32_t number) noexcept:
    return (bits[number >> 6] >> (number & 63)) & 1


cdef inline void set_bit(uint64_t *bits, uint32_t number) noexcept:
    bits[number >> 6] |= <uint64_t>1 << (number & 63)


cdef inline void clear_bit(uint64_t *bits, uint32_t number) noexcept:
    bits[number >> 6] &= ~(<uint64_t>1 << (number & 63))


cdef inline uint32_t units_of(uint64_t size) noexcept:
    return <uint32_t>((size + RANGE_UNIT - 1) // RANGE_UNIT)


@cython.no_gc           # a MemoryRange refers to nothing, and __dealloc__ needs it
@cython.final
cdef class BlockPool:
    def __init__(self, budget, MemoryRange records=None, MemoryRange state=None):
        """budget: resident bytes above which blocks are dropped.

        records: memory for the bytes of blocks, possibly with blocks that a dead process has left:
        these are kept until end_adoption(). state: memory for everything else. Both are anonymous
        memory by default.
        """
        cdef StateHead *head
        self.budget = budget
        self.records = MemoryRange() if records is None else records
        self.state = MemoryRange() if state is None else state
        self.records.open()
        self.state.open()
        self.set_cells(&self.block_slabs, sizeof(Block), UNIT_BLOCKS)
        self.set_cells(&self.entry_slabs, sizeof(Entry), UNIT_ENTRIES)
        self.set_cells(&self.page_slabs, PAGE_SIZE, UNIT_PAGES)
        self.page_slabs.first = PAGE_SIZE
        self.set_cells(&self.id_slabs, sizeof(IdCell), UNIT_IDS)
        self.left_pieces = {piece for piece in self.records.pieces() if piece[0] != UNIT_TABLE}
        if self.left_pieces:
            self.adopted_arenas = {}
            self.adopted_pieces = set()
        else:
            self.left_pieces = None
        head = <StateHead *>self.state.take(RANGE_UNIT, UNIT_HEAD, False)
        if head == NULL:
            raise MemoryError()
        write_head(head, self.state.range.base, self.records.range.base)

    cdef void set_cells(self, Slabs *slabs, uint32_t cell, uint32_t kind) noexcept:
        slabs.cell = cell
        slabs.first = sizeof(Slab)
        slabs.kind = kind

    def __dealloc__(self):
        cdef int kind
        cdef Arena *arena
        for kind in range(BLOCK_CLASSES):
            while self.partial[kind] != NULL:
                arena = self.partial[kind]
                self.partial[kind] = arena.next
                self.records.release(arena.base, CHUNK_UNITS, False)
                free(arena)
        for address in (self.adopted_arenas or {}).values():
            arena = <Arena *><size_t>address
            free(arena.adopted)
            free(arena)
        self.free_slabs(&self.block_slabs)
        self.free_slabs(&self.entry_slabs)
        self.free_slabs(&self.page_slabs)
        self.free_slabs(&self.id_slabs)

    # -- blocks --

    cdef Block *new_block(self, uint32_t capacity) except NULL:
        """Return an empty block with space for `capacity` bytes (0: no memory allocated yet). It
        has no owner yet."""
        cdef Block *block = <Block *>self.new_cell(&self.block_slabs)
        memset(block, 0, sizeof(Block))
        try:
            if capacity:
                self.give_memory(block, capacity)
        except MemoryError:
            self.free_cell(&self.block_slabs, block)
            raise
        self.blocks += 1
        return block

    cdef void free_block(self, Block *block) noexcept:
        block.owner = 0
        keep_store_order()
        self.take_memory(block)
        self.blocks -= 1
        self.free_cell(&self.block_slabs, block)

    cdef int give_memory(self, Block *block, uint32_t capacity) except -1:
        cdef int kind = 0
        cdef uint32_t size = MIN_BLOCK
        cdef Arena *arena
        cdef uint8_t *at
        if capacity > LARGEST_BLOCK:
            at = self.records.take(capacity, UNIT_LARGE, False)
            if at == NULL:
                raise MemoryError()
            block.arena = NULL
            block.capacity = capacity
            block.data = at
            self.resident_bytes += capacity
            return 0
        while size < capacity:
            size <<= 1
            kind += 1
        arena = self.partial[kind]
        if arena == NULL:
            arena = self.new_arena(kind)
        if arena.thinned:
            self.refill_arena(arena)
        at = <uint8_t *>arena.free
        arena.free = (<void **>at)[0]
        arena.used += 1
        if arena.free == NULL:
            self.unlist_arena(arena)
        block.arena = arena
        block.capacity = size
        block.data = at
        self.resident_bytes += size
        return 0

    cdef void take_memory(self, Block *block) noexcept:
        cdef Arena *arena = block.arena
        cdef uint8_t *at = block.data
        cdef uint32_t capacity = block.capacity
        cdef uint64_t offset
        if at == NULL:
            return
        self.not_droppable(block)
        self.resident_bytes -= capacity
        block.data = NULL
        block.arena = NULL
        block.capacity = 0
        keep_store_order()
        if arena == NULL:
            if self.left_pieces is not None:
                offset = at - self.records.range.base
                if offset in self.adopted_pieces:
                    # Another process would need the bytes if this one died before the adoption
                    # ended.
                    self.adopted_pieces.remove(offset)
                    return
            self.records.release(at, units_of(capacity), True)
            return
        arena.used -= 1
        arena.idle_since = self.now
        if arena.adopted != NULL:
            clear_bit(arena.adopted, (at - arena.base) // (<uint32_t>MIN_BLOCK << arena.kind))
            return
        if arena.free == NULL:
            self.list_arena(arena)
        (<void **>at)[0] = arena.free
        arena.free = at

    cdef Arena *new_arena(self, int kind) except NULL:
        cdef Arena *arena = <Arena *>calloc(1, sizeof(Arena))
        if arena == NULL:
            raise MemoryError()
        arena.base = self.records.take(ARENA_SIZE, UNIT_ARENA + kind, kind == BLOCK_CLASSES - 1)
        if arena.base == NULL:
            free(arena)
            raise MemoryError()
        arena.kind = kind
        self.link_free(arena)
        self.arenas += 1
        self.list_arena(arena)
        return arena

    cdef void link_free(self, Arena *arena) noexcept:
        """Link the arena's free blocks.

        Linking touches each block. For small classes, the kernel touches the page anyway, and a
        block taken from the list is about to be used.
        """
        cdef uint32_t size = MIN_BLOCK << arena.kind
        cdef uint32_t number = ARENA_SIZE // size
        while number:
            number -= 1
            if arena.adopted == NULL or not has_bit(arena.adopted, number):
                (<void **>(arena.base + number * size))[0] = arena.free
                arena.free = arena.base + number * size

    cdef void thin_arena(self, Arena *arena) noexcept:
        """Return the pages of an arena's free blocks to the kernel, if a few used blocks keep the
        arena alive. The first page of each free block is kept, because it contains the link."""
        cdef uint8_t *block = <uint8_t *>arena.free
        arena.thinned = arena.idle_since
        self.records.split_huge(arena.base)
        while block != NULL:
            self.records.thin(block + MIN_BLOCK, LARGEST_BLOCK - MIN_BLOCK)
            block = <uint8_t *>(<void **>block)[0]

    cdef int refill_arena(self, Arena *arena) except -1:
        """Prepare the next free block of a thinned arena."""
        cdef int found = self.records.refill(arena.free, LARGEST_BLOCK)
        if found < 0:
            raise MemoryError()
        if found or (<void **>arena.free)[0] == NULL:
            arena.thinned = 0
        return 0

    cdef void list_arena(self, Arena *arena) noexcept:
        arena.prev = NULL
        arena.next = self.partial[arena.kind]
        if arena.next != NULL:
            arena.next.prev = arena
        self.partial[arena.kind] = arena

    cdef void unlist_arena(self, Arena *arena) noexcept:
        if arena.prev != NULL:
            arena.prev.next = arena.next
        else:
            self.partial[arena.kind] = arena.next
        if arena.next != NULL:
            arena.next.prev = arena.prev
        arena.prev = arena.next = NULL

    cdef void trim(self, int64_t now) noexcept:
        """Do the once-a-second work: free a limited number of arenas that have been empty for a
        while, free an empty slab of each kind, and drop blocks if memory exceeds the budget."""
        cdef int kind
        cdef int left = TRIM_ARENAS
        cdef Arena *arena
        cdef Arena *following
        self.now = now
        self.records.purge(now, now - ARENA_REST)
        self.state.purge(now, now - ARENA_REST)
        self.free_spare(&self.block_slabs)
        self.free_spare(&self.entry_slabs)
        self.free_spare(&self.page_slabs)
        for kind in range(BLOCK_CLASSES):
            arena = self.partial[kind]
            while arena != NULL and left:
                following = arena.next
                if arena.used == 0 and now - arena.idle_since > ARENA_REST:
                    self.unlist_arena(arena)
                    self.records.release(arena.base, CHUNK_UNITS, False)
                    free(arena)
                    self.arenas -= 1
                    left -= 1
                elif kind == BLOCK_CLASSES - 1 and arena.thinned != arena.idle_since \
                        and now - arena.idle_since > ARENA_REST:
                    self.thin_arena(arena)
                    left -= 1
                arena = following
        self.keep_budget()

    # -- memory of a dead process --

    cdef bint adopt_memory(self, Block *block, uint64_t offset, uint32_t capacity) except -1:
        """Give a block the memory at an offset of `records`, which a block of a dead process has
        used. Return False if the memory is not in a piece for blocks of this capacity, or is in
        use."""
        cdef Arena *arena
        cdef uint32_t number
        if self.left_pieces is None or capacity == 0:
            return False
        if capacity > LARGEST_BLOCK:
            if offset in self.adopted_pieces \
                    or (UNIT_LARGE, offset, units_of(capacity)) not in self.left_pieces:
                return False
            self.adopted_pieces.add(offset)
            block.arena = NULL
        else:
            arena = self.adopted_arena(offset & ~<uint64_t>(ARENA_SIZE - 1))
            if arena == NULL or capacity != <uint32_t>MIN_BLOCK << arena.kind \
                    or offset % capacity:
                return False
            number = <uint32_t>(offset % ARENA_SIZE // capacity)
            if has_bit(arena.adopted, number):
                return False
            set_bit(arena.adopted, number)
            arena.used += 1
            block.arena = arena
        block.capacity = capacity
        block.data = self.records.range.base + offset
        self.resident_bytes += capacity
        return True

    cdef Arena *adopted_arena(self, uint64_t offset) except? NULL:
        """Return the arena that a dead process has left at this offset; NULL if there is none."""
        cdef Arena *arena
        found = self.adopted_arenas.get(offset)
        if found is not None:
            return <Arena *><size_t>found
        for kind in range(BLOCK_CLASSES):
            if (UNIT_ARENA + kind, offset, CHUNK_UNITS) in self.left_pieces:
                break
        else:
            return NULL
        arena = <Arena *>calloc(1, sizeof(Arena))
        if arena == NULL:
            raise MemoryError()
        arena.adopted = <uint64_t *>calloc(ARENA_SIZE // MIN_BLOCK // 64, sizeof(uint64_t))
        if arena.adopted == NULL:
            free(arena)
            raise MemoryError()
        arena.base = self.records.range.base + offset
        arena.kind = kind
        self.adopted_arenas[offset] = <size_t>arena
        return arena

    def end_adoption(self):
        """Release the memory that no block has adopted, and what adopted blocks have given back in
        the meantime. From now on, no other process may read what the dead process has left."""
        cdef Arena *arena
        if self.left_pieces is None:
            return
        pieces, self.left_pieces = self.left_pieces, None
        for _, offset, units in pieces:
            if offset not in self.adopted_arenas and offset not in self.adopted_pieces:
                self.records.release(self.records.range.base + <uint64_t>offset, units, False)
        for address in self.adopted_arenas.values():
            arena = <Arena *><size_t>address
            self.link_free(arena)
            free(arena.adopted)
            arena.adopted = NULL
            arena.idle_since = self.now
            self.arenas += 1
            if arena.free != NULL:
                self.list_arena(arena)
        self.adopted_arenas = None
        self.adopted_pieces = None
        self.keep_budget()

    # -- residency --

    cdef void droppable(self, Block *block) noexcept:
        """Mark a block as droppable, because the entire block is on disk. The latest block is
        dropped first, because the newest spilled block is read last."""
        if block.newer != NULL or block.older != NULL or self.newest == block:
            return
        block.older = self.newest
        if self.newest != NULL:
            self.newest.newer = block
        self.newest = block
        if self.oldest == NULL:
            self.oldest = block
        self.keep_budget()

    cdef void keep_longer(self, Block *block) noexcept:
        """Mark a block that was just read back as droppable; it is dropped last."""
        if block.newer != NULL or block.older != NULL or self.newest == block:
            return
        block.newer = self.oldest
        if self.oldest != NULL:
            self.oldest.older = block
        self.oldest = block
        if self.newest == NULL:
            self.newest = block

    cdef void not_droppable(self, Block *block) noexcept:
        if block.newer != NULL:
            block.newer.older = block.older
        elif self.newest == block:
            self.newest = block.older
        if block.older != NULL:
            block.older.newer = block.newer
        elif self.oldest == block:
            self.oldest = block.newer
        block.newer = block.older = NULL

    cdef void keep_budget(self) noexcept:
        """Drop blocks while memory exceeds the budget. Blocks that contain a cursor are dropped
        only above twice the budget, because they have just been read back or are about to be read
        again."""
        cdef Block *block = self.newest
        cdef Block *following
        while block != NULL and self.resident_bytes > self.budget:
            following = block.older
            if block.pins == 0 and (
                    block.cursors == 0 or self.resident_bytes > 2 * self.budget):
                self.take_memory(block)
            block = following

    # -- entries and pages of deferred messages --

    cdef void relist_slab(self, Slabs *slabs, Slab *slab) noexcept:
        """Handle the release of a cell whose slab was full or is now empty."""
        if not slab.listed:
            self.list_slab(slabs, slab)
        elif slab.prev != NULL or slab.next != NULL:
            # Keep one empty slab for the next cell.
            self.unlist_slab(slabs, slab)
            self.put_aside(slabs, slab)

    cdef void put_aside(self, Slabs *slabs, Slab *slab) noexcept:
        """Keep a few empty slabs, because taking and touching a new one costs as much as using
        it."""
        slab.next = slabs.spare
        slabs.spare = slab
        slabs.spare_count += 1
        if slabs.spare_count > SPARE_SLABS:
            self.free_spare(slabs)

    cdef void free_spare(self, Slabs *slabs) noexcept:
        """Free one of the kept slabs, if there is one."""
        cdef Slab *slab = slabs.spare
        if slab != NULL:
            slabs.spare = slab.next
            slabs.spare_count -= 1
            self.state.release(slab, 1, False)

    cdef Slab *new_slab(self, Slabs *slabs) except NULL:
        cdef uint8_t *base
        cdef Slab *slab = slabs.spare
        cdef size_t at
        if slab != NULL:
            slabs.spare = slab.next
            slabs.spare_count -= 1
            self.list_slab(slabs, slab)
            return slab
        base = self.state.take(SLAB_SIZE, UNIT_NEW, False)
        slab = <Slab *>base
        if base == NULL:
            raise MemoryError()
        memset(base, 0, SLAB_SIZE)      # the pages may have been used before: no cell has an owner
        at = SLAB_SIZE
        while at >= slabs.first + slabs.cell:
            at -= slabs.cell
            (<void **>(base + at))[0] = slab.free
            slab.free = base + at
        self.state.set_kind(slab, slabs.kind)
        self.list_slab(slabs, slab)
        return slab

    cdef void free_slabs(self, Slabs *slabs) noexcept:
        """Free all slabs that have a free cell."""
        cdef Slab *slab
        while slabs.listed != NULL:
            slab = slabs.listed
            slabs.listed = slab.next
            self.state.release(slab, 1, False)
        while slabs.spare != NULL:
            self.free_spare(slabs)

    cdef void list_slab(self, Slabs *slabs, Slab *slab) noexcept:
        slab.prev = NULL
        slab.next = slabs.listed
        if slab.next != NULL:
            slab.next.prev = slab
        slabs.listed = slab
        slab.listed = 1

    cdef void unlist_slab(self, Slabs *slabs, Slab *slab) noexcept:
        if slab.prev != NULL:
            slab.prev.next = slab.next
        else:
            slabs.listed = slab.next
        if slab.next != NULL:
            slab.next.prev = slab.prev
        slab.prev = slab.next = NULL
        slab.listed = 0

    cdef Deferred *new_deferred(self, Pages *pages, uint64_t id) except NULL:
        """Return a new message in the pages of a channel; only its id is set."""
        cdef Page *page = pages.with_room
        cdef Deferred *deferred
        if page == NULL:
            page = self.new_page(pages)
        deferred = page.free
        if deferred != NULL:
            page.free = (<Deferred **>deferred)[0]
        else:
            deferred = deferred_of(page) + page.made
            deferred.block = NULL
            keep_store_order()
            page.made += 1
        page.used += 1
        if page.used == PAGE_ROOM:
            leave_room(pages, page)
        deferred.id = id
        page.min_id = min(page.min_id, id)
        page.max_id = max(page.max_id, id)
        self.deferred += 1
        return deferred

    cdef void relist_page(self, Pages *pages, Page *page) noexcept:
        """Handle the release of a message whose page was full or is now empty."""
        if page.used == 0:
            self.free_page(pages, page)
        else:
            enter_room(pages, page)

    cdef Page *new_page(self, Pages *pages) except NULL:
        cdef Page *page = <Page *>self.new_cell(&self.page_slabs)
        page.free = NULL
        page.used = page.made = 0
        page.min_id = <uint64_t>-1
        page.max_id = 0
        keep_store_order()
        page.owner = pages.owner
        page.prev = NULL
        page.next = pages.first
        if page.next != NULL:
            page.next.prev = page
        pages.first = page
        enter_room(pages, page)
        return page

    cdef void free_page(self, Pages *pages, Page *page) noexcept:
        page.owner = 0
        if pages.walked == page:
            pages.walked = page.next
        if page.prev != NULL:
            page.prev.next = page.next
        else:
            pages.first = page.next
        if page.next != NULL:
            page.next.prev = page.prev
        leave_room(pages, page)
        self.free_cell(&self.page_slabs, page)


cdef void enter_room(Pages *pages, Page *page) noexcept:
    """The page has free space now."""
    page.prev_with_room = NULL
    page.next_with_room = pages.with_room
    if page.next_with_room != NULL:
        page.next_with_room.prev_with_room = page
    pages.with_room = page


cdef void leave_room(Pages *pages, Page *page) noexcept:
    """The page is empty or deleted."""
    if page.prev_with_room != NULL:
        page.prev_with_room.next_with_room = page.next_with_room
    else:
        pages.with_room = page.next_with_room
    if page.next_with_room != NULL:
        page.next_with_room.prev_with_room = page.prev_with_room
