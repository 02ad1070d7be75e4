"""The messages in the body of an /mpub request: found in one pass, without an object for each.

Defines the two formats of a body. Independent of HTTP: the caller decides how to answer an invalid
body.
"""


cdef enum:
    LINE_END = 10


class BadBody(Exception):
    """Raised for a body that cannot be published; `code` is NSQ's error code."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


cdef class BodyBatch(Batch):
    """Messages of a body: lines, or messages preceded by their lengths. All messages get the same
    headers."""
    cdef bint lines
    cdef const uint8_t *stop            # the end of the body
    cdef bytes headers
    cdef readonly uint32_t count        # all messages
    cdef readonly uint64_t total        # bytes of all messages
    cdef readonly int64_t shortest
    cdef readonly int64_t longest

    cdef inline void note(self, size_t length) noexcept:
        self.count += 1
        self.total += length
        self.shortest = min(self.shortest, <int64_t>length)
        self.longest = max(self.longest, <int64_t>length)

    cdef const uint8_t *take(self, uint32_t *length) noexcept:
        """Return the next message, which must exist."""
        cdef const uint8_t *message = self.at
        cdef const uint8_t *end
        if not self.lines:
            length[0] = load_be32(message)
            message += 4
            self.at = message + length[0]
            return message
        while message[0] == LINE_END:
            message += 1
        end = message + 1
        # Most lines are short, and a call would cost more than a few comparisons.
        while end < self.stop and end[0] != LINE_END and end - message < 16:
            end += 1
        if end < self.stop and end[0] != LINE_END:
            end = <const uint8_t *>memchr(end, LINE_END, self.stop - end)
            if end == NULL:
                end = self.stop
        length[0] = <uint32_t>(end - message)
        self.at = end
        return message

    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0:
        cdef uint64_t bodies = 0
        cdef const uint8_t *message
        cdef const uint8_t *headers = self.headers
        cdef uint16_t headers_length = <uint16_t>len(self.headers)
        cdef uint32_t length = 0
        cdef Record *record
        cdef uint32_t _i
        if topic.takes:
            return self.append_taking(topic, count)
        for _i in range(count):
            message = self.take(&length)
            record = topic.new_headered(length, 0, headers, headers_length)
            if record != NULL:
                memcpy(record_body(record), message, length)
            bodies += length
        return bodies

    cdef uint64_t append_taking(self, TopicQueue topic, uint32_t count) except? 0:
        """Append messages to a topic that takes keys or ids from them."""
        cdef Publish publish
        memset(&publish, 0, sizeof(publish))
        self.add_to(topic, count, &publish)
        topic.repeats = count - publish.count
        return publish.bytes

    cdef int add_to(self, TopicQueue topic, uint32_t count, Publish *publish) except -1:
        cdef const uint8_t *message
        cdef uint32_t length = 0
        cdef uint32_t _i
        for _i in range(count):
            message = self.take(&length)
            topic.add_message(
                self.headers, <uint16_t>len(self.headers), message, length, 0, publish)
        return 0

    cdef uint32_t add_fresh_to(self, TopicQueue topic) except? 0:
        """Return how many messages repeat no id."""
        cdef const uint8_t *begin = self.at
        cdef const uint8_t *message
        cdef uint64_t bodies = 0
        cdef uint32_t length = 0
        cdef uint32_t fresh = 0
        cdef uint32_t _i
        for _i in range(self.left):
            message = self.take(&length)
            fresh += topic.add_fresh(
                self.headers, <uint16_t>len(self.headers), message, length, &bodies)
        self.at = begin
        return fresh

    cdef int64_t first_misfit(self, Topic topic) noexcept:
        """Return the size of the first message that a topic does not accept."""
        cdef const uint8_t *begin = self.at
        cdef uint32_t length = 0
        cdef uint32_t _i
        for _i in range(self.left):
            self.take(&length)
            if not topic.fits(length):
                break
        self.at = begin
        return length

    cdef bytes next_command(self, bytes key, size_t maximum):
        """Return an MPUB command of at most `maximum` bytes with as many messages as fit, but at
        least one."""
        cdef size_t before = 2 + len(self.headers) if self.headers else 0
        cdef const uint8_t *begin = self.at
        cdef const uint8_t *message
        cdef size_t size = 4
        cdef uint32_t length = 0
        cdef uint32_t count = 0
        cdef bytes command
        cdef uint8_t *at
        while count < self.left:
            message = self.at
            self.take(&length)
            if count and size + 4 + before + length > maximum:
                self.at = message
                break
            size += 4 + before + length
            count += 1
        self.left -= count
        self.at = begin
        line = b"PUB %b\n" % key if count == 1 else b"MPUB %b\n" % key
        size = size - 4 if count == 1 else size + 4
        command = PyBytes_FromStringAndSize(NULL, len(line) + size)
        at = <uint8_t *>PyBytes_AS_STRING(command)
        memcpy(at, <const char *>line, len(line))
        at += len(line)
        if count > 1:
            store_be32(at, <uint32_t>(size - 4))
            store_be32(at + 4, count)
            at += 8
        while count:
            message = self.take(&length)
            store_be32(at, <uint32_t>(before + length))
            at += 4
            if before:
                store_be16(at, <uint16_t>len(self.headers))
                memcpy(at + 2, <const char *>self.headers, len(self.headers))
                at += before
            memcpy(at, message, length)
            at += length
            count -= 1
        return command

    def __len__(self):
        return self.count

    def __iter__(self):
        """Yield the messages, for callers that process them one by one."""
        cdef const uint8_t *begin = self.at
        cdef uint32_t length = 0
        found = []
        for _ in range(self.left):
            message = self.take(&length)
            found.append(message[:length])
        self.at = begin
        return iter(found)


cdef BodyBatch started(bytes body, bint lines):
    cdef BodyBatch batch = BodyBatch.__new__(BodyBatch)
    batch.source = body
    batch.at = body
    batch.stop = batch.at + len(body)
    batch.lines = lines
    batch.headers = b""
    batch.shortest = len(body)
    return batch


cdef BodyBatch finished(BodyBatch batch):
    batch.left = batch.count
    batch.left_bytes = batch.total
    return batch


def split_text(bytes body not None, int64_t max_msg_size):
    """Split into lines: only LF ends a line, and empty lines are not messages."""
    cdef BodyBatch batch = started(body, True)
    cdef const uint8_t *at = batch.at
    cdef const uint8_t *stop = batch.stop
    cdef const uint8_t *line
    # Use local variables: fields would be stored for each of two million messages.
    cdef uint32_t count = 0
    cdef int64_t total = 0
    cdef int64_t shortest = batch.shortest
    cdef int64_t longest = 0
    cdef int64_t length
    while at < stop:
        line = at
        while at < stop and at[0] != LINE_END:
            at += 1
        length = at - line
        if length:
            count += 1
            total += length
            shortest = min(shortest, length)
            longest = max(longest, length)
        at += 1
    if longest > max_msg_size:
        raise BadBody("MSG_TOO_BIG")
    batch.count = count
    batch.total = total
    batch.shortest = shortest
    batch.longest = longest
    return finished(batch)


def split_binary(bytes body not None, int64_t max_msg_size, int64_t max_body_size):
    """Split `int32 count`, then `int32 size` and the bytes of each message; big-endian.

    Bytes after the last message are ignored.
    """
    cdef BodyBatch batch = started(body, False)
    cdef const uint8_t *at = batch.at + 4
    cdef int64_t count
    cdef int64_t size
    if len(body) < 4:
        raise BadBody("BAD_BODY")
    count = <int32_t>load_be32(batch.at)
    # A message needs at least five bytes, so a larger count is invalid.
    if count <= 0 or count > (max_body_size - 4) // 5:
        raise BadBody("BAD_BODY")
    batch.at = at
    while batch.count < count:
        if batch.stop - at < 4:
            raise BadBody("BAD_MESSAGE")
        size = <int32_t>load_be32(at)
        at += 4
        if size <= 0 or size > max_msg_size or batch.stop - at < size:
            raise BadBody("BAD_MESSAGE")
        batch.note(size)
        at += size
    return finished(batch)
