# The client end of a connection: frames become messages, answers become commands.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.client.mailbox cimport Mailbox
from nsqcy.protocol.wire cimport Output


cdef enum Outcome:
    FINISHED = 0
    REQUEUED = 1            # without backoff
    FAILED = 2              # requeued with backoff


cdef class Codec:
    """Codec for one connection, above TLS and compression."""
    cdef readonly str address
    cdef public str topic           # that the connection consumes
    cdef list pieces                # output before `output`: large bodies, which are not copied
    cdef size_t piece               # the next of them
    cdef Output output
    cdef bytearray partial          # received bytes of an incomplete frame
    cdef size_t wanted              # size that `partial` needs before the next try
    cdef uint32_t longest           # maximum bytes of a message's frame
    cdef bint headers               # negotiated: a message begins with its headers
    cdef bint closed
    cdef public bint dead_letters   # negotiated: nsqd accepts DEAD_LETTER
    cdef readonly bint touched      # some message's timeout was restarted
    cdef readonly Py_ssize_t in_flight
    cdef readonly uint64_t delivered    # messages since the connection began
    cdef public object wake         # called when output becomes available
    cdef public object flow         # notified of results before they are sent
    cdef public Mailbox mailbox     # of the loop that notifies it; None if every caller may

    cdef Py_ssize_t parse(self, const uint8_t *at, size_t left, list messages, list frames,
                          Py_ssize_t maximum) except -1
    cdef inline int check_size(self, uint32_t size, uint32_t maximum) except -1
    cdef int bad_size(self, uint32_t size, uint32_t maximum) except -1
    cdef int rouse(self, size_t before) except -1
    cdef int put_piece(self, bytes body) except -1
    cdef inline int put_id(self, const char *verb, size_t length, Message message) except -1
    cdef int answer(self, Message message, Outcome outcome, int64_t delay, bytes line) except -1
    cdef int put_answer(self, Message message, Outcome outcome, int64_t delay,
                        bytes line) except -1
    cdef int bury(self, Message message, str reason) except -1


cdef class Message:
    cdef readonly bytes id          # 16 hex digits
    cdef readonly bytes body
    cdef readonly int64_t timestamp     # ns since 1970, by the wall clock of its nsqd
    cdef readonly uint16_t attempts
    cdef bint answered
    cdef bint manual                # its handler will answer it later
    cdef bint kept                  # made a dead letter that the consumer keeps
    cdef Codec codec


# A message on a connection that negotiated headers; other messages lack these fields.
cdef class Headered(Message):
    cdef bytes encoded              # the headers, as on the wire
    cdef dict decoded               # decoded on first use


cdef class Publish:
    cdef readonly str topic
    cdef readonly bytes head        # the command line
    cdef readonly bytes body
    cdef public double deadline     # seconds, monotonic
    cdef public int tries           # failed ones
    cdef public object error        # of the last try that may have been executed
    cdef readonly object waiter     # notified of the result
    cdef public bint is_abandoned   # its caller was interrupted
