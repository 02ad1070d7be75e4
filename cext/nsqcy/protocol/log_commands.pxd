# Commands for a topic's log: LOG_PUB, LOG_EPOCHS, LOG_META, LOG_SEEK, LOG_FETCH, LOG_CURSOR.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from nsqcy.broker.log_fetch cimport LogRead
from nsqcy.broker.topic cimport Topic
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.publish_commands cimport PublishCommands
from nsqcy.protocol.wire cimport Word


cdef class CursorAnswer:
    """Callback for the journal write that records a LOG_CURSOR change."""
    cdef LogCommands session
    cdef uint64_t ticket
    cdef bytes text


cdef class LogCommands(PublishCommands):
    """Commands for a topic's log; they are executed one at a time."""
    cdef int64_t log_due            # retry time of a waiting command; 0: none
    cdef bint log_waited            # the command has waited
    cdef LogRead log_read           # read that it is waiting for
    cdef uint64_t log_unsent        # bytes of a response that has not been sent completely
    cdef uint64_t log_sent_at       # output.total_sent once the response is sent

    cdef Parsed log_pub(self, const uint8_t *line, size_t *used, const uint8_t *rest,
                        size_t left) except RAISED
    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED
    cdef Parsed forward_log(self, int owner, const char *command, const uint8_t *line,
                            size_t n) except RAISED
    cdef Parsed refuse_log(self, bytes text) except RAISED
    cdef Parsed refuse_topic(self, bytes key) except RAISED
    cdef Parsed bad_number(self, const char *command, const char *what,
                           const Word *word) except RAISED
    cdef Parsed log_epochs(self, Topic topic, Word *words) except RAISED
    cdef Parsed log_meta(self, Topic topic, Word *words, int count) except RAISED
    cdef Parsed log_seek(self, Topic topic, Word *words) except RAISED
    cdef Parsed log_fetch(self, Topic topic, Word *words) except RAISED
    cdef Parsed wait_for_log(self, found) except RAISED
    cdef Parsed log_cursor(self, Topic topic, Word *words) except RAISED
    cdef Parsed set_log_cursor(self, Topic topic, bytes log_id, str name, seq) except RAISED
    cdef Parsed delete_log_cursor(self, Topic topic, str name) except RAISED
    cdef CursorAnswer promise_cursor(self, str name, bytes log_id, seq)
    cdef int hold_answer(self, uint64_t n) except -1
    cdef int answer_left(self) except -1
    cdef int log_wait_over(self) except -1
