# Declarations of nsqcy.base for other packages.

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# -- atomics --

# Atomic integers in shared memory; see atomics.h for the memory orders.

cdef extern from "atomics.h" nogil:
    uint32_t load_relaxed_u32(const uint32_t *p)
    uint32_t load_acquire_u32(const uint32_t *p)
    void store_relaxed_u32(uint32_t *p, uint32_t v)
    void store_release_u32(uint32_t *p, uint32_t v)
    uint32_t exchange_u32(uint32_t *p, uint32_t v)
    uint32_t fetch_add_u32(uint32_t *p, uint32_t v)

    uint64_t load_relaxed_u64(const uint64_t *p)
    uint64_t load_acquire_u64(const uint64_t *p)
    void store_relaxed_u64(uint64_t *p, uint64_t v)
    void store_release_u64(uint64_t *p, uint64_t v)
    uint64_t exchange_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_add_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_or_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_and_u64(uint64_t *p, uint64_t v)
    bint compare_exchange_u64(uint64_t *p, uint64_t *seen, uint64_t v)

    void atomic_fence()

# -- bytes --

# Conversion of integers to and from unaligned bytes, and of message ids to and from hex; see
# bytes.h.

cdef extern from "bytes.h" nogil:
    uint16_t load_be16(const void *p)
    uint32_t load_be32(const void *p)
    uint64_t load_be64(const void *p)
    void store_be16(void *p, uint16_t v)
    void store_be32(void *p, uint32_t v)
    void store_be64(void *p, uint64_t v)

    uint32_t load_le32(const void *p)
    uint64_t load_le64(const void *p)
    void store_le16(void *p, uint16_t v)
    void store_le32(void *p, uint32_t v)

    # Exactly 16 lower-case hex digits; hex16_parse() returns -1 for other text.
    void hex16_format(void *out, uint64_t v)
    int hex16_parse(const void *text, uint64_t *v)

# -- debug --

# Whether this is a debug build: a release build omits code in `if NSQCY_DEBUG:`.
cdef extern from "debug.h" nogil:
    const bint NSQCY_DEBUG

# -- headers --


cdef enum:
    MAX_HEADERS = 4096         # maximum total bytes of a message's headers
    HEADERS_COUNT = 32
    HEADERS_SIZE = 2            # bytes of the length field before the headers
    HEADERS_ROOM = 4098         # maximum bytes that headers add to a body

# Return whether n bytes are valid headers.
cdef bint headers_are_valid(const uint8_t *at, size_t n) noexcept nogil

# Return the time to live in valid headers, in ms; 0 if there is none.
cdef int64_t headers_ttl(const uint8_t *at, size_t n) noexcept nogil

# Return a readable reason why the headers are invalid.
cdef str headers_fault(const uint8_t *at, size_t n)

# -- keys --


cdef extern from "json_walk.h" nogil:
    enum:
        JSON_NONE
        JSON_TEXT
        JSON_ESCAPED

    const uint32_t JSON_NOT_AN_INDEX

    ctypedef struct JsonToken:
        const uint8_t *name
        uint32_t length
        uint32_t index

    ctypedef struct JsonPointer:
        const JsonToken *tokens
        uint32_t count

    ctypedef struct JsonValue:
        const uint8_t *at
        uint32_t length
        uint32_t kind

    bint json_walk(const uint8_t *at, size_t n, const JsonPointer *pointers, int count,
                   JsonValue *found)
    int json_unescape(const uint8_t *at, const uint8_t *end, uint8_t *into, int room)


cdef extern from "siphash.h" nogil:
    void siphash128(const uint64_t *key, const uint8_t *at, size_t n, uint64_t *into)


cdef extern from "record_keys.h" nogil:
    enum:
        TAKEN_KEY
        TAKEN_PRIORITY
        TAKEN_ID
        TAKEN_HEAD
        MAX_KEY

    const uint8_t *header_find(const uint8_t *at, size_t n, const char *name, uint16_t *length)
    const uint8_t *header_key(const uint8_t *at, size_t n, const char *name, uint16_t *length)
    uint8_t priority_of(const uint8_t *text, size_t n)

    # Stands for a key or an id; both words 0: there is none.
    ctypedef struct KeyHash:
        uint64_t low
        uint64_t high

    # The hash of a text of n bytes; {0, 0} if n is 0.
    KeyHash key_hash(const uint64_t *secret, const uint8_t *text, size_t n)


# The values that a topic takes from a message when it is published.
ctypedef struct Taken:
    uint8_t given               # TAKEN_KEY ...: what a record must store
    uint8_t priority            # 0 to 9
    uint8_t key_length          # 0: no key
    uint8_t id_length           # 0: no id
    const uint8_t *key
    const uint8_t *id
    uint8_t spaces[3][255]      # for texts that are not in the message


@cython.final
cdef class KeySources:
    cdef list keep                      # the names and tokens
    cdef const char *names[3]           # of headers, each with its length; NULL: a JSON pointer
    cdef bint is_default[3]
    cdef JsonToken *tokens[3]           # NULL: a header
    cdef JsonPointer pointers[3]

    cdef int add(self, int which, str text) except -1
    cdef bint differs(self, bint with_id) noexcept nogil
    cdef void find(self, const uint8_t *headers, uint16_t headers_length, const uint8_t *body,
                   size_t n, int sources, Taken *into, const uint8_t **text,
                   uint16_t *length) noexcept nogil
    cdef void take(self, const uint8_t *headers, uint16_t headers_length, const uint8_t *body,
                   size_t n, bint with_id, Taken *into) noexcept nogil

# -- heap --

cdef enum:
    HEAP_NOWHERE = 0xFFFFFFFF   # the index of a node that is not in a heap

cdef struct HeapNode:
    uint32_t index    # slot in the heap; initialize to HEAP_NOWHERE before the first push
    uint32_t tag      # free for use by the node's owner; unused by the heap

cdef struct HeapSlot:
    int64_t due
    HeapNode *node

cdef struct Heap:
    HeapSlot *slots
    uint32_t size
    uint32_t capacity

cdef void heap_init(Heap *heap) noexcept nogil
# Free the heap's memory; nodes still in the heap are not changed.
cdef void heap_free(Heap *heap) noexcept nogil
# Return 0, or -1 if out of memory (the heap is then unchanged). The node must not be in a heap.
cdef int heap_push(Heap *heap, HeapNode *node, int64_t due) noexcept nogil
# Remove a node; do nothing if the node is not in a heap.
cdef void heap_remove(Heap *heap, HeapNode *node) noexcept nogil
# Change the due time of a node, which must be in this heap.
cdef void heap_update(Heap *heap, HeapNode *node, int64_t due) noexcept nogil
# Return the node that is due first, or NULL. The order of nodes with equal times depends only on
# the calls so far.
cdef HeapNode *heap_peek(Heap *heap) noexcept nogil


cdef inline int64_t heap_first_due(const Heap *heap) noexcept nogil:
    """Return the due time of the first node; the maximum time if the heap is empty."""
    return heap.slots[0].due if heap.size else 0x7fffffffffffffff


cdef inline int64_t heap_due(const Heap *heap, const HeapNode *node) noexcept nogil:
    """Return the due time of a node in this heap."""
    return heap.slots[node.index].due


cdef inline int heap_check(int status) except -1:
    """Raise MemoryError for a failed heap_push."""
    if status < 0:
        raise MemoryError()
    return 0

# -- histogram --

# Histograms of durations, with bounds at powers of four; see histogram.h.


cdef extern from "histogram.h" nogil:
    enum:
        HISTOGRAM_BOUNDS

    ctypedef struct Histogram:
        uint64_t counts[13]
        double sum

    void histogram_add(Histogram *h, int first, int64_t ns, uint64_t count)
    void histogram_merge(Histogram *into, const Histogram *other)


# For each kind of duration, the exponent n of the histogram's first bound (2^n ns).
cdef enum:
    FIRST_OF_AGES = 18          # age of messages when they are finished: 0.26 ms to 18 minutes
    FIRST_OF_SYNCS = 16         # 66 us to 4.6 minutes
    FIRST_OF_TURNS = 14         # event-loop iterations: 16 us to 69 s


cdef inline tuple histogram_facts(const Histogram *h):
    """Return the counts, and the sum in seconds."""
    cdef int i
    return [h.counts[i] for i in range(HISTOGRAM_BOUNDS + 1)], h.sum / 1e9

# -- ids --


@cython.final
cdef class IdSource:
    cdef:
        uint64_t *_word       # the first unleased tick, shared between sources
        uint64_t _node        # node id, shifted to its position in an id
        uint64_t _next        # the id to return next
        uint64_t _end         # one past the last id of the lease; == _next if used up
        int64_t _lease_until  # wall clock, ns: when the lease expires
        Py_buffer _view

    cdef void _lease(self, int64_t wall_ns) noexcept nogil
    cdef void lift(self, uint64_t id) noexcept nogil

    cdef inline uint64_t next(self, int64_t wall_ns) noexcept nogil:
        """Return the next id: greater than every earlier id of this source, and unique across all
        sources."""
        if self._next == self._end or wall_ns >= self._lease_until:
            self._lease(wall_ns)
        self._next += 1
        return self._next - 1

# -- memory --

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    const int PROT_READ
    const int PROT_WRITE
    const int MAP_PRIVATE
    const int MAP_ANONYMOUS
    const int MADV_DONTNEED
    void *MAP_FAILED


cdef inline void *map_memory(size_t size) noexcept nogil:
    """Map zeroed memory; return NULL on failure. munmap() must follow."""
    cdef void *memory = mmap(
        NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    return NULL if memory == MAP_FAILED else memory

# -- quantile --


ctypedef struct Sample:
    int64_t value
    uint64_t width
    uint64_t delta


ctypedef struct Sketch:
    Sample *samples
    uint32_t size
    uint32_t room
    uint64_t count              # number of values that the samples represent
    int64_t *fresh
    uint32_t fresh_count
    uint32_t fresh_room


cdef class Percentiles:
    """The configured quantiles, and the length of the window."""
    cdef readonly tuple quantiles
    cdef readonly int64_t window        # ns


cdef class Latency:
    """The values of one channel within the window."""
    cdef Sketch halves[2]
    cdef int current
    cdef int64_t length                 # length of a half, ns
    cdef int64_t ends                   # end of the current half

    cpdef void add(self, int64_t value, int64_t now) noexcept nogil
    cpdef void rotate(self, int64_t now) noexcept nogil
