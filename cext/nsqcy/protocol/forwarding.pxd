# Forwarding: commands that another worker executes, and their answers.
#
#   client ══socket══ Session ── ForwardingStream ══ rings ══ FarEnd ── Session (owner)

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from nsqcy.ipc.mesh cimport Stream, StreamEnd
from nsqcy.protocol.auth cimport Authorizer
from nsqcy.protocol.connection cimport RAISED, Parsed


cdef enum:
    STREAM_BACKLOG = 262144     # bytes of commands waiting for credit above which parsing stops


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
    """The streams of a session to the owners of topics."""
    cdef dict streams               # worker -> ForwardingStream
    cdef ForwardingStream upstream  # stream of the subscription, if another worker owns its topic

    cdef ForwardingStream stream_to(self, int peer)
    cdef int close_streams(self) except -1
    cdef bytes hello(self)
    cdef int adopt_elsewhere(self, state) except -1
    cdef int adopt_negotiated(self, settings) except -1
    cdef int find_locality(self) except -1
    cdef Parsed forward(self, const uint8_t *line, size_t n) except RAISED
