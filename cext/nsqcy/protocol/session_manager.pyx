"""Session manager: runs the sessions of a worker.

Owns the order of work in a turn: timers, resumed sessions, topics, output. Ends the sessions when
nsqd exits. ManagerState contains the state that sessions share. Independent of commands and
sockets.
"""


cdef enum:
    HEAVY = 850                 # permille of time: a worker that runs longer transfers producers
    LIGHTER = 80                # percent of that worker's time: a worker that runs less takes them
    DRAIN_BYTES = 1048576       # maximum bytes drained from the rings per turn


cdef class SessionManager(ManagerState):
    # -- turns --

    cdef int64_t turn(self) except? -1:
        """Do the end-of-turn work: timers, resumed sessions, topics, channels, output.

        Return the time of the next call (scheduler.now: immediately).
        """
        cdef int64_t due = 0
        cdef HeapNode *node
        cdef Session session
        cdef list work
        cdef int _round
        cdef bint left = False
        if self.mesh is not None:
            # Drain the rings only once per turn: clients may read answers before the turn ends, and
            # a command that follows an answer must see a later clock.
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
                session = <Session>(<Timer *>node).owner
                try:
                    session.on_timer()
                except Exception as error:
                    self.report(session, error)
            while self.resumable:
                work = self.resumable
                self.resumable = []
                for each in work:
                    session = <Session>each
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
        # A type check of the sessions would cost as much as flushing them.
        if self.mesh is not None:
            # Other workers continue while this one makes its socket calls.
            for each in work:
                if (<Session>each).remote:
                    self.flush_output(<Session>each)
            self.mesh.flush()
        for each in work:
            if (<Session>each).dirty:
                self.flush_output(<Session>each)
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

    cdef inline int flush_output(self, Session session) except -1:
        session.dirty = False
        if session.closed or session.migrating:
            return 0                            # the worker that takes the session sends its output
        try:
            session.transport.flush()
        except Exception as error:
            self.report(session, error)
        return 0

    cdef int resume_postponed(self) except -1:
        """Start the budgets of the next turn, and resume the sessions that have waited for them."""
        cdef Session session
        cdef list work = self.postponed
        self.negotiating = 0
        self.created = 0
        self.postponed = []
        for session in work:
            session.wake()
        return 0

    cdef int compare_loads(self) except -1:
        """Once a second, find the worker that takes producers from this one: the worker that ran
        least, if it ran clearly less than this one.

        Only a worker that runs nearly all the time transfers producers. If workers are waiting for
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

    cdef int detach_closed(self) except -1:
        """Release the transports of closed sessions, now that none of their methods is running."""
        cdef Session session
        cdef list work = self.closed
        self.closed = []
        for session in work:
            session.detach()
        return 0

    cdef int tell_events(self) except -1:
        """Publish message events. The resulting work is done in the next turn, or when the owner of
        the events topic answers."""
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

    def report(self, Session session, error):
        """Report an internal error in a session and end the session; other sessions continue."""
        events.session_failed(self.log, type(error).__name__, client=session.remote_address,
                              error=str(error))
        session.close()

    # -- all sessions --

    def producers(self):
        """Return the sessions of local clients that have published."""
        cdef Session session
        return [session for session in self.sessions
                if session.has_published() and not session.remote and not session.lenient]

    def connections(self):
        """Return the number of clients connected to this worker."""
        cdef Session session
        cdef Py_ssize_t count = 0
        for session in self.sessions:
            count += not session.remote and not session.lenient
        return count

    def quotas_changed(self):
        """Handle changed quotas: sessions that are waiting for quota retry."""
        cdef Session session
        for session in self.sessions:
            session.quota_changed()

    # -- the hand-over to another process --

    def stop_reading(self):
        """Execute no more commands of clients, and read no more input; answers and messages are
        still sent. Sessions for other parts of this worker continue."""
        cdef Session session
        self.resting = True
        for session in list(self.sessions):
            session.check_appetite()

    def resume_reading(self):
        """Continue after stop_reading()."""
        cdef Session session
        self.resting = False
        for session in list(self.sessions):
            if session.blocked:
                session.wake()
            session.check_appetite()

    @property
    def is_at_rest(self):
        """Whether all sessions can be packed; ask at the end of a turn."""
        cdef Session session
        if not self.resting or self.resumable or self.migrations:
            return False
        for session in self.sessions:
            if not HandOver(session).is_at_rest():
                return False
        return True

    @property
    def is_upgrading(self):
        """Whether a client's TLS handshake is under way."""
        cdef Session session
        for session in self.sessions:
            if session.upgrading and not session.closed:
                return True
        return False

    def clients(self):
        """Return the sessions to pack: those of local clients, and far ends."""
        cdef Session session
        return [session for session in self.sessions
                if not session.closed and not session.is_internal()]

    # -- the end --

    def wind_down(self, on_left):
        """End the connections of producers, because nsqd exits: see Session.wind_down().

        Forwarded publishes of other workers' producers are still executed. `on_left` is called,
        possibly more than once, when no producer is left.
        """
        cdef Session session
        self.winding_down = True
        for session in list(self.sessions):
            session.wind_down()
        self.on_left = on_left
        if not self.leaving:
            on_left()

    def close_sessions(self):
        """Close every connection, as nsqd does on exit; pending output is not sent."""
        cdef Session session
        for session in list(self.sessions):
            session.close()
