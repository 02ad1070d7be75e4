"""Records in memory: arenas, blocks, windows, entries.

Owns every byte of a message between `recv` and `send`, and decides when a block of records leaves
memory. Knows how a block is read back from the log, but not what topics, channels or connections
are; reads no clock and calls no file.

Rules of ownership:
1. A block in a window is kept by the window; out of it, by the entries that refer to it (`refs`).
2. While `pins` is not zero (a write, a read-back or a send is under way) neither the block nor its
   bytes go away.
3. The bytes of a block whose records are all on disk may be dropped at any time otherwise; who
   meets `data == NULL` asks for `load` and tries again when `on_loaded` was called.
"""

cimport cython
from libc.errno cimport EIO, ENOENT
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove

from nsqcy.errors import NsqError


cdef extern from "sys/mman.h" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    const int PROT_READ
    const int PROT_WRITE
    const int MAP_PRIVATE
    const int MAP_ANONYMOUS
    const int MADV_DONTNEED
    const int MADV_HUGEPAGE
    const int MADV_NOHUGEPAGE
    void *MAP_FAILED


cdef enum:
    TRIM_ARENAS = 32                # given back, or thinned, at a time
    SPARE_SLABS = 16                # consumers come back for as many entries as they gave back
    HUGE_RECORDS = 196608           # a record above this has a block of its own

cdef int64_t ARENA_REST = 10 * 1000000000       # ns an empty arena is kept


cdef uint8_t *map_aligned(size_t size) noexcept nogil:
    """`size` bytes (a power of two) of zeroed memory at a multiple of `size`; NULL if there are
    none."""
    cdef uint8_t *raw = <uint8_t *>mmap(
        NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef size_t skip
    if raw == <uint8_t *>MAP_FAILED:
        return NULL
    skip = (size - (<size_t>raw & (size - 1))) & (size - 1)
    if skip:
        munmap(raw, skip)
    munmap(raw + skip + size, size - skip)
    return raw + skip


@cython.final
cdef class Store:
    def __init__(self, budget):
        self.budget = budget
        self.entry_slabs.cell = sizeof(Entry)
        self.entry_slabs.first = sizeof(Slab)
        self.page_slabs.cell = self.page_slabs.first = PAGE_SIZE

    def __dealloc__(self):
        cdef int kind
        cdef Arena *arena
        for kind in range(BLOCK_CLASSES):
            while self.partial[kind] != NULL:
                arena = self.partial[kind]
                self.partial[kind] = arena.next
                munmap(arena.base, ARENA_SIZE)
                free(arena)
        free_slabs(&self.entry_slabs)
        free_slabs(&self.page_slabs)

    # -- blocks --

    cdef Block *new_block(self, uint32_t capacity) except NULL:
        """An empty block with room for `capacity` bytes (0: without memory yet)."""
        cdef Block *block = <Block *>calloc(1, sizeof(Block))
        if block == NULL:
            raise MemoryError()
        if capacity and self.give_memory(block, capacity) < 0:
            free(block)
            raise MemoryError()
        self.blocks += 1
        return block

    cdef void free_block(self, Block *block) noexcept:
        self.take_memory(block)
        self.blocks -= 1
        free(block)

    cdef int give_memory(self, Block *block, uint32_t capacity) except -1:
        cdef int kind = 0
        cdef uint32_t size = SMALLEST_BLOCK
        cdef Arena *arena
        if capacity > LARGEST_BLOCK:
            block.data = <uint8_t *>malloc(capacity)
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
        block.data = <uint8_t *>arena.free
        arena.free = (<void **>block.data)[0]
        arena.used += 1
        if arena.thinned:
            arena.thinned = 0
            madvise(arena.base, ARENA_SIZE, MADV_HUGEPAGE)
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
            free(block.data)
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
        cdef uint32_t size = SMALLEST_BLOCK << kind
        cdef uint32_t at
        if arena == NULL:
            raise MemoryError()
        arena.base = map_aligned(ARENA_SIZE)
        if arena.base == NULL:
            free(arena)
            raise MemoryError()
        if kind == BLOCK_CLASSES - 1:
            madvise(arena.base, ARENA_SIZE, MADV_HUGEPAGE)
        arena.kind = kind
        # Linking the blocks touches each; the small classes are touched lazily by the kernel's
        # page anyway, and a listed block is about to be used.
        at = ARENA_SIZE
        while at:
            at -= size
            (<void **>(arena.base + at))[0] = arena.free
            arena.free = arena.base + at
        self.arenas += 1
        self.list_arena(arena)
        return arena

    cdef void thin_arena(self, Arena *arena) noexcept:
        """A few blocks keep the arena alive: give back the pages of the others, all but the first
        of each, which holds the link. Not a huge page any more, or the kernel would fill it up."""
        cdef uint8_t *block = <uint8_t *>arena.free
        arena.thinned = arena.idle_since
        madvise(arena.base, ARENA_SIZE, MADV_NOHUGEPAGE)
        while block != NULL:
            madvise(block + SMALLEST_BLOCK, LARGEST_BLOCK - SMALLEST_BLOCK, MADV_DONTNEED)
            block = <uint8_t *>(<void **>block)[0]

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
        """Once a second: give arenas back that have been empty for a while, so many of them, and
        an empty slab of each kind, and drop blocks above the budget."""
        cdef int kind
        cdef int left = TRIM_ARENAS
        cdef Arena *arena
        cdef Arena *following
        self.now = now
        self.unmap_spare(&self.entry_slabs)
        self.unmap_spare(&self.page_slabs)
        for kind in range(BLOCK_CLASSES):
            arena = self.partial[kind]
            while arena != NULL and left:
                following = arena.next
                if arena.used == 0 and now - arena.idle_since > ARENA_REST:
                    self.unlist_arena(arena)
                    munmap(arena.base, ARENA_SIZE)
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
        """The block is wholly on disk and its bytes may be dropped: the last one told goes first,
        as what was just spilled at the tail is the last to be read."""
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
        """As droppable, for a block that was just read back: it goes last."""
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
        """Drop what can be dropped while there is too much. Blocks with a cursor in them go only
        when there is twice too much: they were just read back, or are about to be again."""
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
        """A cell was given back to a slab that had none free, or it was the last one in use."""
        if not slab.listed:
            self.list_slab(slabs, slab)
        elif slab.prev != NULL or slab.next != NULL:
            # One empty slab stays for the next cell.
            self.unlist_slab(slabs, slab)
            self.put_aside(slabs, slab)

    cdef void put_aside(self, Slabs *slabs, Slab *slab) noexcept:
        """Keep a few empty slabs: to map one and to touch it costs as much as what it is for."""
        slab.next = slabs.spare
        slabs.spare = slab
        slabs.spare_count += 1
        if slabs.spare_count > SPARE_SLABS:
            self.unmap_spare(slabs)

    cdef void unmap_spare(self, Slabs *slabs) noexcept:
        """Give back one that was put aside, if there is one."""
        cdef Slab *slab = slabs.spare
        if slab != NULL:
            slabs.spare = slab.next
            slabs.spare_count -= 1
            munmap(slab, SLAB_SIZE)

    cdef Slab *new_slab(self, Slabs *slabs) except NULL:
        cdef uint8_t *base
        cdef Slab *slab = slabs.spare
        cdef size_t at
        if slab != NULL:
            slabs.spare = slab.next
            slabs.spare_count -= 1
            self.list_slab(slabs, slab)
            return slab
        base = map_aligned(SLAB_SIZE)
        slab = <Slab *>base
        if base == NULL:
            raise MemoryError()
        at = SLAB_SIZE
        while at >= slabs.first + slabs.cell:
            at -= slabs.cell
            (<void **>(base + at))[0] = slab.free
            slab.free = base + at
        self.list_slab(slabs, slab)
        return slab

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
        """One in the pages of a channel; it has its id and nothing else yet."""
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
        page.least_id = min(page.least_id, id)
        page.most_id = max(page.most_id, id)
        self.deferred += 1
        return deferred

    cdef void relist_page(self, Pages *pages, Page *page) noexcept:
        """A page was full, or is empty now."""
        if page.used == 0:
            self.free_page(pages, page)
        else:
            enter_room(pages, page)

    cdef Page *new_page(self, Pages *pages) except NULL:
        cdef Page *page = <Page *>self.new_cell(&self.page_slabs)
        page.free = NULL
        page.used = page.made = 0
        page.least_id = <uint64_t>-1
        page.most_id = 0
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
    """Something in the page is free."""
    page.prev_with_room = NULL
    page.next_with_room = pages.with_room
    if page.next_with_room != NULL:
        page.next_with_room.prev_with_room = page
    pages.with_room = page


cdef void leave_room(Pages *pages, Page *page) noexcept:
    """Nothing in it is, or it goes."""
    if page.prev_with_room != NULL:
        page.prev_with_room.next_with_room = page.next_with_room
    else:
        pages.with_room = page.next_with_room
    if page.next_with_room != NULL:
        page.next_with_room.prev_with_room = page.prev_with_room


cdef void free_slabs(Slabs *slabs) noexcept:
    cdef Slab *slab
    while slabs.listed != NULL:
        slab = slabs.listed
        slabs.listed = slab.next
        munmap(slab, SLAB_SIZE)
    while slabs.spare != NULL:
        slab = slabs.spare
        slabs.spare = slab.next
        munmap(slab, SLAB_SIZE)


cdef struct Read:
    void *window
    Block *block


cdef int read_done(void *arg, int error) except -1:
    cdef Read *read = <Read *>arg
    cdef Window window = <Window>read.window
    cdef Block *block = read.block
    free(read)
    block.flags &= ~LOADING
    if error == ENOENT or error == EIO:
        # The records cannot be had: readers step over them, as they do over damaged ones.
        block.flags |= UNREADABLE
        window.store.take_memory(block)
    elif error:
        window.stalled = True
        window.store.take_memory(block)
    else:
        window.store.keep_longer(block)
        window.reseat(block)
    try:
        window.unpin(block)
        window.on_loaded(block)
    finally:
        Py_DECREF(window)
    return 0


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


@cython.no_gc_clear      # outputs that hold its last blocks may go after it
cdef class Window:
    def __cinit__(self):
        self.next_seq = 1
        self.visible.seq = 1
        self.fanout.seq = 1
        self.kept.seq = 1
        self.outdated.seq = 1
        self.untold.seq = 1
        self.next_capacity = SMALLEST_BLOCK

    def __dealloc__(self):
        free(self.cursors)
        free(self.holes)
        free(self.index)

    # -- appending --

    cdef Block *open_block(self, uint64_t size) except NULL:
        cdef Block *block
        cdef uint32_t capacity = self.next_capacity
        if size > 0xfffffff0u:
            raise NsqError(f"a record of {size} bytes is larger than a block can be")
        if size > HUGE_RECORDS:
            capacity = <uint32_t>size
        else:
            while capacity < size:
                capacity <<= 1
            self.next_capacity = min(<uint32_t>LARGEST_BLOCK, capacity << 1)
        block = self.store.new_block(capacity)
        block.first_seq = self.next_seq
        self.push_block(block)
        return block

    cdef void push_block(self, Block *block) noexcept:
        """Link a block behind the newest one; cursors of an empty window stand at its start."""
        cdef uint32_t i
        self.seal()
        block.flags |= IN_WINDOW
        block.prev = self.newest
        block.next = NULL
        if self.newest != NULL:
            block.position = self.newest.position + self.newest.size
            self.newest.next = block
            self.newest = block
            if self.index != NULL:
                self.index_newest()
            return
        self.oldest = self.newest = block
        if self.index != NULL:
            self.index_newest()
        for i in range(self.cursor_count):
            if self.cursors[i].block == NULL:
                self.cursors[i].block = block
                self.cursors[i].offset = 0
                block.cursors += 1

    cdef void seal(self) noexcept:
        """Nothing more is appended to the open block."""
        cdef Block *block = self.newest
        if block == NULL or block.flags & SEALED:
            return
        block.flags |= SEALED
        if block.size and block.stored == block.size:
            # All of it was on disk before; no write will end that says so.
            self.store.droppable(block)

    # -- looking for blocks --

    cdef Block *block_of(self, uint64_t seq) except? NULL:
        """The first block of the window that ends with record `seq` or a later one; NULL if there
        is none."""
        cdef size_t low
        cdef size_t high
        cdef size_t middle
        if self.index == NULL:
            self.make_index()
        low = self.index_first
        high = low + self.index_count
        while low < high:
            middle = (low + high) // 2
            if self.index[middle].last_seq < seq:
                low = middle + 1
            else:
                high = middle
        return NULL if low == self.index_first + self.index_count else self.index[low]

    cdef int make_index(self) except -1:
        cdef Block *block = self.oldest
        cdef size_t count = 0
        while block != NULL:
            count += 1
            block = block.next
        self.index = <Block **>malloc((count + 16) * sizeof(Block *))
        if self.index == NULL:
            raise MemoryError()
        self.index_room = count + 16
        self.index_first = 0
        self.index_count = 0
        block = self.oldest
        while block != NULL:
            self.index[self.index_count] = block
            self.index_count += 1
            block = block.next
        return 0

    cdef void index_newest(self) noexcept:
        cdef Block **grown
        if self.index_first + self.index_count == self.index_room:
            if self.index_first > self.index_room // 2:
                memmove(self.index, self.index + self.index_first,
                        self.index_count * sizeof(Block *))
                self.index_first = 0
            else:
                grown = <Block **>realloc(self.index, 2 * self.index_room * sizeof(Block *))
                if grown == NULL:
                    # It is made again when a block is looked for.
                    self.drop_index()
                    return
                self.index = grown
                self.index_room *= 2
        self.index[self.index_first + self.index_count] = self.newest
        self.index_count += 1

    cdef void drop_index(self) noexcept:
        free(self.index)
        self.index = NULL
        self.index_first = self.index_count = self.index_room = 0

    # -- cursors --

    cdef int watch(self, Cursor *cursor) except -1:
        """Register a cursor; it stands at the end of the window until it is moved."""
        cdef Cursor **grown
        if self.cursor_count == self.cursor_room:
            grown = <Cursor **>realloc(
                self.cursors, (2 * self.cursor_room + 4) * sizeof(Cursor *))
            if grown == NULL:
                raise MemoryError()
            self.cursors = grown
            self.cursor_room = 2 * self.cursor_room + 4
        self.cursors[self.cursor_count] = cursor
        self.cursor_count += 1
        cursor.block = NULL
        self.cursor_to_end(cursor)
        return 0

    cdef void unwatch(self, Cursor *cursor) noexcept:
        cdef uint32_t i
        for i in range(self.cursor_count):
            if self.cursors[i] == cursor:
                self.cursor_count -= 1
                self.cursors[i] = self.cursors[self.cursor_count]
                if cursor.block != NULL:
                    cursor.block.cursors -= 1
                    cursor.block = NULL
                self.trim()
                return

    cdef bint next_record(self, Cursor *cursor) noexcept:
        """Step over ends of blocks and gaps; whether that leads to a record."""
        cdef Block *block = cursor.block
        cdef bint left = False
        if block == NULL:
            cursor.seq = self.next_seq
            return False
        while not at_record(cursor):
            if block.next == NULL:
                # Records of which a crash left nothing may be missing at the end, too.
                cursor.offset = block.size
                cursor.seq = self.next_seq
                break
            block.cursors -= 1
            left = left or block.cursors == 0
            block = block.next
            block.cursors += 1
            cursor.block = block
            cursor.offset = 0
            cursor.seq = max(cursor.seq, block.first_seq)
        if left:
            self.trim()
        return cursor.offset < block.size

    cdef int add_hole(self, uint64_t start, uint64_t end) except -1:
        """Records start .. end - 1 are for nobody."""
        cdef Hole *grown
        if self.hole_count and self.holes[self.hole_count - 1].end == start:
            self.holes[self.hole_count - 1].end = end
            return 0
        grown = <Hole *>realloc(self.holes, (self.hole_count + 1) * sizeof(Hole))
        if grown == NULL:
            raise MemoryError()
        self.holes = grown
        self.holes[self.hole_count].start = start
        self.holes[self.hole_count].end = end
        self.hole_count += 1
        return 0

    cdef void drop_holes(self, uint64_t least) noexcept:
        """Forget the holes that every cursor has passed."""
        cdef uint32_t kept = 0
        cdef uint32_t i
        for i in range(self.hole_count):
            if self.holes[i].end > least:
                self.holes[kept] = self.holes[i]
                kept += 1
        self.hole_count = kept

    cdef uint64_t bytes_from(self, const Cursor *cursor) noexcept:
        """Bytes of the records from a cursor on, wherever they are."""
        if cursor.block == NULL:
            return 0
        return (self.newest.position + self.newest.size
                - cursor.block.position - cursor.offset)

    cdef uint64_t least_seq(self) noexcept:
        """The sequence number of the reader that is furthest behind."""
        return self.last_reader().seq

    cdef const Cursor *last_reader(self) noexcept:
        """The cursor that is furthest behind, but for those that only keep."""
        cdef const Cursor *last = &self.visible
        cdef uint32_t i
        for i in range(self.cursor_count):
            if self.cursors[i].seq < last.seq and not self.only_keeps(self.cursors[i]):
                last = self.cursors[i]
        return last

    cdef bint only_keeps(self, const Cursor *cursor) noexcept:
        return cursor == &self.kept or cursor == &self.outdated or cursor == &self.untold

    # -- lives of blocks --

    cdef void pin(self, Block *block) noexcept:
        block.pins += 1

    cdef void unpin(self, Block *block) noexcept:
        block.pins -= 1
        if block.pins == 0 and block.refs == 0 and not block.flags & IN_WINDOW:
            self.forget_straggler(block)

    cdef void trim(self) noexcept:
        """Let go of the blocks that every cursor has left behind."""
        cdef Block *block = self.oldest
        while block != NULL and block.cursors == 0 and block.flags & SEALED:
            self.oldest = block.next
            if self.oldest == NULL:
                self.newest = NULL
            else:
                self.oldest.prev = NULL
            if self.index != NULL:
                self.index_first += 1
                self.index_count -= 1
            self.leave_window(block)
            block = self.oldest

    cdef void leave_window(self, Block *block) noexcept:
        block.flags &= ~IN_WINDOW
        block.prev = block.next = NULL
        if block.refs == 0 and block.pins == 0:
            self.release(block)
            return
        self.add_straggler(block)

    cdef void add_straggler(self, Block *block) noexcept:
        block.next = self.stragglers
        if block.next != NULL:
            block.next.prev = block
        self.stragglers = block

    cdef void forget_straggler(self, Block *block) noexcept:
        if block.prev != NULL:
            block.prev.next = block.next
        else:
            self.stragglers = block.next
        if block.next != NULL:
            block.next.prev = block.prev
        self.release(block)

    cdef void release(self, Block *block) noexcept:
        """Nobody needs the block any more, in memory or on disk."""
        if self.log is not None and block.extent.bytes:
            self.log.release(&block.extent)
        self.store.free_block(block)

    cdef int load(self, Block *block) except -1:
        """Ask for the bytes of a block that is on disk only; on_loaded follows."""
        cdef Read *read
        if block.flags & (LOADING | UNREADABLE) or block.data != NULL or self.stalled:
            return 0
        read = <Read *>malloc(sizeof(Read))
        if read == NULL:
            raise MemoryError()
        read.window = <void *>self
        read.block = block
        self.store.keep_budget()
        self.store.give_memory(block, block.size)
        block.flags |= LOADING
        block.pins += 1
        Py_INCREF(self)
        self.log.read(&block.extent, block.data, read_done, read)
        return 0

    cdef void reseat(self, Block *block) noexcept:
        """A block was read: cursors in the midst of it stand before their records again. Where
        lengths are damaged on disk these do not begin where they did."""
        cdef Cursor *cursor
        cdef uint32_t i
        for i in range(self.cursor_count):
            cursor = self.cursors[i]
            if cursor.block == block and cursor.offset:
                cursor.offset = offset_of(block, cursor.seq)

    cdef int on_loaded(self, Block *block) except -1:
        """Called when a load has ended, well or badly (UNREADABLE, or stalled)."""
        return 0

    cdef int on_read(self, read) except -1:
        """A read of the log (nsqcy.broker.log_reader) can go on, or has ended."""
        raise NotImplementedError

    cdef object new_mover(self, object channel):
        """What moves messages of a channel to other topics (nsqcy.broker.channel.Mover)."""
        raise NotImplementedError

    cdef int write_copies(self, Block *block) except -1:
        """Give the log what it does not have yet of a block of copies."""
        raise NotImplementedError

    cdef int copies_written(self) except -1:
        """Write down that entries have moved to copies, which the log has been given."""
        raise NotImplementedError

    cdef void truncate(self, uint64_t seq) noexcept:
        """Forget the records from `seq` on: they were never visible to anyone, but cursors may
        stand before the first of them."""
        cdef Block *block = self.newest
        cdef Record *record
        cdef Cursor *cursor
        cdef uint32_t at = 0
        cdef uint32_t count = 0
        while block != NULL and block.first_seq >= seq:
            self.newest = block.prev
            if self.newest == NULL:
                self.oldest = NULL
            else:
                self.newest.next = NULL
            for i in range(self.cursor_count):
                cursor = self.cursors[i]
                if cursor.block == block:
                    cursor.block = self.newest
                    if self.newest != NULL:
                        cursor.offset = self.newest.size
                        self.newest.cursors += 1
            if self.index != NULL:
                self.index_count -= 1
            self.leave_window(block)
            block = self.newest
        if block != NULL and block.last_seq >= seq:
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.seq >= seq:
                    break
                at += record.length
                count += 1
            block.size = at
            block.count = count
            block.last_seq = seq - 1
            block.flags |= SEALED
        self.next_seq = seq

    cdef void rest(self) noexcept:
        """The topic has been idle for a while: an open block that nobody needs goes back."""
        cdef Block *block = self.newest
        cdef uint32_t i
        if block == NULL or block != self.oldest or block.refs or block.pins:
            return
        for i in range(self.cursor_count):
            if self.cursors[i].seq != self.next_seq:
                return
        for i in range(self.cursor_count):
            self.cursors[i].block = NULL
        block.cursors = 0
        block.flags |= SEALED
        self.trim()
        self.next_capacity = SMALLEST_BLOCK

    cdef void discard(self) noexcept:
        """Forget everything: the topic is being deleted. Its entries are gone already."""
        cdef uint32_t i
        self.seal()
        for i in range(self.cursor_count):
            if self.cursors[i].block != NULL:
                self.cursors[i].block.cursors -= 1
                self.cursors[i].block = NULL
            self.cursors[i].seq = self.next_seq
        self.trim()
