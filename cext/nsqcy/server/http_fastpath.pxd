# The sockets of HTTP connections, and the short way that the same request takes again and again.
#
#   recv -> the head is of a shape that is known -> its sink takes the body -> the answer -> send
#
# A shape is a head without the digits of its Content-Length. Only the general parser says what a
# shape means, once for each; here, bytes are compared with those it has seen. Whatever is not
# answered at once goes the general way, from the first byte of its head, as if nobody had looked.

from libc.stdint cimport int64_t, uint8_t


cdef class Sink:
    """Where the bodies of requests of one shape go."""
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1


cdef class Shape:
    """Heads that differ in the digits of their length alone."""
    cdef bytes text             # without these
    cdef Py_ssize_t cut         # where they were
    cdef Sink sink
    cdef bytes before           # the answer: what stands before and after the date
    cdef bytes after
    cdef bytes answer           # all of it, in the second it was last made in
    cdef int64_t second
    cdef Py_ssize_t head_size(self, const uint8_t *data, Py_ssize_t n,
                              Py_ssize_t *length) noexcept
    cdef bytes dated(self, Server server)


cdef class Server:
    cdef public double now      # of the last sweep
    cdef uint8_t *scratch       # what a socket gave, until it was looked at
    cdef dict shapes            # text -> Shape, or None: these heads go the general way
    cdef list answers           # of what one connection was sent, until they are sent themselves
    cdef int64_t second         # of the date
    cdef bytes date_text
    cdef int tick(self) except -1


cdef class Connection:
    cdef public int fd          # -1: closed
    cdef Server server
    cdef Shape shape            # of the request before
    cdef public double since    # when the peer last did something, as the sweep sees time
    # No request is under way, nothing is unsent, and the short way may be taken.
    cdef public bint at_rest
    cdef Py_ssize_t answer_known(self, const uint8_t *data, Py_ssize_t n) except -1
    cdef bytes answer_one(self, const uint8_t *head, Py_ssize_t size, Py_ssize_t length)
    cdef Shape shape_of(self, const uint8_t *data, Py_ssize_t n)
    cdef int send_answers(self) except -1
    cdef Py_ssize_t send_some(self, const uint8_t *data, Py_ssize_t n) except -2
