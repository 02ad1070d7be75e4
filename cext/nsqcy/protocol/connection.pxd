# The connection of a client, as the parts around its session see it.
#
#   Connection ◄── SessionManager        whose turn it is
#       ▲   ▲
#       │   └────── Transport            where its bytes go and come from
#    Session

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.scheduler_state cimport Timer
from nsqcy.broker.durability cimport Durability
from nsqcy.protocol.wire cimport Output


# As /stats shows it.
cdef enum State:
    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


# What became of the bytes of a command.
cdef enum Parsed:
    MORE = 0            # it is not complete
    NEXT = 1            # it was executed; its bytes are used
    BLOCKED = 2         # it has to wait; its bytes stay
    STOPPED = 3         # the session ends; nothing more is executed
    RAISED = -1         # a Python exception is pending

cdef enum:
    OUTPUT_ENOUGH = 131072      # bytes unsent above which a consumer gets no more messages


cdef class Transport:
    """Where a session's bytes go and come from."""
    cdef Connection session
    cdef size_t held                # encoded bytes that it could not send yet
    cdef uint64_t moved             # encoded bytes sent so far
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1
    cdef int abandon(self) except -1
    cdef int upgrade(self, identity) except -1
    cdef int read_on(self) except -1
    cdef int rest(self) except -1


cdef class Connection(Consumer):
    """What a client has negotiated, its output, and what the session manager must know of it."""
    cdef Transport transport
    cdef readonly State state
    cdef bint magic_seen
    cdef bint lenient               # a failed publish is answered and does not end the session
    cdef bint transfers             # what it publishes was accepted once, by another topic
    cdef bint remote                # the far end of a stream: its client is elsewhere
    cdef bint blocked               # parsing waits for tickets, a placement or a peer
    cdef bint crammed               # parsing waits for the client to read its answers
    cdef bint stopping              # nothing more is executed; it closes when all is sent
    cdef readonly bint closed
    cdef bint eof                   # no more input
    cdef bint barred                # nothing but IDENTIFY before TLS
    cdef readonly bint snappy
    cdef readonly bint deflate
    cdef readonly dict tls          # facts (nsqcy.nsqd.worker.tls); None without TLS
    cdef bint dirty
    cdef bint resumable
    cdef bint reading
    cdef bint starved               # waits for its worker's input budget
    cdef Output output
    cdef readonly Durability durability     # of its publishes, at least
    cdef readonly bint topic_log    # its client knows the LOG_ commands
    cdef readonly bint headers      # negotiated: bodies come and go behind the message's headers
    cdef readonly str remote_address
    cdef readonly str hostname
    cdef readonly str user_agent
    cdef readonly str topology_region
    cdef readonly str topology_zone
    cdef readonly int64_t connected_at      # wall clock, ns
    cdef readonly int64_t heartbeat_interval    # ns; 0: none
    cdef int64_t next_heartbeat
    cdef int64_t last_command
    cdef int64_t waiting_since              # for a peer that is down
    cdef readonly uint32_t output_buffer_size
    cdef readonly int64_t output_buffer_timeout     # ns
    cdef Timer timer
    cdef bint upgrading             # a TLS handshake is under way
    cdef readonly bint upgraded     # TLS or a codec has been agreed on: not again
    cdef bint migrating             # is on its way to the worker of its topic
    cdef int64_t quota_due          # when a publish that waits for its quota is retried; 0: none

    cdef int feed(self, const uint8_t *data, size_t n) except -1
    cdef int end_of_input(self) except -1
    cdef int resume(self) except -1
    cdef int after_flush(self) except -1
    cdef int on_timer(self) except -1
    cdef int close(self) except -1
    cdef void wake(self) noexcept
    cdef int check_appetite(self) except -1
    cdef int set_timer(self) except -1
    cdef int stop(self) except -1
    cdef bint has_published(self) noexcept
    cdef int quota_changed(self) except -1
