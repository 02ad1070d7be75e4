# The messages in the body of an HTTP request.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.broker.topic_queue cimport Batch, TopicQueue
from nsqcy.broker.topic cimport Topic


cdef class BodyBatch(Batch):
    """Messages of a body: lines, or each after its length. All get the same headers."""
    cdef bint lines
    cdef const uint8_t *stop            # the end of the body
    cdef bytes headers
    cdef readonly uint32_t count        # all messages
    cdef readonly uint64_t total        # bytes of all messages
    cdef readonly int64_t shortest
    cdef readonly int64_t longest

    cdef void note(self, size_t length) noexcept
    cdef const uint8_t *take(self, uint32_t *length) noexcept
    cdef int64_t first_misfit(self, Topic topic) noexcept
    cdef bytes next_command(self, bytes key, size_t maximum)
