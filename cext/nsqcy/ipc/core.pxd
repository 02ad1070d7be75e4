# Declarations of nsqcy.ipc for other packages.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# -- quota --

cdef enum:
    MAX_WORKERS = 64

cdef struct Used:
    uint64_t key                  # user's key; 0: unused row
    uint64_t messages_until       # monotonic clock, ns
    uint64_t bytes_until
    uint64_t messages             # messages published while a rate was set
    uint64_t size                 # bytes published while a rate was set
    uint64_t waited               # ns of waiting, summed over all connections
    uint64_t publishes_refused
    uint64_t connections_refused
    uint32_t connections[MAX_WORKERS]


cdef class QuotaTable:
    cdef Py_buffer _view
    cdef size_t _rows
    cdef readonly int worker

    cdef Used *row(self, uint64_t key) noexcept


cdef class Quota:
    cdef QuotaTable table
    cdef Used *used
    cdef Used alone               # row shared by users that appeared when all rows were in use
    cdef readonly str user
    cdef readonly uint32_t max_connections
    cdef readonly double rate     # messages per second; 0: no limit
    cdef readonly double bytes_rate
    cdef uint32_t waiting         # this worker's sessions that are waiting for quota
    cdef int64_t waited_until     # time up to which their waiting time is counted
    cdef int64_t told_until

    cpdef bint limits_publishes(self) noexcept
    cpdef int64_t wait(self, int64_t now) noexcept
    cpdef void begin_wait(self, int64_t now) noexcept
    cpdef void end_wait(self, int64_t now) noexcept
    cdef void count_waits(self, int64_t now) noexcept
    cpdef int64_t turn(self, int64_t now) noexcept
    cpdef void pay(self, int64_t now, uint64_t messages, uint64_t size) noexcept
    cpdef uint32_t connections(self) noexcept
    cpdef bint enter(self) noexcept
    cpdef void join(self) noexcept
    cpdef void leave(self) noexcept
    cpdef void refuse_publish(self) noexcept
    cpdef bint is_news(self, int64_t now) noexcept

# -- ring --

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
    uint32_t generation           # number of resets of its rings; written only by the master
    uint64_t beat                 # monotonic clock, ns
    uint32_t state                # meaning defined by the caller
    uint32_t busy                 # permille of the last second: running or waiting for a CPU
    uint32_t ran                  # permille of the last second: running
    uint32_t connections
    uint32_t topics               # topics on the worker; after a crash, the number at that time
    uint32_t consumers            # consumers now, by their connections
    uint32_t far_consumers        # consumers now of its topics that are connected to other workers
    uint32_t pad[5]
    # Written by all workers.
    uint32_t sleeping
    uint32_t sleeping_pad
    uint64_t dirty                # bit w: the ring from w to this worker has data
    uint64_t waits                # bit w: worker w is waiting for space in its ring to this worker
    uint64_t room                 # bit r: the ring from this worker to r has space again
    uint64_t wake_pad[4]

cdef struct RingHead:
    uint64_t head                 # start of the next record; written by the writer
    uint64_t head_pad[7]
    uint64_t tail                 # end of the overwritable bytes; written by the reader
    uint64_t tail_pad[7]
    uint64_t page_pad[496]

# One process's end of a ring, in its own memory.
cdef struct RingWriter:
    RingHead *shared
    unsigned char *data
    uint64_t head                 # end of the last written record, published or not
    uint64_t published
    uint64_t tail                 # as last seen

cdef struct RingReader:
    RingHead *shared
    const unsigned char *data
    uint64_t tail                 # end of the last read record, released or not
    uint64_t released
    uint64_t head                 # as last seen

cdef struct RingRecord:
    const unsigned char *data     # position in the ring; valid until ring_release
    uint32_t length
    uint32_t stream
    uint32_t size                 # size of the record in the ring
    uint8_t kind

# Return -1 if the positions are invalid: the ring is broken.
cdef int ring_attach_writer(RingWriter *ring, RingHead *shared) noexcept nogil
cdef int ring_attach_reader(RingReader *ring, RingHead *shared) noexcept nogil

# Return 1 if written (visible to the reader after ring_publish), 0 if there is no space (`reserve`
# bytes must stay free), -1 if the ring is broken. `n` must not exceed RECORD_MAX.
cdef int ring_write(RingWriter *ring, uint8_t kind, uint32_t stream, const void *data, uint32_t n,
                    uint32_t reserve) noexcept nogil
cdef void ring_publish(RingWriter *ring) noexcept nogil
# Return whether at least half of the ring is free, after reading the reader's position again.
cdef bint ring_half_free(RingWriter *ring) noexcept nogil

# Return 1 if `record` is the next record (the position moves past it), 0 if there is none, -1 if
# the ring is broken.
cdef int ring_read(RingReader *ring, RingRecord *record) noexcept nogil
# Release the space of all records read so far to the writer.
cdef void ring_release(RingReader *ring) noexcept nogil
# Return whether at least half of the ring is free for the writer, from the reader's point of view.
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
    cpdef int served(self, int worker) noexcept

# -- mesh --

cdef enum StreamSide:
    SIDE_OPEN
    SIDE_CLOSING               # closed at this end; the last record is not written yet
    SIDE_CLOSED                # the last record is written; the peer has not responded
    SIDE_GONE                  # the stream number is free, or the peer is down


cdef class StreamEnd:
    """Receiver of the events at this end of a stream; override methods as needed.

    If a method raises, the stream is aborted.
    """
    # Take all `n` bytes; `data` is valid until the return. After processing the bytes, call
    # `stream.consumed`.
    cdef int on_data(self, const unsigned char *data, size_t n) except -1
    # Continue a partial send.
    cdef int on_writable(self) except -1
    # Handle the last event: the other end has closed, or no longer exists.
    cdef int on_closed(self, bint aborted) except -1


cdef struct Link:
    Link *prev
    Link *next
    void *stream               # borrowed: linked streams are in a table


cdef class Stream:
    cdef:
        Peer _peer             # None after the peer has gone
        readonly StreamEnd end
        bytes _hello           # the OPEN record is not in the ring yet
        uint32_t _id           # as in the records that this worker writes
        StreamSide _side
        bint _peer_closed
        bint _aborting
        bint _cut_short        # a send was partial: the end is waiting for on_writable
        uint32_t _credit       # bytes that this end may send
        uint32_t _allowed      # bytes that the peer may send
        uint32_t _owed         # bytes consumed but not yet returned as credit
        # Bytes accepted but not in the ring yet: waiting[start:stop], at most STREAM_WINDOW bytes.
        unsigned char *_waiting
        uint32_t _start
        uint32_t _stop
        uint32_t _capacity
        Link _control          # in peer.control: a credit or the last record is to be written
        Link _data             # in peer.data: OPEN or waiting bytes are to be written

    # Send bytes; return the number of bytes accepted: up to the credit, or 0 once closed. The
    # caller keeps the rest until on_writable.
    cdef int send(self, const unsigned char *data, size_t n) except -1
    # Report that `n` more bytes from on_data have been processed.
    cpdef void consumed(self, size_t n) noexcept
    # Deliver sent bytes, then close: the other end receives on_closed, and this end receives no
    # more events.
    cpdef void close(self) noexcept
    # Close immediately; bytes still waiting here are dropped.
    cpdef void abort(self) noexcept

    cdef dict _pack(self)
    cdef int _unpack(self, packed) except -1
    cdef int _keep(self, const unsigned char *data, uint32_t n) noexcept
    cdef void _drop_waiting(self) noexcept
    cdef void _queue_control(self) noexcept
    cdef int _write_control(self) noexcept
    cdef int _write_data(self) noexcept
    cdef void _leave(self) noexcept
    cdef int _on_data(self, const unsigned char *data, uint32_t n) except -1
    cdef int _on_credit(self, uint32_t n) except -1
    cdef int _on_last(self, bint aborted) except -1
    cdef int _fail(self) except -1


cdef class Peer:
    cdef:
        Mesh _mesh
        int _index
        uint64_t _bit
        bint _up
        bint _unpacked         # up since unpack(): peer_up() does not disconnect it once
        Slot *_slot
        RingWriter _out
        RingReader _into
        list _opened           # opened by this worker: index -> Stream or None
        list _accepted         # opened by the peer: index -> Stream or None
        list _free             # indexes of _opened that are None
        Link _control
        Link _data

    cdef void _forget(self) noexcept
    cdef Stream _find(self, uint32_t number)
    cdef uint32_t _new_index(self) except? 0xFFFFFFFF
    cdef int _move(self) noexcept
    cdef void _publish(self) noexcept
    cdef void _release(self) noexcept


cdef class Mesh:
    cdef:
        readonly Shared shared
        readonly int index
        Slot *_slot
        list _eventfds
        list _peers            # a Peer for each worker, including this one (which is never up)
        uint64_t _up           # bitmaps of peers:
        uint64_t _touched      # peers with work for flush
        uint64_t _blocked      # peers whose ring had no space for all records
        uint64_t _unfinished   # peers, up or down, whose ring was not read to the end
        int _turn              # peer whose ring is read first
        bint _draining
        bint _sleeping
        uint32_t _dispatching  # number of the stream of the current record

    cpdef Stream open(self, int peer, bytes hello, StreamEnd end)
    cpdef Stream claim(self, int peer, uint32_t number, StreamEnd end)
    cpdef bint drain(self, Py_ssize_t max_bytes) except -1
    cpdef int flush(self) except -1
    cpdef bint prepare_sleep(self) noexcept
    cpdef void awake(self) noexcept
    cpdef int woken(self) except -1
    cpdef int wake(self, int peer) except -1
    # Return whether a known peer, given by its number, is up.
    cdef bint up(self, int peer) noexcept
    # Change the numbers that `served` adds up.
    cdef void count_consumer(self, bint far, int change) noexcept

    cdef Py_ssize_t _drain_peer(self, Peer peer, Py_ssize_t budget) except -1
    cdef int _drain_ring(self, Peer peer, Py_ssize_t *budget) except -1
    cdef int _dispatch(self, Peer peer, RingRecord *record) except -1
    cdef int _accept(self, Peer peer, RingRecord *record) except -1
    cdef int _break(self, Peer peer, reason) except -1
    cdef int _disconnect(self, Peer peer) except -1
    cdef Peer _checked(self, int peer)
