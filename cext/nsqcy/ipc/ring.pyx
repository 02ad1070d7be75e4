"""The workers' shared memory: its layout, the byte rings in it, and wake-ups.

Owns every byte of the mapping except the lease word and the quotas, whose location it only defines.
Validates all data that it reads from a ring: a peer may have crashed at any point, or may have
corrupted the ring. Independent of streams; makes no system calls after the mapping.
"""

# The memory shared by the workers of one daemon, and the byte rings in it.
#
#       0  SharedHead: magic, version, workers          one cache line
#      64  the lease word of the message ids            alone on its line
#     128  Slot of worker 0, 1, ...                     two lines each
#     ...  zeros up to a page boundary
#          ring 0 -> 0, 0 -> 1, ... 1 -> 0, ...         writer * workers + reader
#          the quotas of users                          QUOTAS_BYTES: see ipc/quota.pyx
#
# A ring is one page with head and tail, each alone on its line, and RING_BYTES of data. Pages that
# are never used occupy no memory, so unused rings, such as those on the diagonal, are free.
#
# Positions count bytes since the ring was reset and never wrap; they are multiples of 8.
#
#       0  u16 length     of the payload, at most RECORD_MAX
#       2  u8  kind       RECORD_SKIP: the rest up to the end of the data is not used
#       3  u8  zero
#       4  u32 stream
#       8  payload, padded to 8; always in one piece
#
# Sleeping: after a change that another worker waits for, a worker sets its bit in that worker's
# slot, then reads `sleeping`. Before it sleeps, a worker sets `sleeping`, then reads the bits.
# With a full fence between the two steps on both sides, at least one side sees the other's step.
# The writer that clears the flag writes the eventfd. (If it is killed in between, the notification
# of its death wakes the worker.)

cdef enum:
    WORKERS_MAX = 64              # a bitmap has one bit per worker
    RING_BYTES = 262144           # size of a ring; a power of two
    RING_RESERVE = 16384          # bytes that only control records may use
    RECORD_HEADER = 8
    RECORD_MAX = 32768
    RECORD_SKIP = 0
    QUOTAS_BYTES = 1048576        # bytes; enough for three thousand users

cdef uint64_t MAGIC = 0x676E69727963716E    # "nqcyring"

cdef enum:
    MASK = RING_BYTES - 1
    PAGE = 4096

SlotView = namedtuple("SlotView", "pid generation beat state busy connections far_consumers")


# --- layout ---

def page_size(int workers):
    """Return the number of bytes before the first ring."""
    if not 1 <= workers <= WORKERS_MAX:
        raise ValueError(f"workers must be in [1,{WORKERS_MAX}]")
    return (sizeof(SharedHead) + workers * sizeof(Slot) + PAGE - 1) // PAGE * PAGE


def ring_offset(int workers, int writer, int reader):
    """Return the offset of the head for the ring from `writer` to `reader`; its data follows a page
    later."""
    cdef size_t index = writer * workers + reader
    return page_size(workers) + index * (sizeof(RingHead) + RING_BYTES)


def quotas_offset(int workers):
    """Return the offset of the quotas, after the last ring."""
    return ring_offset(workers, workers, 0)


def map_size(int workers):
    """Return the size of the entire mapping in bytes."""
    return quotas_offset(workers) + QUOTAS_BYTES


def format_shared(buffer, int workers):
    """Format shared memory for `workers` in a writable, zeroed buffer."""
    cdef Py_buffer view
    cdef SharedHead *head
    cdef size_t first = page_size(workers)
    cdef int ring
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if <size_t> view.len < <size_t> map_size(workers):
            raise ValueError("the buffer is too small")
        memset(view.buf, 0, first)
        for ring in range(workers * workers):
            _reset_ring(<RingHead *> (
                <uint8_t *> view.buf + first + ring * (sizeof(RingHead) + RING_BYTES)))
        head = <SharedHead *> view.buf
        head.magic = MAGIC
        head.version = FORMAT_SHARED_MEMORY
        head.workers = workers
    finally:
        PyBuffer_Release(&view)


cdef class Shared:
    """The mapping that all processes of one daemon share.

    `source` is the file descriptor of a memfd, which is mapped here, or a writable buffer.
    """

    def __cinit__(self, source, int workers):
        cdef size_t size = map_size(workers)
        self._mapping = mmap.mmap(source, size) if isinstance(source, int) else source
        PyObject_GetBuffer(self._mapping, &self._view, PyBUF_WRITABLE)
        self._head = <SharedHead *> self._view.buf
        self.workers = workers
        if <size_t> self._view.len < size or <size_t> self._view.buf % 8:
            raise ValueError("the buffer is too small or not aligned")
        if self._head.magic != MAGIC:
            raise ValueError("this is not nsqd's shared memory")
        formats.SHARED_MEMORY.check(self._head.version, "the memory of the workers")
        if self._head.workers != <uint32_t> workers:
            raise ValueError(f"this is shared memory for {self._head.workers} workers")

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    cdef Slot *slot(self, int worker) noexcept nogil:
        return <Slot *> (self._head + 1) + worker

    cdef RingHead *ring(self, int writer, int reader) noexcept nogil:
        cdef:
            size_t before = sizeof(SharedHead) + self.workers * sizeof(Slot)
            size_t index = writer * self.workers + reader
            char *rings = <char *> self._head + (before + PAGE - 1) // PAGE * PAGE
        return <RingHead *> (rings + index * (sizeof(RingHead) + RING_BYTES))

    @property
    def lease_word(self):
        """The 8 bytes shared by the id sources."""
        return memoryview(self._mapping)[64:72]

    @property
    def quotas(self):
        """The memory for the users' quotas."""
        return memoryview(self._mapping)[quotas_offset(self.workers):map_size(self.workers)]

    def view(self, int worker):
        """Return the state that a worker last published."""
        cdef Slot *slot = self.slot(self._checked(worker))
        return SlotView(
            load_relaxed_u32(&slot.pid),
            load_acquire_u32(&slot.generation),
            load_relaxed_u64(&slot.beat),
            load_relaxed_u32(&slot.state),
            load_relaxed_u32(&slot.busy),
            load_relaxed_u32(&slot.connections),
            load_relaxed_u32(&slot.far_consumers),
        )

    def enter(self, int worker, uint32_t pid, uint32_t state):
        """Publish the worker's identity and state."""
        cdef Slot *slot = self.slot(self._checked(worker))
        store_relaxed_u32(&slot.pid, pid)
        store_relaxed_u32(&slot.state, state)

    def beat(self, int worker, uint64_t now, uint32_t busy, uint32_t ran, uint32_t connections):
        """Publish a heartbeat of the worker, and its load: the permille of the last second in which
        it was busy (ran or waited for a CPU), and in which it ran."""
        cdef Slot *slot = self.slot(self._checked(worker))
        store_relaxed_u32(&slot.busy, busy)
        store_relaxed_u32(&slot.ran, ran)
        store_relaxed_u32(&slot.connections, connections)
        store_relaxed_u64(&slot.beat, now)

    def set_topics(self, int worker, uint32_t topics):
        """Publish the worker's number of topics."""
        store_relaxed_u32(&self.slot(self._checked(worker)).topics, topics)

    def topics(self):
        """Return the total number of topics on all workers, including workers that have crashed."""
        return sum([load_relaxed_u32(&self.slot(worker).topics) for worker in range(self.workers)])

    cpdef int busy(self, int worker) noexcept:
        """Return how busy a worker was in the last second, in permille; 1000 if it does not
        exist."""
        if not 0 <= worker < self.workers:
            return 1000
        return load_relaxed_u32(&self.slot(worker).busy)

    cpdef int ran(self, int worker) noexcept:
        """Return how long an existing worker ran in the last second, in permille."""
        return load_relaxed_u32(&self.slot(worker).ran)

    cpdef int served(self, int worker) noexcept:
        """Return how many consumers an existing worker serves now: those connected to it, and those
        of its topics that are connected to other workers."""
        cdef Slot *slot = self.slot(worker)
        return load_relaxed_u32(&slot.consumers) + load_relaxed_u32(&slot.far_consumers)

    def reset(self, int worker):
        """Empty a dead worker's slot and its rings; return its new generation.

        Called by the master, after all other workers have released the dead worker's rings.
        """
        cdef:
            Slot *slot = self.slot(self._checked(worker))
            uint32_t generation = load_relaxed_u32(&slot.generation) + 1
            uint32_t topics = load_relaxed_u32(&slot.topics)
            uint64_t others = ~(<uint64_t> 1 << worker)
            int peer
        memset(slot, 0, sizeof(Slot))
        store_relaxed_u32(&slot.topics, topics)
        for peer in range(self.workers):
            _reset_ring(self.ring(worker, peer))
            _reset_ring(self.ring(peer, worker))
            fetch_and_u64(&self.slot(peer).dirty, others)
            fetch_and_u64(&self.slot(peer).waits, others)
            fetch_and_u64(&self.slot(peer).room, others)
        store_release_u32(&slot.generation, generation)
        return generation

    cdef int _checked(self, int worker) except -1:
        if not 0 <= worker < self.workers:
            raise IndexError(f"there is no worker {worker}")
        return worker


cdef void _reset_ring(RingHead *ring) noexcept nogil:
    store_relaxed_u64(&ring.head, 0)
    store_relaxed_u64(&ring.tail, 0)


# --- rings ---

cdef inline bint _sane(uint64_t head, uint64_t tail) noexcept nogil:
    return head - tail <= RING_BYTES and not (head | tail) & 7


cdef int ring_attach_writer(RingWriter *ring, RingHead *shared) noexcept nogil:
    ring.shared = shared
    ring.data = <unsigned char *> (shared + 1)
    ring.head = ring.published = load_acquire_u64(&shared.head)
    ring.tail = load_acquire_u64(&shared.tail)
    return 0 if _sane(ring.head, ring.tail) else -1


cdef int ring_attach_reader(RingReader *ring, RingHead *shared) noexcept nogil:
    ring.shared = shared
    ring.data = <unsigned char *> (shared + 1)
    ring.tail = ring.released = load_acquire_u64(&shared.tail)
    ring.head = load_acquire_u64(&shared.head)
    return 0 if _sane(ring.head, ring.tail) else -1


cdef inline int _see_tail(RingWriter *ring) noexcept nogil:
    """Read the reader's position; -1 if it is invalid."""
    cdef uint64_t tail = load_acquire_u64(&ring.shared.tail)
    if tail - ring.tail > ring.published - ring.tail or tail & 7:
        return -1
    ring.tail = tail
    return 0


cdef int ring_write(RingWriter *ring, uint8_t kind, uint32_t stream, const void *data, uint32_t n,
                    uint32_t reserve) noexcept nogil:
    cdef:
        uint32_t size = RECORD_HEADER + ((n + 7) & ~<uint32_t> 7)
        uint64_t at = ring.head & MASK
        uint64_t skip = RING_BYTES - at if size > RING_BYTES - at else 0
        uint64_t need = size + skip + reserve
    if need > RING_BYTES - (ring.head - ring.tail):
        if _see_tail(ring) < 0:
            return -1
        if need > RING_BYTES - (ring.head - ring.tail):
            return 0
    if skip:
        (<uint64_t *> (ring.data + at))[0] = RECORD_SKIP
        ring.head += skip
        at = 0
    (<uint64_t *> (ring.data + at))[0] = n | <uint32_t> kind << 16 | <uint64_t> stream << 32
    memcpy(ring.data + at + RECORD_HEADER, data, n)
    ring.head += size
    return 1


cdef void ring_publish(RingWriter *ring) noexcept nogil:
    ring.published = ring.head
    store_release_u64(&ring.shared.head, ring.head)


cdef bint ring_half_free(RingWriter *ring) noexcept nogil:
    return _see_tail(ring) == 0 and ring.head - ring.tail <= RING_BYTES // 2


cdef int ring_read(RingReader *ring, RingRecord *record) noexcept nogil:
    cdef uint64_t head, at, word, skip = 0
    if ring.tail == ring.head:
        head = load_acquire_u64(&ring.shared.head)
        # Measure from the released tail, because the writer sees only that value.
        if head - ring.released > RING_BYTES or head - ring.tail > RING_BYTES or head & 7:
            return -1
        if head == ring.tail:
            return 0
        ring.head = head
    at = ring.tail & MASK
    # Read the value only once, because a faulty peer may change it at any time.
    word = load_relaxed_u64(<const uint64_t *> (ring.data + at))
    if word >> 16 & 0xFF == RECORD_SKIP:
        skip = RING_BYTES - at
        if skip >= ring.head - ring.tail:
            return -1
        at = 0
        word = load_relaxed_u64(<const uint64_t *> ring.data)
    record.length = word & 0xFFFF
    record.kind = word >> 16 & 0xFF
    record.stream = word >> 32
    record.size = RECORD_HEADER + ((record.length + 7) & ~<uint32_t> 7)
    record.data = ring.data + at + RECORD_HEADER
    if record.kind == RECORD_SKIP or record.length > RECORD_MAX or word >> 24 & 0xFF:
        return -1
    if record.size > RING_BYTES - at or record.size > ring.head - ring.tail - skip:
        return -1
    ring.tail += skip + record.size
    return 1


cdef void ring_release(RingReader *ring) noexcept nogil:
    ring.released = ring.tail
    store_release_u64(&ring.shared.tail, ring.tail)


cdef bint ring_half_read(RingReader *ring) noexcept nogil:
    return ring.head - ring.tail <= RING_BYTES // 2


# --- wake-up ---

cdef bint slot_post(Slot *slot, uint64_t *bits, int who) noexcept nogil:
    fetch_or_u64(bits, <uint64_t> 1 << who)
    atomic_fence()
    return load_relaxed_u32(&slot.sleeping) and exchange_u32(&slot.sleeping, 0)


cdef bint slot_sleep(Slot *slot) noexcept nogil:
    store_relaxed_u32(&slot.sleeping, 1)
    atomic_fence()
    if load_relaxed_u64(&slot.dirty) | load_relaxed_u64(&slot.room):
        slot_awake(slot)
        return False
    return True


cdef void slot_awake(Slot *slot) noexcept nogil:
    store_relaxed_u32(&slot.sleeping, 0)
