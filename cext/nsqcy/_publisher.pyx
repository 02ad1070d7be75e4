"""Publishing from within a worker, as HTTP does, to topics of any worker.

A topic of this worker is published to directly. For the others there is one lenient session for
each owner and durability, whose client is this module: it is fed commands and its answers call the
callbacks.
"""

from collections import deque
from struct import pack

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from nsqcy._bytes cimport load_be32
from nsqcy._session cimport Home, Session
from nsqcy._store cimport Record, record_body
from nsqcy._topic cimport MEMORY, Durability, Topic, durability_of
from nsqcy._wire cimport FRAME_HEADER, RESPONSE, Output


cdef enum:
    MPUB_BYTES = 1048576        # a longer batch goes to another worker in several commands

cdef int64_t MILLISECOND = 1000000

# In the place of a reason: nobody knows whether it is published.
UNKNOWN = "unknown"


cdef class Callback(Waiter):
    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        self.done(error)
        return 0


cdef class AnswerTransport(Transport):
    def __cinit__(self):
        self.waiting = deque()

    cdef int flush(self) except -1:
        cdef Session session = self.session
        cdef Output output = session.output
        cdef size_t at = 0
        cdef size_t size
        answers = []
        while output.end - output.start - at >= FRAME_HEADER:
            size = load_be32(output.buffer + output.start + at) - 4
            frame_type = load_be32(output.buffer + output.start + at + 4)
            data = output.buffer[output.start + at + FRAME_HEADER:
                                 output.start + at + FRAME_HEADER + size]
            at += FRAME_HEADER + size
            answers.append(None if frame_type == RESPONSE
                           else (<bytes>data).decode("utf-8", "surrogateescape"))
        output.sent(at)
        for answer in answers:
            if self.waiting:
                self.waiting.popleft()(answer and answer.partition(" failed ")[2])
        return session.after_flush()

    cdef int watch_input(self, bint on) except -1:
        return 0

    cdef int close(self) except -1:
        """The owner is gone: nobody knows what became of what it was sent. What was still to be
        sent is certainly not there."""
        cdef Session session = self.session
        waiting = self.waiting
        self.waiting = deque()
        for i, done in enumerate(waiting):
            done(UNKNOWN if i < session.unanswered else "exiting")
        return 0


cdef class TopicSink(Sink):
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1:
        cdef Home home = self.home
        cdef Topic topic
        cdef Record *record
        if not 0 < length <= home.max_msg_size or home.owner_of(self.key) != home.index:
            return False
        self.enter()
        topic = home.shard.find_or_create(self.key)
        if not topic.takes_at_once():
            return False
        record = topic.new_record(<unsigned int>length, 0)
        if record != NULL:
            memcpy(record_body(record), body, length)
        topic.published(1, length)
        return True


cdef class _Batch:
    """Calls `done` when all parts of a publish were answered. It is refused if none of them was
    accepted; if only some were, nobody could say what is there."""
    cdef object done
    cdef int parts
    cdef int accepted
    cdef int answered
    cdef str error

    def __call__(self, error):
        self.answered += 1
        if error is None:
            self.accepted += 1
        elif self.error is not UNKNOWN:
            self.error = error
        if self.answered == self.parts:
            self.done(UNKNOWN if 0 < self.accepted < self.parts else self.error)


cdef class Publisher:
    def __init__(self, Home home not None):
        self.home = home
        self.sessions = {}
        self.unplaced = {}

    def publish(self, bytes key not None, bodies, delay_ms, str durability not None, done):
        """Publish all of `bodies` to a topic, which is made; calls done(None), done(reason) or
        done(UNKNOWN) once, at once or later, and not before they are as durable as this, and as the
        topic promises. With a reason none of them is there. The name must be valid, each body 1 to
        max-msg-size bytes, the delay within max-req-timeout."""
        cdef int owner = self.home.owner_of(key)
        cdef Durability least = durability_of(durability)
        if owner < 0:
            waiting = self.unplaced.get(key)
            if waiting is not None:
                waiting.append((bodies, delay_ms, durability, done))
                return
            self.unplaced[key] = [(bodies, delay_ms, durability, done)]
            self.home.ask_placement(key)
        elif owner == self.home.index:
            self.publish_here(key, bodies, delay_ms * MILLISECOND, least, done)
        else:
            self.publish_there(owner, key, bodies, delay_ms, least, done)

    def sink(self, bytes key not None, enter not None):
        """A way to publish to a topic, body by body, that takes those which need not wait.

        enter: called whenever topics are about to be touched
        """
        cdef TopicSink sink = TopicSink.__new__(TopicSink)
        sink.home = self.home
        sink.key = key
        sink.enter = enter
        return sink

    def placed(self, bytes key not None):
        """The owner of a topic is known."""
        for bodies, delay_ms, durability, done in self.unplaced.pop(key, ()):
            self.publish(key, bodies, delay_ms, durability, done)

    cdef int publish_here(self, bytes key, bodies, int64_t delay, Durability least,
                          done) except -1:
        cdef Topic topic = self.home.shard.find_or_create(key)
        cdef Record *record
        cdef const unsigned char[::1] body
        cdef uint64_t total = 0
        cdef Callback callback
        refusal = topic.refusal(least)
        if refusal is not None:
            done(refusal)
            return 0
        if least != MEMORY and bodies:
            topic.demand(least)
        for each in bodies:
            body = each
            record = topic.new_record(<unsigned int>body.shape[0], delay)
            if record != NULL:
                memcpy(record_body(record), &body[0], body.shape[0])
            total += body.shape[0]
        if bodies and topic.published(<unsigned int>len(bodies), total):
            callback = Callback.__new__(Callback)
            callback.done = done
            topic.promise(callback, 0)
        else:
            done(None)
        return 0

    cdef int publish_there(self, int owner, bytes key, bodies, int64_t delay_ms, Durability least,
                           done) except -1:
        cdef Session session = self.session_to(owner, least)
        cdef _Batch batch
        cdef bytes command
        # Its owner takes no MPUB above max-body-size, though what came by HTTP may be larger.
        most = min(MPUB_BYTES, self.home.max_body_size)
        commands = [
            _pub(key, part[0], delay_ms) if len(part) == 1 else _mpub(key, part)
            for part in _parts(bodies, most)]
        batch = _Batch.__new__(_Batch)
        batch.done = done
        batch.parts = len(commands)
        transport = <AnswerTransport>session.transport
        for command in commands:
            transport.waiting.append(batch)
            session.feed(command, len(command))
        return 0

    cdef Session session_to(self, int owner, Durability least):
        key = (owner, <int>least)
        cdef Session session = self.sessions.get(key)
        if session is None or session.stopping:
            session = Session(self.home, AnswerTransport.__new__(AnswerTransport), "")
            session.be_lenient()
            session.durability = least
            self.sessions[key] = session
        return session


cdef bytes _pub(bytes key, body, int64_t delay_ms):
    name = b"DPUB %s %d\n" % (key, delay_ms) if delay_ms else b"PUB %s\n" % key
    return b"".join((name, pack(">i", len(body)), body))


cdef bytes _mpub(bytes key, list bodies):
    parts = [pack(">i", len(bodies))]
    for body in bodies:
        parts.append(pack(">i", len(body)))
        parts.append(body)
    whole = b"".join(parts)
    return b"MPUB %s\n%s%s" % (key, pack(">i", len(whole)), whole)


def _parts(bodies, most):
    """The bodies cut into the lists of MPUBs of at most `most` bytes, a larger body alone."""
    part = []
    size = 4
    for body in bodies:
        if part and size + len(body) + 4 > most:
            yield part
            part = []
            size = 4
        part.append(body)
        size += len(body) + 4
    if part:
        yield part
