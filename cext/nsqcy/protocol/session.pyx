"""Sessions: the V2 protocol of one connection.

A session receives bytes and writes frames into its output; a transport (a socket, or a stream to
another worker) moves them. It executes commands for topics on its own worker. Other commands are
sent through a forwarding stream, with a session like this one at the far end. Independent of
sockets, the event loop and the clock.

A session consists of five classes, each owning a part of the state (see below). This module
contains the parser, IDENTIFY, the commands of a consumer, the timer and the end of a session. It
does not decide which message a consumer receives or when it times out: the channel does. Publishes
may be pipelined; any other command waits until no ticket is outstanding.
"""

# Sessions: the V2 state machine of one connection.
#
#   bytes ──feed──► lines and bodies ──► commands ──► topic, channel          (owner here)
#                                           │    └──► stream ══════► Session (owner elsewhere)
#                                           ▼
#   bytes ◄─flush── output ◄── frames ◄── tickets (answers in the order of their commands)
#
# A session has five classes, one per file. Each class uses only the classes above it:
#
#   Connection       connection         options, answers in order, unfinished input, timer
#   Authorizer       auth               AUTH, permissions, quota
#   Forwarder        forwarding         the owner of a topic, streams to other workers, migration
#   TopicCommands    topic_commands     PUB, MPUB, DPUB, LIMITS, LOG_*
#   Session          session            parser, IDENTIFY, SUB, RDY, FIN, REQ, TOUCH, CLS; the end


cdef enum:
    MAX_IDENTIFY = 65536        # maximum bytes of the body; clients send fewer than 2,000
    WORDS = 4                   # maximum words in a line: name and parameters of a command
    LINE_STEP = 256             # bytes to add when continuing a line of unknown length

cdef const char *SUB = b"SUB"

cdef tuple REFUSALS = (         # by Outcome
    b"", b"ID not in flight", b"client does not own message",
    b"no dead_letter_topic: requeued")

cdef const uint8_t *GOODBYE = b"_goodbye_"

# Whether this is the debug build, which counts live objects.
COUNTED = bool(NSQCY_DEBUG)

cdef Py_ssize_t live_sessions = 0


def live():
    """Return the numbers of sessions, forwarding streams and waiting answers; zeros in a release
    build."""
    return {"sessions": live_sessions, "legs": live_streams, "answers": live_answers}


@cython.final
cdef class Session(TopicCommands):
    def __cinit__(self):
        global live_sessions
        self.barred = self.manager.tls_required
        self.set_limits()
        self.manager.add(self)
        self.set_timer()
        if NSQCY_DEBUG:
            live_sessions += 1

    def __dealloc__(self):
        global live_sessions
        if NSQCY_DEBUG:
            live_sessions -= 1

    # -- input --

    cdef int feed(self, const uint8_t *data, size_t n) except -1:
        """Execute complete commands in the kept and the new bytes; keep the rest."""
        cdef size_t used = 0
        if self.stopping or self.closed:
            return 0
        if self.manager.favoured is self:
            self.manager.favoured_at = self.manager.scheduler.now
        if self.manager.resting and not self.is_internal():
            self.blocked = True
        if self.kept_end > self.kept_start and not self.blocked:
            used = self.complete_kept(data, n)
        if used < n and not self.blocked and not self.stopping:
            used += self.parse(data + used, n - used)
        if used < n and not self.stopping:
            self.keep(data + used, n - used)
        self.check_appetite()
        return 0

    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0:
        """Complete and execute the kept command with the new bytes; return the number of bytes
        used.

        Copies few bytes beyond the command, so that later commands are parsed in place.
        """
        cdef size_t used = 0
        cdef size_t step
        cdef size_t left
        cdef bint upgraded = self.upgraded
        while used < n and not self.blocked and not self.stopping:
            step = min(n - used, max(self.missing, <size_t>LINE_STEP))
            self.keep(data + used, step)
            used += step
            self.parse_kept()
            if self.upgraded != upgraded:
                # The command was an IDENTIFY: bytes received together with its end are lost.
                return n
            left = self.kept_end - self.kept_start
            if left <= used and not self.blocked:
                # All kept bytes have been executed; return the unused new bytes.
                used -= left
                if left:
                    self.drop_kept()
                break
        return used

    cdef int end_of_input(self) except -1:
        """Handle the end of input: answer complete commands, then end the session."""
        self.eof = True
        if self.lingers:
            return self.close()
        if not self.blocked and not self.stopping:
            return self.finish_input()
        return self.check_appetite()

    cdef int finish_input(self) except -1:
        if self.unread_error is not None:
            self.fatal(self.unread_error)
        else:
            self.stop()
        return 0

    cdef int resume(self) except -1:
        """Continue parsing, because the awaited event may have happened."""
        self.resumable = False
        if self.closed or self.stopping or self.migrating or not self.blocked:
            return 0
        if self.manager.resting and not self.is_internal():
            return 0
        if self.awaited is not None and not self.subscribe_awaited():
            return 0
        self.blocked = False
        self.last_command = self.manager.scheduler.now
        self.parse_kept()
        if self.eof and not self.blocked and not self.stopping:
            self.finish_input()
        self.check_appetite()
        return 0

    cdef bint subscribe_awaited(self) except -1:
        """Subscribe to the topic that could not be used when the session was restored. Return
        False if the session waits on, or ends."""
        cdef HandOver hand_over = HandOver(self)
        cdef dict awaited = self.awaited
        if not hand_over.may_subscribe(awaited["topic"].encode()):
            return False
        self.awaited = None
        if hand_over.restore_subscription(awaited):
            return True
        self.drop_tickets()
        self.stop()
        return False

    cdef int parse_kept(self) except -1:
        cdef size_t used = self.parse(self.kept + self.kept_start, self.kept_end - self.kept_start)
        self.kept_start += used
        if self.kept_start >= self.kept_end or self.stopping:
            self.drop_kept()
        return 0

    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0:
        """Execute complete commands; return the number of bytes consumed."""
        cdef size_t at = 0
        cdef size_t used = 0
        cdef Parsed parsed
        self.missing = 0
        if not self.magic_seen:
            if n < 4:
                return 0
            if memcmp(data, b"  V2", 4) != 0:
                self.put_frame(ERROR, b"E_BAD_PROTOCOL", 14)
                events.bad_magic(self.manager.log, data[:4].decode("latin-1"),
                                 client=self.remote_address)
                self.stop()
                return 4
            self.magic_seen = True
            self.heartbeat_interval = self.manager.heartbeat_default
            self.next_heartbeat = self.manager.scheduler.now + self.heartbeat_interval
            self.last_command = self.manager.scheduler.now
            self.set_timer()
            at = 4
        self.unread_error = None
        while at < n:
            if self.is_crammed():
                self.blocked = self.crammed = True
                break
            if self.channel is not None:
                used = self.finish_here(data + at, n - at)
            elif self.upstream is not None:
                used = self.finish_there(data + at, n - at)
            else:
                used = 0
            if used:
                at += used
                continue
            used = self.publish_line(data + at, n - at)
            if used:
                parsed = self.publish_one(
                    b"PUB", 0, data + at, &used, data + at + used, n - at - used)
            else:
                parsed = self.command(data + at, n - at, &used)
            if parsed == NEXT:
                at += used
                continue
            if parsed == BLOCKED:
                self.blocked = True
            break
        if at:
            self.last_command = self.manager.scheduler.now
            if self.manager.lighter >= 0 and at == n and at == used:
                self.give_away(n)
        return at

    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED:
        """Execute one command if it is complete."""
        cdef const uint8_t *end = <const uint8_t *>memchr(
            line, 10, min(n, <size_t>MAX_LINE))
        cdef size_t length
        cdef Word words[WORDS]
        cdef int count
        if end == NULL:
            if n >= MAX_LINE:
                self.stop()
                return STOPPED
            return MORE
        used[0] = end - line + 1
        length = end - line
        if length and line[length - 1] == 13:
            length -= 1
        count = split_line(line, length, words, WORDS)
        return self.execute(words, count, line, used, end + 1, n - used[0])

    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED:
        """Dispatch a command by name, checking frequent names first.

        Commands without a body use bytes [line, line + used); the others add their body to `used`.
        """
        cdef Word *name = words
        if self.barred and not word_is(name, b"IDENTIFY", 8):
            return self.fatal(
                b"E_INVALID cannot %s in current state (TLS required)" % word_bytes(name))
        if word_is(name, b"PUB", 3):
            return self.pub(words, count, line, used, rest, left)
        if word_is(name, b"MPUB", 4):
            return self.mpub(words, count, line, used, rest, left)
        if word_is(name, b"DPUB", 4):
            return self.dpub(words, count, line, used, rest, left)
        if self.topic_log and word_is(name, b"LOG_PUB", 7):
            return self.log_pub(line, used, rest, left)
        if self.ticket_count:
            return BLOCKED
        if self.upstream is not None and len(self.upstream.unsent) > STREAM_BACKLOG:
            return BLOCKED
        if word_is(name, b"FIN", 3):
            return self.fin(words, count, line, used[0])
        if word_is(name, b"RDY", 3):
            return self.rdy(words, count, line, used[0])
        if word_is(name, b"REQ", 3):
            return self.req(False, words, count, line, used[0])
        if word_is(name, b"TOUCH", 5):
            return self.touch_message(words, count, line, used[0])
        if word_is(name, b"DEAD_LETTER", 11) and (self.dead_letters or self.remote):
            return self.req(True, words, count, line, used[0])
        if word_is(name, b"NOP", 3):
            if self.remote and count > 1:
                # The near end must know when all earlier commands have been answered.
                self.respond(b"OK", 2)
            return NEXT
        if word_is(name, b"SUB", 3):
            return self.sub(words, count, line, used[0])
        if word_is(name, b"CLS", 3):
            return self.cls(line, used[0])
        if word_is(name, b"IDENTIFY", 8):
            return self.identify(used, rest, left)
        if word_is(name, b"AUTH", 4):
            return self.auth(count, used, rest, left)
        if self.limits and word_is(name, b"LIMITS", 6):
            return self.show_limits(words, count)
        if self.topic_log and name.length > 4 and memcmp(name.at, b"LOG_", 4) == 0:
            return self.log_command(line, used[0])
        return self.fatal(b"E_INVALID invalid command " + word_bytes(name))

    # -- negotiation --

    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED:
        cdef int32_t size
        cdef int64_t maximum
        if self.state != INIT:
            return self.invalid_state(b"IDENTIFY")
        if left < 4:
            return self.body_missing(4 - left, b"E_BAD_BODY IDENTIFY failed to read body size")
        size = <int32_t>load_be32(rest)
        maximum = self.maximum_body(size, MAX_IDENTIFY)
        if size > maximum:
            return self.fatal(b"E_BAD_BODY IDENTIFY body too big %d > %d" % (size, maximum))
        if size <= 0:
            return self.fatal(b"E_BAD_BODY IDENTIFY invalid body size %d" % size)
        if left - 4 < <size_t>size:
            return self.body_missing(
                4 + size - left, b"E_BAD_BODY IDENTIFY failed to read body")
        if not self.manager.may_negotiate(self, size):
            return BLOCKED
        used[0] += 4 + size
        try:
            identity = self.manager.negotiate(
                PyBytes_FromStringAndSize(<const char *>rest + 4, size), self.manager.options, self)
        except ClientError as error:
            return self.fatal(error.wire)
        self.adopt_identity(identity)
        self.respond(identity.answer, len(identity.answer))
        if identity.tls or identity.snappy or identity.deflate:
            # Later bytes from the client were not encoded and are lost, as in NSQ.
            used[0] += left - 4 - size
            return self.upgrade(identity)
        return NEXT

    cdef Parsed upgrade(self, identity) except RAISED:
        """Switch to TLS, a codec or both. Such a session does not migrate."""
        self.upgraded = self.upgrading = True
        self.migratable = False
        self.snappy = identity.snappy
        self.deflate = identity.deflate
        self.transport.upgrade(identity)
        return NEXT

    cdef int upgrade_done(self) except -1:
        """Resume the session after an upgrade; the duration of the upgrade does not count as client
        silence."""
        cdef int64_t now = self.manager.scheduler.now
        self.upgrading = False
        if self.tls is not None:
            self.barred = False
            self.set_limits()
        self.last_command = now
        self.next_heartbeat = now + self.heartbeat_interval
        self.set_timer()
        return self.check_appetite()

    cdef int adopt_identity(self, identity) except -1:
        """Apply all negotiated options in one step."""
        self.adopt_negotiated(negotiated(identity))
        if identity.durability:
            self.durability = durability_of(identity.durability)
        self.heartbeat_interval = 0 if self.remote else identity.heartbeat_interval
        self.next_heartbeat = self.manager.scheduler.now + self.heartbeat_interval
        # Owners learn about the change with the next command, because nothing is outstanding.
        self.close_streams()
        self.set_timer()
        return 0

    # -- without a client --

    def be_lenient(self, *, bint headers=False, bint transfers=False):
        """Become a session without a client.

        It publishes for other parts of this worker, with or without headers, or transfers messages
        from other topics with LOG_PUB.
        """
        self.lenient = True
        self.transfers = transfers
        self.topic_log = transfers
        self.headers = headers
        self.barred = False
        self.guarded = False
        self.set_limits()
        self.magic_seen = True
        self.set_timer()

    # -- the commands of a consumer --

    cdef Parsed sub(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED:
        cdef int owner
        cdef Parsed parsed
        if self.state != INIT:
            return self.invalid_state(b"SUB")
        if self.heartbeat_interval <= 0 and not self.remote:
            return self.fatal(b"E_INVALID cannot SUB with heartbeats disabled")
        if count < 3:
            return self.fatal(b"E_INVALID SUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC SUB topic name", &words[1])
        if not name_is_valid(words[2].at, words[2].length):
            return self.bad_name(b"E_BAD_CHANNEL SUB channel name", &words[2])
        if self.guarded:
            parsed = self.authorize(SUB, self.topic_key, word_bytes(&words[2]))
            if parsed != NEXT:
                return parsed
        owner = self.route()
        if owner < 0:
            return self.fatal(self.no_room(SUB)) if owner == NO_ROOM else BLOCKED
        self.subscribed_channel = word_bytes(&words[2]).decode()
        if owner == self.manager.index:
            return self.subscribe(self.topic, self.subscribed_channel)
        if self.migratable and self.is_light(owner) and self.manager.may_gain_consumer(owner):
            self.manager.begin_departure(self, owner)
            return self.migrate_to(owner)
        self.upstream = self.stream_to(owner)
        self.line_owner = -1
        self.upstream.expected.append(self.take_ticket(SUB, n))
        self.upstream.send(line, n)
        self.manager.count_consumer(self, True)
        self.state = SUBSCRIBED
        return NEXT

    cdef Parsed subscribe(self, Topic topic, str name) except RAISED:
        cdef Channel channel
        cdef uint32_t limit = self.manager.max_channel_consumers
        if topic.gone or topic.host.closing:
            return self.fatal(b"E_SUB_FAILED SUB failed exiting")
        channel = topic.channel(name)
        if limit and <uint32_t>len(channel.consumers) >= limit:
            return self.fatal(
                f"E_SUB_FAILED SUB failed consumers for {topic.name}:{name} exceeds limit of "
                f"{limit}".encode())
        channel.add_consumer(self)
        self.manager.count_consumer(self, True)
        self.subscribed = topic
        self.state = SUBSCRIBED
        self.respond(b"OK", 2)
        return NEXT

    cdef Parsed rdy(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED:
        cdef uint64_t ready = 1
        if self.state == CLOSING:
            return NEXT
        if self.state != SUBSCRIBED:
            return self.invalid_state(b"RDY")
        if count > 1 and not parse_number(words[1].at, words[1].length, &ready):
            return self.fatal(b"E_INVALID RDY could not parse count " + word_bytes(&words[1]))
        if ready > self.manager.max_rdy_count:
            return self.fatal(
                b"E_INVALID RDY count %d out of range 0-%d" % (ready, self.manager.max_rdy_count))
        if self.upstream is not None:
            self.ready_count = <uint32_t>ready
            return self.forward(line, n)
        self.set_ready(<uint32_t>ready)
        return NEXT

    cdef int set_ready(self, uint32_t ready) except -1:
        self.ready_count = ready
        if self.channel is not None:
            (<Channel>self.channel).check_ready(self)
        return 0

    cdef Parsed message_command(self, const char *command, Word *words, int count, int needed,
                                uint64_t *id) except RAISED:
        """Do the common checks of FIN, REQ and TOUCH; NEXT if they pass.

        An id that no message can have becomes 0, which no message uses.
        """
        if self.state != SUBSCRIBED and self.state != CLOSING:
            return self.invalid_state(command)
        if count < needed:
            return self.fatal(b"E_INVALID %s insufficient number of params" % command)
        if words[1].length != 16:
            return self.fatal(b"E_INVALID invalid message ID")
        if hex16_parse(words[1].at, id) != 0:
            id[0] = 0
        return NEXT

    cdef Parsed fin(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED:
        cdef uint64_t id = 0
        cdef int64_t age
        cdef Outcome outcome
        cdef Parsed parsed = self.message_command(b"FIN", words, count, 2, &id)
        if parsed != NEXT:
            return parsed
        if self.upstream is not None:
            return self.forward(line, n)
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            age = (<Channel>self.channel).age_of(id)
            outcome = (<Channel>self.channel).finish(self, id)
            if outcome == DONE:
                (<Channel>self.channel).record_ages(age, 1)
        if outcome != DONE:
            self.refuse(b"FIN", &words[1], outcome)
        return NEXT

    cdef Parsed req(self, bint reject, Word *words, int count, const uint8_t *line,
                    size_t n) except RAISED:
        """`reject`: the command is DEAD_LETTER, which moves a message to the dead-letter topic,
        with the client's reason. Without a dead-letter topic, it acts as a REQ."""
        cdef const char *command = b"DEAD_LETTER" if reject else b"REQ"
        cdef uint64_t id = 0
        cdef uint64_t milliseconds = 0
        cdef int64_t delay
        cdef Outcome outcome
        cdef Parsed parsed = self.message_command(command, words, count, 3, &id)
        if parsed != NEXT:
            return parsed
        if not parse_number(words[2].at, words[2].length, &milliseconds):
            return self.fatal(b"E_INVALID %s could not parse timeout %s" % (
                <bytes>command, word_bytes(&words[2])))
        if self.upstream is not None:
            return self.forward(line, n)
        delay = self.manager.max_req_timeout
        if milliseconds < <uint64_t>(delay // MILLISECOND):
            delay = <int64_t>milliseconds * MILLISECOND
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            if reject:
                text = dead_letter_headers.text_of(word_bytes(&words[3])) if count > 3 else ""
                outcome = (<Channel>self.channel).reject(self, id, delay, text)
            else:
                outcome = (<Channel>self.channel).requeue(self, id, delay)
        if outcome != DONE:
            self.refuse(command, &words[1], outcome)
        return NEXT

    cdef Parsed touch_message(self, Word *words, int count, const uint8_t *line,
                              size_t n) except RAISED:
        cdef uint64_t id = 0
        cdef Outcome outcome
        cdef Parsed parsed = self.message_command(b"TOUCH", words, count, 2, &id)
        if parsed != NEXT:
            return parsed
        if self.upstream is not None:
            return self.forward(line, n)
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            outcome = (<Channel>self.channel).touch(self, id)
        if outcome != DONE:
            self.refuse(b"TOUCH", &words[1], outcome)
        return NEXT

    cdef Parsed cls(self, const uint8_t *line, size_t n) except RAISED:
        if self.state != SUBSCRIBED:
            return self.invalid_state(b"CLS")
        self.state = CLOSING
        self.ready_count = 0
        if self.upstream is not None:
            self.line_owner = -1
            self.upstream.expected.append(self.take_ticket(SUB, n))
            return self.forward(line, n)
        self.set_ready(0)
        self.respond(b"CLOSE_WAIT", 10)
        return NEXT

    cdef int refuse(self, const char *command, const Word *id, Outcome outcome) except -1:
        """Refuse a command for a message, for example because the message is not in flight to the
        client."""
        cdef bytes text = b"E_%s_FAILED %s %s failed %s" % (
            <bytes>command, <bytes>command, word_bytes(id), REFUSALS[<int>outcome])
        return self.put_frame(ERROR, text, len(text))

    # -- runs of FINs --

    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept:
        """Fast path for runs of FINs; return the length of the FINs that were executed.

        Handles only this client's messages; other input uses the general path. The age of the
        first message is recorded for the whole run.
        """
        cdef Channel channel = <Channel>self.channel
        cdef const uint8_t *line = lines
        cdef uint64_t id
        cdef int64_t age
        if self.ticket_count or n < FIN_LINE or memcmp(line, b"FIN ", 4) != 0:
            return 0
        if hex16_parse(line + 4, &id) != 0:
            return 0
        age = channel.age_of(id)
        while (n >= FIN_LINE and memcmp(line, b"FIN ", 4) == 0 and line[FIN_LINE - 1] == 10
               and hex16_parse(line + 4, &id) == 0 and channel.finish(self, id) == DONE):
            line += FIN_LINE
            n -= FIN_LINE
        if line != lines:
            channel.record_ages(age, (line - lines) // FIN_LINE)
        return line - lines

    cdef size_t finish_there(self, const uint8_t *lines, size_t n) except? 0:
        """Forward a run of FINs to the worker that owns the topic, all at once; return the length
        of the run."""
        cdef size_t used = 0
        cdef uint64_t id
        if self.ticket_count or len(self.upstream.unsent) > STREAM_BACKLOG:
            return 0
        while (n - used >= FIN_LINE and memcmp(lines + used, b"FIN ", 4) == 0
                and lines[used + FIN_LINE - 1] == 10 and hex16_parse(lines + used + 4, &id) == 0):
            used += FIN_LINE
        if used:
            self.upstream.send(lines, used)
        return used

    # -- consumer interface --

    cdef bint has_room(self) noexcept:
        return not self.stopping and self.output.pending() < OUTPUT_ENOUGH

    cdef int64_t usual_timeout(self) noexcept:
        return self.manager.msg_timeout

    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1:
        if self.headers:
            self.output.put_headered(window, block, record, attempts)
        else:
            self.output.put_message(window, block, record, attempts)
        self.touch_dirty()
        return self.has_room()

    cdef int on_channel_gone(self) except -1:
        self.stop()
        return 0

    # -- migration --

    def pack(self):
        """Pack the session for another worker: (state, unread bytes, unsent bytes)."""
        self.note_counts()
        state = negotiated(self) | {
            "format": formats.SESSION.number,
            "remote_address": self.remote_address,
            "connected_at": self.connected_at,
            "durability": self.durability,
            "heartbeat_interval": self.heartbeat_interval,
            "next_heartbeat": self.next_heartbeat,
            "last_command": self.last_command,
            "pub_counts": self.pub_counts,
        }
        if self.authorization is not None:
            state["secret"] = self.secret.decode("latin-1")
            state["authorization"] = self.authorization.source.decode("latin-1")
            state["auth_expires"] = self.auth_expires
        return state, self.kept[self.kept_start:self.kept_end], self.output.unsent()

    def unpack(self, state, bytes unread not None, bytes unsent not None):
        """Restore a session that was packed by another worker."""
        self.magic_seen = True
        self.migratable = False
        self.adopt_elsewhere(state)
        self.heartbeat_interval = state["heartbeat_interval"]
        self.next_heartbeat = state["next_heartbeat"]
        self.last_command = state["last_command"]
        self.pub_counts = state["pub_counts"]
        if "secret" in state:
            self.secret = state["secret"].encode("latin-1")
            self.adopt_authorization(
                self.manager.auth.restore(state["authorization"].encode("latin-1")),
                state["auth_expires"])
        if unsent:
            self.output.put(unsent, len(unsent))
            self.touch_dirty()
        self.set_timer()
        if self.manager.winding_down:
            self.wind_down()
        self.feed(unread, len(unread))

    def pack_whole(self):
        """Pack a session at rest, of any kind, for the process that takes over this worker: (state,
        unread bytes, unsent bytes). The session itself does not change."""
        if self.closed or self.is_internal():
            raise ValueError("only the session of a client can be packed")
        return HandOver(self).pack()

    def unpack_whole(self, dict state not None, bytes unread not None, bytes unsent not None):
        """Continue a session that was packed as a whole. All sessions of a process must be unpacked
        before its first turn."""
        HandOver(self).unpack(state, unread, unsent)

    @property
    def needs_pump(self):
        """Whether the process that packs the session must continue to encode and decode for the
        next one, because the state of TLS and deflate cannot be packed."""
        return self.transport.needs_pump()

    def surrender(self):
        """Give away the socket of a session that has been packed: its descriptor, the layers
        between it and the session, and the encoded output that has not been sent."""
        if not self.transport.needs_pump():
            raise ValueError("the session's socket has been packed")
        return self.transport.surrender()

    def fileno(self):
        """Return the socket's file descriptor."""
        return self.transport.fileno()

    def stay(self):
        """Continue on this worker after a failed migration."""
        if not self.closed:
            self.migrating = False
            self.manager.end_departure(self)
            self.touch_dirty()
            if self.manager.winding_down:
                self.wind_down()
            self.wake()

    def leave(self):
        """Release the connection after a migration; another worker has taken it over."""
        if not self.closed:
            self.transport.abandon()
            self.close()

    # -- time --

    cdef int on_timer(self) except -1:
        cdef int64_t now = self.manager.scheduler.now
        cdef int64_t silence
        if self.stopping or not (self.magic_seen or self.remote):
            if now >= self.last_command + self.patience():
                return self.close()
        self.check_peer()
        if self.log_due and now >= self.log_due:
            self.log_wait_over()
        if self.quota_due and now >= self.quota_due:
            self.look_again()
        if (self.manager.favoured is self
                and now >= self.manager.favoured_at + self.manager.max_silence()):
            # Other sessions are waiting for their share of the input budget.
            self.manager.favoured_at = now
            if self.manager.starved and self.unread_error is not None and not self.blocked:
                self.fatal(self.unread_error)
                self.manager.drop_silent()
        if self.heartbeat_interval and not self.stopping and not self.upgrading:
            silence = 2 * self.heartbeat_interval
            if self.stuck_since and now >= self.stuck_since + self.heartbeat_interval:
                return self.close()
            if now >= self.last_command + silence:
                if self.blocked or self.auth_asked:
                    self.last_command = now
                elif self.unread_error is not None:
                    self.fatal(self.unread_error)
                else:
                    return self.close()
            elif now >= self.next_heartbeat:
                self.transport.rest()
                self.put_frame(RESPONSE, b"_heartbeat_", 11)
                self.next_heartbeat += self.heartbeat_interval
                if self.next_heartbeat <= now:
                    self.next_heartbeat = now + self.heartbeat_interval
        return self.set_timer()

    # -- the turn --

    cdef int after_flush(self) except -1:
        """Handle the end of a send: the transport has sent as much as it could."""
        cdef ForwardingStream forwarding
        cdef size_t pending = self.output.pending() + self.transport.held
        cdef uint64_t total_sent
        if pending:
            # Only a client that receives nothing is stuck; a slow client is not.
            total_sent = self.output.total_sent + self.transport.moved
            if not self.stuck_since or total_sent != self.sent_before:
                self.stuck_since = self.manager.scheduler.now
                self.sent_before = total_sent
                self.set_timer()
        else:
            self.stuck_since = 0
            if self.stopping and self.ticket_count == 0 and not self.lingers:
                return self.close()
        if self.upstream is not None or self.relaying is not None:
            forwarding = self.upstream
            if forwarding is None:
                forwarding = <ForwardingStream>self.relaying
            if forwarding.unconsumed and self.output.pending() < OUTPUT_ENOUGH:
                forwarding.stream.consumed(forwarding.unconsumed)
                forwarding.unconsumed = 0
        if self.crammed and not self.is_crammed():
            self.crammed = False
            self.wake()
        if self.log_unsent and self.output.total_sent >= self.log_sent_at:
            self.answer_left()
        if self.channel is not None:
            (<Channel>self.channel).check_ready(self)
        return 0

    # -- the end --

    cdef int wind_down(self) except -1:
        """Execute no more commands, and close once all executed commands are answered. A client
        that requested a goodbye receives it after these answers, and closes the connection itself.
        Otherwise, its unread commands would make the kernel reset the connection and drop the
        goodbye."""
        if self.closed or self.state != INIT or self.remote or self.lenient:
            return 0
        if self.stopping or self.migrating:
            return self.manager.leave_later(self)
        if not self.magic_seen or self.upgrading or (self.ticket_count and self.line_owner < 0):
            # No publish is outstanding. A read of a log may wait for a minute.
            return self.close()
        self.manager.leave_later(self)
        self.quota_changed()
        self.waiting_since = self.log_due = 0
        if self.goodbye:
            self.respond(GOODBYE, 9)
        if not self.goodbye and not self.ticket_count:
            return self.stop()
        self.stopping = True
        self.lingers = self.goodbye and not self.eof
        self.blocked = False
        self.last_command = self.manager.scheduler.now
        if self.kept != NULL:
            self.drop_kept()
        self.set_timer()
        return self.check_appetite()

    @property
    def is_quiet(self):
        """Whether nothing is unanswered, unsent or in flight."""
        return not (self.ticket_count or self.kept != NULL or self.blocked or self.upgrading
                    or self.output.pending() or self.in_flight or self.log_unsent)

    def withdraw(self):
        """Send the client no more messages, as after CLS."""
        if self.state == SUBSCRIBED and not self.stopping:
            self.state = CLOSING
            self.ready_count = 0
            if self.upstream is not None:
                self.upstream.send(b"RDY 0\n", 6)
            else:
                self.set_ready(0)

    def end(self):
        """Execute no more commands, and close once all executed commands are answered. A client
        that requested a goodbye closes the connection itself: see wind_down()."""
        if self.closed or self.stopping:
            return
        if not self.goodbye or self.state != INIT or self.eof:
            self.stop()
            return
        self.respond(GOODBYE, 9)
        self.stop()
        self.lingers = True
        self.check_appetite()

    cdef int close(self) except -1:
        """End the session now."""
        if self.closed:
            return 0
        self.closed = self.stopping = True
        self.unsubscribe()
        if self.kept != NULL:
            self.drop_kept()
        self.drop_tickets()
        self.output.clear()
        if self.log_read is not None:
            self.log_read.abandon(None)
            self.log_read = None
        if self.log_unsent:
            self.answer_left()
        self.close_streams()
        self.forget_quota()
        self.upstream = self.relaying = None
        self.topic = None
        self.awaited = None
        if self.timer.node.index != HEAP_NOWHERE:
            heap_remove(&self.manager.timers, &self.timer.node)
        self.manager.remove(self)
        self.transport.close()
        return 0

    # -- statistics --

    def counters(self):
        """Return the client's statistics, with the keys of /stats."""
        self.note_counts()
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": "V2",
            "remote_address": self.remote_address,
            "state": <int>self.state,
            "ready_count": self.ready_count,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connected_at // SECOND,
            "sample_rate": self.sample_rate,
            "deflate": bool(self.deflate),
            "snappy": bool(self.snappy),
            "user_agent": self.user_agent,
            "authed": bool(self.authed),
            "auth_identity": self.auth_identity,
            "auth_identity_url": self.auth_identity_url,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
            "pub_counts": dict(self.pub_counts),
            "tls": self.tls is not None,
            "tls_cipher_suite": "" if self.tls is None else self.tls["cipher_suite"],
            "tls_version": "" if self.tls is None else self.tls["version"],
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": self.tls is not None,
        }
