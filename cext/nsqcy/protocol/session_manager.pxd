# Session manager: the sessions of a worker and their shared state.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.base.heap cimport Heap
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.broker.shard cimport Shard
from nsqcy.ipc.mesh cimport Mesh
from nsqcy.protocol.connection cimport Connection


cdef enum:
    RECEIVE_SIZE = 131072       # maximum bytes per receive
    # The same for a client that must still authenticate, and for all of them per turn.
    UNAUTHENTICATED_RECEIVE = 16384
    UNAUTHENTICATED_PER_TURN = 65536


cdef class SessionManager:
    """Schedules the sessions of a worker, maps topics to owners, and applies shared limits."""
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
    cdef Connection favoured                   # the one session that is read beyond the budget
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
    cdef int64_t compare_at                 # time of the next comparison of loads
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

    cdef int64_t turn(self) except? -1
    cdef int tell_events(self) except -1
    cdef int decode(self) except -1
    cdef int detach_closed(self) except -1
    cdef bint may_negotiate(self, Connection session, size_t size) except -1
    cdef bint may_create(self, Connection session) except -1
    cdef int resume_postponed(self) except -1
    cdef int owner_of(self, bytes key) noexcept

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

    cdef int compare_loads(self) except -1
    cdef bint may_lose_more(self) noexcept
    cdef int lose(self, Connection session, int owner) except -1
    cdef bint is_over(self, Connection session) noexcept
    cdef int64_t max_silence(self) except -1
    cdef bint favours(self, Connection session)
    cdef int input_grew(self, Connection session, int64_t n) except -1
    cdef int drop_silent(self) except -1
    cdef int add(self, Connection session) except -1
    cdef int remove(self, Connection session) except -1
    cdef int leave_later(self, Connection session) except -1
    cdef int input_shrank(self, Connection session, int64_t n) except -1
    cdef int lose_favour(self, Connection session) except -1
    cdef int feed_starved(self) except -1
    cdef bint is_up(self, int peer)
    cdef int ask(self, Connection session, bytes key) except -1
    cdef int wait_for_peer(self, Connection session) except -1
