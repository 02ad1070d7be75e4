# Forwarding: which worker executes a command, and the answers of another one.
#
#   client ══socket══ Session ── ForwardingStream ══ rings ══ FarEnd ── Session (owner)

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from nsqcy.broker.topic cimport Topic
from nsqcy.ipc.core cimport Stream, StreamEnd
from nsqcy.protocol.auth cimport Authorizer
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.wire cimport Word


cdef enum:
    STREAM_BACKLOG = 262144     # bytes of commands waiting for credit above which parsing stops
    NO_ROOM = -2                # no owner: the topic does not exist and may not be created


cdef class ForwardingStream(StreamEnd):
    """Near end of a stream to the owner of a topic: sends commands, receives frames."""
    cdef Forwarder session
    cdef Stream stream
    cdef int peer
    cdef bint up
    cdef list expected              # numbers of the tickets that the stream will answer, in order
    cdef size_t expected_first
    cdef bytearray unsent           # commands beyond the stream's credit
    cdef uint8_t header[8]          # header of the incoming frame
    cdef uint32_t header_have
    cdef int32_t frame_type
    cdef uint32_t frame_left        # data bytes of the frame that are still to come
    cdef bytearray answer           # data of a frame that is not a message
    cdef size_t unconsumed          # bytes relayed, but not yet sent to the client

    cdef int send(self, const uint8_t *data, size_t n) except -1
    cdef size_t take_whole(self, const uint8_t *data, size_t n) except? 0
    cdef uint64_t next_ticket(self) except? 0
    cdef bint may_relay(self) noexcept
    cdef int end_frame(self) except -1
    cdef int on_writable(self) except -1
    cdef int on_data(self, const unsigned char *data, size_t n) except -1
    cdef int on_closed(self, bint aborted) except -1
    cdef int leave(self) except -1


cdef class Forwarder(Authorizer):
    """The topic of a client's commands and its owner, the streams to owners, and migration."""
    cdef dict streams               # worker -> ForwardingStream
    cdef ForwardingStream upstream  # stream of the subscription, if another worker owns its topic
    cdef Topic topic                # the topic that was published to last
    cdef bytes topic_key
    cdef int topic_owner            # -1: unknown yet
    cdef uint64_t topic_count       # messages published to it that are not yet in pub_counts
    cdef readonly dict pub_counts
    cdef uint64_t counted           # all published messages, excluding topic_count
    cdef bint migratable            # may migrate to another worker once
    cdef int forwards_to            # the owner of the last forwarded publishes
    cdef uint64_t forwards          # number of consecutive publishes, their bytes and start time
    cdef uint64_t forward_bytes
    cdef int64_t forwards_since

    cdef inline bint same_topic(self, Word *name) noexcept:
        """Return whether `name` is the topic that was published to last (and therefore valid)."""
        cdef bytes key = self.topic_key
        return (key is not None and <size_t>len(key) == name.length
                and memcmp(<const char *>key, name.at, name.length) == 0)

    cdef inline int route(self) except? -1:
        """Return the worker that owns the current topic, and set self.topic if it is this worker.

        -1: the owner is not known yet, or down. NO_ROOM: this worker would own it, but has no room.
        """
        if self.topic is not None and not self.topic.gone:
            return self.topic_owner
        return self.find_owner()

    cdef inline bint may_join(self, int owner) noexcept:
        """Return whether a publish may be executed before outstanding answers arrive.

        It may not if too many are outstanding, or if one of them may be an error that the owner (or
        the topic, if it is here) does not know about: nothing is executed after such an error.
        """
        if self.ticket_count == 0:
            return True
        if not self.can_pipeline():
            return False
        if self.lenient:
            return True
        if owner != self.line_owner:
            return False
        return owner != self.manager.index or self.topic_key is self.line_key

    cdef bint take_topic(self, Word *name) except -1
    cdef int find_owner(self) except? -1
    cdef int find_topic(self) except? -1
    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED
    cdef bytes no_room(self, const char *command)
    cdef int note_counts(self) except -1
    cdef bint has_published(self) noexcept
    cdef ForwardingStream stream_to(self, int peer)
    cdef int close_streams(self) except -1
    cdef Parsed forward(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed fatal(self, bytes text) except RAISED
    cdef bytes hello(self)
    cdef int adopt_elsewhere(self, state) except -1
    cdef int adopt_negotiated(self, settings) except -1
    cdef int find_locality(self) except -1
    cdef bint may_migrate(self, int owner) except *
    cdef bint is_faithful(self) noexcept
    cdef bint is_light(self, int owner) except *
    cdef bint is_small(self) except *
    cdef int give_away(self, size_t n) except -1
    cdef size_t auth_size(self) except? 0
    cdef Parsed migrate_to(self, int worker) except RAISED
