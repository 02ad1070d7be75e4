"""Publishing once: the deduplication ids of a topic within its window.

Owns the ids in memory, in the order of their publishes, and the content of the files of ids.
Independent of records, of the log and of publishers: the topic reports each publish and what became
of it, and passes the content of the files to its log.
"""

# The ids of a topic: a queue in chunks, ordered by publish, and a hash table over it.
#
#   first ──► expired ...        confirmed ...       filed ...          unfiled ──► end
#             removed from here  in files that the   written, but the   their records
#                                journal lists       journal is not     are in the log
#
# An id has a number, which ascends by one. The table uses linear hashing with chains: it grows and
# shrinks by one bucket at a time, so no operation takes long. An id costs 32 bytes for the hash,
# the time and the seq, 4 for the chain, and 2 to 8 for the table. The first three are in the state
# memory of the pool, where the next process finds them if this one dies.


cdef enum:
    BUCKETS = 512               # per piece of the table
    CHAIN = 2                   # average ids per bucket
    EXPIRED_AT_ONCE = 2         # ids removed with each new id ...
    TICK_EXPIRED = 16384        # ... and per tick
    FILED_AT_ONCE = 1048576     # ids written per journal
    FILE_BYTES = 4194304        # size at which the next file begins
    PREFETCH = 16               # ids whose buckets are loaded into the cache early

cdef int64_t FORGOTTEN = <int64_t>0x8000000000000000u   # time of an id that was replaced

cdef uint64_t ALL_REFS = 0xffffffffu        # refs in a chain: number % ALL_REFS + 1; 0: none


cdef extern from "crc32c.h" nogil:
    uint32_t ids_crc "crc32c"(uint32_t crc, const uint8_t *at, size_t n)

cdef extern from *:
    """
    #define prefetch(at) __builtin_prefetch(at)
    """
    void prefetch(const void *at) nogil

IDS_MAGIC = b"SQCYIDS\0"
_IDS_HEAD = Struct("<8sII")     # magic, version, crc of the bytes before
_IDS_BATCH = Struct("<II")      # ids, crc of this number and the ids


def ids_head():
    """Return the start of a file of ids."""
    whole = IDS_MAGIC + FORMAT_IDS.to_bytes(4, "little")
    return whole + crc32c(whole).to_bytes(4, "little")


def ids_number(bytes content not None):
    """Return the number of the format in a file of ids; None if the start of the file is
    damaged."""
    if len(content) < _IDS_HEAD.size:
        return None
    magic, number, crc = _IDS_HEAD.unpack_from(content)
    is_whole = magic == IDS_MAGIC and crc == crc32c(content[:_IDS_HEAD.size - 4])
    return number if is_whole else None


class IdsFile:
    """A file of ids that the next journal lists."""

    __slots__ = ("bytes", "last_time", "number")

    def __init__(self, number, bytes, last_time):
        self.number = number
        self.bytes = bytes
        self.last_time = last_time


@cython.final
@cython.no_gc_clear      # __dealloc__ needs the pool
cdef class Once:
    """
    window: ns during which an id counts
    maximum: ids above which the oldest are forgotten early
    pool: for the ids; by default, one of their own
    """

    def __cinit__(self, int64_t window, uint64_t maximum, BlockPool pool=None):
        self.pool = BlockPool(0) if pool is None else pool
        self.window = window
        self.maximum = maximum
        self.first = self.end = self.confirmed = self.filed = 1
        self.confirmed_seq = self.filed_seq = 1
        self.files = []
        self.listed = {}

    def __dealloc__(self):
        self.clear()
        free(self.chunks)
        free(self.pieces)

    # -- ids by number --

    cdef inline IdChunk *chunk_of(self, uint64_t number) noexcept:
        return self.chunks[self.chunks_first + number // CHUNK_IDS - self.first // CHUNK_IDS]

    cdef inline KnownId *id_at(self, uint64_t number) noexcept:
        return &self.chunk_of(number).cell.ids[number % CHUNK_IDS]

    cdef inline uint64_t seq_at(self, uint64_t number) noexcept:
        """Return the record of an id; 0 if the id is confirmed."""
        if number < self.confirmed:
            return 0
        return self.chunk_of(number).cell.seqs[number % CHUNK_IDS]

    cdef inline uint64_t number_of(self, uint32_t ref) noexcept:
        return self.first + (ref - 1 + ALL_REFS - self.first % ALL_REFS) % ALL_REFS

    cdef int reserve(self, int64_t wall) except -1:
        """Make room for one more id, so that the next add() cannot fail."""
        cdef IdChunk **grown
        cdef IdChunk *chunk
        while self.end - self.first >= self.maximum:
            self.early += self.counts(self.id_at(self.first).time, wall)
            self.remove_first()
        if self.end // CHUNK_IDS - self.first // CHUNK_IDS < self.chunks_count:
            return self.grow_table()
        if self.chunks_first + self.chunks_count == self.chunks_room:
            if self.chunks_first > self.chunks_room // 2:
                memmove(self.chunks, self.chunks + self.chunks_first,
                        self.chunks_count * sizeof(IdChunk *))
                self.chunks_first = 0
            else:
                grown = <IdChunk **>realloc(
                    self.chunks, (2 * self.chunks_room + 4) * sizeof(IdChunk *))
                if grown == NULL:
                    raise MemoryError()
                self.chunks = grown
                self.chunks_room = 2 * self.chunks_room + 4
        chunk = self.new_chunk()
        chunk.cell.first = self.end - self.end % CHUNK_IDS
        keep_store_order()
        chunk.cell.owner = self.owner
        self.chunks[self.chunks_first + self.chunks_count] = chunk
        self.chunks_count += 1
        return self.grow_table()

    cdef IdChunk *new_chunk(self) except NULL:
        cdef IdChunk *chunk = <IdChunk *>malloc(sizeof(IdChunk))
        if chunk == NULL:
            raise MemoryError()
        try:
            chunk.cell = <IdCell *>self.pool.new_cell(&self.pool.id_slabs)
        except MemoryError:
            free(chunk)
            raise
        memset(chunk.cell, 0, sizeof(IdCell))
        return chunk

    cdef void free_chunk(self, IdChunk *chunk) noexcept:
        chunk.cell.owner = 0
        keep_store_order()
        self.pool.free_cell(&self.pool.id_slabs, chunk.cell)
        free(chunk)

    cdef void belong(self, uint32_t owner) noexcept:
        """Let the next process find the ids as those of this topic; 0: it must not find them."""
        cdef size_t i
        self.owner = owner
        for i in range(self.chunks_count):
            self.chunks[self.chunks_first + i].cell.owner = owner

    cdef void clear(self) noexcept:
        """Forget all ids in memory."""
        cdef size_t i
        for i in range(self.chunks_count):
            self.free_chunk(self.chunks[self.chunks_first + i])
        for i in range(self.pieces_count):
            free(self.pieces[i])
        self.chunks_first = self.chunks_count = 0
        self.pieces_count = 0
        self.buckets = self.table_size = 0
        self.first = self.end
        self.confirmed = max(self.confirmed, self.first)
        self.filed = max(self.filed, self.first)

    # -- the table --

    cdef inline uint32_t *bucket(self, uint64_t hash) noexcept:
        """Return the bucket of a hash. The table has between table_size and twice as many."""
        cdef uint64_t index = hash & (2 * self.table_size - 1)
        if index >= self.buckets:
            index &= self.table_size - 1
        return &self.pieces[index // BUCKETS][index % BUCKETS]

    cdef inline int grow_table(self) except -1:
        """Add a bucket if the table is too small."""
        if self.buckets and self.end - self.first < CHAIN * self.buckets:
            return 0
        return self.add_bucket()

    cdef int add_bucket(self) except -1:
        cdef uint32_t **grown
        cdef uint32_t *old
        cdef uint32_t *fresh
        cdef uint32_t ref
        if self.buckets == self.pieces_count * BUCKETS:
            if self.pieces_count == self.pieces_room:
                grown = <uint32_t **>realloc(
                    self.pieces, (2 * self.pieces_room + 4) * sizeof(uint32_t *))
                if grown == NULL:
                    raise MemoryError()
                self.pieces = grown
                self.pieces_room = 2 * self.pieces_room + 4
            self.pieces[self.pieces_count] = <uint32_t *>calloc(BUCKETS, sizeof(uint32_t))
            if self.pieces[self.pieces_count] == NULL:
                raise MemoryError()
            self.pieces_count += 1
        if self.buckets == 0:
            self.buckets = self.table_size = BUCKETS
            return 0
        if self.buckets == 2 * self.table_size:
            self.table_size *= 2
        # Split the bucket whose ids may belong to the new one.
        old = self.bucket(self.buckets - self.table_size)
        ref = old[0]
        old[0] = 0
        fresh = &self.pieces[self.buckets // BUCKETS][self.buckets % BUCKETS]
        fresh[0] = 0
        self.buckets += 1
        return self.relink(ref)

    cdef int relink(self, uint32_t ref) except -1:
        """Insert the ids of a chain into the buckets to which they belong now."""
        cdef uint32_t following
        cdef uint64_t number
        cdef uint32_t *link
        cdef uint32_t *bucket
        while ref:
            number = self.number_of(ref)
            link = &self.chunk_of(number).next[number % CHUNK_IDS]
            following = link[0]
            bucket = self.bucket(self.id_at(number).hash.low)
            link[0] = bucket[0]
            bucket[0] = ref
            ref = following
        return 0

    cdef int shrink_table(self) except -1:
        """Remove a bucket if the table is much too large."""
        cdef uint32_t ref
        cdef uint64_t last
        if self.buckets <= BUCKETS or self.end - self.first >= self.buckets // 2:
            return 0
        last = self.buckets - 1
        ref = self.pieces[last // BUCKETS][last % BUCKETS]
        self.pieces[last // BUCKETS][last % BUCKETS] = 0
        if self.buckets == self.table_size:
            self.table_size //= 2
        self.buckets = last
        if last % BUCKETS == 0:
            self.pieces_count -= 1
            free(self.pieces[self.pieces_count])
        return self.relink(ref)

    cdef void unlink(self, uint64_t number) noexcept:
        """Remove an id from its chain."""
        cdef KnownId *known = self.id_at(number)
        cdef uint32_t ref = <uint32_t>(number % ALL_REFS) + 1
        cdef uint32_t *link
        cdef uint64_t other
        if known.time == FORGOTTEN:
            return
        link = self.bucket(known.hash.low)
        while link[0] != ref:
            other = self.number_of(link[0])
            link = &self.chunk_of(other).next[other % CHUNK_IDS]
        link[0] = self.chunk_of(number).next[number % CHUNK_IDS]
        known.time = FORGOTTEN

    cdef uint64_t find(self, const KeyHash *hash) noexcept:
        """Return the number of an id; 0 if it is not known."""
        cdef uint32_t ref
        cdef uint64_t number
        cdef KnownId *known
        if self.end == self.first:
            return 0
        ref = self.bucket(hash.low)[0]
        while ref:
            number = self.number_of(ref)
            known = self.id_at(number)
            if known.hash.low == hash.low and known.hash.high == hash.high:
                return number
            ref = self.chunk_of(number).next[number % CHUNK_IDS]
        return 0

    # -- publishes --

    cdef bint counts(self, int64_t time, int64_t wall) noexcept:
        """Return whether an id published at `time` counts now."""
        return time != FORGOTTEN and (-self.window < time - wall < self.window)

    cdef bint is_known(self, const KeyHash *hash, int64_t wall, uint64_t *seq) noexcept:
        """Return whether an id counts, and its record, or 0 if the record has long been visible."""
        cdef uint64_t number = self.find(hash)
        if number == 0 or not self.counts(self.id_at(number).time, wall):
            return False
        seq[0] = self.seq_at(number)
        return True

    cdef int add(self, const KeyHash *hash, int64_t time, uint64_t seq) except -1:
        """Remember the id of a record that has been appended. Call reserve() first."""
        cdef uint64_t number = self.find(hash)
        if number:
            self.unlink(number)
        self.append(hash, time, seq)
        return self.expire(time, EXPIRED_AT_ONCE)

    cdef void append(self, const KeyHash *hash, int64_t time, uint64_t seq) noexcept:
        """Add an id that the table does not contain."""
        cdef uint64_t number = self.end
        cdef IdChunk *chunk = self.chunk_of(number)
        cdef uint32_t *bucket
        chunk.cell.seqs[number % CHUNK_IDS] = seq
        chunk.cell.ids[number % CHUNK_IDS].hash = hash[0]
        keep_store_order()
        chunk.cell.ids[number % CHUNK_IDS].time = time
        bucket = self.bucket(hash.low)
        chunk.next[number % CHUNK_IDS] = bucket[0]
        bucket[0] = <uint32_t>(number % ALL_REFS) + 1
        self.end += 1

    cdef int add_found(self, const FoundId *found, int count, int64_t wall) except -1:
        """Remember up to FOUND_IDS ids that recovery found in records.

        Loads the ids' chains into the cache first, because they are far from each other."""
        cdef uint32_t refs[FOUND_IDS]
        cdef uint64_t number
        cdef int i
        cdef int link
        if self.buckets:
            for i in range(count):
                prefetch(self.bucket(found[i].hash.low))
            for link in range(CHAIN + 1):
                for i in range(count):
                    if link == 0:
                        refs[i] = self.bucket(found[i].hash.low)[0]
                    elif refs[i]:
                        number = self.number_of(refs[i])
                        refs[i] = self.chunk_of(number).next[number % CHUNK_IDS]
                    if refs[i]:
                        number = self.number_of(refs[i])
                        prefetch(self.id_at(number))
                        prefetch(&self.chunk_of(number).next[number % CHUNK_IDS])
        for i in range(count):
            self.add_one_found(&found[i].hash, found[i].time, found[i].seq, wall)
        return 0

    cdef int add_one_found(self, const KeyHash *hash, int64_t time, uint64_t seq,
                           int64_t wall) except -1:
        """Remember an id, unless this publish or a later one with the same id is known."""
        cdef uint64_t number = self.find(hash)
        if number and self.id_at(number).time >= time:
            return 0
        self.reserve(wall)
        return self.add(hash, time, seq)

    cdef int add_left(self, LeftTopic left, int64_t wall) except -1:
        """Remember the ids that a dead process has left."""
        cdef IdCell *cell
        cdef KnownId *known
        cdef size_t i
        cdef int j
        for i in range(left.id_cell_count):
            cell = left.id_cells[i]
            for j in range(CELL_IDS):
                known = &cell.ids[j]
                # Without its record, an id must not count: the message was not accepted.
                if known.time and cell.seqs[j] < left.visible and self.counts(known.time, wall):
                    self.add_one_found(&known.hash, known.time, cell.seqs[j], wall)
        return 0

    cdef int undo(self, uint64_t seq) except -1:
        """Forget the ids of records from `seq` on: these records no longer exist."""
        while self.end > self.filed and self.seq_at(self.end - 1) >= seq:
            self.unlink(self.end - 1)
            self.end -= 1
        return 0

    # -- forgetting --

    cdef int remove_first(self) except -1:
        cdef IdChunk *chunk = self.chunk_of(self.first)
        self.unlink(self.first)
        self.first += 1
        if self.first % CHUNK_IDS == 0:
            self.free_chunk(chunk)
            self.chunks_first += 1
            self.chunks_count -= 1
        if self.confirmed < self.first:
            self.confirmed = self.first
        if self.filed < self.first:
            self.filed = self.first
        return self.shrink_table()

    cdef int expire(self, int64_t wall, int budget) except -1:
        """Forget up to `budget` of the oldest ids that no longer count; all of them if no id
        counts."""
        if self.end > self.first and budget > EXPIRED_AT_ONCE \
                and not self.counts(self.id_at(self.end - 1).time, wall) \
                and self.end - self.first > <uint64_t>budget and self.filed == self.end:
            self.clear()
        while budget and self.end > self.first \
                and not self.counts(self.id_at(self.first).time, wall):
            self.remove_first()
            budget -= 1
        return 0

    # -- files --

    cdef uint64_t unfiled(self, uint64_t seq) noexcept:
        """Return the end of the ids to write now: their records are before `seq`."""
        cdef uint64_t low = self.filed
        cdef uint64_t high = min(self.end, self.filed + FILED_AT_ONCE)
        cdef uint64_t middle
        while low < high:
            middle = (low + high) // 2
            if self.seq_at(middle) < seq:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int drop_files(self, int64_t wall) except -1:
        """List no file whose ids no longer count."""
        self.files = [each for each in self.files if self.counts(each.last_time, wall)]
        return 0

    cdef bytes next_batch(self, uint64_t seq):
        """Return the ids of records before `seq` that are in no file yet, to be appended to the
        file `files[-1]`."""
        cdef uint64_t end = self.unfiled(seq)
        cdef uint64_t count = end - self.filed
        cdef uint64_t number
        cdef int64_t last_time = 0
        cdef bytes batch
        cdef uint8_t *at
        if count == 0:
            if self.filed == self.end:
                self.filed_seq = max(self.filed_seq, seq)
            return None
        batch = PyBytes_FromStringAndSize(NULL, 8 + count * sizeof(KnownId))
        at = <uint8_t *>PyBytes_AS_STRING(batch)
        (<uint32_t *>at)[0] = <uint32_t>count
        at += 8
        for number in range(self.filed, end):
            memcpy(at, self.id_at(number), sizeof(KnownId))
            last_time = max(last_time, self.id_at(number).time)
            at += sizeof(KnownId)
        at = <uint8_t *>PyBytes_AS_STRING(batch)
        (<uint32_t *>at)[1] = ids_crc(ids_crc(0, at, 4), at + 8, count * sizeof(KnownId))
        # The next id's record is the first that recovery must read.
        self.filed_seq = seq if end == self.end else min(seq, self.seq_at(end))
        self.filed = end
        if not self.files or not self.is_open \
                or self.files[len(self.files) - 1].bytes >= FILE_BYTES:
            self.last_file += 1
            self.files.append(IdsFile(self.last_file, 0, last_time))
            self.is_open = True
            batch = ids_head() + batch
        file = self.files[len(self.files) - 1]
        file.bytes += len(batch)
        file.last_time = max(file.last_time, last_time)
        return batch

    cdef int confirm(self, uint64_t filed, uint64_t seq) except -1:
        """Handle a journal that lists the files with the ids before the number `filed`."""
        if filed >= self.confirmed:
            self.confirmed = min(filed, self.end)
            self.confirmed_seq = max(self.confirmed_seq, seq)
        return 0

    cdef int abandon_files(self) except -1:
        """Handle a failed write: write the ids since the last journal again, to a new file."""
        self.failures += 1
        self.filed = self.confirmed
        self.filed_seq = self.confirmed_seq
        self.is_open = False
        self.files = [each for each in self.files if each.number in self.listed]
        for each in self.files:
            each.bytes = self.listed[each.number]
        return 0

    def expect(self, uint64_t count):
        """Make the table large enough for `count` ids: it would be slower to move ids later."""
        while CHAIN * self.buckets < count:
            self.add_bucket()

    def restore_file(self, uint64_t number, bytes content not None, int64_t wall):
        """Read the ids of a file; return whether it is intact."""
        cdef Py_ssize_t at = _IDS_HEAD.size
        cdef Py_ssize_t size
        cdef uint32_t i
        cdef uint32_t count
        cdef KnownId known
        cdef const uint8_t *batch = content
        cdef int64_t last_time = 0
        self.last_file = max(self.last_file, number)
        if content[:at] != ids_head():
            return False
        while at < len(content):
            if len(content) - at < 8:
                return False
            size = (<const uint32_t *>(batch + at))[0] * sizeof(KnownId)
            if len(content) - at - 8 < size or (<const uint32_t *>(batch + at))[1] != ids_crc(
                    ids_crc(0, batch + at, 4), batch + at + 8, size):
                return False
            count = (<const uint32_t *>(batch + at))[0]
            for i in range(count):
                if i + PREFETCH < count and self.buckets:
                    prefetch(self.bucket(
                        load_le64(batch + at + 8 + (i + PREFETCH) * sizeof(KnownId))))
                memcpy(&known, batch + at + 8 + i * sizeof(KnownId), sizeof(KnownId))
                last_time = max(last_time, known.time)
                if self.counts(known.time, wall):
                    self.reserve(wall)
                    self.append(&known.hash, known.time, 0)
            self.filed = self.end
            self.confirm(self.end, 1)
            at += 8 + size
        self.files.append(IdsFile(number, len(content), last_time))
        return True

    cdef int found_files(self, files, bint whole, uint64_t seq) except -1:
        """Handle the end of restore_file(): `files` exist, and contain the ids of the records
        before `seq`, unless they are not `whole`."""
        self.last_file = max(self.last_file, max(files, default=0))
        self.listed = {each.number: each.bytes for each in self.files}
        if whole:
            self.filed_seq = self.confirmed_seq = max(<uint64_t>1, seq)
        return 0

    # -- for tests and statistics --

    def __len__(self):
        return self.end - self.first

    @property
    def memory_bytes(self):
        cdef uint64_t total = (self.chunks_room * sizeof(IdChunk *)
                               + self.pieces_room * sizeof(uint32_t *)
                               + self.pieces_count * BUCKETS * sizeof(uint32_t))
        return total + self.chunks_count * (sizeof(IdChunk) + sizeof(IdCell))

    def publish(self, bytes hash not None, int64_t wall, uint64_t seq):
        """Remember the id of record `seq` unless it counts already. Return whether it is new."""
        cdef KeyHash key
        cdef uint64_t first = 0
        memcpy(&key, <const char *>hash, 16)
        if self.is_known(&key, wall, &first):
            return False
        self.reserve(wall)
        self.add(&key, wall, seq)
        return True

    def tick(self, int64_t wall):
        """Forget some of the ids that no longer count; return whether a file has no other ids."""
        self.expire(wall, TICK_EXPIRED)
        return any([not self.counts(each.last_time, wall) for each in self.files])

    def forget_from(self, uint64_t seq):
        self.undo(seq)

    def file(self, uint64_t seq):
        """Return the next batch for the files, as if the journal had been written."""
        batch = self.next_batch(seq)
        self.confirm(self.filed, self.filed_seq)
        return batch
