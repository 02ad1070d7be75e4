# The block pool: the memory of one worker, as arenas of blocks and slabs of entries.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.storage.block cimport Arena, Block
from nsqcy.storage.entry cimport PAGE_ROOM, Deferred, Entry, Page, Pages, page_of


cdef enum:
    BLOCK_CLASSES = 7             # 4 KiB << 0 .. 6
    ARENA_SIZE = 2097152          # bytes; a huge page
    SLAB_SIZE = 65536


# Cells of one size in SLAB_SIZE bytes; the free list is at the start.
ctypedef struct Slab:
    void *free
    Slab *prev
    Slab *next
    uint32_t used
    uint32_t listed


# The slabs with cells of one size.
ctypedef struct Slabs:
    uint32_t cell
    uint32_t first          # offset of the first cell in a slab
    uint32_t spare_count
    Slab *listed            # slabs with a free cell
    Slab *spare             # slabs without a used cell, kept for reuse


@cython.final
cdef class BlockPool:
    """The memory of one worker: arenas, blocks and entries, and their usage."""
    cdef Arena *partial[BLOCK_CLASSES]      # arenas with a free block, by class
    cdef Slabs entry_slabs
    cdef Slabs page_slabs
    cdef Block *newest                      # droppable blocks, in order of last use
    cdef Block *oldest
    cdef public uint64_t resident_bytes     # capacity of all blocks in bytes
    cdef public uint64_t budget             # resident bytes above which blocks are dropped
    cdef public uint64_t arenas
    cdef public uint64_t blocks             # live Block structs
    cdef public uint64_t entries            # live Entry structs
    cdef public uint64_t deferred           # live Deferred structs
    cdef int64_t now

    cdef Block *new_block(self, uint32_t capacity) except NULL
    cdef int give_memory(self, Block *block, uint32_t capacity) except -1
    cdef void take_memory(self, Block *block) noexcept
    cdef void free_block(self, Block *block) noexcept
    cdef void droppable(self, Block *block) noexcept
    cdef void not_droppable(self, Block *block) noexcept

    cdef inline void *new_cell(self, Slabs *slabs) except NULL:
        cdef Slab *slab = slabs.listed
        cdef void *cell
        if slab == NULL:
            slab = self.new_slab(slabs)
        cell = slab.free
        slab.free = (<void **>cell)[0]
        slab.used += 1
        if slab.free == NULL:
            self.unlist_slab(slabs, slab)
        return cell

    cdef inline void free_cell(self, Slabs *slabs, void *cell) noexcept:
        cdef Slab *slab = <Slab *>(<size_t>cell & ~<size_t>(SLAB_SIZE - 1))
        (<void **>cell)[0] = slab.free
        slab.free = cell
        slab.used -= 1
        if slab.used == 0 or not slab.listed:
            self.relist_slab(slabs, slab)

    cdef inline Entry *new_entry(self) except NULL:
        cdef Entry *entry = <Entry *>self.new_cell(&self.entry_slabs)
        self.entries += 1
        return entry

    cdef inline void free_entry(self, Entry *entry) noexcept:
        self.free_cell(&self.entry_slabs, entry)
        self.entries -= 1

    cdef Deferred *new_deferred(self, Pages *pages, uint64_t id) except NULL

    cdef inline void free_deferred(self, Pages *pages, Deferred *deferred) noexcept:
        cdef Page *page = page_of(deferred)
        (<Deferred **>deferred)[0] = page.free
        deferred.block = NULL
        page.free = deferred
        page.used -= 1
        self.deferred -= 1
        if page.used == 0 or page.used == PAGE_ROOM - 1:
            self.relist_page(pages, page)

    cdef void relist_page(self, Pages *pages, Page *page) noexcept
    cdef Page *new_page(self, Pages *pages) except NULL
    cdef void free_page(self, Pages *pages, Page *page) noexcept
    cdef void trim(self, int64_t now) noexcept
    cdef Arena *new_arena(self, int kind) except NULL
    cdef void thin_arena(self, Arena *arena) noexcept
    cdef void list_arena(self, Arena *arena) noexcept
    cdef void unlist_arena(self, Arena *arena) noexcept
    cdef void keep_longer(self, Block *block) noexcept
    cdef void keep_budget(self) noexcept
    cdef Slab *new_slab(self, Slabs *slabs) except NULL
    cdef void relist_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void put_aside(self, Slabs *slabs, Slab *slab) noexcept
    cdef void unmap_spare(self, Slabs *slabs) noexcept
    cdef void list_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void unlist_slab(self, Slabs *slabs, Slab *slab) noexcept
