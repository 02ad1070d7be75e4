# Commands for a topic: PUB, MPUB, DPUB, LIMITS, and those for its log.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.broker.log_fetch cimport LogRead
from nsqcy.broker.topic cimport Topic
from nsqcy.broker.topic_queue cimport Batch, SizedBatch
from nsqcy.channels.consumer cimport Waiter
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.forwarding cimport Forwarder
from nsqcy.protocol.wire cimport Word


cdef class TopicCommands(Forwarder)

cdef class BatchWaiter(Waiter):
    """Receiver of the outcome of a large batch."""
    cdef TopicCommands session
    cdef uint64_t size


cdef class CursorAnswer:
    """Callback for the journal write that records a LOG_CURSOR change."""
    cdef TopicCommands session
    cdef uint64_t ticket
    cdef bytes text


cdef class TopicCommands(Forwarder):
    """The commands for a topic. Those for its log, except LOG_PUB, are executed one at a time."""
    cdef uint64_t paid              # number of the last publish that was charged to the quota
    cdef bint log_waited            # the log command has waited
    cdef LogRead log_read           # read that a log command is waiting for
    cdef uint64_t log_unsent        # bytes of a response that has not been sent completely
    cdef uint64_t log_sent_at       # output.total_sent once the response is sent

    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept
    cdef Parsed pub(self, Word *words, int count, const uint8_t *line, size_t *used,
                    const uint8_t *rest, size_t left) except RAISED
    cdef Parsed dpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed publish_one(self, const char *command, int64_t delay, const uint8_t *line,
                            size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef Parsed message_missing(self, const char *command, size_t missing) except RAISED
    cdef int64_t size_limit(self, int64_t size) except -1
    cdef Parsed show_limits(self, Word *words, int count) except RAISED
    cdef int32_t body_size(self, const uint8_t *message, int32_t size) noexcept
    cdef Parsed mpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED
    cdef Parsed check_messages(self, const char *command, const uint8_t *batch,
                               size_t n) except RAISED
    cdef Parsed take_batch(self, const char *command, const uint8_t *rest, size_t left,
                           bint exact, uint32_t *body_size, uint32_t *count) except RAISED
    cdef size_t batch_limit(self) noexcept
    cdef Parsed batch_missing(self, const char *command, size_t end, size_t have,
                              int32_t announced, bytes error) except RAISED
    cdef Parsed batch_too_big(self, const char *command, size_t size) except RAISED
    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED
    cdef Parsed not_routed(self, const char *command, int why, size_t *used, size_t n) except RAISED
    cdef Parsed publish_refused(self, const char *command, bytes text) except RAISED
    cdef Parsed publish_slowly(self, const char *command, Topic topic, Batch batch,
                               const uint8_t *messages, size_t n, uint32_t count) except RAISED
    cdef Parsed publish_accepted(self, const char *command, Topic topic, uint32_t count,
                                 uint64_t body_bytes) except RAISED
    cdef Parsed forward_publish(self, int owner, const char *command, const uint8_t *line,
                                size_t n, uint32_t messages) except RAISED
    cdef Parsed charge(self, uint32_t messages, uint64_t size) except RAISED
    cdef int await_quota(self) except -1
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
