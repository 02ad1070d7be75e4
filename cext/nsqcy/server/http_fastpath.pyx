"""Sockets of HTTP connections, and the fast path for repeated requests.

Owns the socket calls. Has no routes and does not parse HTTP: the general parser (`nsqcy.http`)
interprets heads, and its connections extend the connections in this module.
"""

import time

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

# Sockets of HTTP connections, and the fast path for repeated requests.
#
#   recv -> the head matches a known template -> its sink takes the body -> the response -> send
#
# A request template (Shape) is a head without the digits of its Content-Length. The general parser
# interprets each template once; the fast path only compares bytes with known templates. A request
# that cannot be answered immediately is passed to the general parser, from the first byte of its
# head.


cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *buffer, size_t n, int flags)
    ssize_t send(int fd, const void *buffer, size_t n, int flags)
    const int MSG_NOSIGNAL
    const int MSG_DONTWAIT

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t n, const void *needle, size_t m)

cdef extern from "time.h" nogil:
    int64_t seconds "time" (int64_t *into)


cdef enum:
    RECEIVE_SIZE = 65536        # maximum bytes per receive
    # Maximum bytes per receive for a client that has not authenticated, because unfinished input is
    # kept.
    UNAUTHENTICATED_SIZE = 16384
    SEND_SIZE = 262144          # maximum bytes of a response sent per turn
    MAX_HEAD = 1024            # maximum size of a head with a template
    MAX_SHAPES = 512
    MAX_DIGITS = 9             # maximum digits of a length

cdef bytes LENGTH = b"\r\nContent-Length: "
cdef bytes LENGTH_AS_WELL = b"\r\ncontent-length: "
cdef bytes END = b"\r\n\r\n"
cdef object UNKNOWN = object()

RECEIVE = RECEIVE_SIZE
UNAUTHENTICATED_RECEIVE = UNAUTHENTICATED_SIZE


cdef Py_ssize_t find(const uint8_t *data, Py_ssize_t n, bytes what) noexcept:
    cdef const uint8_t *found = <const uint8_t *>memmem(
        data, n, <const uint8_t *>what, len(what))
    return -1 if found == NULL else found - data


cdef Py_ssize_t read_length(const uint8_t *data, Py_ssize_t n, Py_ssize_t *length) noexcept:
    """Parse a length; return the number of its digits, or 0 if there are none or too many."""
    cdef Py_ssize_t at = 0
    length[0] = 0
    while at < n and c'0' <= data[at] <= c'9':
        if at == MAX_DIGITS:
            return 0
        length[0] = 10 * length[0] + data[at] - c'0'
        at += 1
    return at


cdef class Sink:
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1:
        """Execute the request, so that it can be answered immediately.

        If this is not possible, do nothing and return False.
        """
        raise NotImplementedError


cdef class Shape:
    """Request template: heads that differ only in the digits of the length."""
    cdef bytes text             # head without the digits of its length
    cdef Py_ssize_t cut         # position of the digits
    cdef Sink sink
    cdef bytes before           # the response before and after the date
    cdef bytes after
    cdef bytes answer           # complete response for the current second
    cdef int64_t second

    def __init__(self, Sink sink not None, bytes before not None, bytes after not None):
        """before, after: the parts of the response before and after its date"""
        self.sink = sink
        self.before = before
        self.after = after

    cdef Py_ssize_t head_size(self, const uint8_t *data, Py_ssize_t n,
                              Py_ssize_t *length) noexcept:
        """Return the size of the head at the start of `data`; store its Content-Length in `length`.

        Return 0 if the head does not match or is incomplete.
        """
        cdef const uint8_t *text = self.text
        cdef Py_ssize_t size = len(self.text)
        cdef Py_ssize_t digits
        if n <= size or memcmp(data, text, self.cut) != 0:
            return 0
        digits = read_length(data + self.cut, n - self.cut, length)
        if digits == 0 or n < size + digits:
            return 0
        if memcmp(data + self.cut + digits, text + self.cut, size - self.cut) != 0:
            return 0
        return size + digits

    cdef bytes dated(self, Server server):
        server.tick()
        if self.second != server.second:
            self.second = server.second
            self.answer = self.before + server.date_text + self.after
        return self.answer


cdef class Server:
    """State shared by the connections of a process."""

    cdef public double now      # time of the last sweep
    cdef uint8_t *scratch       # received bytes that are not parsed yet
    cdef dict shapes            # text -> Shape, or None: use the general parser
    cdef list answers           # unsent responses of one connection
    cdef int64_t second         # of the date
    cdef bytes date_text

    def __cinit__(self):
        self.scratch = <uint8_t *>malloc(RECEIVE_SIZE)
        if self.scratch == NULL:
            raise MemoryError()
        self.shapes = {}
        self.answers = []

    def __dealloc__(self):
        free(self.scratch)

    def unlearn(self):
        """Discard the learned templates; each connection must also discard its own templates."""
        self.shapes.clear()

    def date(self):
        """Return the value of the Date header."""
        self.tick()
        return self.date_text

    cdef int tick(self) except -1:
        """Update the date, at most once a second."""
        cdef int64_t now = seconds(NULL)
        if now != self.second:
            self.date_text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now)).encode()
            self.second = now
        return 0


cdef class Connection:
    cdef public int fd          # -1: closed
    cdef public Py_ssize_t receive_size     # maximum bytes per receive
    cdef Server server
    cdef Shape shape            # template of the previous request
    cdef public double since    # last activity of the peer, in the time of sweeps
    # Return whether the fast path may be used: no request is in progress, and no output is unsent.
    cdef public bint at_rest

    def __init__(self, Server server not None, int fd):
        self.server = server
        self.fd = fd
        self.receive_size = RECEIVE_SIZE
        self.since = server.now

    def unlearn(self):
        self.shape = None

    # Implemented by nsqcy.http.server

    def wants_input(self):
        """Return whether the socket may be read."""
        raise NotImplementedError

    def answered(self, list answers not None):
        """Send these responses before any other output."""
        raise NotImplementedError

    def received(self, bytes data not None):
        """Pass data to the general parser; b"" is the end of input."""
        raise NotImplementedError

    def learn(self, bytes head not None, Py_ssize_t length):
        """Return the Shape of a head with this length.

        Return None if heads of this template must use the general parser.
        """
        raise NotImplementedError

    def panicked(self, bytes head not None):
        """Return the response to a request that raised the exception being handled."""
        raise NotImplementedError

    def broken(self):
        """Handle an exception that left the connection in an unknown state."""
        raise NotImplementedError

    def send_later(self, data):
        """Queue data that the socket does not currently accept."""
        raise NotImplementedError

    def close(self):
        raise NotImplementedError

    # Input

    def on_readable(self):
        """Handle a socket that is probably readable."""
        cdef const uint8_t *data = self.server.scratch
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t n
        if not self.at_rest and not self.wants_input():
            return
        n = recv(self.fd, self.server.scratch, self.receive_size, MSG_DONTWAIT)
        if n < 0:
            if errno != EAGAIN and errno != EINTR:
                self.close()
            return
        if self.at_rest:
            try:
                taken = self.answer_known(data, n)
            except Exception:
                self.server.answers.clear()
                self.broken()
                return
            if 0 < taken == n:
                self.since = self.server.now
                self.send_answers()
                return
            self.at_rest = False
            if taken:
                self.answered(self.server.answers)
                self.server.answers.clear()
        self.received(data[taken:n])

    cdef Py_ssize_t answer_known(self, const uint8_t *data, Py_ssize_t n) except -1:
        """Answer known, complete requests at the start of `data`, up to the first that is not
        accepted.

        Return the number of bytes used.
        """
        cdef Shape shape = self.shape
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t length = 0
        cdef Py_ssize_t size
        cdef bytes answer
        while at < n:
            size = 0 if shape is None else shape.head_size(data + at, n - at, &length)
            if size == 0:
                shape = self.shape_of(data + at, n - at)
                if shape is None:
                    break
                self.shape = shape
                size = shape.head_size(data + at, n - at, &length)
            if n - at - size < length:
                break
            answer = self.answer_one(data + at, size, length)
            if answer is None:
                break
            self.server.answers.append(answer)
            at += size + length
        return at

    cdef bytes answer_one(self, const uint8_t *head, Py_ssize_t size, Py_ssize_t length):
        """Return the response; None if the request must use the general parser."""
        try:
            if self.shape.sink.take(head + size, length):
                return self.shape.dated(self.server)
        except Exception:
            return self.panicked(head[:size])
        return None

    cdef Shape shape_of(self, const uint8_t *data, Py_ssize_t n):
        """Return the template of the head at the start of `data`; None if unknown or incomplete."""
        cdef dict shapes = self.server.shapes
        cdef Py_ssize_t size = find(data, min(n, MAX_HEAD), END) + len(END)
        cdef Py_ssize_t cut
        cdef Py_ssize_t digits
        cdef Py_ssize_t length
        cdef bytes text
        cdef Shape shape
        if size < <Py_ssize_t>len(END):
            return None
        cut = find(data, size, LENGTH)
        if cut < 0:
            cut = find(data, size, LENGTH_AS_WELL)
        if cut < 0:
            return None
        cut += len(LENGTH)
        digits = read_length(data + cut, size - cut, &length)
        if digits == 0 or length == 0:
            return None
        text = data[:cut] + data[cut + digits:size]
        found = shapes.get(text, UNKNOWN)
        if found is UNKNOWN:
            found = self.learn(data[:size], length)
            if len(shapes) >= MAX_SHAPES:
                shapes.clear()
            shapes[text] = found
            if found is not None:
                shape = found
                shape.text = text
                shape.cut = cut
        return found

    # Output

    cdef int send_answers(self) except -1:
        cdef list answers = self.server.answers
        cdef bytes data = answers[0] if len(answers) == 1 else b"".join(answers)
        cdef Py_ssize_t sent
        answers.clear()
        sent = self.send_some(data, len(data))
        if 0 <= sent < len(data):
            self.at_rest = False
            self.send_later(memoryview(data)[sent:])
        return 0

    def send(self, data not None):
        """Return the bytes that the socket accepted; None if the connection was closed instead."""
        cdef Py_buffer view
        cdef Py_ssize_t sent
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            sent = self.send_some(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return None if sent < 0 else sent

    cdef Py_ssize_t send_some(self, const uint8_t *data, Py_ssize_t n) except -2:
        cdef Py_ssize_t sent = send(self.fd, data, min(n, SEND_SIZE), MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self.close()
                return -1
            return 0
        return sent
