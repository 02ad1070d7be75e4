# Sessions: the V2 state machine of one connection.
#
#   bytes ──feed──► lines and bodies ──► commands ──► topic, channel          (owner here)
#                                           │    └──► stream ══════► Session (owner elsewhere)
#                                           ▼
#   bytes ◄─flush── output ◄── frames ◄── tickets (answers in the order of their commands)
#
# Its chain of classes, one per file; each class uses only those above it:
#
#   Connection          connection         negotiated options, output, flags
#   AnswerQueue         tickets            answers in order
#   InputBuffer         input_buffer       unfinished input
#   Authorizer          auth               AUTH, permissions, quota
#   Forwarder           forwarding         streams to other workers
#   Routing             routing            the topic of a command and its owner
#   Migration           migration          connection migration to another worker
#   PublishCommands     publish_commands   PUB, MPUB, DPUB
#   LogCommands         log_commands       LOG_*
#   Subscription        subscribe          SUB, RDY, FIN, REQ, TOUCH, CLS; messages
#   Session             session            parser, IDENTIFY, timer, end

from libc.stdint cimport int64_t, uint8_t, uint64_t

from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.subscribe cimport Subscription
from nsqcy.protocol.wire cimport Word


cdef class Session(Subscription):
    """The V2 state machine of one connection."""
    cdef int64_t stuck_since                # time since which no output could be sent; 0: not stuck
    cdef uint64_t sent_before               # total number of sent bytes when it got stuck

    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0
    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED
    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED
    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int adopt_identity(self, identity) except -1
    cdef Parsed upgrade(self, identity) except RAISED
    cdef int upgrade_done(self) except -1
    cdef int peer_timed_out(self) except -1
