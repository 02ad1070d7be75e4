# Transports of sessions (sockets and streams), and the turns of the event loop.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.base.histogram cimport Histogram
from nsqcy.ipc.mesh cimport Mesh, Stream, StreamEnd
from nsqcy.net.byte_layer cimport ByteLayer, ByteQueue
from nsqcy.protocol.connection cimport Transport
from nsqcy.protocol.session cimport Session
from nsqcy.protocol.session_manager cimport SessionManager
from nsqcy.protocol.wire cimport FrameScanner


cdef class SocketTransport(Transport):
    cdef int fd
    cdef Loop loop
    cdef object reader              # io watchers
    cdef object writer
    # Only with layers between the session and the socket:
    cdef list layers                # from the wire inwards, each a ByteLayer; None: no layer
    cdef object handshake           # TLS handshake in progress
    cdef object identity            # negotiated settings until they are applied
    cdef ByteQueue encoded          # output of the layers
    cdef ByteQueue between          # output between two layers
    cdef FrameScanner scanner       # finds the ends of a codec's blocks; None: no codec
    cdef bint is_reading            # the reader is running
    cdef bint wanted                # the session wants input
    cdef bint drained               # the layers have no input that can be decoded now
    cdef bint queued                # the session is in manager.undecoded
    cdef int flush(self) except -1
    cdef int watch_output(self, bint on) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int read_socket(self, bint on) except -1
    cdef int close(self) except -1
    cdef int stop_watching(self) except -1
    cdef int abandon(self) except -1
    cdef int upgrade(self, identity) except -1
    cdef int add_codec(self) except -1
    cdef int seal(self) except -1
    cdef int encode(self) except -1
    cdef int encode_piece(self, const uint8_t *data, size_t n) except -1
    cdef int compress(self, ByteLayer codec, const uint8_t *data, size_t n,
                      ByteQueue into) except -1
    cdef bint send_held(self) except -1
    cdef int flush_encoded(self) except -1
    cdef int receive(self, const uint8_t *data, size_t n) except -1
    cdef ssize_t decode(self, const uint8_t **piece) except -1
    cdef int read_on(self) except -1
    cdef int read_later(self) except -1
    cdef int watch_encoded(self) except -1
    cdef int say_goodbye(self) except -1
    cdef int rest(self) except -1


cdef class StreamTransport(Transport):
    cdef Stream stream
    cdef size_t unconsumed          # bytes fed while parsing waits; their credit is returned later
    cdef int flush(self) except -1
    cdef int give_credit(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1


cdef class FarEnd(StreamEnd):
    """The owner's end of a stream: feeds a session."""
    cdef Session session
    cdef StreamTransport transport
    cdef int on_data(self, const unsigned char *data, size_t n) except -1
    cdef int on_writable(self) except -1
    cdef int on_closed(self, bint aborted) except -1


cdef class BytesTransport(Transport):
    """Bytes in memory: the transport for tests and tools."""
    cdef bytearray taken            # bytes sent, but not yet collected by sent()
    cdef int64_t left               # number of bytes still accepted; negative: no limit
    cdef readonly bint closed
    cdef readonly bint wants_input
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1


cdef class Loop:
    cdef readonly SessionManager manager
    cdef object handshakes          # TLS (nsqcy.nsqd.tls.Handshakes); None: no TLS
    cdef object ev                  # the hub's loop
    cdef object prepare
    cdef int timer_fd
    cdef object timer
    cdef object idle
    cdef list watchers
    cdef bint idling
    cdef int64_t alarm              # time when the timer fires; 0: it is not running
    cdef bint in_turn
    cdef Histogram turns            # durations of turns, from the first event to the next poll

    cdef void begin_turn(self) noexcept
    cdef int set_alarm(self, int64_t due) except -1
