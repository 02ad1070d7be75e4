# The V2 wire format.
#
#   frame      0        4        8
#              +--------+--------+----------------
#              | size   | type   | data               size = 4 + len(data); big-endian
#              +--------+--------+----------------
#   message    data = timestamp i64 | attempts u16 | id, 16 hex digits | body
#              with negotiated headers: ... | u16 length | headers | body (see base/headers.pyx)
#   command    NAME *(SP param) LF [ i32 length, body ]

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from nsqcy.storage.core cimport Block, Record, RecordWindow


cdef enum FrameType:
    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2

cdef enum:
    FRAME_HEADER = 8
    MESSAGE_HEADER = 26         # timestamp, attempts, id
    MAX_LINE = 16384            # maximum bytes of a line, including LF
    MAX_NAME = 64
    BY_REFERENCE = 16384        # minimum size of bodies sent directly from their block
    FIRST_BUFFER = 4096
    FIN_LINE = 21               # "FIN ", id, LF


# A large body that is sent directly from its block, not copied to the buffer.
ctypedef struct Reference:
    size_t at                   # the body comes after the buffer's bytes up to this position
    const uint8_t *data
    uint32_t length
    void *owner                 # owned reference: the window that has pinned `block`
    Block *block                # NULL: the owner contains the body


@cython.final
cdef class Output:
    """Output for a peer; the buffer exists only while it contains bytes."""
    cdef uint8_t *buffer
    cdef size_t start           # first unsent byte of the buffer
    cdef size_t end
    cdef size_t capacity
    cdef Reference *references
    cdef uint32_t reference_first
    cdef uint32_t reference_count
    cdef uint32_t reference_room
    cdef size_t reference_bytes     # unsent
    cdef uint64_t total_sent        # bytes

    cdef inline size_t pending(self) noexcept:
        return self.end - self.start + self.reference_bytes

    cdef inline uint8_t *room(self, size_t n) except NULL:
        """Return a pointer to space for the next `n` bytes; the caller must fill all of them."""
        if self.end + n > self.capacity:
            self.make_room(n)
        self.end += n
        return self.buffer + self.end - n

    cdef int make_room(self, size_t n) except -1
    cdef void drop_buffer(self) noexcept
    cdef int put(self, const uint8_t *data, size_t n) except -1
    cdef int put_frame(self, int32_t type, const uint8_t *data, size_t n) except -1
    cdef inline int put_ok(self) except -1:
        """Add the most frequent response."""
        memcpy(self.room(10), b"\0\0\0\6\0\0\0\0OK", 10)
        return 0

    cdef int put_whole(self, int32_t type, bytes data) except -1
    cdef int put_message(self, RecordWindow window, Block *block, Record *record,
                         uint16_t attempts) except -1
    cdef int put_large(self, RecordWindow window, Block *block, Record *record,
                       uint16_t attempts) except -1
    cdef int put_headered(self, RecordWindow window, Block *block, Record *record,
                          uint16_t attempts) except -1
    cdef int pieces(self, const uint8_t **data, size_t *lengths, int maximum) noexcept
    cdef void sent(self, size_t n) noexcept
    cdef void clear(self) noexcept
    cdef bytes unsent(self)
    cdef int refer(self, object owner, Block *block, const uint8_t *data,
                   uint32_t length) except -1
    cdef void drop_reference(self) noexcept


@cython.final
cdef class FrameScanner:
    """Tracks a stream of frames that arrives in parts of any size."""
    cdef uint8_t header[FRAME_HEADER]
    cdef size_t known           # bytes of the current frame's header so far
    cdef size_t left            # bytes of the current frame's data to come
    cdef bint answers           # the current frame is a response or an error

    cdef size_t through_answer(self, const uint8_t *data, size_t n) noexcept


# A word of a command line.
ctypedef struct Word:
    const uint8_t *at
    size_t length

cdef inline bint word_is(const Word *word, const char *text, size_t length) noexcept:
    return word.length == length and memcmp(word.at, text, length) == 0

cdef inline bytes word_bytes(const Word *word):
    return (<const char *>word.at)[:word.length]

cdef int split_line(const uint8_t *line, size_t length, Word *words, int maximum) noexcept nogil
cdef bint name_is_valid(const uint8_t *name, size_t length) noexcept nogil
cdef bint parse_number(const uint8_t *text, size_t length, uint64_t *value) noexcept nogil

# Return the size of the frame at `at`, including its header; 0 if it is incomplete or of a
# different type.
cdef size_t frame_bytes(const uint8_t *at, size_t left, uint32_t type) except? 0
