# Large publishes of a topic.
#
#   MPUB, LOG_PUB, /mpub ──► Batch ──► queue of the topic ──► slices ──► visible as a whole

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.durability cimport Durability
from nsqcy.broker.publish cimport Publishing
from nsqcy.storage.record cimport Produced


cdef enum:
    AT_ONCE = 4096              # messages that a publish may append in the turn that receives it


cdef class Batch:
    """The checked messages of one publish."""
    cdef readonly bytes source          # owns the messages
    cdef const uint8_t *at              # the next message
    cdef uint32_t left                  # messages not appended yet
    cdef uint64_t left_bytes            # their bodies, or a little more
    cdef Durability minimum             # required by the publisher
    cdef Waiter waiter                  # receives the outcome; None: already answered
    cdef uint64_t ticket

    cdef int begin(self, Publishing topic) except -1
    cdef uint64_t append(self, Publishing topic, uint32_t count) except? 0
    cdef int complete(self, Publishing topic) except -1
    cdef int abandon(self, Publishing topic) except -1
    cdef int release(self) except -1


cdef class SizedBatch(Batch):
    """Messages as in an MPUB: each follows its length."""
    cdef bint headers                   # headers precede the bodies


cdef class ChunkBatch(Batch):
    """A producer's chunk, laid out as an MPUB. Only its missing messages are appended."""
    cdef object name                    # producers.ChunkName
    cdef uint32_t count                 # messages in the chunk
    cdef bint headers
    cdef bint moved                     # the messages come from another topic ...
    cdef bytes address                  # ... and are for this channel only, unless None
    cdef uint64_t size                  # bytes of the chunk
    cdef list wanted                    # [first, end) of the messages to append
    cdef uint32_t index                 # of the message at `at`
    cdef list pieces                    # (first_seq, ranges) of what was appended

    cdef uint32_t append_range(self, Publishing topic, Produced *produced, uint32_t count,
                               list taken, uint64_t *bodies) except? 0


cdef class Batches(Publishing):
    cdef list batches                   # the first one is being appended if the topic is gathering

    cdef int add_batch(self, Batch batch) except -1
    cdef int append_batches(self, int budget) except -1
    cdef int end_batch(self, str error) except -1
    cdef int leave_queue(self) except -1
    cdef int fail_batches(self, str error) except -1
    cdef int leave_batches(self, str error) except -1
    cdef int answer_batch(self, Batch batch, str error) except -1
    cdef int break_batch(self, str error) except -1
    cdef int complete_batch(self, Batch batch) except -1
    cdef int add_chunk(self, ChunkBatch chunk, uint32_t *added, uint64_t *bodies) except -1
    cdef int open_chunk(self, ChunkBatch chunk) except -1
