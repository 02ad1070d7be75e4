# Sockets of HTTP connections, and the fast path for repeated requests.
#
#   recv -> the head matches a known template -> its sink takes the body -> the response -> send
#
# A request template (Shape) is a head without the digits of its Content-Length. The general parser
# interprets each template once; the fast path only compares bytes with known templates. A request
# that cannot be answered immediately is passed to the general parser, from the first byte of its
# head.

from libc.stdint cimport int64_t, uint8_t


cdef class Sink:
    """Destination for the bodies of requests with one template."""
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1


cdef class Shape:
    """Request template: heads that differ only in the digits of the length."""
    cdef bytes text             # head without the digits of its length
    cdef Py_ssize_t cut         # position of the digits
    cdef Sink sink
    cdef bytes before           # the response before and after the date
    cdef bytes after
    cdef bytes answer           # complete response for the current second
    cdef int64_t second
    cdef Py_ssize_t head_size(self, const uint8_t *data, Py_ssize_t n,
                              Py_ssize_t *length) noexcept
    cdef bytes dated(self, Server server)


cdef class Server:
    cdef public double now      # time of the last sweep
    cdef uint8_t *scratch       # received bytes, until they are parsed
    cdef dict shapes            # text -> Shape, or None: use the general parser
    cdef list answers           # unsent responses of one connection
    cdef int64_t second         # of the date
    cdef bytes date_text
    cdef int tick(self) except -1


cdef class Connection:
    cdef public int fd          # -1: closed
    cdef public Py_ssize_t receive_size     # maximum bytes per receive
    cdef Server server
    cdef Shape shape            # template of the previous request
    cdef public double since    # last activity of the peer, in the sweep's time
    # Return whether the fast path may be used: no request is in progress, and nothing is unsent.
    cdef public bint at_rest
    cdef Py_ssize_t answer_known(self, const uint8_t *data, Py_ssize_t n) except -1
    cdef bytes answer_one(self, const uint8_t *head, Py_ssize_t size, Py_ssize_t length)
    cdef Shape shape_of(self, const uint8_t *data, Py_ssize_t n)
    cdef int send_answers(self) except -1
    cdef Py_ssize_t send_some(self, const uint8_t *data, Py_ssize_t n) except -2
