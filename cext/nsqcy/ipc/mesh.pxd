# Streams between workers: byte pipes over the rings.
#
# Each record belongs to a stream. The stream number is `index << 1 | 1` if the writer of the record
# opened the stream, and `index << 1` if the reader opened it, so that both can open streams without
# coordination.
#
#   kind     payload                              room in the ring
#   OPEN     hello                                as for DATA
#   DATA     bytes of the stream                  leaves the reserve free
#   CREDIT   u32: bytes the reader is done with   may use the reserve
#   CLOSE    none; the last of its direction      may use the reserve
#   ABORT    none; the last of its direction      may use the reserve
#
# Each end sends CLOSE or ABORT once, on its own initiative or in response. Once both ends have
# closed, the number is free again. Because rings keep the order, an OPEN that reuses the number
# arrives after everything that was sent before.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nsqcy.ipc.ring cimport RingReader, RingRecord, RingWriter, Shared, Slot

cdef enum:
    STREAM_WINDOW = 262144     # bytes in transit in each direction
    STREAM_CREDIT_BATCH = 32768
    STREAMS_MAX = 1 << 20      # opened by one worker to one peer

cdef enum StreamSide:
    SIDE_OPEN
    SIDE_CLOSING               # closed at this end; the last record is still to be written
    SIDE_CLOSED                # the last record is written; the peer has not responded
    SIDE_GONE                  # the number is free, or the peer is down


cdef class StreamEnd:
    """Receiver of the events at this end of a stream; override the methods that you need.

    If an end raises, its stream is aborted.
    """
    # Take all `n` bytes; `data` is valid until you return.  When done with them: `stream.consumed`.
    cdef int on_data(self, const unsigned char *data, size_t n) except -1
    # A partial send can continue.
    cdef int on_writable(self) except -1
    # The other end has closed, or no longer exists.  This is the last event.
    cdef int on_closed(self, bint aborted) except -1


cdef class BytesEnd(StreamEnd):
    pass


cdef struct Link:
    Link *prev
    Link *next
    void *stream               # borrowed: linked streams are in a table


cdef class Stream:
    cdef:
        Peer _peer             # None: gone
        readonly StreamEnd end
        bytes _hello           # the OPEN record is not in the ring yet
        uint32_t _id           # as in the records that we write
        StreamSide _side
        bint _peer_closed
        bint _aborting
        bint _cut_short        # a send was partial: the end is waiting for on_writable
        uint32_t _credit       # bytes we may send
        uint32_t _allowed      # bytes the peer may send
        uint32_t _owed         # bytes consumed but not yet returned as credit
        # Bytes accepted but not in the ring yet: waiting[start:stop], at most STREAM_WINDOW bytes.
        unsigned char *_waiting
        uint32_t _start
        uint32_t _stop
        uint32_t _capacity
        Link _control          # in peer.control: a credit or the last record to write
        Link _data             # in peer.data: OPEN or waiting bytes to write

    # Return the number of bytes accepted: up to the credit, or 0 once closed. Keep the rest until
    # on_writable.
    cdef int send(self, const unsigned char *data, size_t n) except -1
    # Report that `n` more bytes from on_data have been processed.
    cpdef void consumed(self, size_t n) noexcept
    # Deliver sent bytes, then close: the other end receives on_closed, this end no more events.
    cpdef void close(self) noexcept
    # Close immediately; bytes still waiting here are dropped.
    cpdef void abort(self) noexcept

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
        Slot *_slot
        RingWriter _out
        RingReader _into
        list _opened           # by us: index -> Stream or None
        list _accepted         # opened by the peer
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
        uint64_t _blocked      # peers whose ring had no room for all records
        uint64_t _unfinished   # peers whose ring was not read to the end, whether up or not
        int _turn              # peer whose ring is read first
        bint _draining
        bint _sleeping
        uint32_t _dispatching  # number of the stream of the current record

    cpdef Stream open(self, int peer, bytes hello, StreamEnd end)
    cpdef bint drain(self, Py_ssize_t max_bytes) except -1
    cpdef int flush(self) except -1
    cpdef bint prepare_sleep(self) noexcept
    cpdef void awake(self) noexcept
    cpdef int woken(self) except -1
    cpdef int wake(self, int peer) except -1
    # Like `is_up`, for the number of a known peer.
    cdef bint up(self, int peer) noexcept

    cdef Py_ssize_t _drain_peer(self, Peer peer, Py_ssize_t budget) except -1
    cdef int _drain_ring(self, Peer peer, Py_ssize_t *budget) except -1
    cdef int _dispatch(self, Peer peer, RingRecord *record) except -1
    cdef int _accept(self, Peer peer, RingRecord *record) except -1
    cdef int _break(self, Peer peer, reason) except -1
    cdef int _disconnect(self, Peer peer) except -1
    cdef Peer _checked(self, int peer)
