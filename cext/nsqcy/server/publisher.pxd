# Publisher: publishes from within a worker, e.g. for HTTP, to topics on any worker.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.server.http_fastpath cimport Sink
from nsqcy.protocol.connection cimport Transport
from nsqcy.protocol.session cimport Session
from nsqcy.protocol.session_manager cimport SessionManager
from nsqcy.broker.topic_queue cimport Durability
from nsqcy.server.body_batch cimport BodyBatch


cdef class Callback(Waiter):
    cdef object done
    cdef int publish_done(self, uint64_t ticket, str error) except -1


cdef class AnswerTransport(Transport):
    cdef object waiting         # deque of callbacks, in publish order
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1


cdef class Publisher:
    cdef readonly SessionManager manager
    # (owner, Durability, with headers, of transfers) -> Session that forwards to it
    cdef dict sessions
    cdef dict unplaced          # topic -> callbacks for its placement

    cdef int wait_for_placement(self, bytes key, publish) except -1
    cdef int transfer_here(self, bytes key, tuple chunk, bytes messages, uint32_t count,
                           Durability minimum, done) except -1
    cdef int feed(self, Session session, done, bytes command) except -1
    cdef int publish_here(self, bytes key, bodies, bytes headers, int64_t delay,
                          Durability minimum, done) except -1
    cdef int publish_batch(self, int owner, bytes key, BodyBatch batch, bytes headers,
                           Durability minimum, done) except -1
    cdef int publish_batch_here(self, bytes key, BodyBatch batch, done) except -1
    cdef int publish_there(self, int owner, bytes key, bodies, bytes headers, int64_t delay,
                           Durability minimum, done) except -1
    cdef Session session_to(self, int owner, Durability minimum, bint headers, bint transfers)


cdef class TopicSink(Sink):
    """Publishes to one topic, while this worker owns the topic and the topic accepts messages
    immediately."""
    cdef SessionManager manager
    cdef bytes key
    cdef bytes headers          # headers of every message; None: no headers
    cdef object enter           # called before topics are touched
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1
