# Connection: the interface between a session and the parts around it.
#
#   Connection ◄── SessionManager        schedules it
#       ▲   ▲
#       │   └────── Transport            moves its bytes
#    Session

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.scheduler_state cimport Timer
from nsqcy.broker.topic_queue cimport Durability
from nsqcy.protocol.wire cimport Output


# Counters shown by /stats.
cdef enum State:
    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


# Result of parsing a command.
cdef enum Parsed:
    MORE = 0            # the command is incomplete
    NEXT = 1            # executed; its bytes are consumed
    BLOCKED = 2         # must wait; its bytes are kept
    STOPPED = 3         # the session ends; no more commands run
    RAISED = -1         # a Python exception is pending

cdef enum:
    OUTPUT_ENOUGH = 131072      # number of unsent bytes above which a consumer gets no messages
    # Unsent bytes above which commands wait; messages never fill the output that far.
    MAX_ANSWERS = 1048576
    # The same, for a client that must still authenticate.
    MAX_UNAUTHENTICATED_ANSWERS = 8192


cdef dict negotiated(source)


cdef class Transport:
    """Source and destination of a session's bytes."""
    cdef Connection session
    cdef size_t held                # encoded bytes not sent yet
    cdef uint64_t moved             # encoded bytes sent so far
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1
    cdef int abandon(self) except -1
    cdef int upgrade(self, identity) except -1
    cdef int read_on(self) except -1
    cdef int rest(self) except -1


cdef class ClosedTransport(Transport):
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1
    cdef int abandon(self) except -1


cdef class Share:
    """Unfinished input of the sessions from one address."""
    cdef uint64_t input_bytes
    cdef Py_ssize_t sessions


cdef class Connection(Consumer):
    """A client's negotiated options, its output, and its state for the session manager."""
    cdef Transport transport
    cdef readonly State state
    cdef bint magic_seen
    cdef bint lenient               # a failed publish does not end the session
    cdef bint transfers             # its publishes have already been accepted by a different topic
    cdef bint remote                # far end of a stream: the client is on a different worker
    cdef bint blocked               # parsing is waiting for tickets, a placement or a peer
    cdef bint crammed               # parsing is waiting until the client reads responses
    cdef bint stopping              # no more commands run; closes once all output is sent
    cdef readonly bint closed
    cdef bint eof                   # no more input
    cdef bint barred                # only IDENTIFY is allowed before TLS
    # The client must still authenticate, or start TLS: small limits apply.
    cdef readonly bint unauthenticated
    cdef size_t max_answers         # unsent bytes above which commands wait
    cdef readonly bint snappy
    cdef readonly bint deflate
    cdef readonly dict tls          # facts (nsqcy.nsqd.tls); None: no TLS
    cdef bint dirty
    cdef bint resumable
    cdef bint reading
    cdef bint starved               # waiting for its worker's input budget
    cdef Output output
    cdef bint lingers               # its input is read and dropped until the client closes
    cdef readonly str remote_address
    cdef str address                # without the port
    cdef Share share                # unfinished input from its address
    cdef readonly int64_t connected_at      # wall clock, ns
    # Set by IDENTIFY, and public because NEGOTIATED lists them by name, with some of a Consumer's:
    cdef public str hostname
    cdef public str user_agent
    cdef public str topology_region
    cdef public str topology_zone
    cdef public uint32_t output_buffer_size
    cdef public int64_t output_buffer_timeout       # ns
    cdef public bint topic_log      # the client supports the LOG_ commands
    cdef public bint limits         # the client supports LIMITS
    cdef public bint headers        # headers precede message bodies
    cdef public bint dead_letters   # the client may send DEAD_LETTER
    cdef public bint goodbye        # it is notified when nsqd exits
    # The same, but not by name:
    cdef readonly Durability durability     # minimum durability of its publishes
    cdef readonly int64_t heartbeat_interval    # ns; 0: none
    cdef int64_t next_heartbeat
    cdef int64_t last_command
    cdef int64_t waiting_since              # when it began waiting for a peer that is down
    cdef Timer timer
    cdef bint upgrading             # a TLS handshake is in progress
    cdef readonly bint upgraded     # TLS or a codec was negotiated; only once
    cdef bint migrating             # migrating to the worker of its topic
    cdef int64_t quota_due          # retry time of a publish waiting for quota; 0: none

    cdef int feed(self, const uint8_t *data, size_t n) except -1
    cdef int end_of_input(self) except -1
    cdef int resume(self) except -1
    cdef int after_flush(self) except -1
    cdef int on_timer(self) except -1
    cdef int close(self) except -1
    cdef void wake(self) noexcept
    cdef int set_limits(self) except -1
    cdef int check_appetite(self) except -1
    cdef int set_timer(self) except -1
    cdef int stop(self) except -1
    cdef int wind_down(self) except -1
    cdef int detach(self) except -1
    cdef int drop_if_silent(self, int64_t since) except -1
    cdef bint has_published(self) noexcept
    cdef int quota_changed(self) except -1
