# Sessions: the V2 state machine of one connection, and the sessions of a worker.
#
#   bytes ──feed──► lines and bodies ──► commands ──► topic, channel          (home is owner)
#                                           │    └──► Leg ══stream══► Session (owner elsewhere)
#                                           ▼
#   bytes ◄─flush── output ◄── frames ◄── tickets (answers in the order of their commands)

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.broker.channel cimport Channel, Consumer, Outcome, Waiter
from nsqcy.broker.scheduler_state cimport SchedulerState, Timer
from nsqcy.base.heap cimport Heap, HeapNode
from nsqcy.ipc.mesh cimport Mesh, Stream, StreamEnd
from nsqcy.ipc.quota cimport Quota
from nsqcy.broker.log_reader cimport LogRead
from nsqcy.storage.block cimport Block
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow
from nsqcy.broker.topic cimport Durability, Shard, Topic
from nsqcy.protocol.wire cimport Output, Word


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
    # Bytes of the output's buffer above which commands wait; messages alone never fill it so far.
    ANSWERS_MOST = 1048576
    TICKETS_MOST = 4096         # answers outstanding; more commands wait
    FORWARDED_MOST = 1048576    # bytes of forwarded commands not answered
    RECEIVE_SIZE = 131072       # bytes of one receive


# An answer that is still to come.
ctypedef struct Ticket:
    uint8_t state               # TicketState
    const char *command         # a static name: PUB, MPUB, DPUB
    uint32_t forwarded          # bytes it counts against FORWARDED_MOST
    void *text                  # owned bytes: a response, or the text of an error frame

cdef enum TicketState:
    WAITING = 0
    ANSWERED = 1                # text NULL: OK
    FAILED = 2                  # text: the error; the session ends with it
    REFUSED = 3                 # text: the error; the session goes on
    RELAYED = 4                 # its frame has left already


cdef class CursorAnswer:
    """Called when the journal has what a LOG_CURSOR has changed."""
    cdef Session session
    cdef uint64_t ticket
    cdef bytes text


cdef class Transport:
    """Where a session's bytes go and come from."""
    cdef Session session
    cdef size_t held                # encoded bytes that it could not send yet
    cdef uint64_t moved             # encoded bytes sent so far
    cdef int flush(self) except -1
    cdef int watch_input(self, bint on) except -1
    cdef int close(self) except -1
    cdef int abandon(self) except -1
    cdef int upgrade(self, identity) except -1
    cdef int read_on(self) except -1
    cdef int rest(self) except -1


cdef class Leg(StreamEnd):
    """The home's end of a stream to the owner of a topic: commands go out, frames come back."""
    cdef Session session
    cdef Stream stream
    cdef int peer
    cdef bint up
    cdef list expected              # numbers of the tickets it will answer, in order
    cdef size_t expected_first
    cdef bytearray unsent           # commands beyond the stream's credit
    cdef uint8_t header[8]          # of the frame that is arriving
    cdef uint32_t header_have
    cdef int32_t frame_type
    cdef uint32_t frame_left        # data bytes of the frame still to come
    cdef bytearray answer           # data of a frame that is not a message
    cdef size_t unconsumed          # relayed, but not sent to the client yet

    cdef int send(self, const uint8_t *data, size_t n) except -1
    cdef size_t take_whole(self, const uint8_t *data, size_t n) except? 0
    cdef uint64_t next_ticket(self) except? 0
    cdef bint may_relay(self) noexcept
    cdef int end_frame(self) except -1
    cdef int on_writable(self) except -1
    cdef int on_data(self, const unsigned char *data, size_t n) except -1
    cdef int on_closed(self, bint aborted) except -1
    cdef int leave(self) except -1


cdef class Session(Consumer):
    cdef Home home
    cdef Transport transport
    cdef readonly State state
    cdef bint magic_seen
    cdef bint lenient               # a failed publish is answered and does not end the session
    cdef bint moves                 # what it publishes was accepted once, by another topic
    cdef bint remote                # the far end of a stream: its client's home is elsewhere
    cdef bint blocked               # parsing waits for tickets, a placement or a peer
    cdef bint crammed               # parsing waits for the client to read its answers
    cdef bint stopping              # nothing more is executed; it closes when all is sent
    cdef readonly bint closed
    cdef bint eof                   # no more input
    cdef bint barred                # nothing but IDENTIFY before TLS
    cdef bint upgrading             # a TLS handshake is under way
    cdef readonly bint upgraded     # TLS or a codec has been agreed on: not again
    cdef readonly bint snappy
    cdef readonly bint deflate
    cdef readonly dict tls          # facts (nsqcy.nsqd.worker.tls); None without TLS
    cdef bint movable               # may go to the worker of its topic, once
    cdef bint moving                # is on its way there
    cdef int forwards_to            # the owner of the last forwarded publishes
    cdef uint64_t forwards          # how many there were in a row, of how many bytes, since when
    cdef uint64_t forward_bytes
    cdef int64_t forwards_since
    cdef bint dirty
    cdef bint resumable
    cdef bint reading
    cdef bint starved               # waits for its worker's input budget
    cdef Output output
    cdef uint8_t *kept              # unfinished input
    cdef size_t kept_start
    cdef size_t kept_end
    cdef size_t kept_capacity
    cdef const char *unread         # what a body's end of input means; NULL: between commands
    cdef bytes unread_error
    cdef size_t missing             # bytes that the command kept lacks, about; 0: not known
    cdef size_t scanned             # bytes of an incomplete MPUB body that were checked
    cdef uint32_t scanned_count
    cdef Ticket *tickets
    cdef uint32_t ticket_first
    cdef uint32_t ticket_count
    cdef uint32_t ticket_room
    cdef uint64_t ticket_base       # number of the first one
    cdef uint32_t unanswered        # tickets that were dropped: it may be done, what they wait for
    cdef size_t forwarded
    cdef int line_owner             # of the topics that the outstanding answers are about; -1: none
    cdef bytes line_key             # the topic, if it is owned here
    cdef dict legs                  # worker -> Leg
    cdef Leg leg                    # of the subscription, when its topic is owned elsewhere
    cdef Leg relaying               # a message frame of it is half written
    cdef bytearray aside            # frames that wait for the end of that one
    cdef readonly Durability durability     # of its publishes, at least
    cdef readonly bint topic_log    # its client knows the LOG_ commands
    cdef int64_t log_due            # when one of them that waits is to be looked at again; 0: none
    cdef bint log_waited            # it was
    cdef LogRead log_read           # that it waits for
    cdef uint64_t log_unsent        # bytes of the answer to one that has not all left
    cdef uint64_t log_sent_at       # it has when the output has sent so much
    cdef readonly bint headers      # negotiated: bodies come and go behind the message's headers
    cdef Topic topic                # the one published to last
    cdef bytes topic_key
    cdef int topic_owner            # -1: not known yet
    cdef uint64_t topic_count       # messages published to it, not yet in pub_counts
    cdef readonly dict pub_counts
    cdef bint guarded               # its client needs authorization
    cdef bint auth_asked            # an auth server is being asked
    cdef uint64_t auth_ticket       # of the AUTH command
    cdef readonly bytes secret      # never to be logged
    cdef readonly object authorization
    cdef public tuple certificate_names  # those of its certificate, if that was verified
    cdef int64_t auth_expires
    cdef int64_t may_publish_until  # to the topic published to last
    cdef Quota quota                # of its user, which counts the connection; None: it has none
    cdef int64_t quota_due          # when it is to be looked at again; 0: nothing waits for it
    cdef uint64_t counted           # messages published, but for topic_count
    cdef uint64_t paid              # the number of the last one that the quota was charged with
    cdef readonly bint authed       # the rest of what /stats shows of it
    cdef readonly str auth_identity
    cdef readonly str auth_identity_url
    cdef Topic subscribed           # topic of the channel
    cdef str subscribed_channel
    cdef readonly str remote_address
    cdef readonly str hostname
    cdef readonly str user_agent
    cdef readonly str topology_region
    cdef readonly str topology_zone
    cdef readonly int64_t connected_at      # wall clock, ns
    cdef readonly int64_t heartbeat_interval    # ns; 0: none
    cdef int64_t next_heartbeat
    cdef int64_t last_command
    cdef int64_t stuck_since                # no output could be sent; 0: it could
    cdef uint64_t sent_before               # bytes, when it got stuck
    cdef int64_t waiting_since              # for a peer that is down
    cdef readonly uint32_t output_buffer_size
    cdef readonly int64_t output_buffer_timeout     # ns
    cdef Timer timer

    cdef int feed(self, const uint8_t *data, size_t n) except -1
    cdef int end_of_input(self) except -1
    cdef int resume(self) except -1
    cdef int after_flush(self) except -1
    cdef int on_timer(self) except -1
    cdef int close(self) except -1
    cdef void touch_dirty(self) noexcept
    cdef void wake(self) noexcept
    cdef int respond(self, const uint8_t *data, size_t n) except -1
    cdef bint is_crammed(self) noexcept
    cdef int put_frame(self, int type, const uint8_t *data, size_t n) except -1
    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1
    cdef int answer(self, uint64_t ticket, TicketState state, bytes text) except -1
    cdef int finish_input(self) except -1
    cdef int parse_kept(self) except -1
    cdef int keep(self, const uint8_t *data, size_t n) except -1
    cdef int drop_kept(self) except -1
    cdef int check_appetite(self) except -1
    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0
    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0
    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept
    cdef size_t finish_there(self, const uint8_t *lines, size_t n) except? 0
    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept
    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED
    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED
    cdef Parsed fatal(self, bytes text) except RAISED
    cdef int refuse(self, const char *command, const Word *id, Outcome outcome) except -1
    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0
    cdef int call_tickets(self) except -1
    cdef void drop_tickets(self) noexcept
    cdef bint can_pipeline(self) noexcept
    cdef bint may_join(self, int owner) noexcept
    cdef int publish_done(self, uint64_t number, str error) except -1
    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED
    cdef Parsed forward_log(self, int owner, const char *command, const uint8_t *line,
                            size_t n) except RAISED
    cdef Parsed refuse_log(self, bytes text) except RAISED
    cdef Parsed log_pub(self, const uint8_t *line, size_t *used, const uint8_t *rest,
                        size_t left) except RAISED
    cdef Parsed take_batch(self, const char *command, const uint8_t *rest, size_t left,
                           uint32_t *body_size, uint32_t *count) except RAISED
    cdef Parsed log_cursor(self, Topic topic, Word *words) except RAISED
    cdef Parsed set_log_cursor(self, Topic topic, bytes log_id, str name, seq) except RAISED
    cdef Parsed delete_log_cursor(self, Topic topic, str name) except RAISED
    cdef CursorAnswer promise_cursor(self, str name, bytes log_id, seq)
    cdef Parsed bad_number(self, const char *command, const char *what,
                           const Word *word) except RAISED
    cdef Parsed log_meta(self, Topic topic, Word *words, int count) except RAISED
    cdef Parsed log_seek(self, Topic topic, Word *words) except RAISED
    cdef Parsed log_fetch(self, Topic topic, Word *words) except RAISED
    cdef Parsed wait_for_log(self, found) except RAISED
    cdef int hold_answer(self, uint64_t n) except -1
    cdef int answer_left(self) except -1
    cdef int log_wait_over(self) except -1
    cdef Parsed pub(self, Word *words, int count, const uint8_t *line, size_t *used,
                    const uint8_t *rest, size_t left) except RAISED
    cdef Parsed dpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed publish_one(self, const char *command, int64_t delay, const uint8_t *line,
                            size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef inline int32_t body_size(self, const uint8_t *message, int32_t size) noexcept
    cdef Parsed mpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED
    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED
    cdef Parsed check_batch(self, const char *command, const uint8_t *batch,
                            uint32_t count) except RAISED
    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED
    cdef size_t batch_limit(self) noexcept
    cdef Parsed batch_missing(self, const char *command, size_t end, size_t have,
                              int32_t announced, bytes error) except RAISED
    cdef Parsed batch_too_big(self, const char *command, size_t size) except RAISED
    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED
    cdef bint same_topic(self, Word *name) noexcept
    cdef bint take_topic(self, Word *name) except -1
    cdef int route(self) except? -1
    cdef int find_topic(self) except? -1
    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED
    cdef Parsed publish_refused(self, const char *command, bytes text) except RAISED
    cdef Parsed not_routed(self, const char *command, int why, size_t *used, size_t n) except RAISED
    cdef bytes no_room(self, const char *command)
    cdef Parsed publish_accepted(self, const char *command, Topic topic, uint32_t count,
                                 uint64_t body_bytes) except RAISED
    cdef Parsed forward_publish(self, int owner, const char *command, const uint8_t *line,
                                size_t n, uint32_t messages) except RAISED
    cdef int note_counts(self) except -1
    cdef Parsed invalid_state(self, const char *command) except RAISED
    cdef Parsed sub(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed subscribe(self, Topic topic, str name) except RAISED
    cdef Parsed rdy(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef int set_ready(self, uint32_t ready) except -1
    cdef Parsed forward(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed message_command(self, const char *command, Word *words, int count, int needed,
                                uint64_t *id) except RAISED
    cdef Parsed fin(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed req(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED
    cdef Parsed touch_message(self, Word *words, int count, const uint8_t *line,
                              size_t n) except RAISED
    cdef Parsed cls(self, const uint8_t *line, size_t n) except RAISED
    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int adopt_identity(self, identity) except -1
    cdef Parsed upgrade(self, identity) except RAISED
    cdef int upgrade_done(self) except -1
    cdef int find_locality(self) except -1
    cdef Parsed auth(self, int count, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int ask_auth(self) except -1
    cdef int refuse_auth(self, bytes text) except -1
    cdef Parsed recognize(self, const char *command) except RAISED
    cdef bint admit(self, Quota quota) except -1
    cdef bytes no_place(self, Quota quota)
    cdef int adopt_authorization(self, authorization, int64_t expires) except -1
    cdef bint may_publish(self) noexcept
    cdef Parsed authorize(self, const char *command, bytes topic, bytes channel) except RAISED
    cdef Parsed charge(self, uint32_t messages, uint64_t size) except RAISED
    cdef int await_quota(self) except -1
    cdef int look_again(self) except -1
    cdef int forget_quota(self) except -1
    cdef bint has_room(self) noexcept
    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1
    cdef int on_channel_gone(self) except -1
    cdef Leg leg_to(self, int peer)
    cdef int leave_legs(self) except -1
    cdef bytes hello(self)
    cdef int set_timer(self) except -1
    cdef int peer_timed_out(self) except -1
    cdef int stop(self) except -1
    cdef int unsubscribe(self) except -1
    cdef bint may_move(self, int owner) except *
    cdef bint is_faithful(self) noexcept
    cdef bint is_light(self, int owner) except *
    cdef size_t auth_size(self) except? 0
    cdef Parsed move_to(self, int owner) except RAISED
    cdef int adopt_names(self, state) except -1


cdef class Home:
    """The sessions of a worker: whose turn it is, who owns which topic, and their limits."""
    cdef readonly Shard shard
    cdef readonly SchedulerState agenda
    cdef readonly Mesh mesh
    cdef readonly int index
    cdef readonly set sessions
    cdef readonly dict owners               # topic -> worker
    cdef dict askers                        # topic -> sessions that wait for its placement
    cdef list peer_waiters                  # sessions that wait for a worker to come back
    cdef list dirty
    cdef list resumable
    cdef list undecoded                     # transports that hold input no event will announce
    cdef object starved                     # deque of sessions not read, longest first
    cdef Session favoured                   # one that is read beyond the budget
    cdef int64_t favoured_at                # when it was chosen or last sent something
    cdef Heap timers
    cdef uint8_t *scratch                   # one receive
    cdef readonly uint64_t input_bytes      # unfinished input of all sessions
    cdef uint64_t max_input_bytes           # above which only small ones are read, and the favoured
    cdef object options
    cdef object negotiate
    cdef object ask_placement
    cdef object move
    cdef object auth                # asks auth servers; None: AUTH is disabled
    cdef list movers                        # (session, owner)
    cdef uint32_t lost                      # sessions that moved away, in the second from then on
    cdef int64_t lost_since
    cdef object log
    cdef int64_t max_msg_size
    cdef int64_t max_body_size
    cdef int64_t msg_timeout                # of clients that do not ask
    cdef uint32_t max_rdy_count
    cdef int64_t max_req_timeout            # ns
    cdef int64_t max_defer_timeout          # ns
    cdef uint32_t max_channel_consumers
    cdef bint tls_required
    cdef int64_t heartbeat_default

    cdef int64_t turn(self) except? -1
    cdef int tell_events(self) except -1
    cdef int decode(self) except -1
    cdef int owner_of(self, bytes key) noexcept
    cdef bint may_lose_more(self) noexcept
    cdef int lose(self, Session session, int owner) except -1
    cdef bint favours(self, Session session)
    cdef int input_shrank(self, Session session, int64_t n) except -1
    cdef int lose_favour(self, Session session) except -1
    cdef int feed_starved(self) except -1
    cdef bint is_up(self, int peer)
    cdef int ask(self, Session session, bytes key) except -1
    cdef int wait_for_peer(self, Session session) except -1
