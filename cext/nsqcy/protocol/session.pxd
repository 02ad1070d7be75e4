# Sessions: the V2 state machine of one connection.
#
#   bytes ──feed──► lines and bodies ──► commands ──► topic, channel          (owner here)
#                                           │    └──► stream ══════► Session (owner elsewhere)
#                                           ▼
#   bytes ◄─flush── output ◄── frames ◄── tickets (answers in the order of their commands)
#
# A session has five classes, one per file; each uses only those above it:
#
#   Connection       connection         options, answers in order, unfinished input, timer
#   Authorizer       auth               AUTH, permissions, quota
#   Forwarder        forwarding         the owner of a topic, streams to other workers, migration
#   TopicCommands    topic_commands     PUB, MPUB, DPUB, LIMITS, LOG_*
#   Session          session            parser, IDENTIFY, SUB, RDY, FIN, REQ, TOUCH, CLS; the end

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.broker.topic cimport Topic
from nsqcy.channels.channel cimport Outcome
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.topic_commands cimport TopicCommands
from nsqcy.protocol.wire cimport Word


@cython.final
cdef class Session(TopicCommands):
    """The V2 state machine of one connection: a producer, a consumer or both."""
    cdef uint64_t sent_before               # total number of sent bytes when it got stuck
    cdef str subscribed_channel

    cdef int feed(self, const uint8_t *data, size_t n) except -1
    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0
    cdef int parse_kept(self) except -1
    cdef int end_of_input(self) except -1
    cdef int finish_input(self) except -1
    cdef int resume(self) except -1
    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0
    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED
    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED
    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int adopt_identity(self, identity) except -1
    cdef Parsed upgrade(self, identity) except RAISED
    cdef int upgrade_done(self) except -1
    cdef Parsed sub(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed subscribe(self, Topic topic, str name) except RAISED
    cdef Parsed rdy(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef int set_ready(self, uint32_t ready) except -1
    cdef Parsed message_command(self, const char *command, Word *words, int count, int needed,
                                uint64_t *id) except RAISED
    cdef Parsed fin(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed req(self, bint reject, Word *words, int count, const uint8_t *line,
                    size_t n) except RAISED
    cdef Parsed touch_message(self, Word *words, int count, const uint8_t *line,
                              size_t n) except RAISED
    cdef Parsed cls(self, const uint8_t *line, size_t n) except RAISED
    cdef int refuse(self, const char *command, const Word *id, Outcome outcome) except -1
    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept
    cdef size_t finish_there(self, const uint8_t *lines, size_t n) except? 0
    cdef int on_timer(self) except -1
    cdef int after_flush(self) except -1
    cdef int wind_down(self) except -1
    cdef int close(self) except -1
