"""The memory of one worker: arenas of blocks, slabs of entries, and the list of droppable blocks.

Owns every byte of a message between `recv` and `send`, and decides when the bytes of a block leave
memory: a block whose records are all on disk may be dropped at any time, unless `pins` (writes,
read-backs and sends in progress) is not zero. Independent of windows, channels and the clock. Does
no file I/O.
"""

cdef enum:
    TRIM_ARENAS = 32                # maximum arenas freed or thinned at a time
    SPARE_SLABS = 16                # empty slabs to keep: consumers soon need as many entries again

cdef int64_t ARENA_REST = 10 * 1000000000       # ns for which an empty arena or large block is kept


cdef inline uint32_t units_of(uint64_t size) noexcept:
    return <uint32_t>((size + RANGE_UNIT - 1) // RANGE_UNIT)


@cython.no_gc           # a MemoryRange refers to nothing, and __dealloc__ needs it
@cython.final
cdef class BlockPool:
    def __init__(self, budget, MemoryRange memory=None):
        """budget: resident bytes above which blocks are dropped.

        memory: where to take memory from; by default, anonymous memory.
        """
        self.budget = budget
        self.memory = MemoryRange() if memory is None else memory
        self.memory.open()
        self.entry_slabs.cell = sizeof(Entry)
        self.entry_slabs.first = sizeof(Slab)
        self.entry_slabs.kind = UNIT_ENTRIES
        self.page_slabs.cell = self.page_slabs.first = PAGE_SIZE
        self.page_slabs.kind = UNIT_PAGES

    def __dealloc__(self):
        cdef int kind
        cdef Arena *arena
        for kind in range(BLOCK_CLASSES):
            while self.partial[kind] != NULL:
                arena = self.partial[kind]
                self.partial[kind] = arena.next
                self.memory.release(arena.base, CHUNK_UNITS, False)
                free(arena)
        self.free_slabs(&self.entry_slabs)
        self.free_slabs(&self.page_slabs)

    # -- blocks --

    cdef Block *new_block(self, uint32_t capacity) except NULL:
        """Return an empty block with space for `capacity` bytes (0: no memory allocated yet)."""
        cdef Block *block = <Block *>calloc(1, sizeof(Block))
        if block == NULL:
            raise MemoryError()
        try:
            if capacity:
                self.give_memory(block, capacity)
        except MemoryError:
            free(block)
            raise
        self.blocks += 1
        return block

    cdef void free_block(self, Block *block) noexcept:
        self.take_memory(block)
        self.blocks -= 1
        free(block)

    cdef int give_memory(self, Block *block, uint32_t capacity) except -1:
        cdef int kind = 0
        cdef uint32_t size = MIN_BLOCK
        cdef Arena *arena
        if capacity > LARGEST_BLOCK:
            block.data = self.memory.take(capacity, UNIT_LARGE, False)
            if block.data == NULL:
                raise MemoryError()
            block.arena = NULL
            block.capacity = capacity
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
        block.data = <uint8_t *>arena.free
        arena.free = (<void **>block.data)[0]
        arena.used += 1
        if arena.free == NULL:
            self.unlist_arena(arena)
        block.arena = arena
        block.capacity = size
        self.resident_bytes += size
        return 0

    cdef void take_memory(self, Block *block) noexcept:
        cdef Arena *arena = block.arena
        if block.data == NULL:
            return
        self.not_droppable(block)
        self.resident_bytes -= block.capacity
        if arena == NULL:
            self.memory.release(block.data, units_of(block.capacity), True)
        else:
            if arena.free == NULL:
                self.list_arena(arena)
            (<void **>block.data)[0] = arena.free
            arena.free = block.data
            arena.used -= 1
            arena.idle_since = self.now
        block.data = NULL
        block.arena = NULL
        block.capacity = 0

    cdef Arena *new_arena(self, int kind) except NULL:
        cdef Arena *arena = <Arena *>calloc(1, sizeof(Arena))
        cdef uint32_t size = MIN_BLOCK << kind
        cdef uint32_t at
        if arena == NULL:
            raise MemoryError()
        arena.base = self.memory.take(ARENA_SIZE, UNIT_ARENA + kind, kind == BLOCK_CLASSES - 1)
        if arena.base == NULL:
            free(arena)
            raise MemoryError()
        arena.kind = kind
        # Linking the blocks touches each block. For small classes, the kernel touches the page
        # anyway, and a block taken from the list is about to be used.
        at = ARENA_SIZE
        while at:
            at -= size
            (<void **>(arena.base + at))[0] = arena.free
            arena.free = arena.base + at
        self.arenas += 1
        self.list_arena(arena)
        return arena

    cdef void thin_arena(self, Arena *arena) noexcept:
        """Return the pages of an arena's free blocks to the kernel, if a few used blocks keep the
        arena alive. The first page of each free block is kept, because it contains the link."""
        cdef uint8_t *block = <uint8_t *>arena.free
        arena.thinned = arena.idle_since
        self.memory.split_huge(arena.base)
        while block != NULL:
            self.memory.thin(block + MIN_BLOCK, LARGEST_BLOCK - MIN_BLOCK)
            block = <uint8_t *>(<void **>block)[0]

    cdef int refill_arena(self, Arena *arena) except -1:
        """Prepare the next free block of a thinned arena."""
        cdef int found = self.memory.refill(arena.free, LARGEST_BLOCK)
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
        self.memory.purge(now, now - ARENA_REST)
        self.free_spare(&self.entry_slabs)
        self.free_spare(&self.page_slabs)
        for kind in range(BLOCK_CLASSES):
            arena = self.partial[kind]
            while arena != NULL and left:
                following = arena.next
                if arena.used == 0 and now - arena.idle_since > ARENA_REST:
                    self.unlist_arena(arena)
                    self.memory.release(arena.base, CHUNK_UNITS, False)
                    free(arena)
                    self.arenas -= 1
                    left -= 1
                elif kind == BLOCK_CLASSES - 1 and arena.thinned != arena.idle_since \
                        and now - arena.idle_since > ARENA_REST:
                    self.thin_arena(arena)
                    left -= 1
                arena = following
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
            self.memory.release(slab, 1, False)

    cdef Slab *new_slab(self, Slabs *slabs) except NULL:
        cdef uint8_t *base
        cdef Slab *slab = slabs.spare
        cdef size_t at
        if slab != NULL:
            slabs.spare = slab.next
            slabs.spare_count -= 1
            self.list_slab(slabs, slab)
            return slab
        base = self.memory.take(SLAB_SIZE, slabs.kind, False)
        slab = <Slab *>base
        if base == NULL:
            raise MemoryError()
        slab.free = NULL
        slab.used = 0
        at = SLAB_SIZE
        while at >= slabs.first + slabs.cell:
            at -= slabs.cell
            (<void **>(base + at))[0] = slab.free
            slab.free = base + at
        self.list_slab(slabs, slab)
        return slab

    cdef void free_slabs(self, Slabs *slabs) noexcept:
        """Free all slabs that have a free cell."""
        cdef Slab *slab
        while slabs.listed != NULL:
            slab = slabs.listed
            slabs.listed = slab.next
            self.memory.release(slab, 1, False)
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
        page.prev = NULL
        page.next = pages.first
        if page.next != NULL:
            page.next.prev = page
        pages.first = page
        enter_room(pages, page)
        return page

    cdef void free_page(self, Pages *pages, Page *page) noexcept:
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
