# A client's end of a connection: frames become messages, answers become commands.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from nsqcy.protocol.wire cimport Output


cdef enum Outcome:
    FINISHED = 0
    REQUEUED = 1            # without backoff
    FAILED = 2              # requeued with backoff


cdef class Codec:
    """Codec of one connection, above TLS and compression."""
    cdef readonly str address
    cdef Output output
    cdef bytearray partial          # received and not yet a whole frame
    cdef size_t wanted              # bytes of `partial` before another look is worth it
    cdef uint32_t longest           # bytes a message's frame may announce
    cdef bint headers               # negotiated: a message begins with its headers
    cdef bint closed
    cdef readonly Py_ssize_t in_flight
    cdef public object wake         # called when output waits and none did before
    cdef public object flow         # asked whether it is calm, told results before they are sent

    cdef Py_ssize_t parse(self, const uint8_t *at, size_t left, list messages, list frames,
                          Py_ssize_t maximum) except -1
    cdef inline int check_size(self, const uint8_t *at, size_t left) except -1
    cdef int bad_size(self, uint32_t size, uint32_t maximum) except -1
    cdef int rouse(self, size_t before) except -1
    cdef inline int put_id(self, const char *verb, size_t length, Message message) except -1
    cdef int answer(self, Message message, Outcome outcome, int64_t delay) except -1


cdef class Message:
    cdef readonly bytes id          # 16 hex digits
    cdef readonly bytes body
    cdef readonly int64_t timestamp     # wall clock of its nsqd, ns since 1970
    cdef readonly uint16_t attempts
    cdef bint answered
    cdef bint manual                # its handler answers it itself
    cdef Codec codec


# A message of a connection that has negotiated headers. (The others' are not to know of any.)
cdef class Headered(Message):
    cdef bytes encoded              # the headers, as on the wire
    cdef dict decoded               # decoded on first use


cdef class Publish:
    cdef readonly str topic
    cdef readonly bytes head        # the command line
    cdef readonly bytes body
    cdef public double deadline     # seconds, monotonic
    cdef public int tries           # that have failed
    cdef public object error        # of the last try
    cdef readonly object waiter     # notified of the result
