# The memory that the workers of one daemon share, and the byte rings in it.
#
#       0  SharedHead: magic, version, workers          one cache line
#      64  the lease word of the message ids            alone on its line
#     128  Slot of worker 0, 1, ...                     two lines each
#     ...  zeros up to a page boundary
#          ring 0 -> 0, 0 -> 1, ... 1 -> 0, ...         writer * workers + reader
#          the quotas of users                          QUOTAS_BYTES: see ipc/quota.pxd
#
# A ring is one page with head and tail, each alone on its line, and RING_BYTES of data. Pages that
# are never touched cost nothing, so unused rings, such as those on the diagonal, are free.
#
# Positions count bytes since the ring was reset and never wrap; they are multiples of 8.
#
#       0  u16 length     of the payload, at most RECORD_MAX
#       2  u8  kind       RECORD_SKIP: the rest up to the end of the data is not used
#       3  u8  zero
#       4  u32 stream
#       8  payload, padded to 8; always in one piece
#
# Sleeping: a worker that changes something another worker waits for sets its bit in that worker's
# slot, then looks at `sleeping`; a worker sets `sleeping`, then looks at the bits.  With a full
# fence between the two steps on both sides, at least one side sees the other's step.  The writer
# that clears the flag writes the eventfd. (If it is killed in between, the notification of its
# death wakes the worker.)
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    WORKERS_MAX = 64              # one bit per worker in a bitmap
    RING_BYTES = 262144           # size of a ring; a power of two
    RING_RESERVE = 16384          # room that only control records may use
    RECORD_HEADER = 8
    RECORD_MAX = 32768
    RECORD_SKIP = 0
    QUOTAS_BYTES = 1048576        # enough for three thousand users

cdef struct SharedHead:
    uint64_t magic
    uint32_t version
    uint32_t workers
    uint64_t pad[6]
    uint64_t lease
    uint64_t lease_pad[7]

cdef struct Slot:
    # Written by the worker, read by all workers.
    uint32_t pid
    uint32_t generation           # resets of its rings; written only by the master
    uint64_t beat                 # monotonic clock, ns
    uint32_t state                # its meaning is up to the user
    uint32_t busy                 # permille of the last second: running or waiting for a CPU
    uint32_t ran                  # permille of the last second: running
    uint32_t connections
    uint32_t topics               # topics that the worker has, or had when it crashed
    uint32_t pad[7]
    # Written by all workers.
    uint32_t sleeping
    uint32_t sleeping_pad
    uint64_t dirty                # bit w: the ring from w to this worker has data
    uint64_t waits                # bit w: worker w is waiting for room in its ring to this worker
    uint64_t room                 # bit r: the ring from this worker to r has room again
    uint64_t wake_pad[4]

cdef struct RingHead:
    uint64_t head                 # written by the writer: where the next record will start
    uint64_t head_pad[7]
    uint64_t tail                 # written by the reader: everything before it may be overwritten
    uint64_t tail_pad[7]
    uint64_t page_pad[496]

# One process's end of a ring, in its own memory.
cdef struct RingWriter:
    RingHead *shared
    unsigned char *data
    uint64_t head                 # after the last written record, published or not
    uint64_t published
    uint64_t tail                 # as last seen

cdef struct RingReader:
    RingHead *shared
    const unsigned char *data
    uint64_t tail                 # after the last read record, released or not
    uint64_t released
    uint64_t head                 # as last seen

cdef struct RingRecord:
    const unsigned char *data     # in the ring; valid until ring_release
    uint32_t length
    uint32_t stream
    uint32_t size                 # its size in the ring
    uint8_t kind

# Return -1 if the positions are invalid: the ring is broken.
cdef int ring_attach_writer(RingWriter *ring, RingHead *shared) noexcept nogil
cdef int ring_attach_reader(RingReader *ring, RingHead *shared) noexcept nogil

# Return 1 if written (visible to the reader after ring_publish), 0 if there is no room (`reserve`
# bytes must stay free), -1 if broken. `n` must not exceed RECORD_MAX.
cdef int ring_write(RingWriter *ring, uint8_t kind, uint32_t stream, const void *data, uint32_t n,
                    uint32_t reserve) noexcept nogil
cdef void ring_publish(RingWriter *ring) noexcept nogil
# Return whether at least half of the ring is free, after reading the reader's position again.
cdef bint ring_half_free(RingWriter *ring) noexcept nogil

# Return 1 if `record` is the next record (the position moves past it), 0 if there is none, -1 if
# broken.
cdef int ring_read(RingReader *ring, RingRecord *record) noexcept nogil
# Release the room of all records read so far to the writer.
cdef void ring_release(RingReader *ring) noexcept nogil
# Return whether the writer has at least half of the ring, as far as the reader knows.
cdef bint ring_half_read(RingReader *ring) noexcept nogil

# Set bit `who` of `bits`, one of the bitmaps of `slot`.  If the result is true, write that worker's
# eventfd.
cdef bint slot_post(Slot *slot, uint64_t *bits, int who) noexcept nogil
# Return true if the worker may sleep; false if a bit of dirty or room is set.
cdef bint slot_sleep(Slot *slot) noexcept nogil
cdef void slot_awake(Slot *slot) noexcept nogil


cdef class Shared:
    cdef:
        readonly int workers
        object _mapping
        Py_buffer _view
        SharedHead *_head

    cdef Slot *slot(self, int worker) noexcept nogil
    cdef RingHead *ring(self, int writer, int reader) noexcept nogil
    cdef int _checked(self, int worker) except -1
    cpdef int busy(self, int worker) noexcept
    cpdef int ran(self, int worker) noexcept
