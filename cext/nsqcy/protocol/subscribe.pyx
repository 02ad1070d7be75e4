"""SUB, RDY, FIN, REQ, DEAD_LETTER, TOUCH and CLS: a session as a consumer.

Executes these commands on this worker's channels, or forwards them to the owner of the topic. Does
not decide which message a consumer receives or when it times out: the channel does.
"""

cimport cython
from libc.stdint cimport int64_t, uint16_t
from libc.string cimport memcmp

from nsqcy.base.bytes cimport hex16_parse
from nsqcy.channels.channel cimport DONE, NOT_IN_FLIGHT, Channel
from nsqcy.protocol.connection cimport BLOCKED, CLOSING, INIT, NEXT, OUTPUT_ENOUGH, SUBSCRIBED
from nsqcy.protocol.forwarding cimport STREAM_BACKLOG
from nsqcy.protocol.routing cimport NO_ROOM
from nsqcy.protocol.wire cimport ERROR, FIN_LINE, name_is_valid, parse_number, word_bytes
from nsqcy.storage.block cimport Block
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow

from nsqcy.broker import dead_letter_headers


cdef int64_t MILLISECOND = 1000000

cdef const char *SUB = b"SUB"

cdef tuple REFUSALS = (         # by Outcome
    b"", b"ID not in flight", b"client does not own message",
    b"no dead_letter_topic: requeued")


cdef class Subscription(LogCommands):
    # -- commands --

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
        if self.migratable and self.is_light(owner):
            return self.migrate_to(owner)
        self.upstream = self.stream_to(owner)
        self.line_owner = -1
        self.upstream.expected.append(self.take_ticket(SUB, n))
        self.upstream.send(line, n)
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

    @cython.final
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
            age = self.channel.age_of(id)
            outcome = (<Channel>self.channel).finish(self, id)
            if outcome == DONE:
                (<Channel>self.channel).record_ages(age, 1)
        if outcome != DONE:
            self.refuse(b"FIN", &words[1], outcome)
        return NEXT

    @cython.final
    cdef Parsed req(self, bint reject, Word *words, int count, const uint8_t *line,
                    size_t n) except RAISED:
        """`reject`: the command is DEAD_LETTER, which moves a message to the dead-letter topic, for
        the reason that the client gives, and is a REQ if there is no such topic."""
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
        """Refuse a command for a message, for instance because the client does not have it in
        flight."""
        cdef bytes text = b"E_%s_FAILED %s %s failed %s" % (
            <bytes>command, <bytes>command, word_bytes(id), REFUSALS[<int>outcome])
        return self.put_frame(ERROR, text, len(text))

    # -- runs of FINs --

    @cython.final
    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept:
        """Fast path for runs of FINs; return the length of the FINs that were executed.

        Handles only this client's messages; other input takes the general path. The age of the
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
        """Forward a run of FINs to the worker that owns the topic, in one piece; return its
        length."""
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

    @cython.final
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

    cdef int unsubscribe(self) except -1:
        cdef Channel channel = <Channel>self.channel
        cdef Topic topic = self.subscribed
        self.subscribed = None
        if channel is not None:
            channel.remove_consumer(self)
            topic.consumer_left(channel)
        return 0
