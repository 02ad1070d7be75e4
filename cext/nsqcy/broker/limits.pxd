# Limits of a topic: which messages its policy refuses or drops.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.on_full cimport OnFull
from nsqcy.broker.fan_out cimport FanOut


cdef class Limits(FanOut):
    cdef uint64_t mem_queue_size        # messages
    cdef bint limited                   # a policy limits message sizes or delays
    cdef int32_t min_msg_size           # bytes
    cdef int32_t max_msg_size           # bytes
    cdef int64_t max_defer_timeout      # ns
    cdef int64_t ttl                    # ns from publish to expiry; 0: no expiry
    cdef uint64_t max_bytes             # 0: no limit
    cdef uint64_t max_depth             # messages; 0: no limit
    cdef OnFull on_full
    cdef bint bounded                   # the topic or one of its channels limits depth or bytes
    cdef bint may_drop                  # the topic drops messages when it is full
    cdef uint64_t full_count            # messages dropped because the topic was full
    cdef readonly uint64_t dropped_count    # overflow of an ephemeral topic
    cdef uint64_t expired_count         # messages that expired in the topic

    cdef bint fits(self, int64_t size) noexcept
    cdef int32_t invalid_length(self, const uint8_t *batch, uint32_t count, bint headers) noexcept
    cdef bytes delay_error(self, int64_t delay)
    cdef bytes size_error(self, const char *command, int64_t size)
    cdef bint drops(self, uint32_t body_bytes) noexcept
    cdef str fullness(self, uint64_t count, uint64_t body_bytes)
    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept
    cdef bint exceeds_depth(self, uint64_t count) noexcept
    cdef int set_bounds(self) except -1
    cdef int keep_bounds(self) except -1
    cdef int drop_expired(self) except -1
    cdef uint64_t first_fresh(self, int *budget) noexcept
    cdef int set_limits(self, policy) except -1
