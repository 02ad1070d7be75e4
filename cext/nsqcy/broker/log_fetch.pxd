# Reads of a topic's log that take more than one turn: fetch a range as a block of columns, find a
# position by time, wait for new records.
#
#   COLLECT ──► MEASURE ──► FILL ──► CHECK ──► ENDED
#
#   COLLECT   pin the blocks of the range; read blocks that are only on disk, one at a time, into
#             memory of this read, so that they never displace blocks that consumers need
#   MEASURE   count the records, until the response reaches its maximum size
#   FILL      build the columns
#   CHECK     compute their checksum
#
# Each step does a bounded amount of work.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.topic_host cimport TopicHost
from nsqcy.storage.block cimport Block
from nsqcy.storage.record_window cimport RecordWindow


cdef enum:
    LARGEST_ANSWER = 8388608        # maximum bytes, unless a single message is larger


cdef enum Column:
    TIMESTAMPS = 1
    IDS = 2
    DEFERS = 4
    HEADERS = 8
    BODIES = 16


cdef enum ReadStage:
    COLLECT = 0
    MEASURE = 1
    FILL = 2
    CHECK = 3
    WAITING = 4
    ENDED = 5


# A block used by a read.
cdef struct Piece:
    Block *block            # pinned
    uint8_t *data           # its records; NULL: unreadable
    uint8_t *owned          # buffer read from disk for this read; NULL: the block's own data


cdef class OpenReads:
    """The reads of one topic that are in progress."""
    cdef TopicHost host
    cdef list open
    cdef uint32_t polls             # those that wait for new records

    cdef int begin(self, LogRead read) except -1
    cdef int advanced(self, LogRead read) except -1


cdef class LogRead:
    cdef RecordWindow window
    cdef OpenReads reads
    cdef Waiter waiter              # None: the caller is gone
    cdef uint64_t ticket
    cdef ReadStage stage
    cdef bint reading               # the last piece is being read
    cdef bint failed                # a read failed, but may succeed later
    cdef Piece *pieces
    cdef uint32_t count
    cdef uint32_t room
    cdef readonly uint64_t next_seq     # next record to visit
    cdef uint64_t end               # exclusive
    cdef readonly uint64_t held     # bytes

    cdef int step(self, int budget) except? -1
    cdef int take(self, Block *block) except -1
    cdef int on_piece_read(self, int error) except -1
    cdef int answer(self, bytes answer, bytes error) except -1
    cdef int abandon(self, bytes error) except -1
    cdef void release(self) noexcept


# The parts of a row in the response.
cdef struct Row:
    int64_t timestamp
    uint64_t id
    int64_t defer
    const uint8_t *headers
    const uint8_t *body
    uint32_t headers_length
    uint32_t body_length


cdef class Fetch(LogRead):
    cdef bytes log_id
    cdef uint64_t first             # the first record of the response
    cdef uint32_t columns
    cdef uint64_t maximum           # maximum bytes of a response with more than one record
    cdef uint64_t collected         # bytes of records
    cdef uint32_t piece             # current piece of the range
    cdef uint32_t offset
    cdef uint32_t rows
    cdef uint64_t header_bytes
    cdef uint64_t body_bytes
    cdef bytes block                # the answer
    cdef size_t starts[5]           # offsets of its columns
    cdef uint32_t row               # rows filled
    cdef uint64_t headers_filled
    cdef uint64_t bodies_filled
    cdef uint32_t flags
    cdef uint32_t crc
    cdef size_t checked             # bytes

    cdef int collect(self, int budget) except? -1
    cdef bint count_row(self, const Row *row) noexcept
    cdef uint64_t size(self, uint64_t rows, uint64_t headers, uint64_t bodies) noexcept
    cdef int allot(self) except -1
    cdef int add_row(self, const Row *row) noexcept
    cdef int end_columns(self) noexcept
    cdef int check(self, int budget) except? -1
    cdef int walk(self, int budget) except? -1


cdef class Seek(LogRead):
    cdef int64_t time
    cdef uint32_t offset
    cdef int look_for_block(self, int budget) except? -1
    cdef int look_for_record(self, int budget) except? -1
    cdef int found(self, uint64_t seq) except -1


cdef class Poll(LogRead):
    cdef readonly uint64_t after
