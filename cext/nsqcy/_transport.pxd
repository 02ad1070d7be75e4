# How bytes of sessions travel: sockets and streams; and the turns of the event loop.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy._mesh cimport Mesh, Stream, StreamEnd
from nsqcy._session cimport Home, Session, Transport


cdef class SocketTransport(Transport):
    cdef int fd
    cdef Loop loop
    cdef object reader              # io watchers
    cdef object writer
    cdef int flush(self) except -1
    cdef int watch_output(self, bint on) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1
    cdef int stop_watching(self) except -1
    cdef int abandon(self) except -1


cdef class StreamTransport(Transport):
    cdef Stream stream
    cdef size_t unconsumed          # bytes fed while parsing waits; credit for them comes later
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
    """Bytes in memory: the transport of tests and tools."""
    cdef bytearray taken            # sent, and not collected by sent() yet
    cdef int64_t left               # bytes it still takes; negative: any number
    cdef readonly bint closed
    cdef readonly bint wants_input
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1


cdef class Loop:
    cdef readonly Home home
    cdef object ev                  # the hub's loop
    cdef object prepare
    cdef int timer_fd
    cdef object timer
    cdef object idle
    cdef list watchers
    cdef bint idling
    cdef int64_t alarm              # when the timer fires; 0: it does not run
    cdef bint in_turn

    cdef void begin_turn(self) noexcept
    cdef int set_alarm(self, int64_t due) except -1
