"""V2 wire format: encode and decode frames and command lines.

Used by the server, the client and the tools. Owns the layout of frames and the grammar of command
lines (NSQ's TCP protocol: lines of at most 16384 bytes, single spaces, bodies with a 32-bit
length). Does not interpret commands.
"""

import struct

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memmove

from nsqcy.base.core cimport (
    HEADERS_SIZE, NSQCY_DEBUG, hex16_format, load_be32, store_be16, store_be32, store_be64,
)
from nsqcy.storage.core cimport record_body, record_headers

from nsqcy.errors import NsqError

cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


cdef enum:
    SMALL_BUFFER = 512          # bytes; enough for an OK or a small message
    SPARES = 4
    SPARE_BUFFER = 262144       # bytes; a busy consumer's buffer grows to this size
    MIN_SPARE = 16384           # size at which a growing buffer is replaced with a spare one


# Spare buffers of size SPARE, from emptied outputs. Only an output that already contains many bytes
# uses a spare buffer, so that many slow peers with a few bytes each cannot use them all.
cdef struct Spares:
    int count
    uint8_t *buffers[SPARES]

cdef Spares spares

# Live objects, counted in the debug build.
cdef Py_ssize_t live_outputs = 0
cdef Py_ssize_t live_references = 0


def live():
    """Return the numbers of outputs and of referenced bodies; zeros in a release build."""
    return {"outputs": live_outputs, "references": live_references}


cdef inline void put_message_header(uint8_t *at, size_t size, const Record *record,
                                    uint16_t attempts) noexcept nogil:
    """Write the header of a message frame of `size` bytes."""
    store_be32(at, <uint32_t>(size - 4))
    store_be32(at + 4, <uint32_t>MESSAGE)
    store_be64(at + 8, <uint64_t>record.timestamp)
    store_be16(at + 16, attempts)
    hex16_format(at + 18, record.id)


@cython.final
cdef class Output:
    def __cinit__(self):
        global live_outputs
        if NSQCY_DEBUG:
            live_outputs += 1

    def __dealloc__(self):
        global live_outputs
        self.clear()
        free(self.references)
        if NSQCY_DEBUG:
            live_outputs -= 1

    cdef int make_room(self, size_t n) except -1:
        cdef size_t capacity
        cdef uint8_t *grown
        if self.start and not self.reference_count and self.end - self.start + n <= self.capacity:
            memmove(self.buffer, self.buffer + self.start, self.end - self.start)
            self.end -= self.start
            self.start = 0
            return 0
        if self.buffer == NULL and n <= SMALL_BUFFER:
            capacity = SMALL_BUFFER
        else:
            capacity = max(2 * self.capacity, <size_t>FIRST_BUFFER)
        while capacity < self.end + n:
            capacity *= 2
        if self.buffer != NULL and MIN_SPARE < capacity <= SPARE_BUFFER and spares.count:
            # Reuse a large spare buffer rather than grow in many steps.
            spares.count -= 1
            grown = spares.buffers[spares.count]
            memcpy(grown + self.start, self.buffer + self.start, self.end - self.start)
            free(self.buffer)
            capacity = SPARE_BUFFER
        else:
            grown = <uint8_t *>realloc(self.buffer, capacity)
        if grown == NULL:
            raise MemoryError()
        self.buffer = grown
        self.capacity = capacity
        return 0

    cdef void drop_buffer(self) noexcept:
        """Release the buffer, so that an idle connection does not use memory for it."""
        if self.capacity == SPARE_BUFFER and spares.count < SPARES:
            spares.buffers[spares.count] = self.buffer
            spares.count += 1
        else:
            free(self.buffer)
        self.buffer = NULL
        self.start = self.end = self.capacity = 0

    cdef int put(self, const uint8_t *data, size_t n) except -1:
        memcpy(self.room(n), data, n)
        return 0

    cdef int put_frame(self, int32_t type, const uint8_t *data, size_t n) except -1:
        cdef uint8_t *at = self.room(FRAME_HEADER + n)
        store_be32(at, <uint32_t>(n + 4))
        store_be32(at + 4, <uint32_t>type)
        memcpy(at + FRAME_HEADER, data, n)
        return 0

    cdef int put_whole(self, int32_t type, bytes data) except -1:
        """Add a large frame without copying its data, which stays allocated until sent."""
        cdef uint8_t *at = self.room(FRAME_HEADER)
        store_be32(at, <uint32_t>(len(data) + 4))
        store_be32(at + 4, <uint32_t>type)
        return self.refer(data, NULL, data, <uint32_t>len(data))

    cdef int put_message(self, RecordWindow window, Block *block, Record *record,
                         uint16_t attempts) except -1:
        """Add a message frame; a large body is not copied, but stays pinned in its block."""
        cdef uint32_t length = record.body_length
        cdef size_t header = FRAME_HEADER + MESSAGE_HEADER
        cdef uint8_t *at
        if length >= BY_REFERENCE:
            return self.put_large(window, block, record, attempts)
        at = self.room(header + length)
        put_message_header(at, header + length, record, attempts)
        memcpy(at + header, record_body(record), length)
        return 0

    cdef int put_large(self, RecordWindow window, Block *block, Record *record,
                       uint16_t attempts) except -1:
        cdef uint32_t length = record.body_length
        cdef size_t header = FRAME_HEADER + MESSAGE_HEADER
        put_message_header(self.room(header), header + length, record, attempts)
        return self.refer(window, block, record_body(record), length)

    cdef int put_headered(self, RecordWindow window, Block *block, Record *record,
                          uint16_t attempts) except -1:
        """Add a message frame for a peer that negotiated headers."""
        cdef uint16_t length
        cdef const uint8_t *headers = record_headers(record, &length)
        cdef uint32_t body = record.body_length
        cdef size_t header = FRAME_HEADER + MESSAGE_HEADER + HEADERS_SIZE + length
        cdef uint8_t *at = self.room(header)
        put_message_header(at, header + body, record, attempts)
        store_be16(at + 34, length)
        if length:
            memcpy(at + 36, headers, length)
        if body < BY_REFERENCE:
            return self.put(record_body(record), body)
        return self.refer(window, block, record_body(record), body)

    cdef int refer(self, object owner, Block *block, const uint8_t *data,
                   uint32_t length) except -1:
        global live_references
        cdef Reference *grown
        cdef Reference *reference
        cdef uint32_t last = self.reference_first + self.reference_count
        if last == self.reference_room:
            if self.reference_first:
                memmove(self.references, self.references + self.reference_first,
                        self.reference_count * sizeof(Reference))
                self.reference_first = 0
            else:
                grown = <Reference *>realloc(
                    self.references, (2 * self.reference_room + 8) * sizeof(Reference))
                if grown == NULL:
                    raise MemoryError()
                self.references = grown
                self.reference_room = 2 * self.reference_room + 8
            last = self.reference_first + self.reference_count
        reference = &self.references[last]
        reference.at = self.end
        reference.data = data
        reference.length = length
        reference.owner = <void *>owner
        reference.block = block
        Py_INCREF(owner)
        if block != NULL:
            (<RecordWindow>owner).pin(block)
        self.reference_count += 1
        self.reference_bytes += length
        if NSQCY_DEBUG:
            live_references += 1
        return 0

    cdef int pieces(self, const uint8_t **data, size_t *lengths, int maximum) noexcept:
        """Store up to `maximum` unsent pieces, in order; return their number."""
        cdef int count = 0
        cdef uint32_t i
        cdef size_t at = self.start
        cdef Reference *reference
        for i in range(self.reference_first, self.reference_first + self.reference_count):
            reference = &self.references[i]
            if reference.at > at and count < maximum:
                data[count] = self.buffer + at
                lengths[count] = reference.at - at
                count += 1
                at = reference.at
            if count < maximum:
                data[count] = reference.data
                lengths[count] = reference.length
                count += 1
            else:
                return count
        if self.end > at and count < maximum:
            data[count] = self.buffer + at
            lengths[count] = self.end - at
            count += 1
        return count

    cdef void sent(self, size_t n) noexcept:
        """Discard the first `n` bytes of the pieces, which were sent."""
        cdef Reference *reference
        cdef size_t step
        self.total_sent += n
        while n:
            if self.reference_count:
                reference = &self.references[self.reference_first]
                if reference.at == self.start:
                    step = min(n, <size_t>reference.length)
                    reference.data += step
                    reference.length -= <uint32_t>step
                    self.reference_bytes -= step
                    n -= step
                    if reference.length == 0:
                        self.drop_reference()
                    continue
                step = min(n, reference.at - self.start)
            else:
                step = n
            self.start += step
            n -= step
        if self.start == self.end and self.reference_count == 0:
            self.drop_buffer()

    cdef void drop_reference(self) noexcept:
        global live_references
        cdef Reference *reference = &self.references[self.reference_first]
        cdef object owner = <object>reference.owner
        if reference.block != NULL:
            (<RecordWindow>owner).unpin(reference.block)
        Py_DECREF(owner)
        self.reference_first += 1
        self.reference_count -= 1
        if self.reference_count == 0:
            self.reference_first = 0
        if NSQCY_DEBUG:
            live_references -= 1

    cdef bytes unsent(self):
        """Return a copy of all unsent bytes."""
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.pending())
        cdef uint8_t *to = <uint8_t *><char *>found
        cdef size_t at = self.start
        cdef Reference *reference
        cdef uint32_t i
        for i in range(self.reference_first, self.reference_first + self.reference_count):
            reference = &self.references[i]
            memcpy(to, self.buffer + at, reference.at - at)
            to += reference.at - at
            at = reference.at
            memcpy(to, reference.data, reference.length)
            to += reference.length
        memcpy(to, self.buffer + at, self.end - at)
        return found

    cdef void clear(self) noexcept:
        while self.reference_count:
            self.drop_reference()
        self.reference_bytes = 0
        self.drop_buffer()


cdef int split_line(const uint8_t *line, size_t length, Word *words, int maximum) noexcept nogil:
    """Split at every space; store up to `maximum` words. Return the total number of words."""
    cdef const uint8_t *end = line + length
    cdef const uint8_t *space
    cdef int count = 0
    while count < maximum:
        space = <const uint8_t *>memchr(line, 32, end - line)
        words[count].at = line
        words[count].length = (end if space == NULL else space) - line
        count += 1
        if space == NULL:
            return count
        line = space + 1
    return maximum + 1


cdef bint name_is_valid(const uint8_t *name, size_t length) noexcept nogil:
    """Return whether a topic or channel name is valid.

    Valid names have 1 to 64 bytes of `[.a-zA-Z0-9_-]`, including an optional `#ephemeral` suffix.
    """
    cdef const uint8_t *suffix = b"#ephemeral"
    cdef size_t i
    cdef uint8_t c
    if length < 1 or length > MAX_NAME:
        return False
    for i in range(length):
        c = name[i]
        if not (97 <= c <= 122 or 65 <= c <= 90 or 48 <= c <= 57
                or c == 46 or c == 95 or c == 45):
            break
    else:
        return True
    if i == 0 or length - i != 10:
        return False
    name += i
    for i in range(10):
        if name[i] != suffix[i]:
            return False
    return True


cdef bint parse_number(const uint8_t *text, size_t length, uint64_t *value) noexcept nogil:
    """Parse ASCII digits. Empty text is 0; a number that does not fit in 64 bits becomes the
    maximum."""
    cdef uint64_t number = 0
    cdef size_t i
    cdef uint8_t digit
    for i in range(length):
        digit = text[i] - 48
        if digit > 9:
            return False
        if number > (<uint64_t>-1 - digit) // 10:
            number = <uint64_t>-1
        elif number != <uint64_t>-1:
            number = number * 10 + digit
    value[0] = number
    return True


# -- for clients and tools --

def command(bytes name not None, *params):
    """Return a command without a body, e.g. command(b"SUB", b"topic", b"channel")."""
    return b" ".join((name, *params)) + b"\n"


def command_with_body(bytes name not None, params, bytes body not None):
    """Return a command followed by its length-prefixed body."""
    return b" ".join((name, *params)) + b"\n" + struct.pack(">i", len(body)) + body


def mpub_body(list messages not None):
    """Return the body of an MPUB: a count, then each message preceded by its length."""
    cdef bytes message
    cdef bytes whole
    cdef size_t size = 4
    cdef uint8_t *at
    for message in messages:
        size += 4 + <size_t>len(message)
    whole = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t *><char *>whole
    store_be32(at, <uint32_t>len(messages))
    at += 4
    for message in messages:
        store_be32(at, <uint32_t>len(message))
        memcpy(at + 4, <const char *>message, len(message))
        at += 4 + <size_t>len(message)
    return whole


def frame(int type, bytes data not None):
    """Return a frame as the server sends it."""
    return struct.pack(">ii", len(data) + 4, type) + data


@cython.final
cdef class FrameScanner:
    def pack(self):
        """Return the state as JSON can contain it."""
        return [self.header[:self.known].decode("latin-1"), self.left, bool(self.answers)]

    def unpack(self, state not None):
        """Continue with the state of another scanner."""
        cdef bytes header
        text, self.left, self.answers = state
        header = text.encode("latin-1")
        self.known = min(<size_t>len(header), <size_t>FRAME_HEADER)
        memcpy(self.header, <const char *>header, self.known)

    cdef size_t through_answer(self, const uint8_t *data, size_t n) noexcept:
        """Scan the next bytes, up to the end of the first response or error if there is one; return
        the number of bytes scanned."""
        cdef size_t at = 0
        cdef size_t step
        while at < n:
            if self.left == 0:
                step = min(FRAME_HEADER - self.known, n - at)
                memcpy(self.header + self.known, data + at, step)
                self.known += step
                at += step
                if self.known < FRAME_HEADER:
                    break
                self.known = 0
                self.left = load_be32(self.header) - 4
                self.answers = load_be32(self.header + 4) != MESSAGE
            step = min(self.left, n - at)
            self.left -= step
            at += step
            if self.left == 0 and self.answers:
                break
        return at


cdef size_t frame_bytes(const uint8_t *at, size_t left, uint32_t type) except? 0:
    """Return the size of the frame, including its header; 0 if it is incomplete or of a different
    type."""
    cdef uint32_t size
    if left < FRAME_HEADER:
        return 0
    size = load_be32(at)
    if size < 4 or size > 0x7fffffff:
        raise NsqError(f"a frame cannot have {size} bytes")
    if load_be32(at + 4) != type or left - 4 < size:
        return 0
    if type == MESSAGE and size < 4 + MESSAGE_HEADER:
        raise NsqError(f"a message frame cannot have {size} bytes")
    return 4 + size


cdef size_t frames_bytes(const uint8_t *at, size_t n, uint32_t type,
                         Py_ssize_t *count) except? 0:
    """Return the total size of the complete frames of one type at the start, and count them."""
    cdef size_t used = 0
    cdef size_t step
    count[0] = 0
    while used < n:
        step = frame_bytes(at + used, n - used, type)
        if step == 0:
            break
        used += step
        count[0] += 1
    return used


def skip_frames(received not None, uint32_t type):
    """Return the total size and the number of complete frames of one type at the start of
    `received`."""
    cdef Py_buffer view
    cdef Py_ssize_t count
    cdef size_t used
    PyObject_GetBuffer(received, &view, PyBUF_SIMPLE)
    try:
        used = frames_bytes(<const uint8_t *>view.buf, view.len, type, &count)
    finally:
        PyBuffer_Release(&view)
    return used, count


def finish_all(received not None):
    """Return FIN lines for the message frames at the start of `received`.

    Stops at the first frame that is incomplete or not a message. Returns the lines, the number of
    bytes of `received` that they cover, and the number of messages.
    """
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef size_t used
    cdef Py_ssize_t count
    cdef bytes lines
    cdef uint8_t *line
    PyObject_GetBuffer(received, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        used = frames_bytes(at, view.len, MESSAGE, &count)
        end = at + used
        lines = PyBytes_FromStringAndSize(NULL, count * FIN_LINE)
        line = <uint8_t *><char *>lines
        while at < end:
            memcpy(line, b"FIN ", 4)
            memcpy(line + 4, at + FRAME_HEADER + 10, 16)
            line[20] = 10
            line += FIN_LINE
            at += 4 + load_be32(at)
    finally:
        PyBuffer_Release(&view)
    return lines, used, count
