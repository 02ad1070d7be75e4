"""Peers' answers, parsed as little as possible: counted and acknowledged.

Every function takes received bytes and parses the complete answers in them. `used` is the number of
their bytes; the rest is passed again together with the following bytes. An acknowledgement consists
of `before`, the bytes that identify the message (copied as received), and `after`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

ctypedef const unsigned char *Bytes

cdef class Whole:
    """Received bytes, kept for the lifetime of this object. (The C code of a memoryview takes a
    long time to compile.)"""

    cdef Py_buffer view

    def __cinit__(self, received):
        PyObject_GetBuffer(received, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef enum:
    INCOMPLETE = -1
    FAILED = -2


# -- bytes to send


cdef struct Text:
    char *data
    Py_ssize_t used
    Py_ssize_t room


cdef int put(Text *text, Bytes data, Py_ssize_t n) except -1:
    cdef char *larger
    if text.used + n > text.room:
        larger = <char *> realloc(text.data, 2 * text.room + n + 4096)
        if larger == NULL:
            raise MemoryError
        text.data = larger
        text.room = 2 * text.room + n + 4096
    memcpy(text.data + text.used, data, n)
    text.used += n
    return 0


cdef int acknowledge(Text *text, bytes before, Bytes name, Py_ssize_t n, bytes after) except -1:
    put(text, before, len(before))
    put(text, name, n)
    put(text, after, len(after))
    return 0


cdef bytes taken(Text *text):
    return text.data[:text.used] if text.used else b""


# -- lines and numbers


cdef Py_ssize_t line(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept:
    """Return the end of the line that starts here, including its CRLF; INCOMPLETE if there is no
    CRLF."""
    cdef Bytes found
    if at >= end:
        return INCOMPLETE
    found = <Bytes> memchr(data + at, c"\n", end - at)
    return INCOMPLETE if found == NULL else found - data + 1


cdef Py_ssize_t number(Bytes data, Py_ssize_t at) noexcept:
    """Return the decimal number that starts here; -1 for any negative number."""
    cdef Py_ssize_t value = 0
    if data[at] == c"-":
        return -1
    while c"0" <= data[at] <= c"9":
        value = 10 * value + data[at] - c"0"
        at += 1
    return value


cdef Py_ssize_t last_word(Bytes data, Py_ssize_t end) noexcept:
    """Return the start of the last word of the line whose CRLF ends here."""
    cdef Py_ssize_t at = end - 2
    while data[at - 1] != c" ":
        at -= 1
    return at


cdef int starts(Bytes data, Py_ssize_t at, Py_ssize_t end, bytes word) noexcept:
    cdef Py_ssize_t n = len(word)
    return end - at >= n and memcmp(data + at, <Bytes> word, n) == 0


cdef int unexpected(Bytes data, Py_ssize_t at, Py_ssize_t end) except -1:
    cdef bytes head = data[at:min(end, at + 100)]
    raise ValueError(f"unexpected answer {head!r}")


# -- Redis


cdef Py_ssize_t reply(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept:
    """Return the end of the reply that starts here, including all its parts."""
    cdef:
        Py_ssize_t parts = 1, start, n
    while parts:
        start = at
        at = line(data, at, end)
        if at < 0:
            return INCOMPLETE
        parts -= 1
        if data[start] == c"-":
            return FAILED
        if data[start] == c"$" or data[start] == c"*":
            n = number(data, start + 1)
            if data[start] == c"*":
                parts += max(n, 0)
            elif n >= 0:
                at += n + 2
                if at > end:
                    return INCOMPLETE
    return at


def replies(received):
    """Count replies of any kind: (used, count)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, end = whole.view.len, count = 0
        Bytes data = <Bytes> whole.view.buf
    while (next := reply(data, at, end)) >= 0:
        at = next
        count += 1
    if next == FAILED:
        unexpected(data, at, end)
    return at, count


# Acknowledge the messages of one reply; return their number.
ctypedef Py_ssize_t (*Each)(Bytes data, Py_ssize_t at, Py_ssize_t next, Text *text,
                            bytes before) except -1


cdef Py_ssize_t value_of(Bytes data, Py_ssize_t at, Py_ssize_t next, Text *text,
                         bytes before) except -1:
    """Acknowledge a list's element: its value identifies it."""
    acknowledge(text, before, data + at, next - at, b"")
    return 1


cdef Py_ssize_t entries_of(Bytes data, Py_ssize_t at, Py_ssize_t next, Text *text,
                           bytes before) except -1:
    """Acknowledge the entries of one stream."""
    cdef Py_ssize_t past, n, _each
    at = line(data, at, next)  # the only stream
    at = line(data, at, next)  # the pair of name and entries
    at = reply(data, at, next)
    n = number(data, at + 1)
    at = line(data, at, next)
    for _each in range(n):
        at = line(data, at, next)  # the pair of id and fields
        past = reply(data, at, next)
        acknowledge(text, before, data + at, past - at, b"")
        at = reply(data, past, next)
    return n


cdef acknowledged(received, bytes before, char kind, Each each):
    """Parse replies of one kind, with messages, mixed with replies to earlier acknowledgements."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, end = whole.view.len, messages = 0, count = 0
        Bytes data = <Bytes> whole.view.buf
        Text text = Text(NULL, 0, 0)
    try:
        while (next := reply(data, at, end)) >= 0:
            if data[at] != c":":
                count += 1
            if data[at] == kind and data[at + 1] != c"-":
                messages += each(data, at, next, &text, before)
            at = next
        if next == FAILED:
            unexpected(data, at, end)
        return taken(&text), at, messages, count
    finally:
        free(text.data)


def values(received, bytes before not None):
    """Parse replies to LMOVE and LREM, mixed: (acknowledgements, used, messages, replies)."""
    return acknowledged(received, before, c"$", value_of)


def entries(received, bytes before not None):
    """Parse replies to XREADGROUP and XACK, mixed: (acknowledgements, used, messages, replies)."""
    return acknowledged(received, before, c"*", entries_of)


# -- beanstalkd


def inserted(received):
    """Count answers to put: (used, count)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, end = whole.view.len, count = 0
        Bytes data = <Bytes> whole.view.buf
    while (next := line(data, at, end)) >= 0:
        if not starts(data, at, next, b"INSERTED "):
            unexpected(data, at, end)
        at = next
        count += 1
    return at, count


def jobs(received):
    """Parse answers to reserve and delete, mixed: (acknowledgements, used, messages, answers)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, past, id, end = whole.view.len, messages = 0, count = 0
        Bytes data = <Bytes> whole.view.buf
        Text text = Text(NULL, 0, 0)
    try:
        while (next := line(data, at, end)) >= 0:
            if starts(data, at, next, b"RESERVED "):
                id = at + 9
                past = last_word(data, next)
                next += number(data, past) + 2
                if next > end:
                    break
                acknowledge(&text, b"delete ", data + id, past - 1 - id, b"\r\n")
                messages += 1
                count += 1
            elif starts(data, at, next, b"TIMED_OUT"):
                count += 1
            elif not starts(data, at, next, b"DELETED"):
                unexpected(data, at, end)
            at = next
        return taken(&text), at, messages, count
    finally:
        free(text.data)


# -- NATS


cdef Py_ssize_t word(Bytes data, Py_ssize_t at, Py_ssize_t skip) noexcept:
    """Return the start of the word that follows this number of words."""
    while skip:
        if data[at] == c" ":
            skip -= 1
        at += 1
    return at


cdef Py_ssize_t nats(
    Bytes data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *body, Py_ssize_t *pings
) except -3:
    """Return the end of the operation that starts here. `body`: the start of a message's body; -1
    if there is none."""
    cdef Py_ssize_t next = line(data, at, end)
    body[0] = -1
    if next < 0:
        return INCOMPLETE
    if starts(data, at, next, b"MSG "):
        body[0] = next
        next += number(data, last_word(data, next)) + 2
        return next if next <= end else INCOMPLETE
    if starts(data, at, next, b"PING"):
        pings[0] += 1
    elif not starts(data, at, next, b"PONG"):
        unexpected(data, at, end)
    return next


def stored(received):
    """Count JetStream's answers to publishes: (used, count, pings)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, body, end = whole.view.len, count = 0, pings = 0
        Bytes data = <Bytes> whole.view.buf
    while (next := nats(data, at, end, &body, &pings)) >= 0:
        if body >= 0:
            if not starts(data, body, next, b'{"stream"'):
                unexpected(data, at, end)
            count += 1
        at = next
    return at, count, pings


def pulled(received):
    """Parse messages of a pull consumer: (acknowledgements, used, messages, pings)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, body, end = whole.view.len, messages = 0, pings = 0, answer
        Bytes data = <Bytes> whole.view.buf
        Text text = Text(NULL, 0, 0)
    try:
        while (next := nats(data, at, end, &body, &pings)) >= 0:
            if body >= 0:
                answer = word(data, at, 3)
                if not starts(data, answer, body, b"$JS.ACK."):
                    unexpected(data, at, end)
                acknowledge(
                    &text,
                    b"PUB ", data + answer, last_word(data, body) - 1 - answer, b" 4\r\n+ACK\r\n",
                )
                messages += 1
            at = next
        return taken(&text), at, messages, pings
    finally:
        free(text.data)


# -- AMQP: type (1), channel (2), size (4), that many bytes, 0xCE


cdef unsigned long long big_endian(Bytes data, Py_ssize_t n) noexcept:
    cdef:
        unsigned long long value = 0
        Py_ssize_t each
    for each in range(n):
        value = value << 8 | data[each]
    return value


cdef Py_ssize_t amqp(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept:
    """Return the end of the frame that starts here."""
    cdef Py_ssize_t next
    if end - at < 8:
        return INCOMPLETE
    next = at + 8 + <Py_ssize_t> big_endian(data + at + 3, 4)
    return next if next <= end else INCOMPLETE


cdef unsigned long long method(Bytes data, Py_ssize_t at) noexcept:
    """Return class and method of a method frame; 0 for other frames."""
    return big_endian(data + at + 7, 4) if data[at] == 1 else 0


cdef enum:
    DELIVER = 60 << 16 | 60
    ACK = 60 << 16 | 80
    HEARTBEAT = 8


def confirms(received, unsigned long long tag):
    """Parse publisher confirms: (used, the tag up to which all are confirmed, confirmed tags after
    it)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, end = whole.view.len
        unsigned long long one
        Bytes data = <Bytes> whole.view.buf
        list ahead = []
    while (next := amqp(data, at, end)) >= 0:
        if method(data, at) != ACK:
            unexpected(data, at, end)
        one = big_endian(data + at + 11, 8)
        if data[at + 19] & 1:
            tag = max(tag, one)
        elif one == tag + 1:
            tag = one
        else:
            ahead.append(one)
        at = next
    return at, tag, ahead


def deliveries(received, bytes before not None):
    """Parse deliveries: (acknowledgements, used, messages)."""
    cdef:
        Whole whole = Whole(received)
        Py_ssize_t at = 0, next, past, tag, end = whole.view.len, messages = 0
        unsigned long long left
        Bytes data = <Bytes> whole.view.buf
        Text text = Text(NULL, 0, 0)
    try:
        while (next := amqp(data, at, end)) >= 0:
            if data[at] != HEARTBEAT:
                if method(data, at) != DELIVER:
                    unexpected(data, at, end)
                tag = at + 12 + data[at + 11]
                if amqp(data, next, end) < 0:
                    break
                left = big_endian(data + next + 11, 8)
                next = amqp(data, next, end)
                while left and next >= 0:
                    if (past := amqp(data, next, end)) >= 0:
                        left -= past - next - 8
                    next = past
                if next < 0:
                    break
                acknowledge(&text, before, data + tag, 8, b"\x00\xce")
                messages += 1
            at = next
        return taken(&text), at, messages
    finally:
        free(text.data)
