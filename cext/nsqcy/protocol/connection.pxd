# Connection: the lower half of a session, and what the sessions of a worker share.
#
#   Transport ◄──► Connection ──► ManagerState      clocks, owners, limits, lists of those with work
#                      ▲               ▲
#                   Session ◄── SessionManager      runs the sessions
#
# Answers are sent in the order of their commands:
#
#   command ──► take_ticket() ──► [ OK ][ waiting ][ OK ][ error ]     answers outstanding
#                                    │ first in line and known
#                                    ▼
#                                 output

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.base.core cimport Heap
from nsqcy.broker.shard cimport Shard
from nsqcy.broker.topic cimport Topic
from nsqcy.broker.topic_queue cimport Durability
from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.scheduler_state cimport SchedulerState, Timer
from nsqcy.ipc.core cimport Mesh, StreamEnd
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
    RECEIVE_SIZE = 131072       # maximum bytes per receive
    # The same for a client that must still authenticate, and for all of them per turn.
    UNAUTHENTICATED_RECEIVE = 16384
    UNAUTHENTICATED_PER_TURN = 65536
    MAX_TICKETS = 4096          # maximum outstanding answers; further commands wait
    MAX_FORWARDED = 1048576     # maximum bytes of unanswered forwarded commands


# A pending answer.
ctypedef struct Ticket:
    uint8_t state               # TicketState
    const char *command         # a static name: PUB, MPUB, DPUB
    uint32_t forwarded          # bytes counted against MAX_FORWARDED
    void *text                  # owned bytes: a response, or the text of an error frame

cdef enum TicketState:
    WAITING = 0
    ANSWERED = 1                # text NULL: OK
    FAILED = 2                  # text: the error; the session ends with it
    REFUSED = 3                 # text: the error; the session continues
    RELAYED = 4                 # its frame was already relayed


cdef class Connection(Consumer)


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


cdef class ManagerState:
    """The session manager as its sessions know it: topic owners, shared limits, lists of work."""
    cdef readonly Shard shard
    cdef readonly SchedulerState scheduler
    cdef readonly Mesh mesh
    cdef readonly int index
    cdef readonly set sessions
    cdef readonly dict owners               # topic -> worker
    cdef dict askers                        # topic -> sessions waiting for its placement
    cdef list peer_waiters                  # sessions waiting for a worker to restart
    cdef list dirty
    cdef list resumable
    cdef list undecoded                     # transports with input for which there will be no event
    cdef list postponed                     # sessions whose command waits for the next turn
    cdef int created                        # topics that sessions have created in this turn
    cdef size_t negotiating                 # cost of this turn's IDENTIFYs
    cdef size_t unauthenticated_input       # bytes from such clients in this turn
    cdef object starved                     # deque of unread sessions, longest waiting first
    cdef Connection favoured                # the one session that is read beyond the budget
    cdef int64_t favoured_at                # time when that session was chosen or last sent input
    cdef bint newest_next                   # whether the newest unread session is chosen next
    cdef Heap timers
    cdef uint8_t *scratch                   # buffer for one receive
    cdef readonly uint64_t input_bytes      # unfinished input of all sessions
    cdef uint64_t max_input_bytes           # above this, only small and favoured sessions are read
    cdef uint64_t max_share                 # the same, for the sessions from one address
    cdef dict shares                        # address -> Share
    cdef object unauthenticated             # InputPool of the clients that must authenticate
    cdef object options
    cdef object negotiate
    cdef object ask_placement
    cdef object migrate
    cdef object auth                # queries auth servers; None: AUTH is disabled
    cdef list closed                        # sessions whose transports are released after the turn
    cdef list migrations                    # (session, owner)
    cdef uint32_t lost                      # sessions that have migrated away in this second
    cdef int64_t lost_since
    cdef int lighter                        # worker that takes producers from this one; -1: none
    cdef object log
    cdef int64_t max_msg_size
    cdef int64_t max_body_size
    cdef int64_t msg_timeout                # default setting for clients
    cdef uint32_t max_rdy_count
    cdef int64_t max_req_timeout            # ns
    cdef int64_t max_defer_timeout          # ns
    cdef uint32_t max_channel_consumers
    cdef bint tls_required
    cdef int64_t heartbeat_default
    cdef readonly bint winding_down         # nsqd exits: only consumers are still served
    cdef set leaving                        # sessions that have yet to end while winding down
    cdef object on_left                     # called when they have ended

    cdef int owner_of(self, bytes key) noexcept
    cdef bint is_up(self, int peer)
    cdef int ask(self, Connection session, bytes key) except -1
    cdef int wait_for_peer(self, Connection session) except -1
    cdef bint may_lose_more(self) noexcept
    cdef int lose(self, Connection session, int owner) except -1
    cdef int add(self, Connection session) except -1
    cdef int remove(self, Connection session) except -1
    cdef int leave_later(self, Connection session) except -1
    cdef bint may_negotiate(self, Connection session, size_t size) except -1
    cdef bint may_create(self, Connection session) except -1
    cdef bint is_over(self, Connection session) noexcept
    cdef int64_t max_silence(self) except -1
    cdef bint favours(self, Connection session)
    cdef int input_grew(self, Connection session, int64_t n) except -1
    cdef int input_shrank(self, Connection session, int64_t n) except -1
    cdef int lose_favour(self, Connection session) except -1
    cdef int feed_starved(self) except -1
    cdef int drop_silent(self) except -1

    cdef inline size_t input_left(self, Connection session) noexcept:
        """Return the number of bytes that may be received from a session now."""
        if not session.unauthenticated:
            return RECEIVE_SIZE
        if self.unauthenticated_input >= UNAUTHENTICATED_PER_TURN:
            return 0
        return UNAUTHENTICATED_RECEIVE

    cdef inline void count_input(self, Connection session, size_t n) noexcept:
        if session.unauthenticated:
            self.unauthenticated_input += n


cdef class Connection(Consumer):
    """A client's negotiated options, its answers in order, its unfinished input and its timer."""
    cdef ManagerState manager
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
    # IDENTIFY sets these by name (NEGOTIATED), and some of a Consumer's; therefore they are public.
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
    # IDENTIFY sets these, too, each in its own way.
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
    cdef int64_t log_due            # retry time of a waiting log command; 0: none
    cdef int64_t stuck_since        # time since which no output could be sent; 0: not stuck
    cdef Topic subscribed           # the topic of its channel
    # -- answers --
    cdef Ticket *tickets
    cdef uint32_t ticket_first
    cdef uint32_t ticket_count
    cdef uint32_t ticket_room
    cdef uint64_t ticket_base       # number of the first ticket
    cdef uint32_t unanswered        # dropped tickets; they may already have been answered
    cdef size_t forwarded
    cdef int line_owner             # owner of the topics of all outstanding answers; -1: none
    cdef bytes line_key             # the topic, if it is owned here
    cdef StreamEnd relaying         # one of its message frames is partly written
    cdef bytearray aside            # frames waiting for the end of that frame
    # -- unfinished input: an incomplete command and blocked commands --
    cdef uint8_t *kept
    cdef size_t kept_start
    cdef size_t kept_end
    cdef size_t kept_capacity
    cdef int64_t heard_at           # time of the latest unfinished input, or when reading resumed
    cdef bytes unread_error         # error if the input ends within a body; None: between commands
    cdef size_t missing             # missing bytes of the kept command, approximately; 0: unknown
    cdef size_t scanned             # bytes already checked of an incomplete MPUB body
    cdef uint32_t scanned_count

    cdef inline void touch_dirty(self) noexcept:
        """Schedule a flush of the transport for the end of the turn."""
        if not self.dirty:
            self.become_dirty()

    cdef void become_dirty(self) noexcept

    cdef inline bint is_crammed(self) noexcept:
        """Return whether too many answers are waiting for the client to read them."""
        cdef size_t waiting = self.output.end - self.output.start
        if self.aside is not None:
            waiting += len(self.aside)
        return waiting > self.max_answers

    cdef void wake(self) noexcept
    cdef int put_frame(self, int type, const uint8_t *data, size_t n) except -1
    cdef int put_ok(self) except -1
    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1
    cdef int respond(self, const uint8_t *data, size_t n) except -1
    cdef Parsed fatal(self, bytes text) except RAISED
    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0
    cdef int answer(self, uint64_t ticket, TicketState state, bytes text) except -1
    cdef int call_tickets(self) except -1
    cdef void drop_tickets(self) noexcept
    cdef bint can_pipeline(self) noexcept
    cdef Parsed invalid_state(self, const char *command) except RAISED
    cdef int log_error(self, bytes text) except -1
    cdef uint64_t take_silent_ticket(self) except? 0
    cdef int keep(self, const uint8_t *data, size_t n) except -1
    cdef int drop_kept(self) except -1
    cdef int count_unauthenticated(self) except -1
    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED
    cdef int check_appetite(self) except -1
    cdef int drop_if_silent(self, int64_t since) except -1
    cdef int64_t patience(self) noexcept
    cdef int set_timer(self) except -1
    cdef int check_peer(self) except -1
    cdef int unsubscribe(self) except -1
    cdef int stop(self) except -1
    cdef int detach(self) except -1
