"""A client's connection: the lower half of a session, and the state that a worker's sessions share.

A Connection owns the negotiated options, the answers in the order of their commands, the unfinished
input, and the timer. Does not interpret commands: Session executes them.

An answer that is not available yet (because a publish waits for the log or was forwarded) takes a
ticket, and all later answers wait. Heartbeats and messages do not wait.

Commands are parsed in the transport's buffer; incomplete and waiting commands are kept here.
Reading stops while parsing waits, or while the worker's unfinished input exceeds its budget.

ManagerState is shared by the session manager and all its sessions: the owners of topics, the
limits, and the lists of sessions with work. SessionManager runs that work.
"""

# Connection: the lower half of a session, and the state that a worker's sessions share.
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


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_XDECREF(void *)


cdef int64_t MILLISECOND = 1000000
cdef int64_t SECOND = 1000000000
cdef int64_t NEVER = 0x7fffffffffffffff
cdef int64_t MAGIC_TIMEOUT = 60 * SECOND        # maximum wait for a new client's magic
cdef int64_t PEER_TIMEOUT = 5 * SECOND          # maximum time that a publish waits for its worker
cdef int64_t FAVOUR = 2 * SECOND                # maximum silence of the favoured session
cdef int64_t MIN_FAVOUR = SECOND // 5           # maximum silence if many sessions are waiting

cdef enum:
    KEPT_FREELY = 65536         # bytes of unfinished input always allowed per session
    MAX_MIGRATIONS = 16         # maximum migrations per second; other producers must wait
    SPREAD = 8                  # a consumer may migrate if the owner serves one plus 1/8 more
    NEGOTIATE_BYTES = 65536     # maximum cost of IDENTIFYs per turn: bytes, plus a fixed cost each
    NEGOTIATE_COST = 1024
    TOPICS_AT_ONCE = 64         # maximum new topics per turn

cdef const char *SILENT = b""           # command of a ticket whose answer is not sent

cdef Py_ssize_t live_answers = 0        # strings that tickets own


cdef inline void drop_answer(Ticket *ticket) noexcept:
    global live_answers
    if ticket.text != NULL:
        Py_XDECREF(ticket.text)
        ticket.text = NULL
        if NSQCY_DEBUG:
            live_answers -= 1


cdef inline void give_answer(Ticket *ticket, TicketState state, bytes text) noexcept:
    global live_answers
    ticket.state = state
    if text is not None:
        Py_INCREF(text)
        ticket.text = <void *>text
        if NSQCY_DEBUG:
            live_answers += 1


# The options that IDENTIFY sets, by name. A session takes them from the IDENTIFY itself, from the
# worker that has the socket (hello), or from the worker that had it (migration).
NEGOTIATED = (
    "client_id",
    "hostname",
    "user_agent",
    "topology_region",
    "topology_zone",
    "msg_timeout",
    "asked_timeout",
    "sample_rate",
    "output_buffer_size",
    "output_buffer_timeout",
    "topic_log",
    "limits",
    "headers",
    "dead_letters",
    "goodbye",
)


cdef dict negotiated(source):
    """Return the options that IDENTIFY has set in a session, or that an identity sets, by name."""
    return {name: getattr(source, name) for name in NEGOTIATED}


cdef class Transport:
    cdef int flush(self) except -1:
        """Send as much output as possible, then call session.after_flush()."""
        raise NotImplementedError

    cdef int watch_input(self, bint on) except -1:
        """Enable or disable input."""
        raise NotImplementedError

    cdef int close(self) except -1:
        raise NotImplementedError

    cdef int abandon(self) except -1:
        """Release the client without notifying it, because another worker has taken it over."""
        raise NotImplementedError

    cdef int upgrade(self, identity) except -1:
        """Switch to the negotiated encoding, then call session.upgrade_done()."""
        raise NotImplementedError

    cdef int read_on(self) except -1:
        """Continue with the input that was received but not yet decoded."""
        return 0

    cdef int rest(self) except -1:
        """Release memory that is not currently needed."""
        return 0

    cdef object pack(self):
        """Return the state that the next process needs, as JSON can contain it."""
        return None

    cdef bint needs_pump(self) except -1:
        """Return whether this process must continue to encode and decode for the next one."""
        return False

    cdef tuple surrender(self):
        """Give away the descriptor, the layers and the encoded output that has not been sent."""
        raise NotImplementedError


cdef class ClosedTransport(Transport):
    """The transport of a closed session; its methods do nothing."""

    cdef int flush(self) except -1:
        return 0

    cdef int watch_input(self, bint on) except -1:
        return 0

    cdef int close(self) except -1:
        return 0

    cdef int abandon(self) except -1:
        return 0


cdef Transport CLOSED = ClosedTransport()


cdef class Share:
    pass


cdef class ManagerState:
    def __init__(self, *, Shard shard not None, Mesh mesh, int index, options, negotiate,
                 ask_placement, migrate=None, auth=None, log):
        """
        mesh: the streams to other workers; None if this is the only worker
        options: the daemon's options
        negotiate: negotiate(identify body, options, session) -> identity, or ClientError
        ask_placement: called with the name of a topic whose owner is unknown; placed() follows
        migrate: called with a session and its target worker; the session's leave() or
            stay() is called later
        auth: its ask() is called with a session whose client must be authorized; the session's
            authorized() or auth_failed() follows. Its of_certificate() returns the authorization of
            a client by the names in its certificate, or None. None: AUTH is disabled
        """
        self.shard = shard
        self.scheduler = shard.scheduler
        self.mesh = mesh
        self.index = index
        self.options = options
        self.negotiate = negotiate
        self.ask_placement = ask_placement
        self.migrate = migrate
        self.lighter = -1
        self.auth = auth
        self.migrations = []
        self.closed = []
        self.log = log
        self.sessions = set()
        self.owners = {}
        self.askers = {}
        self.peer_waiters = []
        self.dirty = []
        self.resumable = []
        self.undecoded = []
        self.postponed = []
        self.starved = deque()
        # The other quarter is reserved for sessions that are read even above the budget.
        self.max_input_bytes = options.max_input_bytes // 4 * 3
        self.max_share = self.max_input_bytes // 2
        self.shares = {}
        self.leaving = set()
        self.unauthenticated = InputPool.of_unauthenticated(options.max_input_bytes)
        self.max_msg_size = options.max_msg_size
        self.max_body_size = options.max_body_size
        self.msg_timeout = options.msg_timeout
        self.max_rdy_count = options.max_rdy_count
        self.max_req_timeout = options.max_req_timeout
        self.max_defer_timeout = publish_limits(options).max_defer_timeout
        self.max_channel_consumers = options.max_channel_consumers
        self.tls_required = options.tls_required != 0
        self.heartbeat_default = 30 * SECOND
        heap_init(&self.timers)
        self.scratch = <uint8_t *>malloc(RECEIVE_SIZE)
        if self.scratch == NULL:
            raise MemoryError()

    def __dealloc__(self):
        heap_free(&self.timers)
        free(self.scratch)

    # -- topic owners --

    @cython.final
    cdef int owner_of(self, bytes key) noexcept:
        """Return the worker that owns a topic; -1 if it is unknown, or if the topic cannot be used
        yet."""
        if self.mesh is None and not self.gated:
            return self.index
        owner = self.owners.get(key)
        return -1 if owner is None else <int>owner

    def owner(self, bytes key not None):
        """Return the worker that owns a topic, or None if this worker does not know the owner."""
        cdef int owner = self.owner_of(key)
        return None if owner < 0 else owner

    def limits_of(self, bytes topic not None):
        """Return the limits of a topic for publishes (nsqcy.config.publish_limits)."""
        return limits_of(topic.decode(), self.options, self.shard.policies)

    cdef bint is_up(self, int peer):
        return self.mesh.up(peer)

    cdef int ask(self, Connection session, bytes key) except -1:
        waiting = self.askers.get(key)
        if waiting is None:
            self.askers[key] = [session]
            self.ask_placement(key)
        else:
            waiting.append(session)
        return 0

    def placed(self, bytes key not None, int owner):
        """Handle the master's reply about the owner of a topic."""
        cdef Connection session
        self.owners[key] = owner
        for session in self.askers.pop(key, ()):
            session.wake()

    cdef int wait_for_peer(self, Connection session) except -1:
        if not session.waiting_since:
            session.waiting_since = self.scheduler.now
            session.set_timer()
        self.peer_waiters.append(session)
        return 0

    def peer_up(self, int peer, generation):
        cdef Connection session
        self.mesh.peer_up(peer, generation)
        waiting = self.peer_waiters
        self.peer_waiters = []
        for session in waiting:
            session.waiting_since = 0
            session.wake()

    def peer_down(self, int peer):
        self.mesh.peer_down(peer)

    # -- connection migration --

    cdef bint may_lose_more(self) noexcept:
        """Return whether another producer may migrate now.

        Without this limit, many producers would migrate to an idle owner before its load figure
        included the first producer.
        """
        return self.lost < MAX_MIGRATIONS or self.scheduler.now - self.lost_since >= SECOND

    cdef int lose(self, Connection session, int worker) except -1:
        """Schedule a session's migration for the end of the turn."""
        if self.scheduler.now - self.lost_since >= SECOND:
            self.lost = 0
            self.lost_since = self.scheduler.now
        self.lost += 1
        self.migrations.append((session, worker))
        return 0

    cdef void begin_departure(self, Connection session, int worker) noexcept:
        """Record that a consumer migrates to the owner of its topic."""
        session.subscribes_at = worker
        self.departures[worker] += 1

    cdef void end_departure(self, Connection session) noexcept:
        """Handle the end of a consumer's migration: it left, stayed or was closed."""
        if session.subscribes_at >= 0:
            self.departures[session.subscribes_at] -= 1
            session.subscribes_at = -1

    cdef bint may_gain_consumer(self, int worker) noexcept:
        """Return whether another worker serves hardly more consumers than this one. Those that are
        migrating there count as arrived."""
        cdef Shared shared = self.mesh.shared
        cdef int ours = shared.served(self.index)
        return shared.served(worker) + self.departures[worker] <= ours + 1 + ours // SPREAD

    cdef void count_consumer(self, Connection session, bint on) noexcept:
        """Update the numbers of consumers in the worker's slot."""
        if self.mesh is not None and session.counted != on:
            session.counted = on
            self.mesh.count_consumer(session.remote, 1 if on else -1)

    # -- sessions --

    cdef int add(self, Connection session) except -1:
        cdef Share share = self.shares.get(session.address)
        if share is None:
            share = self.shares[session.address] = Share()
        share.sessions += 1
        session.share = share
        self.sessions.add(session)
        return 0

    cdef int remove(self, Connection session) except -1:
        """Remove a closed session, which has released its input."""
        self.sessions.discard(session)
        self.end_departure(session)
        if self.winding_down:
            self.leaving.discard(session)
            if not self.leaving and self.on_left is not None:
                self.on_left()
        self.closed.append(session)
        session.share.sessions -= 1
        if session.share.sessions == 0:
            del self.shares[session.address]
        return 0

    cdef int leave_later(self, Connection session) except -1:
        """Record a session that will end while nsqd winds down."""
        self.leaving.add(session)
        return 0

    # -- input budget --

    cdef bint is_over(self, Connection session) noexcept:
        """Return whether there is too much unfinished input in total, or from the session's
        address."""
        return (self.input_bytes > self.max_input_bytes
                or session.share.input_bytes > self.max_share)

    cdef int64_t max_silence(self) except -1:
        """Return how long the favoured session may be silent: less if many are waiting."""
        return max(FAVOUR // max(<int64_t>len(self.starved) // 4, 1), MIN_FAVOUR)

    cdef bint favours(self, Connection session):
        """Return whether a session may be read beyond the budget.

        Only one session at a time may; without such a session, no input would ever become complete
        and be released.
        """
        if self.favoured is None:
            self.favoured = session
            self.favoured_at = self.scheduler.now
            session.set_timer()
        return self.favoured is session

    cdef int input_grew(self, Connection session, int64_t n) except -1:
        self.input_bytes += n
        session.share.input_bytes += n
        return 0

    cdef int input_shrank(self, Connection session, int64_t n) except -1:
        cdef bint was_over = self.is_over(session)
        self.input_bytes -= n
        session.share.input_bytes -= n
        if session is self.favoured:
            self.favoured = None
        if self.starved and (self.favoured is None or (was_over and not self.is_over(session))):
            self.feed_starved()
        return 0

    cdef int lose_favour(self, Connection session) except -1:
        """Favour a different session, because this one is waiting for something other than
        input."""
        if session is self.favoured:
            self.favoured = None
            return self.feed_starved()
        return 0

    cdef int feed_starved(self) except -1:
        """Resume reading from sessions within the budget, and from the favoured session."""
        cdef Connection session
        cdef Py_ssize_t _i
        while self.starved and self.favoured is None:
            # Choose sessions from both ends alternately, so that neither old nor new sessions
            # starve the others.
            self.newest_next = not self.newest_next
            session = self.starved.pop() if self.newest_next else self.starved.popleft()
            session.starved = False
            session.check_appetite()
        for _i in range(len(self.starved)):
            if self.input_bytes > self.max_input_bytes:
                break
            session = self.starved.popleft()
            session.starved = False
            session.check_appetite()        # the session may starve again because of its address
        return 0

    cdef int drop_silent(self) except -1:
        """End the silent sessions that use up the budget, because other sessions are waiting for
        input."""
        cdef Connection session
        for session in list(self.sessions):
            session.drop_if_silent(self.scheduler.now - FAVOUR)
        return 0

    # -- negotiation --

    cdef bint may_negotiate(self, Connection session, size_t size) except -1:
        """Return whether a session may negotiate or query limits in this turn; if not, it resumes
        in the next turn.

        Any client may send IDENTIFY repeatedly, and parsing it costs as much as a thousand
        messages.
        """
        cdef size_t cost = size + NEGOTIATE_COST
        if self.negotiating and self.negotiating + cost > NEGOTIATE_BYTES:
            self.postponed.append(session)
            return False
        self.negotiating += cost
        return True

    cdef bint may_create(self, Connection session) except -1:
        """Return whether a session may create a topic in this turn; if not, it resumes in the next
        turn.

        Publishes received together may name thousands of new topics, and each new topic costs as
        much as hundreds of messages.
        """
        if self.created >= TOPICS_AT_ONCE:
            self.postponed.append(session)
            return False
        self.created += 1
        return True


@cython.no_gc_clear      # __dealloc__ needs the manager
cdef class Connection(Consumer):
    def __cinit__(self, ManagerState manager not None, Transport transport not None,
                  str remote_address not None, *args, **kwargs):
        self.timer.node.index = HEAP_NOWHERE
        self.timer.owner = <void *>self
        self.manager = manager
        self.transport = transport
        transport.session = self
        self.remote_address = remote_address
        self.address = remote_address.rpartition(":")[0]
        self.client_id = self.hostname = self.address.strip("[]")
        self.subscribes_at = -1
        self.user_agent = self.topology_region = self.topology_zone = ""
        self.locality = ANYWHERE
        self.msg_timeout = manager.msg_timeout
        self.output_buffer_size = 16384
        self.output_buffer_timeout = manager.options.output_buffer_timeout
        self.connected_at = manager.scheduler.wall
        self.last_command = manager.scheduler.now
        self.output = Output()
        self.reading = True

    def __dealloc__(self):
        self.drop_tickets()
        free(self.tickets)
        free(self.kept)
        if self.timer.node.index != HEAP_NOWHERE and self.manager is not None:
            heap_remove(&self.manager.timers, &self.timer.node)

    # -- the session manager's lists --

    cdef void become_dirty(self) noexcept:
        self.dirty = True
        self.manager.dirty.append(self)

    cdef void wake(self) noexcept:
        """Schedule resume() for this turn."""
        if not self.resumable:
            self.resumable = True
            self.manager.resumable.append(self)

    # -- frames --

    @cython.final
    cdef int put_frame(self, int type, const uint8_t *data, size_t n) except -1:
        if self.closed:
            return 0
        if self.relaying is not None:
            self.put_aside(type, data, n)
        else:
            self.output.put_frame(type, data, n)
        self.touch_dirty()
        return 0

    @cython.final
    cdef int put_ok(self) except -1:
        if self.closed or self.relaying is not None:
            return self.put_frame(RESPONSE, b"OK", 2)
        self.output.put_ok()
        self.touch_dirty()
        return 0

    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1:
        """Queue a frame until the current message frame from another worker is complete."""
        cdef Output aside = Output()
        aside.put_frame(type, data, n)
        if self.aside is None:
            self.aside = bytearray()
        self.aside += aside.buffer[:aside.end]
        return 0

    cdef int respond(self, const uint8_t *data, size_t n) except -1:
        """Answer a command: immediately if no earlier command is unanswered."""
        if self.ticket_count == 0:
            return self.put_frame(RESPONSE, data, n)
        self.take_ticket(NULL, 0)
        self.answer(self.ticket_base + self.ticket_count - 1, ANSWERED,
                    PyBytes_FromStringAndSize(<const char *>data, n))
        return 0

    cdef Parsed fatal(self, bytes text) except RAISED:
        """Answer with a fatal error in order, execute no more commands, then end the session."""
        self.log_error(text)
        if self.ticket_count:
            self.take_ticket(NULL, 0)
            self.stopping = True
            self.answer(self.ticket_base + self.ticket_count - 1, FAILED, text)
        else:
            self.put_frame(ERROR, text, len(text))
            self.stop()
        return STOPPED

    cdef Parsed invalid_state(self, const char *command) except RAISED:
        return self.fatal(b"E_INVALID cannot %s in current state" % command)

    cdef int log_error(self, bytes text) except -1:
        """Log an error that the client receives."""
        cdef str shown = text.decode("utf-8", "replace")
        events.client_error(self.manager.log, client=self.remote_address, error=shown)
        return 0

    # -- tickets --

    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0:
        """Take a ticket in the queue of answers; return its number."""
        cdef Ticket *grown
        cdef Ticket *ticket
        cdef uint32_t i
        if self.ticket_count == self.ticket_room:
            grown = <Ticket *>malloc((2 * self.ticket_room + 8) * sizeof(Ticket))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.ticket_count):
                grown[i] = self.tickets[(self.ticket_first + i) % self.ticket_room]
            free(self.tickets)
            self.tickets = grown
            self.ticket_first = 0
            self.ticket_room = 2 * self.ticket_room + 8
        ticket = &self.tickets[(self.ticket_first + self.ticket_count) % self.ticket_room]
        ticket.state = WAITING
        ticket.command = command
        ticket.forwarded = <uint32_t>forwarded
        ticket.text = NULL
        self.forwarded += forwarded
        self.ticket_count += 1
        return self.ticket_base + self.ticket_count - 1

    cdef uint64_t take_silent_ticket(self) except? 0:
        """Take a ticket for an answer that is not sent to the client."""
        return self.take_ticket(SILENT, 0)

    cdef int answer(self, uint64_t number, TicketState state, bytes text) except -1:
        """Set the answer of a ticket; send all known answers at the front of the queue."""
        cdef Ticket *ticket
        if self.closed or number < self.ticket_base \
                or number >= self.ticket_base + self.ticket_count:
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        give_answer(ticket, state, text)
        if number == self.ticket_base:
            self.call_tickets()
        return 0

    cdef int call_tickets(self) except -1:
        cdef Ticket ticket
        cdef bytes text
        while self.ticket_count:
            ticket = self.tickets[self.ticket_first]
            if ticket.state == WAITING:
                break
            self.ticket_first = (self.ticket_first + 1) % self.ticket_room
            self.ticket_count -= 1
            self.ticket_base += 1
            self.forwarded -= ticket.forwarded
            text = None
            if ticket.text != NULL:
                text = <bytes>ticket.text
                drop_answer(&ticket)
            if ticket.state == FAILED or ticket.state == REFUSED:
                self.put_frame(ERROR, text, len(text))
                if self.lenient or ticket.state == REFUSED:
                    continue
                self.drop_tickets()
                self.stop()
                return 0
            if ticket.command == SILENT or ticket.state == RELAYED:
                continue
            if text is None:
                self.put_ok()
            elif len(text) >= BY_REFERENCE and self.relaying is None:
                self.output.put_whole(RESPONSE, text)
                self.touch_dirty()
            else:
                self.put_frame(RESPONSE, text, len(text))
        if self.blocked and (self.ticket_count == 0 or self.can_pipeline()):
            self.wake()
        elif self.ticket_count == 0 and self.stopping:
            self.touch_dirty()
        return 0

    cdef void drop_tickets(self) noexcept:
        cdef uint32_t i
        for i in range(self.ticket_count):
            drop_answer(&self.tickets[(self.ticket_first + i) % self.ticket_room])
        self.ticket_base += self.ticket_count
        self.unanswered += self.ticket_count
        self.ticket_count = 0

    cdef bint can_pipeline(self) noexcept:
        return self.ticket_count < MAX_TICKETS and self.forwarded < MAX_FORWARDED

    cdef int publish_done(self, uint64_t number, str error) except -1:
        cdef Ticket *ticket
        cdef bytes command
        if error is None:
            return self.answer(number, ANSWERED, None)
        if self.closed or number < self.ticket_base:
            return 0
        if error is _UNKNOWN:
            self.drop_tickets()
            self.stop()
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        command = ticket.command
        return self.answer(number, FAILED, b"E_%s_FAILED %s failed %s" % (
            command, command, error.encode("utf-8", "surrogateescape")))

    # -- unfinished input --

    cdef int keep(self, const uint8_t *data, size_t n) except -1:
        """Keep unfinished input. Memory usage grows with the received bytes, never with the
        announced size."""
        cdef size_t have = self.kept_end - self.kept_start
        cdef size_t capacity = self.kept_capacity
        cdef uint8_t *grown
        if self.kept_end + n > capacity:
            if self.kept_start:
                memmove(self.kept, self.kept + self.kept_start, have)
                self.kept_start = 0
                self.kept_end = have
            if have + n > capacity:
                capacity = max(have + n, capacity + capacity // 2)
                grown = <uint8_t *>realloc(self.kept, capacity)
                if grown == NULL:
                    raise MemoryError()
                self.manager.input_grew(self, capacity - self.kept_capacity)
                self.kept = grown
                self.kept_capacity = capacity
        memcpy(self.kept + self.kept_end, data, n)
        self.kept_end += n
        self.heard_at = self.manager.scheduler.now
        if self.unauthenticated:
            self.count_unauthenticated()
        return 0

    cdef int count_unauthenticated(self) except -1:
        """Count the kept input of a client that has not authenticated yet, and end the sessions
        that exceed the limit for unauthenticated clients."""
        cdef Connection session
        pool = self.manager.unauthenticated
        pool.hold(self, self.address, self.kept_capacity, droppable=not self.blocked)
        for session in pool.excess(self.address):
            session.fatal(b"E_INVALID too much unfinished input before AUTH")
        return 0

    cdef int drop_kept(self) except -1:
        cdef int64_t capacity = self.kept_capacity
        free(self.kept)
        self.kept = NULL
        self.kept_start = self.kept_end = self.kept_capacity = 0
        self.manager.input_shrank(self, capacity)
        if self.unauthenticated:
            self.manager.unauthenticated.hold(self, self.address, 0)
        return 0

    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED:
        """Wait for about `missing` more bytes of a body; `error` is used if the input ends before
        that."""
        self.missing = missing
        self.unread_error = error
        return MORE

    cdef int check_appetite(self) except -1:
        """Decide whether to read more input.

        Do not read while parsing is waiting, or while the worker or the client's address has too
        much unfinished input to which this session contributes.
        """
        cdef bint starve = (self.kept_capacity > KEPT_FREELY
                            and self.manager.is_over(self)
                            and not self.quota_due and not self.manager.favours(self))
        cdef bint wanted = not (self.blocked or (self.stopping and not self.lingers) or self.eof
                                or starve or self.upgrading or self.manager.resting)
        if starve and not self.starved:
            self.starved = True
            self.manager.starved.append(self)
        if wanted != self.reading and not self.closed:
            self.reading = wanted
            if wanted:
                self.heard_at = self.manager.scheduler.now
            self.transport.watch_input(wanted)
        return 0

    cdef int drop_if_silent(self, int64_t since) except -1:
        """End the session if it has much unfinished input and the client has sent no data since
        then."""
        if (self.reading and self.kept_capacity > KEPT_FREELY and self.heard_at <= since
                and self.unread_error is not None and not self.blocked
                and self.manager.is_over(self)):
            self.fatal(self.unread_error)
        return 0

    # -- time --

    cdef int64_t patience(self) noexcept:
        """Return how long a client may be silent before its first command, or while its session is
        ending."""
        return 2 * self.heartbeat_interval or MAGIC_TIMEOUT

    cdef int set_timer(self) except -1:
        """Set the timer to the next due time."""
        cdef int64_t due = NEVER
        if self.closed:
            return 0
        if self.stopping:
            due = self.last_command + self.patience()
        elif self.remote or self.upgrading:
            pass
        elif not self.magic_seen:
            due = self.last_command + self.patience()
        elif self.heartbeat_interval:
            due = min(self.next_heartbeat, self.last_command + 2 * self.heartbeat_interval)
            if self.stuck_since:
                due = min(due, self.stuck_since + self.heartbeat_interval)
        if self.waiting_since:
            due = min(due, self.waiting_since + PEER_TIMEOUT)
        if self.log_due:
            due = min(due, self.log_due)
        if self.quota_due:
            due = min(due, self.quota_due)
        if self.manager.favoured is self:
            due = min(due, self.manager.favoured_at + self.manager.max_silence())
        if due == NEVER:
            if self.timer.node.index != HEAP_NOWHERE:
                heap_remove(&self.manager.timers, &self.timer.node)
        elif self.timer.node.index == HEAP_NOWHERE:
            if heap_push(&self.manager.timers, &self.timer.node, due) < 0:
                raise MemoryError()
        else:
            heap_update(&self.manager.timers, &self.timer.node, due)
        return 0

    cdef int check_peer(self) except -1:
        """End the session if it has waited too long for the worker of its topic to restart."""
        cdef const uint8_t *line = self.kept + self.kept_start
        cdef const uint8_t *end
        cdef Word name
        if not self.waiting_since:
            return 0
        if self.manager.scheduler.now < self.waiting_since + PEER_TIMEOUT:
            return 0
        self.waiting_since = 0
        end = <const uint8_t *>memchr(line, 10, self.kept_end - self.kept_start)
        if end == NULL:
            return 0
        split_line(line, end - line, &name, 1)
        command = word_bytes(&name)
        self.fatal(b"E_%s_FAILED %s failed exiting" % (command, command))
        return 0

    # -- the end --

    cdef int stop(self) except -1:
        """Execute no more commands; close when the remaining output has been sent."""
        self.stopping = True
        self.lingers = False
        # The client must receive the output within the time limit for silent clients.
        self.last_command = self.manager.scheduler.now
        self.unsubscribe()
        if self.kept != NULL:
            self.drop_kept()
        self.touch_dirty()
        self.set_timer()
        if self.reading and not self.closed:
            self.reading = False
            self.transport.watch_input(False)
        return 0

    cdef int unsubscribe(self) except -1:
        cdef Channel channel = <Channel>self.channel
        cdef Topic topic = self.subscribed
        self.subscribed = None
        self.manager.count_consumer(self, False)
        if channel is not None:
            channel.remove_consumer(self)
            topic.consumer_left(channel)
        return 0

    cdef int detach(self) except -1:
        """Release the transport of a closed session. The session and the transport refer to each
        other, so otherwise only a garbage collection would free them."""
        self.transport = CLOSED
        return 0
