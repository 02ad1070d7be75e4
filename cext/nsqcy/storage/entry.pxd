# Entries: a channel's record of a message that it has delivered, queued or deferred. The block pool
# owns their cells, the channel their state.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.core cimport HeapNode
from nsqcy.storage.block cimport Block


cdef enum:
    PAGE_SIZE = 2048
    PAGE_ROOM = 49                # deferred messages


# A deferred message in one channel. Entries in all other states begin in the same way, so that the
# location of the record can be read and changed without knowing the state.
ctypedef struct Deferred:
    HeapNode node           # in the channel's timers; tag: the size of the body, see size_tag
    uint64_t seq
    uint64_t id             # 0: unknown, because its record has not been read since the start
    Block *block            # NULL: free
    uint32_t offset
    uint16_t attempts
    uint8_t state           # EntryState
    uint8_t round           # number of the latest checkpoint that contains or may omit it


# A message in one channel that was delivered but not finished, or a record in a topic's backlog
# that has a delay.
ctypedef struct Entry:
    # Tag: in flight: time of delivery; queued or in a backlog: as above.
    HeapNode node
    uint64_t seq
    uint64_t id
    Block *block
    uint32_t offset
    uint16_t attempts
    uint8_t state
    uint8_t round
    int64_t due             # in flight: deadline; transferred: NEVER + number; in a backlog: delay
    Entry *prev             # in flight: neighbours in deadline order
    Entry *next             # queued: the next message
    void *in_flight_list    # in flight: the consumer's list; queued: the gate position
    int64_t timestamp       # in flight: timestamp of its record, which may have left memory


cdef inline uint32_t size_tag(uint64_t body_length) noexcept:
    """Combine a body's size with a timer's kind (the lowest bit); 0 if the size is too large to
    store."""
    return <uint32_t>body_length << 1 if body_length < 0x80000000u else 0


cdef enum:
    # A transferred message has a deadline that never comes; it sorts transfers by number.
    NEVER = 0x4000000000000000


cdef inline uint64_t transfer_number(const Entry *entry) noexcept:
    return <uint64_t>(entry.due - <int64_t>NEVER)


cdef enum EntryState:
    QUEUED = 0              # waiting for redelivery at the tail
    DEFERRED = 1            # waiting for its due time
    TRANSFERRING = 2        # being transferred to another topic
    IN_FLIGHT = 3           # held by a consumer


# Deferred messages in PAGE_SIZE bytes; the free list is at the start.
ctypedef struct Page:
    Deferred *free          # number of messages used so far; the rest have never been used
    Page *prev              # in order of creation
    Page *next
    Page *prev_with_room
    Page *next_with_room
    uint64_t min_id       # minimum id of its messages so far ...
    uint64_t max_id        # ... to this
    uint32_t used
    uint32_t made


# One channel's deferred messages; each stays in place until it is freed.
ctypedef struct Pages:
    Page *first             # the latest
    Page *with_room
    Page *walked            # next page of a walk; new pages are inserted before it


cdef inline Page *page_of(const Deferred *deferred) noexcept:
    return <Page *>(<size_t>deferred & ~<size_t>(PAGE_SIZE - 1))


cdef inline Deferred *deferred_of(Page *page) noexcept:
    """Return the page's `made` deferred messages, in use or free."""
    return <Deferred *>(page + 1)
