"""Compaction: releases memory and disk space that a few remaining messages would keep in use.

Copies still-needed records out of mostly dead blocks, in bounded steps, and points the entries at
the copies. Depends on windows and channels, but not on topics: the window writes the copies.
"""

# Compaction: copies still-needed records out of mostly dead blocks, over many turns.
#
#   IDLE ─► LOAD ─► GATHER ─► COPY ─► WRITE ─► AWAIT ─► REDIRECT ─► REDIRECTED ─► IDLE
#
#   LOAD        read back blocks that are only on disk
#   GATHER      visit every entry of the channels and note the records that are needed
#   COPY        copy these records to survivor blocks, block by block, in record order
#   WRITE       if any block was on disk: the owner writes the copies to the log (next_copies)
#   AWAIT       wait for these writes; if one fails, all records stay where they were
#   REDIRECT    visit every entry again and point it at its copy
#   REDIRECTED  if any block was on disk: the owner writes the journal, then releases the blocks
#
# Meanwhile, entries come and go. An entry missed by a walk keeps its block; the next compaction
# considers the block again.


# Location of a record in its block, and of its copy.
ctypedef struct Relocation:
    uint32_t source
    uint32_t copy


cdef enum:
    SLACK = 1048576                 # bytes of stragglers below which compaction is not worthwhile
    READ_BACK = 67108864            # maximum bytes read back per compaction
    BLOCKS = 1024                   # maximum blocks per compaction
    LOADS = 4                       # maximum concurrent reads
    BYTES_A_STEP = 256              # copying this many bytes costs as much as one entry


cdef int compare_relocations(const void *a, const void *b) noexcept nogil:
    cdef uint32_t one = (<const Relocation *>a).source
    cdef uint32_t other = (<const Relocation *>b).source
    return (one > other) - (one < other)


cdef int compare_blocks(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<Block **>a)[0].first_seq
    cdef uint64_t other = (<Block **>b)[0].first_seq
    return (one > other) - (one < other)


cdef inline Relocation *each_relocation(Relocations *relocations) noexcept nogil:
    return <Relocation *>(relocations + 1)


cdef bint is_worthwhile(RecordWindow window) noexcept:
    """Return whether stragglers use at least four times the bytes that are needed, plus SLACK."""
    cdef Block *block = window.stragglers
    cdef uint64_t held = 0
    cdef uint64_t live = 0
    while block != NULL:
        held += block.size
        live += block.size // block.count * block.refs
        block = block.next
    return held >= 4 * live + SLACK


cdef class Compaction:
    def __init__(self, RecordWindow window not None):
        self.window = window

    def __dealloc__(self):
        free(self.blocks)

    # -- which blocks --

    cdef int choose(self) except -1:
        """Add blocks whose records are mostly dead, up to the limits BLOCKS and READ_BACK."""
        cdef Block *block = self.window.stragglers
        cdef uint64_t room = min(<uint64_t>READ_BACK, self.window.pool.budget // 4)
        while block != NULL and self.count < BLOCKS:
            if self.is_sparse(block):
                self.add(block)
                if block.data == NULL:
                    if room <= block.size:
                        break
                    room -= block.size
            block = block.next
        return 0

    cdef bint is_sparse(self, Block *block) noexcept:
        return (block.pins == 0 and block != self.survivor and block.refs
                and 4 * <uint64_t>block.refs < block.count
                and not block.flags & LOADING
                and (block.written == 0 or block.stored == block.size))

    cdef int add(self, Block *block) except -1:
        """Add a block; the records in it that entries still need will be copied."""
        cdef Block **grown
        cdef Relocations *relocations
        if self.count == self.room:
            grown = <Block **>realloc(self.blocks, (2 * self.room + 16) * sizeof(Block *))
            if grown == NULL:
                raise MemoryError()
            self.blocks = grown
            self.room = 2 * self.room + 16
        relocations = <Relocations *>malloc(sizeof(Relocations) + block.refs * sizeof(Relocation))
        if relocations == NULL:
            raise MemoryError()
        relocations.target = NULL
        relocations.count = 0
        relocations.room = block.refs
        block.relocations = relocations
        self.window.pin(block)
        self.blocks[self.count] = block
        self.count += 1
        self.on_disk = self.on_disk or block.stored
        self.loading += block.data == NULL
        return 0

    # -- stages --

    cdef bint begin(self, list channels) except -1:
        """Start compacting the added blocks; return whether step() can run now."""
        qsort(self.blocks, self.count, sizeof(Block *), compare_blocks)
        self.channels = channels
        if self.loading:
            self.enter(LOAD)
            self.load_more(LOADS)
            return False
        self.enter(GATHER)
        return True

    cdef bint loaded(self) except -1:
        """Handle the end of a block read, successful or not; return whether it was the last one."""
        self.loading -= 1
        if self.loading and self.window.stalled:
            self.stop()
        elif self.loading:
            self.load_more(1)
        else:
            self.enter(GATHER)
        return self.stage == GATHER

    cdef int load_more(self, uint32_t count) except -1:
        """Start up to `count` more reads.

        Only a few run at a time, so that other work does not wait for the I/O threads or for
        memory.
        """
        cdef Block *block
        while count and self.at < self.count:
            block = self.blocks[self.at]
            self.at += 1
            if block.data == NULL:
                self.window.load(block)
                count -= 1
        return 0

    cdef bint written(self) noexcept:
        """Handle the end of a write of copies; return whether step() can run now.

        An entry whose record was on disk is redirected only to a copy that is on disk.
        """
        cdef Block *target
        cdef uint32_t i
        if self.stage != AWAIT:
            return False
        for i in range(self.count):
            target = (<Relocations *>self.blocks[i].relocations).target
            if target == NULL or target.stored == target.size:
                continue
            if target.written < target.size:
                self.stop()
            return False
        self.enter(REDIRECT)
        return True

    cdef bint waits(self) noexcept:
        """Return whether the compaction is idle or waiting for I/O."""
        return self.stage <= LOAD or self.stage == AWAIT

    cdef int step(self, int budget) except? -1:
        """Do work worth up to `budget`, until the owner must act; return the unused budget."""
        cdef Block *block
        while budget > 0 and not self.waits() and self.stage != WRITE and self.stage != REDIRECTED:
            if self.stage == GATHER or self.stage == REDIRECT:
                budget = self.walk(budget)
                continue
            if self.at == self.count:
                self.enter(WRITE if self.on_disk else REDIRECT)
                continue
            block = self.blocks[self.at]
            self.at += 1
            budget -= self.copy(block)
        return budget

    cdef void enter(self, Stage stage) noexcept:
        cdef Channel channel
        self.stage = stage
        self.at = 0
        if stage == WRITE:
            # A block that is being written must not grow.
            self.close_survivor()
        elif stage == GATHER or stage == REDIRECT:
            self.walked = 0
            for channel in self.channels:
                channel.begin_walk()

    cdef void stop(self) noexcept:
        """Release the blocks; entries that were not redirected to copies stay unchanged."""
        cdef Block *block
        cdef Relocations *relocations
        cdef uint32_t i
        for i in range(self.count):
            block = self.blocks[i]
            relocations = <Relocations *>block.relocations
            block.relocations = NULL
            if relocations.target != NULL:
                self.window.unpin(relocations.target)
            free(relocations)
            self.window.unpin(block)
        self.count = self.loading = 0
        self.on_disk = False
        self.channels = None
        self.stage = IDLE

    # -- entries --

    cdef int walk(self, int budget) except? -1:
        """Visit more entries; return the unused budget."""
        cdef Channel channel
        cdef Deferred *entry
        cdef Relocations *relocations
        while budget > 0 and self.walked < len(self.channels):
            budget -= 1
            channel = <Channel>self.channels[self.walked]
            if not channel.walk(&entry):
                self.walked += 1
            elif entry != NULL and entry.block.relocations != NULL:
                relocations = <Relocations *>entry.block.relocations
                if self.stage == GATHER:
                    self.gather(entry, relocations)
                else:
                    self.redirect(entry, relocations)
        if self.walked < len(self.channels):
            return budget
        if self.stage == GATHER:
            self.enter(COPY)
            return budget
        if self.on_disk:
            self.enter(REDIRECTED)
        else:
            self.stop()
        return budget

    cdef void gather(self, const Deferred *entry, Relocations *relocations) noexcept:
        """Note a record to copy. Skip an entry whose record is no longer at its offset: dispatch
        will drop the entry."""
        cdef Block *block = entry.block
        if block.data != NULL and (<Record *>(block.data + entry.offset)).seq != entry.seq:
            return
        if relocations.count < relocations.room:
            each_relocation(relocations)[relocations.count].source = entry.offset
            relocations.count += 1

    cdef void redirect(self, Deferred *entry, Relocations *relocations) noexcept:
        cdef Block *old = entry.block
        cdef Relocation *each = each_relocation(relocations)
        cdef uint32_t low = 0
        cdef uint32_t high = relocations.count
        cdef uint32_t middle
        while low < high:
            middle = (low + high) // 2
            if each[middle].source < entry.offset:
                low = middle + 1
            else:
                high = middle
        if low == relocations.count or each[low].source != entry.offset:
            return
        entry.block = relocations.target
        entry.offset = each[low].copy
        self.window.ref(entry.block)
        self.window.unref(old)

    # -- blocks --

    cdef int copy(self, Block *block) except -1:
        """Copy the needed records in a block; return the cost in budget units."""
        cdef Relocations *relocations = <Relocations *>block.relocations
        cdef Relocation *each = each_relocation(relocations)
        cdef Block *target
        cdef Record *record
        cdef uint32_t needed = 0
        cdef uint32_t length = 0
        cdef uint32_t i
        if block.data == NULL:
            relocations.count = 0
        if relocations.count == 0:
            return 1
        qsort(each, relocations.count, sizeof(Relocation), compare_relocations)
        for i in range(relocations.count):
            # Channels share records, so copy each record once.
            if needed and each[i].source == each[needed - 1].source:
                continue
            each[needed] = each[i]
            needed += 1
            length += (<Record *>(block.data + each[i].source)).length
        record = <Record *>(block.data + each[0].source)
        target = self.survivor_block(length, record.seq)
        target.first_seq = min(target.first_seq, record.seq)
        for i in range(needed):
            record = <Record *>(block.data + each[i].source)
            memcpy(target.data + target.size, record, record.length)
            (<Record *>(target.data + target.size)).attributes |= RECORD_COPY
            each[i].copy = target.size
            target.size += record.length
        target.count += needed
        target.last_seq = record.seq
        relocations.count = needed
        relocations.target = target
        self.window.pin(target)
        return 1 + needed + length // BYTES_A_STEP

    cdef Block *next_copies(self, int *budget) except? NULL:
        """Return the next block of copies to write to the log, unless there is nothing to write;
        subtract the cost from the budget. Await the writes after the last one."""
        cdef Block *target
        if self.at == self.count:
            self.enter(AWAIT)
            self.written()
            return NULL
        target = (<Relocations *>self.blocks[self.at].relocations).target
        self.at += 1
        budget[0] -= 1
        if target == NULL or target.written == target.size:
            return NULL
        budget[0] -= target.count + (target.size - target.written) // BYTES_A_STEP
        return target

    cdef Block *survivor_block(self, uint32_t length, uint64_t seq) except NULL:
        """Return an open block for copies with space for `length` bytes of records from `seq` on.

        Records ascend within a block, so the block can be read back as a run.
        """
        cdef Block *block = self.survivor
        if block != NULL and block.capacity - block.size >= length and block.last_seq < seq:
            return block
        self.close_survivor()
        block = self.window.pool.new_block(max(length, <uint32_t>LARGEST_BLOCK))
        block.flags = SURVIVORS | SEALED
        block.first_seq = <uint64_t>-1
        self.window.add_straggler(block)
        self.window.own(block)
        # The pin keeps the block while it is open, even if all its entries finish.
        self.window.pin(block)
        self.survivor = block
        return block

    cdef void close_survivor(self) noexcept:
        cdef Block *block = self.survivor
        self.survivor = NULL
        if block != NULL:
            self.window.unpin(block)
