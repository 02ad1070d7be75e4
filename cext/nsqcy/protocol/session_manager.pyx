"""Session manager: the sessions of a worker.

Schedules the sessions, maps topics to their owners, and contains the limits that all sessions
share. Uses only the Connection interface of a session, and knows nothing about the protocol.
"""

from collections import deque

cimport cython
from libc.stdlib cimport free, malloc

from nsqcy.base.heap cimport HeapNode, heap_first_due, heap_free, heap_init, heap_peek
from nsqcy.channels.scheduler_state cimport Timer
from nsqcy.ipc.ring cimport Shared
from nsqcy.protocol.connection cimport Share, Transport

from nsqcy.config.publish_limits import limits_of, publish_limits
from nsqcy.logging import events
from nsqcy.net.input_pool import InputPool


cdef int64_t SECOND = 1000000000
cdef int64_t FAVOUR = 2 * SECOND                # maximum silence of the favoured session
cdef int64_t MIN_FAVOUR = SECOND // 5           # the same, if many sessions are waiting

cdef enum:
    MAX_MIGRATIONS = 16        # migrations per second before producers must wait
    HEAVY = 850                 # permille: a worker that runs longer gives producers away
    LIGHTER = 80                # percent of its running time: a worker that runs less takes them
    DRAIN_BYTES = 1048576       # maximum bytes drained from the rings per turn
    NEGOTIATE_BYTES = 65536     # maximum cost of the IDENTIFYs per turn: their bytes, and for each
    NEGOTIATE_COST = 1024
    TOPICS_AT_ONCE = 64         # maximum new topics per turn


cdef class SessionManager:
    def __init__(self, *, Shard shard not None, Mesh mesh, int index, options, negotiate,
                 ask_placement, migrate=None, auth=None, log):
        """
        mesh: the streams to other workers; None if this is the only worker
        options: the daemon's options
        negotiate: negotiate(identify body, options, session) -> identity, or ClientError
        ask_placement: called with the name of a topic whose owner is not known; placed() follows
        migrate: called with a session and the worker that it should migrate to; its leave() or
            stay() follows
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
        # The rest is reserved for sessions that are read even above the budget.
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
        if self.mesh is None:
            return self.index
        owner = self.owners.get(key)
        return -1 if owner is None else <int>owner

    def owner(self, bytes key not None):
        """Return the worker that owns a topic, or None if this worker knows no owner."""
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

    cdef int compare_loads(self) except -1:
        """Once a second, find the worker that takes producers from this one: the worker that ran
        least, if it ran clearly less than this one.

        Only a worker that runs nearly all the time gives producers away. If workers are waiting for
        CPUs instead, forwarding would cost CPU time that no worker has to spare.
        """
        cdef Shared shared = self.mesh.shared
        cdef int least = shared.ran(self.index) * LIGHTER // 100
        cdef int worker
        self.compare_at = self.scheduler.now + SECOND
        self.lighter = -1
        if shared.ran(self.index) < HEAVY:
            return 0
        for worker in range(shared.workers):
            if worker != self.index and self.mesh.up(worker) and shared.ran(worker) < least:
                least = shared.ran(worker)
                self.lighter = worker
        return 0

    cdef bint may_lose_more(self) noexcept:
        """Return whether another producer may migrate now.

        Without this limit, many producers would migrate to an idle owner before its load figure
        included the first of them.
        """
        return self.lost < MAX_MIGRATIONS or self.scheduler.now - self.lost_since >= SECOND

    cdef int lose(self, Connection session, int owner) except -1:
        """Schedule a session's migration for the end of the turn."""
        if self.scheduler.now - self.lost_since >= SECOND:
            self.lost = 0
            self.lost_since = self.scheduler.now
        self.lost += 1
        self.migrations.append((session, owner))
        return 0

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
        if self.winding_down:
            self.leaving.discard(session)
            if not self.leaving and self.on_left is not None:
                self.on_left()
        self.closed.append(session)
        session.share.sessions -= 1
        if session.share.sessions == 0:
            del self.shares[session.address]
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

        One session at a time may; otherwise no input would ever become complete and be released.
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
        """Resume reading the sessions that the budget or the favour allows."""
        cdef Connection session
        cdef Py_ssize_t _i
        while self.starved and self.favoured is None:
            # From both ends in turn: neither old nor new sessions keep the others out.
            self.newest_next = not self.newest_next
            session = self.starved.pop() if self.newest_next else self.starved.popleft()
            session.starved = False
            session.check_appetite()
        for _i in range(len(self.starved)):
            if self.input_bytes > self.max_input_bytes:
                break
            session = self.starved.popleft()
            session.starved = False
            session.check_appetite()        # it may starve again because of its address
        return 0

    cdef int drop_silent(self) except -1:
        """End the silent sessions that use up the budget, because others are waiting for it."""
        cdef Connection session
        for session in list(self.sessions):
            session.drop_if_silent(self.scheduler.now - FAVOUR)
        return 0

    # -- negotiation --

    cdef bint may_negotiate(self, Connection session, size_t size) except -1:
        """Return whether a session may negotiate in this turn, or ask for limits; if not, it
        resumes in the next one.

        Any client may send an IDENTIFY, again and again, and parsing one costs as much as a
        thousand messages.
        """
        cdef size_t cost = size + NEGOTIATE_COST
        if self.negotiating and self.negotiating + cost > NEGOTIATE_BYTES:
            self.postponed.append(session)
            return False
        self.negotiating += cost
        return True

    cdef bint may_create(self, Connection session) except -1:
        """Return whether a session may create a topic in this turn; if not, it resumes in the next
        one.

        The publishes that are received at once may be to thousands of new topics. Each costs as
        much as hundreds of messages.
        """
        if self.created >= TOPICS_AT_ONCE:
            self.postponed.append(session)
            return False
        self.created += 1
        return True

    cdef int resume_postponed(self) except -1:
        """Start the budgets of the next turn, with the sessions that have waited for them."""
        cdef Connection session
        cdef list work = self.postponed
        self.negotiating = 0
        self.created = 0
        self.postponed = []
        for session in work:
            session.wake()
        return 0

    # -- turns --

    cdef int64_t turn(self) except? -1:
        """Do the end-of-turn work: timers, resumed sessions, topics, channels, output.

        Return the time of the next call (scheduler.now: immediately).
        """
        cdef int64_t due = 0
        cdef HeapNode *node
        cdef Connection session
        cdef list work
        cdef int _round
        cdef bint left = False
        if self.mesh is not None:
            # Only once per turn: clients may read answers before the turn ends, and a command that
            # follows an answer must see a later clock.
            left = self.mesh.drain(DRAIN_BYTES)
            if self.migrate is not None and self.scheduler.now >= self.compare_at:
                self.compare_loads()
        self.unauthenticated_input = 0
        if self.negotiating or self.created:
            self.resume_postponed()
        if self.undecoded:
            self.decode()
        for _round in range(4):
            while True:
                if heap_first_due(&self.timers) > self.scheduler.now:
                    break
                node = heap_peek(&self.timers)
                session = <Connection>(<Timer *>node).owner
                try:
                    session.on_timer()
                except Exception as error:
                    self.report(session, error)
            while self.resumable:
                work = self.resumable
                self.resumable = []
                for each in work:
                    session = <Connection>each
                    try:
                        session.resume()
                    except Exception as error:
                        self.report(session, error)
            due = self.shard.turn()
            if not self.resumable:
                break
        if self.migrations:
            work = self.migrations
            self.migrations = []
            for session, owner in work:
                self.migrate(session, owner)
        work = self.dirty
        self.dirty = []
        for each in work:
            session = <Connection>each          # a type check would cost as much as the flush
            session.dirty = False
            if session.closed or session.migrating:
                continue                        # the worker that takes the session sends its output
            try:
                session.transport.flush()
            except Exception as error:
                self.report(session, error)
        if self.closed:
            self.detach_closed()
        if self.scheduler.events is not None:
            self.tell_events()
        if self.mesh is not None:
            self.mesh.flush()
        if (left or self.resumable or self.dirty or self.undecoded or self.shard.has_work()
                or self.postponed):
            return self.scheduler.now
        due = min(due, heap_first_due(&self.timers))
        return due

    cdef int detach_closed(self) except -1:
        """Release the transports of closed sessions, now that none of their methods is running."""
        cdef Connection session
        cdef list work = self.closed
        self.closed = []
        for session in work:
            session.detach()
        return 0

    cdef int tell_events(self) except -1:
        """Publish message events. The resulting work is done in the next turn, or when the owner of
        their topic answers."""
        try:
            self.scheduler.events.flush()
        except Exception as error:
            events.events_failed(self.log, type(error).__name__, error=str(error))
        return 0

    cdef int decode(self) except -1:
        """Decode received input that exceeded a turn's work or was not needed earlier."""
        cdef Transport transport
        cdef list work = self.undecoded
        self.undecoded = []
        for transport in work:
            try:
                transport.read_on()
            except Exception as error:
                self.report(transport.session, error)
        return 0

    def run_turn(self, now, wall):
        """Run a complete turn, for tests and tools: set the clocks and do the work."""
        self.scheduler.now = now
        self.scheduler.wall = wall
        return self.turn()

    def report(self, Connection session, error):
        """Report an internal error in a session and end the session; other sessions continue."""
        events.session_failed(self.log, type(error).__name__, client=session.remote_address,
                              error=str(error))
        session.close()

    def producers(self):
        """Return the sessions of local clients that have published."""
        cdef Connection session
        return [session for session in self.sessions
                if session.has_published() and not session.remote and not session.lenient]

    def connections(self):
        """Return the number of clients connected to this worker."""
        cdef Connection session
        cdef Py_ssize_t count = 0
        for session in self.sessions:
            count += not session.remote and not session.lenient
        return count

    def quotas_changed(self):
        """Handle changed quotas: sessions that are waiting for quota try again."""
        cdef Connection session
        for session in self.sessions:
            session.quota_changed()

    # -- the end --

    def wind_down(self, on_left):
        """End the connections of producers, because nsqd exits: see Connection.wind_down().

        Forwarded publishes of other workers' producers are still executed. `on_left` is called,
        maybe more than once, when no producer is left.
        """
        cdef Connection session
        self.winding_down = True
        for session in list(self.sessions):
            session.wind_down()
        self.on_left = on_left
        if not self.leaving:
            on_left()

    cdef int leave_later(self, Connection session) except -1:
        """Note a session that will end while winding down."""
        self.leaving.add(session)
        return 0

    def close_sessions(self):
        """Close every connection, as nsqd does on exit; pending output is not sent."""
        cdef Connection session
        for session in list(self.sessions):
            session.close()
