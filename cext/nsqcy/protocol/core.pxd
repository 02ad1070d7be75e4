# Declarations of nsqcy.protocol for other packages.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from nsqcy.base.core cimport Heap
from nsqcy.broker.core cimport Batch, Durability, LogRead, Shard, Topic
from nsqcy.channels.core cimport Consumer, Outcome, SchedulerState, Timer
from nsqcy.ipc.core cimport MAX_WORKERS, Mesh, Quota, Stream, StreamEnd
from nsqcy.protocol.wire cimport Output, Word

# -- connection --


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
    # Unsent bytes above which commands wait, for a client that must still authenticate.
    MAX_UNAUTHENTICATED_ANSWERS = 8192
    RECEIVE_SIZE = 131072       # maximum bytes per receive
    # Maximum bytes per receive for a client that must still authenticate, and per turn for all such
    # clients.
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
    ANSWERED = 1                # OK if `text` is NULL
    FAILED = 2                  # error `text`; the session ends after the error
    REFUSED = 3                 # error `text`; the session continues
    RELAYED = 4                 # the answer's frame was already relayed


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
    cdef object pack(self)
    cdef bint needs_pump(self) except -1
    cdef tuple surrender(self)


cdef class Share:
    """Unfinished input of the sessions from one address."""
    cdef uint64_t input_bytes
    cdef Py_ssize_t sessions


cdef class ManagerState:
    """The part of the session manager that sessions use: topic owners, shared limits, lists of
    work."""
    cdef readonly Shard shard
    cdef readonly SchedulerState scheduler
    cdef readonly Mesh mesh
    cdef readonly int index
    cdef readonly set sessions
    cdef readonly dict owners               # topic -> worker
    cdef public bint gated                  # a topic of this worker may be unusable: see owner_of()
    cdef dict askers                        # topic -> sessions waiting for the topic's placement
    cdef list peer_waiters                  # sessions waiting for a worker to restart
    cdef list dirty
    cdef list resumable
    cdef list undecoded                     # transports with buffered input, which causes no event
    cdef list postponed                     # sessions whose command waits for the next turn
    cdef int created                        # topics that sessions have created in this turn
    cdef size_t negotiating                 # cost of this turn's IDENTIFYs
    cdef size_t unauthenticated_input       # bytes from unauthenticated clients in this turn
    cdef object starved                     # deque of unread sessions, longest waiting first
    cdef Connection favoured                # the only session that is read beyond the budget
    cdef int64_t favoured_at                # time when that session was chosen or last sent input
    cdef bint newest_next                   # whether the newest unread session is chosen next
    cdef Heap timers
    cdef uint8_t *scratch                   # buffer for one receive
    cdef readonly uint64_t input_bytes      # unfinished input of all sessions
    cdef uint64_t max_input_bytes           # above it, only small and favoured sessions are read
    cdef uint64_t max_share                 # limit for the sessions from one address
    cdef dict shares                        # address -> Share
    cdef object unauthenticated             # InputPool of unauthenticated clients
    cdef object options
    cdef object negotiate
    cdef object ask_placement
    cdef object migrate
    cdef object auth                # queries auth servers; None: AUTH is disabled
    cdef list closed                        # sessions whose transports are released after the turn
    cdef list migrations                    # (session, worker)
    cdef int departures[MAX_WORKERS]        # consumers that are migrating now, by target
    cdef uint32_t lost                      # sessions that have migrated away in this second
    cdef int64_t lost_since
    cdef int lighter                        # worker that takes producers from this one, or -1
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
    cdef readonly bint resting              # another process takes over: no client is read
    cdef set leaving                        # sessions that have not ended yet while winding down
    cdef object on_left                     # called when all of these sessions have ended

    cdef int owner_of(self, bytes key) noexcept
    cdef bint is_up(self, int peer)
    cdef int ask(self, Connection session, bytes key) except -1
    cdef int wait_for_peer(self, Connection session) except -1
    cdef bint may_lose_more(self) noexcept
    cdef int lose(self, Connection session, int worker) except -1
    cdef void begin_departure(self, Connection session, int worker) noexcept
    cdef void end_departure(self, Connection session) noexcept
    cdef bint may_gain_consumer(self, int worker) noexcept
    cdef void count_consumer(self, Connection session, bint on) noexcept
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
    cdef bint transfers             # publishes are messages that another topic accepted
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
    cdef bint lingers               # input is read and dropped until the client closes
    cdef readonly str remote_address
    cdef str address                # without the port
    cdef Share share                # unfinished input from its address
    cdef readonly int64_t connected_at      # wall clock, ns
    # IDENTIFY sets these fields by name (NEGOTIATED), so they are public, as are some fields of
    # Consumer.
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
    cdef public bint goodbye        # the client is notified when nsqd exits
    # IDENTIFY also sets these fields, each with its own code.
    cdef readonly Durability durability     # minimum durability of its publishes
    cdef readonly int64_t heartbeat_interval    # ns; 0 disables heartbeats
    cdef int64_t next_heartbeat
    cdef int64_t last_command
    cdef int64_t waiting_since              # time when the wait for a peer that is down began
    cdef Timer timer
    cdef bint upgrading             # a TLS handshake is in progress
    cdef readonly bint upgraded     # TLS or a codec was negotiated, which is possible only once
    cdef bint migrating             # migrating to another worker
    cdef int subscribes_at          # the worker to which a consumer is migrating, or -1
    cdef bint counted               # the worker's slot counts it as a consumer
    cdef int64_t quota_due          # retry time of a publish waiting for quota; 0 if none waits
    cdef int64_t log_due            # retry time of a waiting log command; 0 if none waits
    cdef int64_t stuck_since        # time since which no output could be sent; 0: not stuck
    cdef Topic subscribed           # the topic of its channel
    # -- answers --
    cdef Ticket *tickets
    cdef uint32_t ticket_first
    cdef uint32_t ticket_count
    cdef uint32_t ticket_room
    cdef uint64_t ticket_base       # number of the oldest ticket
    cdef uint32_t unanswered        # dropped tickets, which may have been answered already
    cdef size_t forwarded
    cdef int line_owner             # owner of the topics of all outstanding answers, or -1
    cdef bytes line_key             # the topic, if this worker owns it
    cdef StreamEnd relaying         # stream whose message frame is partly written
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

# -- auth --


cdef class Authorizer(Connection):
    """A client's authorization, and its user's quota."""
    cdef bint guarded               # the client needs authorization
    cdef bint auth_asked            # a query to an auth server is pending
    cdef uint64_t auth_ticket       # secret from the AUTH command
    cdef readonly bytes secret      # never to be logged
    cdef readonly object authorization
    cdef readonly bint authed       # whether authorized, as shown in /stats
    cdef readonly str auth_identity
    cdef readonly str auth_identity_url
    cdef public tuple certificate_names  # names in the client's verified certificate
    cdef int64_t auth_expires
    cdef int64_t may_publish_until  # expiry of the permission for the latest publish's topic
    cdef Quota quota                # the user's quota; None: no quota

    cdef inline bint may_publish(self) noexcept:
        """Return whether the last result of authorize() is still valid."""
        return self.manager.scheduler.now < self.may_publish_until

    cdef Parsed auth(self, int count, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int set_limits(self) except -1
    cdef int64_t maximum_body(self, int64_t size, int64_t ours) noexcept
    cdef int ask_auth(self) except -1
    cdef int refuse_auth(self, bytes text) except -1
    cdef Parsed recognize(self, const char *command) except RAISED
    cdef bint admit(self, Quota quota) except -1
    cdef bytes no_place(self, Quota quota)
    cdef int adopt_authorization(self, authorization, int64_t expires) except -1
    cdef Parsed authorize(self, const char *command, bytes topic, bytes channel) except RAISED
    cdef int look_again(self) except -1
    cdef int quota_changed(self) except -1
    cdef int forget_quota(self) except -1

# -- forwarding --


cdef enum:
    STREAM_BACKLOG = 262144     # bytes of commands waiting for credit above which parsing stops
    NO_ROOM = -2                # no owner: the topic does not exist and may not be created


cdef class ForwardingStream(StreamEnd):
    """Near end of a stream to the owner of a topic: sends commands, receives frames."""
    cdef Forwarder session
    cdef Stream stream
    cdef int peer
    cdef bint up
    cdef list expected              # numbers of the tickets awaiting answers, in order
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
    cdef Topic topic                # the topic of the latest publish
    cdef bytes topic_key
    cdef int topic_owner            # -1: not known yet
    cdef uint64_t topic_count       # messages published to the topic, not yet in pub_counts
    cdef readonly dict pub_counts
    cdef uint64_t counted           # all published messages, excluding topic_count
    cdef bint migratable            # the session may migrate to another worker once
    cdef int forwards_to            # the owner of the last forwarded publishes
    cdef uint64_t forwards          # number of consecutive publishes, their bytes and start time
    cdef uint64_t forward_bytes
    cdef int64_t forwards_since

    cdef inline bint same_topic(self, Word *name) noexcept:
        """Return whether `name` is the topic of the latest publish (and therefore valid)."""
        cdef bytes key = self.topic_key
        return (key is not None and <size_t>len(key) == name.length
                and memcmp(<const char *>key, name.at, name.length) == 0)

    cdef inline int route(self) except? -1:
        """Return the worker that owns the current topic; if that is this worker, set self.topic.

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

# -- session_manager --


cdef class SessionManager(ManagerState):
    """Runner of a worker's sessions, which use only its ManagerState."""
    cdef int64_t compare_at                 # time of the next comparison of loads

    cdef int64_t turn(self) except? -1
    cdef int flush_output(self, Session session) except -1
    cdef int tell_events(self) except -1
    cdef int decode(self) except -1
    cdef int detach_closed(self) except -1
    cdef int resume_postponed(self) except -1
    cdef int compare_loads(self) except -1

# -- topic_commands --


cdef class CursorAnswer:
    """Callback for the journal write that records a LOG_CURSOR change."""
    cdef TopicCommands session
    cdef uint64_t ticket
    cdef bytes text


cdef class TopicCommands(Forwarder):
    """The commands for a topic. The commands for its log, except LOG_PUB, are executed one at a
    time."""
    cdef uint64_t paid              # number of the last publish charged to the quota
    cdef bint log_waited            # the log command has waited
    cdef LogRead log_read           # read that a log command is waiting for
    cdef bytes log_line             # this command
    cdef int64_t log_wait           # when the wait of a command that is repeated ends; 0: none
    cdef uint64_t log_unsent        # bytes of a response that has not been sent completely
    cdef uint64_t log_sent_at       # output.total_sent once the response is sent

    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept
    cdef Parsed pub(self, Word *words, int count, const uint8_t *line, size_t *used,
                    const uint8_t *rest, size_t left) except RAISED
    cdef Parsed dpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed publish_one(self, const char *command, int64_t delay, const uint8_t *line,
                            size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef Parsed message_missing(self, const char *command, size_t missing) except RAISED
    cdef int64_t size_limit(self, int64_t size) except -1
    cdef Parsed show_limits(self, Word *words, int count) except RAISED
    cdef int32_t body_size(self, const uint8_t *message, int32_t size) noexcept
    cdef Parsed mpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED
    cdef Parsed check_messages(self, const char *command, const uint8_t *batch,
                               size_t n) except RAISED
    cdef Parsed take_batch(self, const char *command, const uint8_t *rest, size_t left,
                           bint exact, uint32_t *body_size, uint32_t *count) except RAISED
    cdef size_t batch_limit(self) noexcept
    cdef Parsed batch_missing(self, const char *command, size_t end, size_t have,
                              int32_t announced, bytes error) except RAISED
    cdef Parsed batch_too_big(self, const char *command, size_t size) except RAISED
    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED
    cdef Parsed not_routed(self, const char *command, int why, size_t *used, size_t n) except RAISED
    cdef Parsed publish_refused(self, const char *command, bytes text) except RAISED
    cdef Parsed publish_taking(self, const char *command, Topic topic, int64_t delay,
                               const uint8_t *batch, size_t size, uint32_t count) except RAISED
    cdef Parsed publish_slowly(self, const char *command, Topic topic, Batch batch,
                               const uint8_t *messages, size_t n, uint32_t count) except RAISED
    cdef Parsed publish_accepted(self, const char *command, Topic topic, uint32_t count,
                                 uint64_t body_bytes) except RAISED
    cdef Parsed forward_publish(self, int owner, const char *command, const uint8_t *line,
                                size_t n, uint32_t messages) except RAISED
    cdef Parsed charge(self, uint32_t messages, uint64_t size) except RAISED
    cdef int await_quota(self) except -1
    cdef Parsed log_pub(self, const uint8_t *line, size_t *used, const uint8_t *rest,
                        size_t left) except RAISED
    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED
    cdef Parsed forward_log(self, int owner, const char *command, const uint8_t *line,
                            size_t n) except RAISED
    cdef Parsed refuse_log(self, bytes text) except RAISED
    cdef Parsed refuse_topic(self, bytes key) except RAISED
    cdef Parsed bad_number(self, const char *command, const char *what,
                           const Word *word) except RAISED
    cdef Parsed log_epochs(self, Topic topic, Word *words) except RAISED
    cdef Parsed log_meta(self, Topic topic, Word *words, int count) except RAISED
    cdef Parsed log_seek(self, Topic topic, Word *words) except RAISED
    cdef Parsed log_fetch(self, Topic topic, Word *words) except RAISED
    cdef Parsed wait_for_log(self, found) except RAISED
    cdef Parsed log_cursor(self, Topic topic, Word *words) except RAISED
    cdef Parsed set_log_cursor(self, Topic topic, bytes log_id, str name, seq) except RAISED
    cdef Parsed delete_log_cursor(self, Topic topic, str name) except RAISED
    cdef CursorAnswer promise_cursor(self, str name, bytes log_id, seq)
    cdef int hold_answer(self, uint64_t n) except -1
    cdef int answer_left(self) except -1
    cdef int log_wait_over(self) except -1

# -- session --


@cython.final
cdef class Session(TopicCommands):
    """The V2 state machine of one connection: a producer, a consumer or both."""
    cdef uint64_t sent_before               # total number of sent bytes when output got stuck
    cdef str subscribed_channel
    cdef dict awaited               # packed subscription to a topic that cannot be used yet

    cdef inline bint is_internal(self) noexcept:
        """Return whether the client is a part of this worker."""
        return self.lenient and not self.remote

    cdef int feed(self, const uint8_t *data, size_t n) except -1
    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0
    cdef int parse_kept(self) except -1
    cdef int end_of_input(self) except -1
    cdef int finish_input(self) except -1
    cdef int resume(self) except -1
    cdef bint subscribe_awaited(self) except -1
    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0
    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED
    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED
    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int adopt_identity(self, identity) except -1
    cdef Parsed upgrade(self, identity) except RAISED
    cdef int upgrade_done(self) except -1
    cdef Parsed sub(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed subscribe(self, Topic topic, str name) except RAISED
    cdef Parsed rdy(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef int set_ready(self, uint32_t ready) except -1
    cdef Parsed message_command(self, const char *command, Word *words, int count, int needed,
                                uint64_t *id) except RAISED
    cdef Parsed fin(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed req(self, bint reject, Word *words, int count, const uint8_t *line,
                    size_t n) except RAISED
    cdef Parsed touch_message(self, Word *words, int count, const uint8_t *line,
                              size_t n) except RAISED
    cdef Parsed cls(self, const uint8_t *line, size_t n) except RAISED
    cdef int refuse(self, const char *command, const Word *id, Outcome outcome) except -1
    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept
    cdef size_t finish_there(self, const uint8_t *lines, size_t n) except? 0
    cdef int on_timer(self) except -1
    cdef int after_flush(self) except -1
    cdef int wind_down(self) except -1
    cdef int close(self) except -1

# -- hand_over --


@cython.final
cdef class HandOver:
    """The packing and unpacking of one session for the next process."""
    cdef Session session
    cdef ManagerState manager

    cdef bint is_at_rest(self) except -1
    cdef set owed(self)
    cdef tuple pack(self)
    cdef dict facts(self)
    cdef dict figures(self)
    cdef list tickets(self)
    cdef dict packed_stream(self, ForwardingStream forwarding)
    cdef int unpack(self, dict state, bytes unread, bytes unsent) except -1
    cdef int restore_facts(self, dict state) except -1
    cdef int restore_figures(self, dict state) except -1
    cdef int restore_authorization(self, dict state) except -1
    cdef int restore_tickets(self, tickets) except -1
    cdef bint restore_stream(self, packed, int upstream) except -1
    cdef bint restore_subscription(self, dict state) except -1
    cdef bint may_subscribe(self, bytes key) except -1
    cdef int restore_input(self, dict state, bytes unread) except -1
