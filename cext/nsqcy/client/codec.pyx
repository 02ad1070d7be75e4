"""The client's end of a connection: parses frames into messages and turns answers into commands.

Owns the work that a client does for every message: splitting input into frames, the Message
objects, and the commands that answer messages and publish. Commands are collected until the
connection's owner sends them. Independent of sockets, clocks, handshakes and RDY.

One thread may feed and take bytes while others answer messages: this module runs under the GIL, and
callbacks run only between two changes of state. If an exception in Python code interrupts a
program's thread that answers a message, the thread has either queued the answer or changed nothing.
The loop's thread (`mailbox`) gets answers that affect the flow control.
"""

from collections.abc import Mapping
from numbers import Real
from urllib.parse import quote

cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from nsqcy.base.core cimport (
    HEADERS_ROOM, HEADERS_SIZE, MAX_HEADERS, load_be16, load_be32, load_be64, store_be32,
)
from nsqcy.client.mailbox cimport Mailbox
from nsqcy.protocol.wire cimport FRAME_HEADER, MESSAGE, MESSAGE_HEADER, Output

from nsqcy.base.core import decode_headers, headers_from_text
from nsqcy.errors import NsqError
from nsqcy.protocol import wire as _wire

cdef enum Outcome:
    FINISHED = 0
    REQUEUED = 1            # without backoff
    FAILED = 2              # requeued with backoff


cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


# Nearly every response is OK, so all of them share this object.
OK_FRAME = (0, b"OK")

cdef enum:
    ID = 16
    SPELLS_HTTP = 1213486160        # "HTTP", read as the size of a frame
    MAX_FRAME = 0x7fffffff
    MAX_ANSWER = 1 << 20            # maximum bytes of a frame other than a message
    LARGE = 65536                   # minimum bytes of a body that is sent without a copy
    MAX_DELAY_CHARACTERS = 24       # maximum characters, including the space and line feed
    MAX_REASON = 512                # maximum characters of the reason for a dead letter
    OK_TEXT = 0x4f4b

cdef int64_t MAX_WAIT = 1LL << 53           # milliseconds
cdef uint64_t OK_HEAD = <uint64_t>6 << 32       # OK's frame size, then the frame type of a response


class AlreadyAnswered(NsqError):
    """The program finished, requeued or touched a message that it had already answered."""


class ProtocolError(NsqError):
    """The received bytes do not follow nsqd's protocol."""


@cython.final
cdef class Codec:
    """One connection's frames and commands.

    `flow` is the Flow of the connection's consumer, or None for a connection that only publishes.
    `wake()` is called when output becomes available. `longest`: maximum size of an accepted
    message, in bytes; 0 for no limit.
    """

    cdef readonly str address
    cdef public str topic           # topic that the connection consumes
    cdef list pieces                # output before `output`: large bodies, which are not copied
    cdef size_t piece               # index of the next piece to send
    cdef Output output
    cdef bytearray partial          # received bytes of an incomplete frame
    cdef size_t wanted              # size that `partial` must reach before the next attempt
    cdef uint32_t longest           # maximum bytes of a message's frame
    cdef bint headers               # whether messages begin with headers (negotiated)
    cdef bint closed
    cdef public bint dead_letters   # whether nsqd accepts DEAD_LETTER (negotiated)
    cdef readonly bint touched      # the timeout of a message was restarted
    cdef readonly Py_ssize_t in_flight
    cdef readonly uint64_t delivered    # messages delivered since the connection began
    cdef public object wake         # called when output becomes available
    cdef public object flow         # notified of results before they are sent
    cdef public Mailbox mailbox     # mailbox of the loop that calls `flow`; None: any caller may

    def __cinit__(self, str address not None, uint32_t longest=0):
        self.address = address
        self.topic = ""
        self.longest = MAX_FRAME
        if 0 < longest < <uint32_t>MAX_FRAME - FRAME_HEADER - MESSAGE_HEADER - HEADERS_ROOM:
            self.longest = longest + 4 + MESSAGE_HEADER
        self.pieces = []
        self.output = Output()
        self.partial = bytearray()

    def expect_headers(self):
        """Expect messages to begin with their headers from now on."""
        self.headers = True
        if self.longest != MAX_FRAME:
            self.longest += HEADERS_ROOM

    # -- received

    def feed(self, bytes data not None, Py_ssize_t maximum=-1):
        """Process received bytes; return (messages, other frames as (type, data)).

        Stops after `maximum` frames if that is not negative, because bytes after a handshake
        response may belong to another layer (see `rest`). Raises ProtocolError.
        """
        cdef list messages = []
        cdef list frames = []
        cdef size_t n
        cdef Py_ssize_t used
        cdef const uint8_t *at
        if self.partial:
            self.partial += data
            n = len(self.partial)
            if n < self.wanted:
                return messages, frames
            data = bytes(self.partial)
            self.partial.clear()
        n = len(data)
        at = <const uint8_t *><const char *>data
        used = self.parse(at, n, messages, frames, maximum)
        if <size_t>used < n:
            self.partial += data[used:]
        return messages, frames

    cdef Py_ssize_t parse(self, const uint8_t *at, size_t left, list messages, list frames,
                          Py_ssize_t maximum) except -1:
        """Parse all complete frames; return the number of bytes consumed."""
        cdef const uint8_t *start = at
        cdef uint32_t size
        cdef uint32_t type
        cdef Py_ssize_t count
        self.wanted = 4
        while left >= FRAME_HEADER and maximum:
            size = load_be32(at)
            type = load_be32(at + 4)
            self.check_size(size, self.longest if type == <uint32_t>MESSAGE else MAX_ANSWER)
            if left - 4 < size:
                self.wanted = 4 + <size_t>size
                break
            if type == <uint32_t>MESSAGE:
                if self.headers:
                    messages.append(new_headered(self, at + FRAME_HEADER, size - 4))
                else:
                    messages.append(new_message(self, at + FRAME_HEADER, size - 4))
            elif size == 6 and load_be64(at) == OK_HEAD and load_be16(at + 8) == OK_TEXT:
                frames.append(OK_FRAME)
            else:
                frames.append((type, PyBytes_FromStringAndSize(
                    <const char *>at + FRAME_HEADER, size - 4)))
            at += 4 + <size_t>size
            left -= 4 + <size_t>size
            maximum -= 1
        if 4 <= left < FRAME_HEADER and maximum:
            self.check_size(load_be32(at), MAX_FRAME)
            self.wanted = FRAME_HEADER
        count = len(messages)
        self.in_flight += count
        self.delivered += count
        return at - start

    cdef inline int check_size(self, uint32_t size, uint32_t maximum) except -1:
        if size < 4 or size > maximum or size == SPELLS_HTTP:
            return self.bad_size(size, maximum)
        return 0

    cdef int bad_size(self, uint32_t size, uint32_t maximum) except -1:
        if size == SPELLS_HTTP:
            raise ProtocolError(f"unexpected HTTP response from {self.address},"
                                " a nsqd TCP endpoint is required")
        raise ProtocolError(f"{self.address} announced a frame of {size} bytes,"
                            f" 4 to {maximum} are allowed")

    def rest(self):
        """Return and discard the received bytes of an incomplete frame."""
        cdef bytes rest = bytes(self.partial)
        self.partial.clear()
        return rest

    # -- to send

    def take(self):
        """Remove and return the next bytes to send; empty if there is no more output."""
        cdef Output output = self.output
        cdef bytes taken
        if self.pieces:
            taken = self.pieces[self.piece]
            self.pieces[self.piece] = None
            self.piece += 1
            if self.piece == <size_t>len(self.pieces):
                self.pieces.clear()
                self.piece = 0
            return taken
        if output.end == 0:
            return b""
        taken = PyBytes_FromStringAndSize(<const char *>output.buffer, output.end)
        output.end = 0
        if output.capacity > 65536:
            output.drop_buffer()
        return taken

    @property
    def pending(self):
        """Return the number of bytes waiting to be taken."""
        return self.output.end + sum(map(len, self.pieces[self.piece:]))

    @cython.final
    cdef int rouse(self, size_t before) except -1:
        """Notify the owner if there is output and there was none `before`. Call this last, because
        another thread may take the output in the meantime."""
        if before == 0 and self.wake is not None:
            self.wake()
        return 0

    def write(self, bytes command not None):
        """Queue any bytes, usually one or more commands."""
        cdef size_t n = len(command)
        cdef size_t before = self.output.end
        if n and not self.closed:
            self.output.put(<const uint8_t *><const char *>command, n)
            self.rouse(before)

    def publish(self, bytes head not None, bytes body not None):
        """Queue `head` (a command line with its line feed), then the length of a body and the
        body."""
        cdef size_t n = len(head)
        cdef size_t length = len(body)
        cdef size_t before = self.output.end
        cdef uint8_t *at
        if self.closed:
            return
        if length >= LARGE:
            self.put_large(head, body)
        else:
            at = self.output.room(n + 4 + length)
            memcpy(at, <const char *>head, n)
            store_be32(at + n, <uint32_t>length)
            memcpy(at + n + 4, <const char *>body, length)
        self.rouse(before)

    cdef int put_large(self, bytes head, bytes body) except -1:
        """Queue a large body without copying it, after the output so far."""
        cdef size_t n = len(head)
        cdef uint8_t *at = self.output.room(n + 4)
        memcpy(at, <const char *>head, n)
        store_be32(at + n, <uint32_t>len(body))
        self.pieces.append(PyBytes_FromStringAndSize(
            <const char *>self.output.buffer, self.output.end))
        self.output.end = 0
        self.pieces.append(body)
        return 0

    def close(self):
        """Handle the loss of the connection: later answers are dropped."""
        self.closed = True
        self.in_flight = 0
        self.pieces.clear()
        self.piece = 0
        self.output.clear()
        self.partial.clear()

    cdef inline int put_id(self, const char *verb, size_t length, Message message) except -1:
        cdef size_t before = self.output.end
        cdef uint8_t *at = self.output.room(length + ID + 1)
        memcpy(at, verb, length)
        memcpy(at + length, <const char *>message.id, ID)
        at[length + ID] = 10
        return self.rouse(before)

    cdef int answer(self, Message message, Outcome outcome, int64_t delay, bytes line) except -1:
        """Answer a message completely or not at all: Python code runs before the state changes."""
        cdef bint is_calm = outcome == FINISHED and (self.flow is None or self.flow.calm)
        if message.answered:
            return refuse(message)
        message.answered = True
        if self.closed:
            return 0
        if is_calm:
            self.in_flight -= 1
            return self.put_id(b"FIN ", 4, message)
        if self.flow is None or self.mailbox is None:
            return self.put_answer(message, outcome, delay, line)
        self.mailbox.post(self.settle, message, outcome, delay, line)
        return 0

    def settle(self, Message message not None, Outcome outcome, int64_t delay, bytes line):
        """Send an answer that comes from another thread."""
        if not self.closed:
            self.put_answer(message, outcome, delay, line)

    cdef int put_answer(self, Message message, Outcome outcome, int64_t delay,
                        bytes line) except -1:
        """Queue FIN or REQ, or `line` instead of REQ, after any flow-control commands."""
        cdef char[MAX_DELAY_CHARACTERS] text
        cdef size_t before
        cdef uint8_t *at
        cdef int n
        self.in_flight -= 1
        if self.flow is not None:
            self.flow.result(outcome)
            if self.closed:
                return 0
        if outcome == FINISHED:
            return self.put_id(b"FIN ", 4, message)
        if line is not None:
            self.write(line)
            return 0
        before = self.output.end
        n = snprintf(text, MAX_DELAY_CHARACTERS, b" %lld\n", <long long>delay)
        at = self.output.room(4 + ID + n)
        memcpy(at, b"REQ ", 4)
        memcpy(at + 4, <const char *>message.id, ID)
        memcpy(at + 4 + ID, text, n)
        return self.rouse(before)

    cdef int bury(self, Message message, str reason) except -1:
        """Queue DEAD_LETTER."""
        if message.answered:
            return refuse(message)
        if not (self.dead_letters or self.closed):
            raise NsqError(f"{self.address} has no dead letters: set the consumer's option"
                           " dead_letter_topic")
        delay = 0 if self.flow is None else self.flow.delay_of(message.attempts)
        text = quote(reason[:MAX_REASON]).encode()
        line = b"DEAD_LETTER %s %d %s\n" % (message.id, delay, text)
        return self.answer(message, REQUEUED, 0, line)


@cython.freelist(256)
cdef class Message:
    """A message from nsqd, to be finished or requeued once.

    `id`: 16 hex digits; `timestamp`: when it was published, in ns since 1970 according to its
    nsqd's clock; `attempts`: the number of its deliveries, including this one; `headers`: a dict of
    str, empty on a connection without the `headers` option.

    Answers after the loss of the connection are dropped: nsqd redelivers the message.
    """

    cdef readonly bytes id          # 16 hex digits
    cdef readonly bytes body
    cdef readonly int64_t timestamp     # ns since 1970, by the wall clock of the message's nsqd
    cdef readonly uint16_t attempts
    cdef bint answered
    cdef bint manual                # the program will answer the message after its handler returns
    cdef bint kept                  # a dead letter that the consumer itself stores
    cdef Codec codec

    def __init__(self):
        raise TypeError("a Message is created by the connection that delivers it")

    @property
    def nsqd_address(self):
        """host:port of the nsqd that delivered it."""
        return codec_of(self).address

    @property
    def topic(self):
        """The topic from which it was delivered."""
        return codec_of(self).topic

    @property
    def headers(self):
        """Its headers."""
        return {}

    def finish(self):
        """Finish the message. Raises AlreadyAnswered."""
        codec_of(self).answer(self, FINISHED, 0, None)

    def requeue(self, delay=None, *, time_ms=None, backoff=True):
        """Requeue the message: nsqd redelivers it after `delay` seconds or `time_ms` milliseconds,
        or after the consumer's delay for its number of attempts. With `backoff`, the entire
        consumer backs off. Raises AlreadyAnswered, and ValueError for a delay that is negative or
        not a number."""
        cdef Codec codec = codec_of(self)
        cdef int64_t milliseconds
        for name, given in (("delay", delay), ("time_ms", time_ms)):
            if given is not None and (isinstance(given, bool) or not isinstance(given, Real)):
                raise TypeError(f"{name} cannot be {given!r} (allowed: a number, or None)")
        if not isinstance(backoff, bool):
            raise TypeError(f"backoff cannot be {backoff!r} (allowed: True or False)")
        if time_ms is not None:
            wanted = time_ms
        elif delay is not None:
            wanted = delay * 1000
        else:
            wanted = 0 if codec.flow is None else codec.flow.delay_of(self.attempts)
        if not 0 <= wanted <= MAX_WAIT:
            raise ValueError(f"a message cannot be requeued with a delay of {wanted} ms")
        milliseconds = round(wanted)
        codec.answer(self, FAILED if backoff else REQUEUED, milliseconds, None)

    def dead_letter(self, str reason not None=""):
        """Move the message to the dead-letter topic: that of the consumer, or of the channel's
        policy, to which nsqd moves it. Raises AlreadyAnswered, and Error if nsqd cannot move it."""
        cdef Codec codec = codec_of(self)
        if codec.flow is None or not codec.flow.keeps_dead_letters:
            codec.bury(self, reason)
            return
        keep = codec.flow.keep
        if self.answered or self.kept:
            refuse(self)
        self.kept = self.manual = True  # the handler does not answer the message
        if codec.mailbox is None:
            keep(self, reason)
        else:
            codec.mailbox.post(keep, self, reason)

    def touch(self):
        """Restart the message's timeout. Raises AlreadyAnswered."""
        cdef Codec codec = codec_of(self)
        if self.answered:
            refuse(self)
        codec.touched = True
        if not codec.closed:
            codec.put_id(b"TOUCH ", 6, self)

    def enable_async(self):
        """Leave the message unanswered when its handler returns; call finish() or requeue()
        later."""
        self.manual = True

    def is_async(self):
        return self.manual

    def has_responded(self):
        """Return whether the message was finished or requeued."""
        return self.answered

    def is_lost(self):
        """Return whether the message's connection is closed: nsqd redelivers the message, unless it
        has received the answer."""
        return codec_of(self).closed

    def __repr__(self):
        return f"<Message {shown(self)} attempts={self.attempts} {len(self.body)} bytes>"


# A message on a connection that negotiated headers; other messages lack these fields.
cdef class Headered(Message):
    """A message on a connection that negotiated headers."""

    cdef bytes encoded              # the headers, as on the wire
    cdef dict decoded               # decoded on first use

    @property
    def headers(self):
        """Its headers."""
        if self.decoded is None:
            self.decoded = decode_headers(self.encoded)
        return self.decoded


cdef inline Codec codec_of(Message message):
    """The message's connection; None if it was created without one."""
    if message is None or message.codec is None:
        raise TypeError("this is not a Message that a connection has delivered")
    return message.codec


cdef int refuse(Message message) except -1:
    """Raise AlreadyAnswered. A separate function keeps the callers small."""
    raise AlreadyAnswered(f"message {shown(message)} has already been answered")


cdef str shown(Message message):
    """The message id, as sent by nsqd."""
    return message.id.decode("ascii", "backslashreplace")


cdef Message new_message(Codec codec, const uint8_t *at, size_t length):
    cdef Message message
    if length < MESSAGE_HEADER:
        raise ProtocolError(f"{codec.address} sent a message of {length} bytes")
    message = Message.__new__(Message)
    message.timestamp = <int64_t>load_be64(at)
    message.attempts = load_be16(at + 8)
    message.id = PyBytes_FromStringAndSize(<const char *>at + 10, ID)
    message.body = PyBytes_FromStringAndSize(<const char *>at + MESSAGE_HEADER,
                                             length - MESSAGE_HEADER)
    message.codec = codec
    return message


cdef Headered new_headered(Codec codec, const uint8_t *at, size_t length):
    cdef Headered message
    cdef const uint8_t *body = at + MESSAGE_HEADER + HEADERS_SIZE
    cdef size_t headers = 0
    if length >= MESSAGE_HEADER + HEADERS_SIZE:
        headers = load_be16(at + MESSAGE_HEADER)
    if length < MESSAGE_HEADER + HEADERS_SIZE + headers or headers > MAX_HEADERS:
        raise ProtocolError(f"{codec.address} sent a message of {length} bytes"
                            f" with {headers} bytes of headers")
    message = Headered.__new__(Headered)
    message.timestamp = <int64_t>load_be64(at)
    message.attempts = load_be16(at + 8)
    message.id = PyBytes_FromStringAndSize(<const char *>at + 10, ID)
    message.encoded = PyBytes_FromStringAndSize(<const char *>body, headers)
    message.body = PyBytes_FromStringAndSize(
        <const char *>body + headers, length - MESSAGE_HEADER - HEADERS_SIZE - headers)
    message.codec = codec
    return message


cdef class Publish:
    """A publish in progress: the command line `head` and its `body`. `deadline`: seconds,
    monotonic. A subclass notifies `waiter` of the result."""

    cdef readonly str topic
    cdef readonly bytes head        # the command line
    cdef readonly bytes body
    cdef public double deadline     # seconds, monotonic
    cdef public int tries           # failed ones
    cdef public object error        # error of the last attempt that nsqd may have executed
    cdef readonly object waiter     # notified of the result
    cdef public bint is_abandoned   # the caller was interrupted
    cdef public bytes route         # chooses the nsqd; None: any nsqd

    def __init__(self, str topic not None, bytes head not None, bytes body not None, waiter,
                 double deadline=INFINITY):
        self.waiter = waiter
        self.topic = topic
        self.head = head
        self.body = body
        self.deadline = deadline

    def done(self, error):
        """Handle the result, once: None for OK, otherwise the error."""

    def is_awaited(self):
        """Return whether the caller is still waiting for the result."""
        return not self.is_abandoned


def finish(messages not None):
    """Finish many messages, from any connections; each connection sends its part in one write.
    Raises AlreadyAnswered at the first message that had already been answered."""
    cdef Message message
    for message in messages:
        codec_of(message).answer(message, FINISHED, 0, None)


def message_body(data):
    """Return `data` as bytes. Raises TypeError if it is not bytes-like and ValueError if it is
    empty."""
    cdef bytes body
    if type(data) is bytes:
        body = <bytes>data
    elif isinstance(data, (bytes, bytearray, memoryview)):
        body = bytes(data)
    else:
        raise TypeError(f"a message is bytes, not {type(data).__name__}")
    if not body:
        raise ValueError("a message cannot be empty")
    return body


def headered_body(data, headers):
    """Return a body preceded by its headers, as sent on a connection that negotiated headers."""
    return _before(headers) + message_body(data)


cdef bytes _before(headers):
    """Return the encoded headers that precede a body. Raises ValueError and TypeError."""
    if headers is not None and not isinstance(headers, (dict, Mapping)):
        raise TypeError(f"headers are a mapping of str to str, not {type(headers).__name__}")
    cdef bytes encoded = headers_from_text(headers) if headers else b""
    return len(encoded).to_bytes(HEADERS_SIZE, "big") + encoded


def headered_mpub_body(messages not None, headers):
    """Return the body of an MPUB with headers; all of its messages have the same headers."""
    cdef bytes before = _before(headers)
    return join([before + message_body(each) for each in messages])


def mpub_body(messages not None):
    """Return the body of an MPUB: a count, then each message after its length. Raises the errors of
    message_body(), and ValueError if there are no messages or too many bytes for one command."""
    return join([message_body(each) for each in messages])


cdef bytes join(list bodies):
    cdef bytes body
    cdef uint64_t size = 4
    for body in bodies:
        size += 4 + <size_t>len(body)
    if not bodies:
        raise ValueError("there are no messages to publish: pass at least one")
    if size > MAX_FRAME:
        raise ValueError(
            f"{len(bodies)} messages of {size - 4} bytes exceed the {MAX_FRAME} bytes of one "
            "command: publish_all() sends several"
        )
    return _wire.mpub_body(bodies)
