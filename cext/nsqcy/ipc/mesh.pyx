"""Streams between workers: many byte pipes over one ring in each direction.

Owns the numbers, credits and closing of streams, and the allocation of ring space. A ring never
waits for a session. Bytes that do not fit wait in their stream, bounded by the stream's credit. All
input is read, regardless of the state of the outgoing rings. Does not interpret the bytes. The only
system calls are reads and writes of an eventfd.
"""

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
# arrives after all earlier records.

cdef enum:
    STREAM_WINDOW = 262144     # maximum bytes in transit in each direction
    STREAM_CREDIT_BATCH = 32768
    STREAMS_MAX = 1 << 20      # maximum streams opened by one worker to one peer

cdef enum:
    KIND_OPEN = 1
    KIND_DATA = 2
    KIND_CREDIT = 3
    KIND_CLOSE = 4
    KIND_ABORT = 5

    HALF_WINDOW = STREAM_WINDOW // 2
    WAITING_MIN = 4096
    PUBLISH_EVERY = 32768      # bytes; avoids an idle reader during a long turn of the writer
    RELEASE_EVERY = 65536      # bytes; avoids a writer without space in the ring
    RING_TURN = 65536          # maximum bytes read from one ring before the next one

cdef extern from *:
    """
    #define lowest_bit(bits) __builtin_ctzll(bits)
    """
    int lowest_bit(uint64_t bits) nogil

# Live objects, counted in the debug build.
cdef Py_ssize_t live_streams = 0
cdef Py_ssize_t live_buffers = 0


def live():
    """Return the number of streams and stream buffers; zeros in a release build."""
    return {"streams": live_streams, "buffers": live_buffers}


# --- links ---

cdef inline void link_init(Link *link, void *stream) noexcept:
    link.prev = link.next = link
    link.stream = stream


cdef inline bint link_alone(Link *link) noexcept:
    return link.next is link


cdef inline void link_append(Link *queue, Link *link) noexcept:
    link.prev = queue.prev
    link.next = queue
    queue.prev.next = link
    queue.prev = link


cdef inline void link_remove(Link *link) noexcept:
    link.prev.next = link.next
    link.next.prev = link.prev
    link.prev = link.next = link


# --- ends ---

cdef class StreamEnd:
    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        return 0

    cdef int on_writable(self) except -1:
        return 0

    cdef int on_closed(self, bint aborted) except -1:
        return 0


cdef class BytesEnd(StreamEnd):
    """StreamEnd for Python: override `data`, `writable` and `closed`."""

    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        self.data(PyBytes_FromStringAndSize(<const char *> data, n))
        return 0

    cdef int on_writable(self) except -1:
        self.writable()
        return 0

    cdef int on_closed(self, bint aborted) except -1:
        self.closed(aborted)
        return 0

    def data(self, bytes data):
        """Handle received bytes."""

    def writable(self):
        """Handle new credit: continue a partial write."""

    def closed(self, bint aborted):
        """Handle the end: the other end has closed or no longer exists."""


# --- streams ---

cdef class Stream:
    """One end of a byte pipe to another worker. Created by `Mesh.open`, and passed to
    `Mesh.on_open`."""

    def __cinit__(self):
        global live_streams
        self._side = SIDE_GONE
        link_init(&self._control, <void *> self)
        link_init(&self._data, <void *> self)
        if NSQCY_DEBUG:
            live_streams += 1

    def __dealloc__(self):
        global live_streams
        self._drop_waiting()
        if NSQCY_DEBUG:
            live_streams -= 1

    @property
    def peer(self):
        """The worker at the other end; None after the stream has ended."""
        return None if self._peer is None else self._peer._index

    @property
    def number(self):
        """Number of the stream, as this worker writes it."""
        return self._id

    @property
    def room(self):
        """Number of bytes that `write` would accept now."""
        return self._credit if self._side == SIDE_OPEN else 0

    @property
    def closed(self):
        """Return whether this end is closed, by either side."""
        return self._side != SIDE_OPEN

    def write(self, data not None):
        """`send` for Python."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.send(<const uint8_t *>view.buf, view.len) if view.len else 0
        finally:
            PyBuffer_Release(&view)

    cdef int send(self, const unsigned char *data, size_t n) except -1:
        cdef:
            Peer peer = self._peer
            uint32_t taken, done = 0, piece
        if self._side != SIDE_OPEN:
            return 0
        if n > self._credit:
            n = self._credit
            self._cut_short = True
        taken = n
        # Other streams are waiting for space: queue after them.
        if link_alone(&peer._data):
            while done < taken:
                piece = min(taken - done, <uint32_t> RECORD_MAX)
                if ring_write(&peer._out, KIND_DATA, self._id, data + done, piece,
                              RING_RESERVE) <= 0:
                    break
                done += piece
            if peer._out.head - peer._out.published >= PUBLISH_EVERY:
                peer._publish()
        peer._mesh._touched |= peer._bit
        if done < taken and self._keep(data + done, taken - done) < 0:
            self.abort()
            raise MemoryError
        self._credit -= taken
        return taken

    cpdef void consumed(self, size_t n) noexcept:
        cdef uint32_t maximum = STREAM_WINDOW - self._allowed - self._owed
        if self._side != SIDE_OPEN:
            return
        self._owed += min(n, <size_t> maximum)
        if self._owed >= STREAM_CREDIT_BATCH or self._allowed < HALF_WINDOW:
            self._queue_control()

    cpdef void close(self) noexcept:
        if self._side != SIDE_OPEN:
            return
        self._side = SIDE_CLOSING
        self.end = None
        if link_alone(&self._data):
            self._queue_control()

    cpdef void abort(self) noexcept:
        if self._side > SIDE_CLOSING:
            return
        self._side = SIDE_CLOSING
        self.end = None
        self._aborting = True
        self._drop_waiting()
        link_remove(&self._data)
        if self._hello is not None:
            self._leave()   # the peer does not know the stream
        else:
            self._queue_control()

    cdef dict _pack(self):
        """Return the state as JSON can contain it."""
        waiting = self._waiting[self._start:self._stop] if self._stop > self._start else b""
        return {
            "number": self._id,
            "side": <int>self._side,
            "peer_closed": bool(self._peer_closed),
            "aborting": bool(self._aborting),
            "cut_short": bool(self._cut_short),
            "credit": self._credit,
            "allowed": self._allowed,
            "owed": self._owed,
            "waiting": b2a_base64(waiting, newline=False).decode(),
            "hello": None if self._hello is None else self._hello.decode("latin-1"),
        }

    cdef int _unpack(self, packed) except -1:
        """Restore the state of a new stream."""
        cdef bytes waiting = a2b_base64(packed["waiting"])
        hello = packed["hello"]
        self._side = <StreamSide><int>packed["side"]
        self._peer_closed = packed["peer_closed"]
        self._aborting = packed["aborting"]
        self._cut_short = packed["cut_short"]
        self._credit = packed["credit"]
        self._allowed = packed["allowed"]
        self._owed = packed["owed"]
        if hello is not None:
            self._hello = hello.encode("latin-1")
            link_append(&self._peer._data, &self._data)
        if waiting and self._keep(waiting, <uint32_t>len(waiting)) < 0:
            raise MemoryError
        if self._side == SIDE_OPEN:
            self.consumed(0)
        elif self._side == SIDE_CLOSING and link_alone(&self._data):
            self._queue_control()
        return 0

    cdef int _keep(self, const unsigned char *data, uint32_t n) noexcept:
        """Append to the data waiting for space in the ring; return -1 if out of memory."""
        global live_buffers
        cdef:
            uint32_t length = self._stop - self._start
            uint32_t capacity = max(self._capacity, <uint32_t> WAITING_MIN)
            unsigned char *larger
        if self._start and self._stop + n > self._capacity:
            memmove(self._waiting, self._waiting + self._start, length)
            self._start, self._stop = 0, length
        while capacity < length + n:
            capacity *= 2
        if capacity != self._capacity:
            larger = <unsigned char *> realloc(self._waiting, capacity)
            if larger is NULL:
                return -1
            if NSQCY_DEBUG and self._waiting is NULL:
                live_buffers += 1
            self._waiting = larger
            self._capacity = capacity
        memcpy(self._waiting + self._stop, data, n)
        self._stop += n
        if link_alone(&self._data):
            link_append(&self._peer._data, &self._data)
        return 0

    cdef void _drop_waiting(self) noexcept:
        global live_buffers
        if NSQCY_DEBUG and self._waiting is not NULL:
            live_buffers -= 1
        free(self._waiting)
        self._waiting = NULL
        self._start = self._stop = self._capacity = 0

    cdef void _queue_control(self) noexcept:
        if link_alone(&self._control):
            link_append(&self._peer._control, &self._control)
            self._peer._mesh._touched |= self._peer._bit

    cdef int _write_control(self) noexcept:
        """Write the credit or the last record; return 1 if written, 0 if there is no space, -1 if
        the ring is broken."""
        cdef:
            unsigned char credit[4]
            int written
        store_le32(credit, self._owed)
        if self._side == SIDE_OPEN:
            written = ring_write(&self._peer._out, KIND_CREDIT, self._id, credit, 4, 0)
            if written > 0:
                self._allowed += self._owed
                self._owed = 0
            return written
        if not link_alone(&self._data):
            return 1   # waiting bytes are written first; their end queues the last record
        written = ring_write(&self._peer._out, KIND_ABORT if self._aborting else KIND_CLOSE,
                             self._id, credit, 0, 0)
        if written > 0:
            self._side = SIDE_CLOSED
            if self._peer_closed:
                self._leave()
        return written

    cdef int _write_data(self) noexcept:
        """Write OPEN, or one record of waiting bytes; return 1 if written, 0 if there is no space,
        -1 if the ring is broken."""
        cdef:
            uint32_t piece = min(self._stop - self._start, <uint32_t> RECORD_MAX)
            int written = 1
        if self._hello is not None:
            written = ring_write(&self._peer._out, KIND_OPEN, self._id,
                                 PyBytes_AS_STRING(self._hello), PyBytes_GET_SIZE(self._hello),
                                 RING_RESERVE)
            if written > 0:
                self._hello = None
        elif piece:
            written = ring_write(&self._peer._out, KIND_DATA, self._id,
                                 self._waiting + self._start, piece, RING_RESERVE)
            if written > 0:
                self._start += piece
        if written <= 0:
            return written
        link_remove(&self._data)
        if self._start != self._stop:
            link_append(&self._peer._data, &self._data)
            return 1
        self._drop_waiting()
        if self._side == SIDE_CLOSING:
            self._queue_control()
        return 1

    cdef void _leave(self) noexcept:
        """Free the stream number: the peer has freed it too, or never used it."""
        cdef:
            Peer peer = self._peer
            uint32_t index = self._id >> 1
        self._side = SIDE_GONE
        link_remove(&self._control)
        link_remove(&self._data)
        self._drop_waiting()
        self._hello = None
        self._peer = None
        if self._id & 1:
            peer._free.append(index)
            peer._opened[index] = None
        else:
            peer._accepted[index] = None

    cdef int _on_data(self, const unsigned char *data, uint32_t n) except -1:
        cdef StreamEnd end
        if n > self._allowed:
            return self._fail()
        self._allowed -= n
        if self._side != SIDE_OPEN:
            return 0
        if self._owed and self._allowed < HALF_WINDOW:
            self._queue_control()
        end = self.end   # keeps the end alive during the call, which may close the stream
        return end.on_data(data, n)

    cdef int _on_credit(self, uint32_t n) except -1:
        cdef StreamEnd end = self.end
        if n > STREAM_WINDOW - self._credit:
            return self._fail()
        self._credit += n
        if self._cut_short and self._credit and self._side == SIDE_OPEN:
            self._cut_short = False
            return end.on_writable()
        return 0

    cdef int _on_last(self, bint aborted) except -1:
        cdef StreamEnd end = self.end
        self._peer_closed = True
        if self._side == SIDE_CLOSED:
            self._leave()
            return 0
        # The waiting bytes have no reader any more.
        self._drop_waiting()
        link_remove(&self._data)
        self._queue_control()
        self._side = SIDE_CLOSING
        self.end = None
        return 0 if end is None else end.on_closed(aborted)

    cdef int _fail(self) except -1:
        """Abort the stream, because the peer violated the protocol."""
        cdef StreamEnd end = self.end
        self.abort()
        return 0 if end is None else end.on_closed(True)


# --- peers ---

cdef class Peer:
    """The streams and the two rings between this worker and one peer."""

    def __cinit__(self, Mesh mesh not None, int index):
        self._mesh = mesh
        self._index = index
        self._bit = <uint64_t> 1 << index
        self._slot = mesh.shared.slot(index)
        self._forget()

    cdef void _forget(self) noexcept:
        """Reset the peer: no streams, and not up."""
        self._up = self._unpacked = False
        self._opened = []
        self._accepted = []
        self._free = []
        link_init(&self._control, NULL)
        link_init(&self._data, NULL)

    cdef Stream _find(self, uint32_t number):
        """Return the stream of a record; None if the peer cannot have such a stream."""
        cdef:
            list table = self._accepted if number & 1 else self._opened
            uint32_t index = number >> 1
            Stream stream
        if index >= <size_t> len(table) or table[index] is None:
            return None
        stream = <Stream> table[index]
        return stream if stream._hello is None and not stream._peer_closed else None

    cdef uint32_t _new_index(self) except? 0xFFFFFFFF:
        if self._free:
            return self._free.pop()
        if len(self._opened) >= STREAMS_MAX:
            raise ConnectionError(f"too many streams to worker {self._index}")
        self._opened.append(None)
        return len(self._opened) - 1

    cdef int _move(self) noexcept:
        """Write waiting data to the ring; return 1 if no data is left, 0 if there is no space, -1
        if the ring is broken."""
        cdef:
            Stream stream
            int written
        while not link_alone(&self._control):
            stream = <Stream> self._control.next.stream
            written = stream._write_control()
            if written <= 0:
                return written
            link_remove(&stream._control)
        while not link_alone(&self._data):
            written = (<Stream> self._data.next.stream)._write_data()
            if written <= 0:
                return written
        # Writing the last of a stream's data queues its CLOSE.
        return 1 if link_alone(&self._control) else self._move()

    cdef void _publish(self) noexcept:
        """Publish the records in the ring, and wake the peer if it is sleeping."""
        if self._out.head == self._out.published:
            return
        ring_publish(&self._out)
        if slot_post(self._slot, &self._slot.dirty, self._mesh.index):
            _wake(self._mesh, self._index)

    cdef void _release(self) noexcept:
        """Release the space of read records, and notify the peer if it is waiting for space."""
        cdef uint64_t *waits = &self._mesh._slot.waits
        if self._into.tail == self._into.released:
            return
        ring_release(&self._into)
        atomic_fence()
        if load_relaxed_u64(waits) & self._bit and ring_half_read(&self._into):
            fetch_and_u64(waits, ~self._bit)
            if slot_post(self._slot, &self._slot.room, self._mesh.index):
                _wake(self._mesh, self._index)


cdef void _wake(Mesh mesh, int peer) noexcept:
    try:
        mesh.wake(peer)
    except BaseException:
        PyErr_WriteUnraisable(mesh)


# --- the mesh ---

cdef class Mesh:
    """All of this worker's streams. Every peer is down until `peer_up`.

    In each turn, call `drain`, do the work of the ends and all other work, then call `flush`. If
    `prepare_sleep` returns true, poll. Call `woken` when this worker's eventfd is readable.
    """

    def __init__(self, Shared shared not None, int index, eventfds):
        if not 0 <= index < shared.workers:
            raise IndexError(f"there is no worker {index}")
        self.shared = shared
        self.index = index
        self._slot = shared.slot(index)
        self._eventfds = list(eventfds)
        self._peers = [Peer(self, peer) for peer in range(shared.workers)]
        if len(self._eventfds) != shared.workers:
            raise ValueError("there must be one eventfd for each worker")

    # Users override these methods.

    def on_open(self, Stream stream, bytes hello):
        """Handle a stream that a peer opened: return this side's StreamEnd, or None to refuse the
        stream."""

    def on_error(self, stream, error):
        """Handle an exception raised by an end; its stream (None if already gone) has been
        aborted."""
        try:
            raise error
        except BaseException:
            PyErr_WriteUnraisable(self)

    def on_broken(self, int peer, str reason):
        """Handle a peer that violated the ring protocol; it counts as down until `peer_up`."""

    cpdef int wake(self, int peer) except -1:
        """Make the eventfd of a peer readable."""
        cdef uint64_t one = 1
        if write(self._eventfds[peer], &one, sizeof(one)) < 0 and errno != EAGAIN:
            raise OSError(errno, "a worker cannot be woken")
        return 0

    # Peers appear and disappear at any time.

    def peer_up(self, int peer, uint32_t generation):
        """Start using the rings shared with a peer; return False if that generation of the peer has
        already ended."""
        cdef Peer other = self._checked(peer)
        cdef bint is_current = load_acquire_u32(&other._slot.generation) == generation
        if other._unpacked and other._up and is_current:
            other._unpacked = False
            return True
        if other._up:
            self._disconnect(other)
        if not is_current:
            return False
        other._up = True
        self._up |= other._bit
        if (ring_attach_writer(&other._out, self.shared.ring(self.index, peer)) < 0
                or ring_attach_reader(&other._into, self.shared.ring(peer, self.index)) < 0):
            self._break(other, "ring positions")
        return other._up

    def peer_down(self, int peer):
        """Close all streams to a peer; its rings are not accessed afterwards."""
        self._disconnect(self._checked(peer))

    def is_up(self, int peer):
        """Return whether streams can be opened to this peer."""
        return self._checked(peer)._up

    cdef bint up(self, int peer) noexcept:
        return self._up >> peer & 1

    cdef void count_consumer(self, bint far, int change) noexcept:
        cdef uint32_t *count = &self._slot.far_consumers if far else &self._slot.consumers
        store_relaxed_u32(count, count[0] + change)

    cdef Peer _checked(self, int peer):
        if not 0 <= peer < self.shared.workers or peer == self.index:
            raise IndexError(f"worker {peer} is not a peer")
        return <Peer> self._peers[peer]

    cdef int _disconnect(self, Peer peer) except -1:
        cdef:
            list streams = peer._opened + peer._accepted
            Stream stream
            StreamEnd end
        peer._forget()
        self._up &= ~peer._bit
        self._touched &= ~peer._bit
        self._blocked &= ~peer._bit
        for stream in streams:
            if stream is None:
                continue
            link_init(&stream._control, <void *> stream)
            link_init(&stream._data, <void *> stream)
        for stream in streams:
            if stream is None:
                continue
            end = stream.end
            stream._side = SIDE_GONE
            stream._drop_waiting()
            stream._hello = stream.end = stream._peer = None
            if end is None:
                continue
            try:
                end.on_closed(True)
            except Exception as error:
                self.on_error(stream, error)
        return 0

    cdef int _break(self, Peer peer, reason) except -1:
        self._disconnect(peer)
        try:
            self.on_broken(peer._index, reason)
        except Exception as error:
            self.on_error(None, error)
        return 0

    # Out.

    cpdef Stream open(self, int peer, bytes hello, StreamEnd end):
        """Open a stream; the peer's `on_open` receives `hello`."""
        cdef:
            Peer other = self._checked(peer)
            Stream stream
            uint32_t index
        if not other._up:
            raise ConnectionError(f"worker {peer} is down")
        if hello is None or len(hello) > RECORD_MAX or end is None:
            raise ValueError(f"a stream needs an end and at most {RECORD_MAX} bytes of hello")
        index = other._new_index()
        stream = _new_stream(other, index << 1 | 1, end)
        other._opened[index] = stream
        stream._hello = hello
        if not link_alone(&other._data) or stream._write_data() <= 0:
            link_append(&other._data, &stream._data)
        self._touched |= other._bit
        return stream

    cpdef int flush(self) except -1:
        """End a turn: write as much as fits to the rings, and wake sleeping peers."""
        cdef:
            uint64_t todo = (self._touched | self._blocked) & self._up
            Peer peer
            int moved
        if load_relaxed_u64(&self._slot.room):
            exchange_u64(&self._slot.room, 0)
        self._touched = self._blocked = 0
        while todo:
            peer = <Peer> self._peers[lowest_bit(todo)]
            todo &= todo - 1
            while True:
                moved = peer._move()
                peer._publish()
                if moved:
                    break
                fetch_or_u64(&peer._slot.waits, <uint64_t> 1 << self.index)
                atomic_fence()
                if not ring_half_free(&peer._out):
                    self._blocked |= peer._bit
                    break
            self._touched &= ~peer._bit
            if moved < 0:
                self._break(peer, "ring tail")
        return 0

    # In.

    cpdef bint drain(self, Py_ssize_t max_bytes) except -1:
        """Read the rings, round robin, up to about `max_bytes`; return whether any data is left."""
        cdef:
            uint64_t ready, later
            Peer peer
        if self._draining:
            raise RuntimeError("an end must not drain the mesh it was called by")
        self.awake()
        if load_relaxed_u64(&self._slot.dirty):
            self._unfinished |= exchange_u64(&self._slot.dirty, 0)
        self._draining = True
        try:
            while max_bytes > 0:
                ready = self._unfinished & self._up
                if not ready:
                    break
                later = ready >> self._turn << self._turn
                peer = <Peer> self._peers[lowest_bit(later if later else ready)]
                self._turn = (peer._index + 1) % self.shared.workers
                max_bytes -= self._drain_peer(peer, min(max_bytes, <Py_ssize_t> RING_TURN))
        finally:
            self._draining = False
        return (self._unfinished & self._up) != 0

    cdef Py_ssize_t _drain_peer(self, Peer peer, Py_ssize_t budget) except -1:
        """Read one ring; return the number of bytes read."""
        cdef:
            Py_ssize_t left = budget
            Stream stream
        try:
            while left > 0 and peer._up and self._unfinished & peer._bit:
                try:
                    self._drain_ring(peer, &left)
                except Exception as error:
                    stream = peer._find(self._dispatching)
                    if stream is not None:
                        stream.abort()
                    self.on_error(stream, error)
        finally:
            if peer._up:
                peer._release()
        return budget - left

    cdef int _drain_ring(self, Peer peer, Py_ssize_t *left) except -1:
        cdef:
            RingRecord record
            int got
        while left[0] > 0:
            got = ring_read(&peer._into, &record)
            if got <= 0:
                self._unfinished &= ~peer._bit
                return 0 if got == 0 else self._break(peer, "ring record")
            left[0] -= record.size
            self._dispatching = record.stream
            self._dispatch(peer, &record)
            if not peer._up:
                return 0
            if peer._into.tail - peer._into.released >= RELEASE_EVERY:
                peer._release()
        return 0

    cdef int _dispatch(self, Peer peer, RingRecord *record) except -1:
        cdef Stream stream
        if record.kind == KIND_OPEN:
            return self._accept(peer, record)
        stream = peer._find(record.stream)
        if record.kind == KIND_DATA:
            return 0 if stream is None else stream._on_data(record.data, record.length)
        if record.kind == KIND_CREDIT:
            if stream is None or record.length != 4:
                return self._break(peer, "credit for an unknown stream")
            return stream._on_credit(load_le32(record.data))
        if record.kind == KIND_CLOSE or record.kind == KIND_ABORT:
            return 0 if stream is None else stream._on_last(record.kind == KIND_ABORT)
        return self._break(peer, "record kind")

    cdef int _accept(self, Peer peer, RingRecord *record) except -1:
        cdef:
            uint32_t index = record.stream >> 1
            list table = peer._accepted
            Stream stream
            StreamEnd end
        if not record.stream & 1 or index >= STREAMS_MAX:
            return self._break(peer, "stream number")
        if index >= <size_t> len(table):
            table.extend([None] * (index + 1 - len(table)))
        if table[index] is not None:
            return self._break(peer, "stream opened twice")
        stream = _new_stream(peer, index << 1, None)
        table[index] = stream
        end = self.on_open(stream, PyBytes_FromStringAndSize(<const char *> record.data,
                                                             record.length))
        if end is None:
            stream.abort()
        elif stream._side == SIDE_OPEN:
            stream.end = end
        return 0

    # For the next process.

    def pack(self):
        """Return the state of all streams, as JSON can contain it, for the process that takes over
        this worker's number. The rings keep their positions. Nothing may be drained or sent
        afterwards."""
        cdef Peer peer
        cdef Stream stream
        self.flush()
        return {"format": formats.MESH.number, "peers": [
            {
                "peer": peer._index,
                "generation": load_acquire_u32(&peer._slot.generation),
                "streams": [stream._pack() for stream in peer._opened + peer._accepted
                            if stream is not None],
            }
            for peer in self._peers if peer._up]}

    def unpack(self, packed not None):
        """Continue the streams of the process that packed them, in a new mesh. claim() gives them
        their ends; close_unclaimed() follows. Peers that have restarted since are left out. Raises
        FormatError."""
        cdef Peer peer
        cdef Stream stream
        cdef list table
        cdef uint32_t index
        formats.MESH.check_fields(packed, "the streams of another worker")
        store_relaxed_u32(&self._slot.consumers, 0)
        store_relaxed_u32(&self._slot.far_consumers, 0)
        slot_awake(self._slot)
        for each in packed["peers"]:
            if not self.peer_up(each["peer"], each["generation"]):
                continue
            peer = self._checked(each["peer"])
            peer._unpacked = True
            for found in each["streams"]:
                index = found["number"] >> 1
                if index >= STREAMS_MAX:
                    raise ValueError(f"a stream cannot have the number {found['number']}")
                table = peer._opened if found["number"] & 1 else peer._accepted
                table.extend([None] * (index + 1 - len(table)))
                stream = _new_stream(peer, found["number"], None)
                table[index] = stream
                stream._unpack(found)
            peer._free = [i for i in range(len(peer._opened)) if peer._opened[i] is None]
        # The process before has taken the notices of these rings.
        self._unfinished = ~<uint64_t> 0 >> (64 - self.shared.workers)
        self._touched |= self._up

    cpdef Stream claim(self, int peer, uint32_t number, StreamEnd end):
        """Continue at this end of a restored stream. Return None if the stream no longer exists."""
        cdef:
            Peer other = self._checked(peer)
            list table = other._opened if number & 1 else other._accepted
            uint32_t index = number >> 1
            Stream stream
        if end is None:
            raise ValueError("a stream needs an end")
        if index >= <size_t> len(table) or table[index] is None:
            return None
        stream = <Stream> table[index]
        if stream._side != SIDE_OPEN or stream.end is not None:
            return None
        stream.end = end
        return stream

    def close_unclaimed(self):
        """Close the restored streams that have no end."""
        cdef Peer peer
        cdef Stream stream
        for peer in self._peers:
            for stream in peer._opened + peer._accepted:
                if stream is not None and stream.end is None:
                    stream.close()

    # Sleep.

    cpdef bint prepare_sleep(self) noexcept:
        """Return whether the next poll may block. If it may, peers write the eventfd from now
        on."""
        if (self._unfinished | self._touched) & self._up:
            return False
        self._sleeping = slot_sleep(self._slot)
        return self._sleeping

    cpdef void awake(self) noexcept:
        """Record that the poll is over: peers need not write the eventfd."""
        if self._sleeping:
            self._sleeping = False
            slot_awake(self._slot)

    cpdef int woken(self) except -1:
        """Handle readiness of this worker's eventfd."""
        cdef uint64_t count
        if (read(self._eventfds[self.index], &count, sizeof(count)) < 0
                and errno != EAGAIN):
            raise OSError(errno, "the wake-up of a worker cannot be read")
        self.awake()
        return 0


cdef Stream _new_stream(Peer peer, uint32_t number, StreamEnd end):
    cdef Stream stream = Stream.__new__(Stream)
    stream._peer = peer
    stream.end = end
    stream._id = number
    stream._side = SIDE_OPEN
    stream._credit = stream._allowed = STREAM_WINDOW
    return stream
