# SUB, RDY, FIN, REQ, DEAD_LETTER, TOUCH and CLS: a session as a consumer.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Outcome
from nsqcy.broker.topic cimport Topic
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.log_commands cimport LogCommands
from nsqcy.protocol.wire cimport Word


cdef class Subscription(LogCommands):
    """The commands of a consumer, and the messages sent to it."""
    cdef Topic subscribed           # the channel's topic
    cdef str subscribed_channel

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
    cdef int unsubscribe(self) except -1
