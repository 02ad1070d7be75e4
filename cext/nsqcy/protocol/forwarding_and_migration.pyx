"""Forwarding: the worker that executes a command, and the answers from other workers.

Routing: the topic of the latest publish is cached, so the next publish finds it immediately. The
messages published to each topic are counted.

Forwarding: the owner of a topic runs a session at the far end of a stream. It receives raw commands
and returns raw frames. Messages are relayed to the client immediately; other frames are answers and
are sent in order (see Connection).

Migration: a plain session with nothing outstanding may migrate once. If it migrates to the owner of
its topic, its commands are no longer forwarded. A busy owner gives producers to a less busy worker:
with messages published one by one, socket calls take most of the CPU time. The master passes on
the socket and the packed state (see nsqcy.nsqd.worker.engine). This module decides when a migration
pays off; it does not pass on sockets.

Does not interpret commands.
"""

# Forwarding: the worker that executes a command, and the answers from other workers.
#
#   client ══socket══ Session ── ForwardingStream ══ rings ══ FarEnd ── Session (owner)


cdef enum:
    HELLO_TEXT = 512            # maximum characters sent to the far end per client string
    MIN_RELAYED = 65536         # minimum size of answers that are relayed unassembled
    OK_FRAME = 10               # bytes of an OK frame
    MAX_MIGRATION = 65536       # maximum unread or unsent bytes in a migrating session
    MAX_GIVEN = 4096            # maximum bytes of a command after which a producer is given away
    MIGRATION_BUSY = 600        # permille of the last second; a busier owner accepts no producers
    MIGRATION_BYTES = 1048576   # publishes to one owner after which a producer migrates there, or
    MIGRATION_FORWARDS = 256    # this number of publishes, over a time long enough for their cost
cdef int64_t MIGRATION_AFTER = 2 * SECOND       # until the load figure includes the producer

cdef const char *OK = b"\0\0\0\6\0\0\0\0OK"

cdef Py_ssize_t live_streams = 0


cdef inline bint is_refusal(bytes error):
    """Return whether a client may continue after this error.

    After a failed publish, it may not, because later pipelined publishes must not be executed.
    """
    return error.startswith(b"E_LOG_") and not error.startswith(b"E_LOG_PUB_")


cdef class ForwardingStream(StreamEnd):
    def __cinit__(self):
        global live_streams
        if NSQCY_DEBUG:
            live_streams += 1

    def __dealloc__(self):
        global live_streams
        if NSQCY_DEBUG:
            live_streams -= 1

    cdef int send(self, const uint8_t *data, size_t n) except -1:
        """Send commands to the owner; bytes beyond the stream's credit wait here."""
        cdef size_t taken = 0
        if not len(self.unsent):
            taken = self.stream.send(data, n)
        if taken < n:
            self.unsent += data[taken:n]
        return 0

    cdef int on_writable(self) except -1:
        cdef const uint8_t *data = self.unsent
        cdef int taken
        if len(self.unsent):
            taken = self.stream.send(data, len(self.unsent))
            del self.unsent[:taken]
        if self.session.blocked and len(self.unsent) <= STREAM_BACKLOG:
            self.session.wake()
        return 0

    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        """Handle frames from the owner, split at any byte; relay messages to the client
        immediately."""
        cdef size_t step
        cdef Forwarder session = self.session
        if session.closed:
            self.stream.consumed(n)
            return 0
        self.unconsumed += n
        while n:
            if self.header_have == 0:
                step = self.take_whole(data, n)
                data += step
                n -= step
            if self.header_have < FRAME_HEADER:
                step = min(n, <size_t>(FRAME_HEADER - self.header_have))
                memcpy(self.header + self.header_have, data, step)
                self.header_have += <uint32_t>step
                data += step
                n -= step
                if self.header_have < FRAME_HEADER:
                    break
                self.frame_left = load_be32(self.header) - 4
                self.frame_type = <int32_t>load_be32(self.header + 4)
                if self.frame_type == MESSAGE or self.may_relay():
                    session.output.put(self.header, FRAME_HEADER)
                    session.relaying = self
            step = min(n, <size_t>self.frame_left)
            if session.relaying is self:
                session.output.put(data, step)
            else:
                self.answer += data[:step]
            data += step
            n -= step
            self.frame_left -= <uint32_t>step
            if self.frame_left == 0:
                self.header_have = 0
                self.end_frame()
        session.touch_dirty()
        if session.upstream is not self and (
                session.relaying is not self or session.output.pending() < OUTPUT_ENOUGH):
            self.stream.consumed(self.unconsumed)
            self.unconsumed = 0
        return 0

    cdef size_t take_whole(self, const uint8_t *data, size_t n) except? 0:
        """Fast path for complete messages and OKs, the most frequent frames; return the number of
        bytes consumed."""
        cdef Forwarder session = self.session
        cdef size_t at = 0
        cdef size_t step = frame_bytes(data, n, MESSAGE)
        if step:
            while step:
                at += step
                session.message_count += 1
                step = frame_bytes(data + at, n - at, MESSAGE)
            session.output.put(data, at)
            return at
        while (n - at >= OK_FRAME and memcmp(data + at, OK, OK_FRAME) == 0
                and self.expected_first < <size_t>len(self.expected)):
            session.answer(self.next_ticket(), ANSWERED, None)
            at += OK_FRAME
        return at

    cdef bint may_relay(self) noexcept:
        """Return whether the next frame is a large answer that can be relayed immediately.

        This requires that the answer is next in order, and that no other frame can come before its
        end.
        """
        cdef Forwarder session = self.session
        return (self.frame_type == RESPONSE and self.frame_left >= MIN_RELAYED
                and session.state == INIT and session.relaying is None
                and self.expected_first < <size_t>len(self.expected)
                and <uint64_t>self.expected[self.expected_first] == session.ticket_base)

    cdef uint64_t next_ticket(self) except? 0:
        """Return the ticket of the next answer."""
        cdef uint64_t ticket = self.expected[self.expected_first]
        self.expected_first += 1
        if self.expected_first > 64 and 2 * self.expected_first > <size_t>len(self.expected):
            del self.expected[:self.expected_first]
            self.expected_first = 0
        return ticket

    cdef int end_frame(self) except -1:
        cdef Forwarder session = self.session
        cdef bytes answer
        cdef uint64_t ticket
        if session.relaying is self:
            session.relaying = None
            if session.aside is not None:
                session.output.put(session.aside, len(session.aside))
                session.aside = None
            if self.frame_type == MESSAGE:
                session.message_count += 1
            else:
                session.answer(self.next_ticket(), RELAYED, None)
            return 0
        answer = bytes(self.answer)
        self.answer = bytearray()
        if self.frame_type == ERROR and answer.startswith(
                (b"E_FIN_FAILED ", b"E_REQ_FAILED ", b"E_TOUCH_FAILED ",
                 b"E_DEAD_LETTER_FAILED ")):
            session.put_frame(ERROR, answer, len(answer))
        elif self.expected_first < <size_t>len(self.expected):
            ticket = self.next_ticket()
            if self.frame_type == ERROR:
                session.answer(ticket, REFUSED if is_refusal(answer) else FAILED, answer)
            else:
                session.answer(ticket, ANSWERED, None if answer == b"OK" else answer)
        elif self.frame_type == ERROR:
            session.fatal(answer)
        return 0

    cdef int on_closed(self, bint aborted) except -1:
        """Handle a stream closed by its owner, or by the owner's crash.

        A lost answer or subscription ends the connection; an idle stream is only removed.
        """
        cdef Forwarder session = self.session
        self.up = False
        if session is None or session.closed:
            return 0
        session.streams.pop(self.peer, None)
        if session.upstream is self or self.expected_first < <size_t>len(self.expected):
            session.upstream = None
            session.drop_tickets()
            session.stop()
        return 0

    cdef int leave(self) except -1:
        if self.up:
            self.up = False
            self.stream.close()
        self.session = None
        return 0


cdef class Forwarder(Authorizer):
    def __cinit__(self):
        self.streams = {}
        self.pub_counts = {}

    # -- the topic of a command and its owner --

    @cython.final
    cdef bint take_topic(self, Word *name) except -1:
        """Set the topic of the latest publish; if the name is invalid, change nothing and return
        False."""
        if self.same_topic(name):
            return True
        if not name_is_valid(name.at, name.length):
            return False
        self.note_counts()
        self.topic_key = word_bytes(name)
        self.topic = None
        self.topic_owner = -1
        self.may_publish_until = 0
        return True

    cdef int find_owner(self) except? -1:
        """Return the owner, like route(), for a topic that is not cached."""
        cdef int owner
        if self.topic_owner < 0:
            self.topic_owner = self.manager.owner_of(self.topic_key)
        owner = self.topic_owner
        if owner < 0:
            self.manager.ask(self, self.topic_key)
        elif owner != self.manager.index:
            if not self.manager.is_up(owner):
                self.manager.wait_for_peer(self)
                return -1
        elif self.topic is None or self.topic.gone:
            return self.find_topic()
        return owner

    cdef int find_topic(self) except? -1:
        if self.topic_key not in self.manager.shard.topics and not self.manager.may_create(self):
            return -1
        self.topic = self.manager.shard.find_or_create(self.topic_key)
        return NO_ROOM if self.topic is None else self.manager.index

    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED:
        quoted = quote(word_bytes(name)).encode("utf-8", "surrogateescape")
        return self.fatal(b"%s %s is not valid" % (prefix, quoted))

    cdef bytes no_room(self, const char *command):
        """Return the error for a topic that cannot be created."""
        return b'E_BAD_TOPIC %s topic "%s" exceeds limit of %d topics' % (
            <bytes>command, self.topic_key, self.manager.options.max_topics)

    cdef int note_counts(self) except -1:
        """Move the message count of the latest publish's topic into pub_counts."""
        if self.topic_count:
            name = self.topic_key.decode()
            self.pub_counts[name] = self.pub_counts.get(name, 0) + self.topic_count
            self.counted += self.topic_count
            self.topic_count = 0
        return 0

    cdef bint has_published(self) noexcept:
        """Return whether the client has published to any topic."""
        return self.topic_count != 0 or len(self.pub_counts) != 0

    # -- streams to other workers --

    cdef ForwardingStream stream_to(self, int peer):
        cdef ForwardingStream forwarding = self.streams.get(peer)
        if forwarding is None:
            forwarding = ForwardingStream.__new__(ForwardingStream)
            forwarding.session = self
            forwarding.peer = peer
            forwarding.up = True
            forwarding.expected = []
            forwarding.unsent = bytearray()
            forwarding.answer = bytearray()
            forwarding.stream = self.manager.mesh.open(peer, self.hello(), forwarding)
            self.streams[peer] = forwarding
            forwarding.send(b"  V2", 4)
        return forwarding

    cdef int close_streams(self) except -1:
        """Close the streams to other workers; outstanding commands on them stay unanswered."""
        cdef ForwardingStream forwarding
        for forwarding in self.streams.values():
            forwarding.leave()
        self.streams = {}
        return 0

    cdef Parsed forward(self, const uint8_t *line, size_t n) except RAISED:
        self.upstream.send(line, n)
        return NEXT

    cdef Parsed fatal(self, bytes text) except RAISED:
        """Answer with a fatal error. If another worker owns the client's channel, wait for its
        answers to earlier commands."""
        if self.upstream is not None and not self.ticket_count:
            self.upstream.expected.append(self.take_silent_ticket())
            self.upstream.send(b"NOP ANSWERED\n", 13)
        return Connection.fatal(self, text)

    # -- facts about the client for the owner --

    cdef bytes hello(self):
        """Return the facts that the owner needs about a client of this worker.

        A stream begins with a single record, so strings from the client or its auth server are
        truncated.
        """
        facts = negotiated(self) | {
            "auth_identity": self.auth_identity,
            "auth_identity_url": self.auth_identity_url,
        }
        for name, value in facts.items():
            if isinstance(value, str):
                facts[name] = value[:HELLO_TEXT]
        return json.dumps(facts | {
            "format": formats.MESH.number,
            "remote_address": self.remote_address,
            "durability": self.durability,
            "connected_at": self.connected_at,
            "authed": bool(self.authed),
            "lenient": bool(self.lenient),
            "transfers": bool(self.transfers),
            "tls": self.tls,
            "snappy": bool(self.snappy),
            "deflate": bool(self.deflate),
        }).encode()

    def adopt_hello(self, hello):
        """Become the far end of a session on the worker that sent this hello."""
        self.remote = True
        self.guarded = False
        self.lenient = hello["lenient"]
        self.transfers = hello["transfers"]
        self.tls = hello["tls"]
        self.snappy = hello["snappy"]
        self.deflate = hello["deflate"]
        self.barred = False
        self.set_limits()
        self.authed = hello["authed"]
        self.auth_identity = hello["auth_identity"]
        self.auth_identity_url = hello["auth_identity_url"]
        self.adopt_elsewhere(hello)
        self.set_timer()

    cdef int adopt_elsewhere(self, state) except -1:
        """Adopt the options that a client has negotiated with another worker."""
        self.durability = state["durability"]
        self.connected_at = state["connected_at"]
        return self.adopt_negotiated(state)

    cdef int adopt_negotiated(self, settings) except -1:
        """Adopt a client's negotiated options, by name."""
        for name in NEGOTIATED:
            setattr(self, name, settings[name])
        return self.find_locality()

    cdef int find_locality(self) except -1:
        options = self.manager.options
        self.locality = ANYWHERE
        if self.manager.scheduler.topology_aware:
            if options.topology_zone and options.topology_zone == self.topology_zone:
                self.locality = ZONE_LOCAL
            elif options.topology_region and options.topology_region == self.topology_region:
                self.locality = REGION_LOCAL
        return 0

    # -- migration --

    cdef bint may_migrate(self, int owner) except *:
        """Return whether a producer has published to one owner long enough to migrate there."""
        return (self.migratable and owner == self.forwards_to and self.is_faithful()
                and self.channel is None and self.upstream is None and len(self.streams) == 1
                and self.is_light(owner) and self.manager.may_lose_more())

    cdef bint is_faithful(self) noexcept:
        """Return whether the consecutively forwarded publishes justify a migration. Many bytes
        justify it, because forwarding copies them. Small messages do not: most of their cost is in
        socket calls, which a migration only moves to another worker."""
        return self.forward_bytes >= MIGRATION_BYTES or (
            self.forwards >= MIGRATION_FORWARDS
            and self.manager.scheduler.now - self.forwards_since >= MIGRATION_AFTER)

    cdef bint is_light(self, int owner) except *:
        """Return whether the session's state is small enough to migrate and `owner` has
        capacity."""
        return self.is_small() and self.manager.mesh.shared.busy(owner) < MIGRATION_BUSY

    cdef bint is_small(self) except *:
        return (self.output.pending() <= MAX_MIGRATION
                and self.kept_end - self.kept_start <= MAX_MIGRATION
                and self.auth_size() <= MAX_MIGRATION)

    cdef size_t auth_size(self) except? 0:
        """Return the size of the session's authorization and secret in bytes."""
        if self.authorization is None:
            return 0
        return len(self.secret) + <size_t>len(self.authorization.source)

    cdef Parsed migrate_to(self, int worker) except RAISED:
        """Migrate to a worker, before the next command and with nothing outstanding."""
        if self.ticket_count == 0:
            self.migratable = False
            self.migrating = True
            self.manager.lose(self, worker)
        return BLOCKED

    cdef int give_away(self, size_t n) except -1:
        """Migrate a producer to a less busy worker, after a command of `n` bytes that arrived
        alone. Larger commands cost more to forward than their socket calls cost here."""
        if (n <= MAX_GIVEN and self.migratable and self.topic is not None
                and self.channel is None and self.upstream is None and not self.streams
                and self.ticket_count == 0 and not self.blocked and not self.stopping
                and self.is_small() and self.manager.may_lose_more()):
            self.migrate_to(self.manager.lighter)
            self.blocked = True
        return 0
