"""Message events: collected as they happen, published in batches, one JSON line each.

Owns the ring between channels and the publisher, the selection of messages, and the line format.
Independent of channels and topics. If the ring is full, events are counted and dropped: events
never delay messages.
"""

# Message events in channels, for consumers of the events topic.
#
#   channel ──add──► ring ──flush, at most one batch under way──► publish(lines, done)
#                     │
#                     └ full: counted as dropped


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


cdef enum:
    RING = 16384            # maximum waiting events, which occupy 1 MiB
    BATCH = 1024            # maximum number of lines written per turn
    MAX_CLIENT = 512       # maximum characters of a client's name

cdef tuple KINDS = (b"finish", b"requeue", b"timeout", b"dead-letter", b"expired")


def event_names(str topic not None, str channel not None):
    """Set the topic and channel as they appear in a line; neither contains a character that JSON
    would escape."""
    return f'"topic":"{topic}","channel":"{channel}"'.encode()


cdef class Events:
    def __cinit__(self):
        self.ring = <Event *>malloc(RING * sizeof(Event))
        if self.ring == NULL:
            raise MemoryError()

    def __init__(self, double sample=1.0):
        """sample: share of messages that produce events, 0 to 1; a message produces all of its
        events or none"""
        self.all_of_them = sample >= 1
        self.below = <uint64_t>(min(sample, 0.9999999999999999) * 18446744073709551616.0)

    def __dealloc__(self):
        while self.waiting:
            self.forget_first()
        free(self.ring)

    cdef void forget_first(self) noexcept:
        cdef Event *event = &self.ring[self.first]
        Py_DECREF(<object>event.names)
        Py_DECREF(<object>event.client)
        self.first = (self.first + 1) % RING
        self.waiting -= 1

    cdef void add(self, EventKind kind, uint64_t id, uint16_t attempts, int64_t time,
                  int64_t in_flight, int64_t age, bytes names, str client) noexcept:
        cdef Event *event
        if not self.all_of_them and id * 0x9E3779B97F4A7C15u >= self.below:
            return
        if self.waiting == RING:
            self.dropped += 1
            return
        event = &self.ring[(self.first + self.waiting) % RING]
        self.waiting += 1
        event.kind = kind
        event.id = id
        event.attempts = attempts
        event.time = time
        event.in_flight = max(<int64_t>0, in_flight)
        event.age = max(<int64_t>0, age)
        event.names = <void *>names
        event.client = <void *>client
        Py_INCREF(names)
        Py_INCREF(client)

    cdef int flush(self) except -1:
        """Publish waiting events: one batch per turn, and only after the previous batch was
        accepted."""
        cdef list lines
        if self.waiting == 0 or self.under_way:
            return 0
        lines = self.take()
        self.under_way = <uint32_t>len(lines)
        try:
            self.publish(lines, self.done)
        except BaseException:
            self.done("failed")
            raise
        return 0

    def done(self, reason):
        """Handle the result for a batch: whether it was accepted or rejected, its events are
        done."""
        if reason is None:
            self.published += self.under_way
        else:
            self.dropped += self.under_way
        self.under_way = 0

    cdef list take(self):
        cdef list lines = []
        cdef Event *event
        cdef str client
        while self.waiting and len(lines) < BATCH:
            event = &self.ring[self.first]
            client = <str>event.client
            if client is not self.client:
                self.client = client
                self.client_json = json.dumps(client[:MAX_CLIENT]).encode()
            lines.append(
                b'{"time":%d,"kind":"%b",%b,"id":"%016x","attempts":%d,"in_flight":%d,"age":%d,'
                b'"client":%b}' % (
                    event.time, KINDS[event.kind], <bytes>event.names, event.id, event.attempts,
                    event.in_flight, event.age, self.client_json))
            self.forget_first()
        return lines
