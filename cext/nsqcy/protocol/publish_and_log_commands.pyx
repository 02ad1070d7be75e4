"""Commands for a topic: PUB, MPUB, DPUB, LIMITS, and the commands for its log (docs/PROTOCOL.md).

Checks publishes, charges them to the user's quota, and passes them to the topic or its owner.
Independent of how a topic stores or sends messages.

LOG_PUB publishes a batch once, even if the batch is sent repeatedly, and LOG_EPOCHS lists which
batches are remembered; the other commands read the log and manage cursors. Each log command is
answered before the next command is executed, and a response counts toward the worker's memory for
responses until it is sent. Independent of how a log is read (broker/log_fetch).
"""

cdef int64_t PLACED_HEARD = 100 * MILLISECOND   # maximum wait for the owner of a topic

cdef enum:
    PUB_NAME = 4                # length of "PUB" and the space after it
    LOG_WORDS = 7               # maximum words of a log command's line: name and parameters
    MAX_LOG_WAIT = 60000        # ms

cdef const char *PUB = b"PUB"
cdef const char *MPUB = b"MPUB"
cdef const char *DPUB = b"DPUB"
cdef const char *LOG_PUB = b"LOG_PUB"
cdef const char *LOG_EPOCHS = b"LOG_EPOCHS"
cdef const char *LOG_META = b"LOG_META"
cdef const char *LOG_CURSOR = b"LOG_CURSOR"
cdef const char *LOG_SEEK = b"LOG_SEEK"
cdef const char *LOG_FETCH = b"LOG_FETCH"


cdef object number_of(const Word *word, maximum):
    """Parse a word as a number; return None if it is not a number or is above `maximum`."""
    cdef bytes text = word_bytes(word)
    if not text.isdigit() or len(text) > 20:
        return None
    number = int(text)
    return number if number <= maximum else None


cdef bytes cursor_text(str name, bytes log_id, seq):
    return json.dumps({"name": name, "log_id": log_id.hex(), "seq": seq},
                      separators=(",", ":")).encode()


cdef class BatchWaiter(Waiter):
    """Receiver of the outcome of a large batch."""
    cdef TopicCommands session
    cdef uint64_t size

    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        cdef TopicCommands session = self.session
        session.manager.input_shrank(session, self.size)
        return session.publish_done(ticket, error)


cdef class CursorAnswer:
    def __call__(self, error):
        if error is None:
            self.session.answer(self.ticket, ANSWERED, self.text)
        else:
            self.session.answer(self.ticket, REFUSED, b"E_LOG_FAILED "
                                + error.encode("utf-8", "surrogateescape"))


cdef class TopicCommands(Forwarder):
    # -- one message --

    @cython.final
    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept:
        """Return the length of the line if it is a PUB to the topic of the latest publish; 0
        otherwise.

        Producers send this line most often, and it need not be split or checked.
        """
        cdef bytes key = self.topic_key
        cdef size_t length
        if key is None or self.barred:
            return 0
        length = PyBytes_GET_SIZE(key)
        if (n > PUB_NAME + length and line[PUB_NAME + length] == 10
                and memcmp(line, b"PUB ", PUB_NAME) == 0
                and memcmp(line + PUB_NAME, PyBytes_AS_STRING(key), length) == 0):
            return PUB_NAME + length + 1
        return 0

    cdef Parsed pub(self, Word *words, int count, const uint8_t *line, size_t *used,
                    const uint8_t *rest, size_t left) except RAISED:
        if count < 2:
            return self.fatal(b"E_INVALID PUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC PUB topic name", &words[1])
        return self.publish_one(PUB, 0, line, used, rest, left)

    cdef Parsed dpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED:
        cdef uint64_t milliseconds
        cdef uint64_t maximum = <uint64_t>(self.manager.max_defer_timeout // MILLISECOND)
        if count < 3:
            return self.fatal(b"E_INVALID DPUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC DPUB topic name", &words[1])
        if not parse_number(words[2].at, words[2].length, &milliseconds):
            return self.fatal(b"E_INVALID DPUB could not parse timeout " + word_bytes(&words[2]))
        if milliseconds > maximum:
            maximum = self.manager.limits_of(self.topic_key).max_defer_timeout // MILLISECOND
        if milliseconds > maximum:
            return self.fatal(
                b"E_INVALID DPUB timeout %d out of range 0-%d" % (milliseconds, maximum))
        return self.publish_one(DPUB, <int64_t>milliseconds * MILLISECOND, line, used, rest, left)

    @cython.final
    cdef Parsed publish_one(self, const char *command, int64_t delay, const uint8_t *line,
                            size_t *used, const uint8_t *rest, size_t left) except RAISED:
        """Execute a PUB or DPUB to the current topic."""
        cdef int32_t size
        cdef int64_t maximum
        cdef int owner
        cdef Record *record
        cdef Topic topic
        cdef Parsed parsed
        if left < 4:
            return self.body_missing(
                4 - left, b"E_BAD_MESSAGE %s failed to read message body size" % command)
        size = <int32_t>load_be32(rest)
        if size <= 0:
            return self.fatal(
                b"E_BAD_MESSAGE %s invalid message body size %d" % (<bytes>command, size))
        maximum = self.size_limit(size)
        if size > maximum and not (self.headers and size <= maximum + HEADERS_ROOM):
            return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, size, maximum + HEADERS_ROOM if self.headers else maximum))
        if left - 4 < <size_t>size:
            return self.message_missing(command, 4 + size - left)
        if self.headers:
            parsed = self.check_message(command, rest + 4, size)
            if parsed != NEXT:
                return parsed
        if self.guarded and not self.may_publish():
            parsed = self.authorize(command, self.topic_key, b"")
            if parsed == NEXT:
                parsed = self.charge(1, size)
            if parsed != NEXT:
                return parsed
        owner = self.route()
        if owner < 0 or not self.may_join(owner):
            return self.not_routed(command, owner, used, 4 + size)
        if owner != self.manager.index and self.may_migrate(owner):
            return self.migrate_to(owner)
        used[0] += 4 + size
        if owner != self.manager.index:
            return self.forward_publish(owner, command, line, used[0], 1)
        topic = self.topic
        if topic.limited:
            if delay > topic.max_defer_timeout:
                return self.publish_refused(command, topic.delay_error(delay))
            if not topic.fits(self.body_size(rest + 4, size)):
                return self.publish_refused(
                    command, topic.size_error(command, self.body_size(rest + 4, size)))
            if topic.takes:
                return self.publish_taking(command, topic, delay, rest, 4 + size, 1)
        if topic.may_refuse():
            refusal = topic.refusal(self.durability, 1, size)
            if refusal is not None:
                return self.publish_failed(command, refusal)
        if self.durability != MEMORY:
            topic.demand(self.durability)
        if self.headers:
            size = <int32_t>topic.add_headered(rest + 4, size, delay)
        else:
            record = topic.new_record(size, delay)
            if record != NULL:
                memcpy(record_body(record), rest + 4, size)
        return self.publish_accepted(command, topic, 1, size)

    cdef Parsed message_missing(self, const char *command, size_t missing) except RAISED:
        """Wait for the rest of a message. Unlike NSQ, do not wait if the client must authenticate
        first."""
        cdef Parsed parsed
        if self.unauthenticated:
            parsed = self.authorize(command, self.topic_key, b"")
            if parsed != NEXT:
                return parsed
        return self.body_missing(
            missing, b"E_BAD_MESSAGE %s failed to read message body" % command)

    cdef inline int64_t size_limit(self, int64_t size) except -1:
        """Return the maximum size of a message to the current topic. A message of the usual `size`
        needs no lookup of the topic's policy: the topic's owner enforces lower limits."""
        if size <= self.manager.max_msg_size:
            return self.manager.max_msg_size
        return self.manager.limits_of(self.topic_key).max_msg_size

    cdef Parsed show_limits(self, Word *words, int count) except RAISED:
        """Answer LIMITS: before a publish above the usual limits, a client queries the limits of
        the topic."""
        cdef Parsed parsed
        if count < 2:
            return self.fatal(b"E_INVALID LIMITS insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC LIMITS topic name", &words[1])
        if self.guarded and not self.may_publish():
            parsed = self.authorize(b"LIMITS", self.topic_key, b"")
            if parsed != NEXT:
                return parsed
        if not self.manager.may_negotiate(self, 0):
            return BLOCKED
        answer = json_bytes(self.manager.limits_of(self.topic_key).announced())
        self.respond(answer, len(answer))
        return NEXT

    cdef inline int32_t body_size(self, const uint8_t *message, int32_t size) noexcept:
        """Return the size of a message's body, given the complete message as sent by the client."""
        return size - HEADERS_SIZE - load_be16(message) if self.headers else size

    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED:
        """Check a body and its headers; NEXT if they are valid."""
        cdef size_t headers
        cdef size_t before
        cdef int64_t body
        if n < HEADERS_SIZE:
            return self.fatal(
                b"E_BAD_MESSAGE %s message of %d bytes has no room for the length of its headers"
                % (<bytes>command, n))
        headers = load_be16(message)
        if self.transfers and headers <= n - HEADERS_SIZE:
            # The header for what was taken from the message comes in addition to its own headers.
            before = taken_header(message + HEADERS_SIZE, headers)
            headers -= before
            message += before
            n -= before
        if headers > MAX_HEADERS:
            return self.fatal(b"E_BAD_MESSAGE %s headers of %d bytes (at most %d)" % (
                <bytes>command, headers, <int>MAX_HEADERS))
        body = <int64_t>n - HEADERS_SIZE - <int64_t>headers
        if body < 0:
            return self.fatal(
                b"E_BAD_MESSAGE %s headers of %d bytes extend beyond a message of %d" % (
                    <bytes>command, headers, n))
        if body == 0:
            return self.fatal(b"E_BAD_MESSAGE %s invalid message body size 0" % command)
        if body > self.size_limit(body):
            return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, body, self.size_limit(body)))
        if not headers_are_valid(message + HEADERS_SIZE, headers):
            return self.fatal(b"E_BAD_MESSAGE %s %s" % (
                <bytes>command, headers_fault(message + HEADERS_SIZE, headers).encode()))
        return NEXT

    # -- a batch --

    cdef Parsed mpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED:
        cdef uint32_t size
        cdef uint32_t messages
        cdef int32_t length
        cdef uint64_t bodies
        cdef int owner
        cdef Topic topic
        cdef SizedBatch sized
        cdef Parsed parsed
        if count < 2:
            return self.fatal(b"E_INVALID MPUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name", &words[1])
        parsed = self.take_batch(MPUB, rest, left, False, &size, &messages)
        if parsed != NEXT:
            return parsed
        owner = self.route()
        if owner < 0 or not self.may_join(owner):
            return self.not_routed(MPUB, owner, used, 4 + size)
        self.scanned = 0
        if owner != self.manager.index and self.may_migrate(owner):
            return self.migrate_to(owner)
        used[0] += 4 + size
        if owner != self.manager.index:
            return self.forward_publish(owner, MPUB, line, used[0], messages)
        topic = self.topic
        if topic.limited:
            length = topic.invalid_length(rest + 8, messages, self.headers)
            if length:
                return self.publish_refused(MPUB, topic.size_error(MPUB, length))
            if topic.takes and messages <= AT_ONCE:
                return self.publish_taking(MPUB, topic, 0, rest + 8, size, messages)
        if topic.may_refuse():
            refusal = topic.refusal(self.durability, messages, size)
            if refusal is not None:
                return self.publish_failed(MPUB, refusal)
        if messages > AT_ONCE:
            sized = SizedBatch.__new__(SizedBatch)
            sized.left = messages
            sized.left_bytes = size - 4 - 4 * <uint64_t>messages
            sized.headers = self.headers
            return self.publish_slowly(MPUB, topic, sized, rest + 8, size - 4, messages)
        if self.durability != MEMORY:
            topic.demand(self.durability)
        if self.headers:
            bodies = topic.add_headered_batch(rest + 8, messages)
        else:
            topic.new_batch(rest + 8, messages)
            bodies = size - 4 - 4 * <uint64_t>messages
        return self.publish_accepted(MPUB, topic, messages, bodies)

    cdef Parsed take_batch(self, const char *command, const uint8_t *rest, size_t left,
                           bint exact, uint32_t *body_size, uint32_t *count) except RAISED:
        """Check the body of an MPUB or LOG_PUB to the current topic.

        Returns NEXT if the body is complete and valid, and the client may publish. As in NSQ, the
        count and the sizes of the messages determine the end of an MPUB, because some clients
        announce too small a length. `exact`: the announced length must be correct. The caller
        resets `scanned` after processing the body.
        """
        cdef int32_t announced
        cdef int32_t messages
        cdef int32_t length
        cdef int64_t longest = self.manager.max_msg_size + (HEADERS_ROOM if self.headers else 0)
        cdef size_t limit = self.batch_limit()
        cdef size_t first
        cdef size_t at
        cdef size_t end = 0
        cdef size_t have
        cdef uint32_t i
        cdef bytes fault = None     # from here on, faults in earlier headers take precedence
        cdef Parsed parsed
        if self.guarded and not self.scanned and not self.may_publish():
            parsed = self.authorize(command, self.topic_key, b"")
            if parsed != NEXT:
                return parsed
        if left < 4:
            return self.body_missing(
                4 - left, b"E_BAD_BODY %s failed to read body size" % command)
        announced = <int32_t>load_be32(rest)
        if announced <= 0:
            return self.fatal(
                b"E_BAD_BODY %s invalid body size %d" % (<bytes>command, announced))
        if announced > self.manager.max_body_size and not self.transfers:
            return self.batch_too_big(command, announced)
        rest += 4
        have = min(left - 4, limit)
        if have < 4:
            return self.body_missing(
                max(<size_t>announced, 4) - have,
                b"E_BAD_BODY %s failed to read message count" % command)
        messages = <int32_t>load_be32(rest)
        if messages <= 0 or messages > (self.manager.max_body_size - 4) // 5:
            return self.fatal(
                b"E_BAD_BODY %s invalid message count %d" % (<bytes>command, messages))
        # Check the available bytes, starting where the last check ended.
        first = at = self.scanned if self.scanned else 4
        i = self.scanned_count if self.scanned else 0
        while i < <uint32_t>messages:
            end = at + 4
            if end > have:
                break
            length = <int32_t>load_be32(rest + at)
            if length <= 0:
                fault = b"E_BAD_MESSAGE %s invalid message(%d) body size %d" % (
                    <bytes>command, i, length)
                break
            if length > longest and not self.transfers:
                longest = self.size_limit(length) + (HEADERS_ROOM if self.headers else 0)
            if length > longest and not self.transfers:
                fault = b"E_BAD_MESSAGE %s message too big %d > %d" % (
                    <bytes>command, length, longest)
                break
            end += length
            if end > have:
                break
            at = end
            i += 1
        if self.headers:
            parsed = self.check_messages(command, rest + first, at - first)
            if parsed != NEXT:
                return parsed
        if fault is not None:
            return self.fatal(fault)
        if i < <uint32_t>messages:
            self.scanned, self.scanned_count = at, i
            if end == at + 4:
                return self.batch_missing(
                    command, end, have, announced,
                    b"E_BAD_MESSAGE %s failed to read message(%d) body size" % (
                        <bytes>command, i))
            return self.batch_missing(
                command, end, have, announced,
                b"E_BAD_MESSAGE %s failed to read message body" % command)
        if exact and at != <size_t>announced:
            return self.fatal(b"E_BAD_BODY %s body of %d bytes holds messages for %d" % (
                <bytes>command, announced, at))
        body_size[0] = <uint32_t>at
        count[0] = messages
        return NEXT if self.quota is None else self.charge(messages, at)

    cdef Parsed check_messages(self, const char *command, const uint8_t *batch,
                               size_t n) except RAISED:
        """Check each message in `n` bytes of a batch whose lengths have been checked."""
        cdef const uint8_t *stop = batch + n
        cdef uint32_t length
        cdef Parsed parsed
        while batch < stop:
            length = load_be32(batch)
            parsed = self.check_message(command, batch + 4, length)
            if parsed != NEXT:
                return parsed
            batch += 4 + length
        return NEXT

    cdef size_t batch_limit(self) noexcept:
        """Return the maximum bytes of a batch.

        The size of the count is added to `--max-body-size`, because clients exclude it from the
        announced length.
        """
        cdef int64_t maximum = 0x7fffffff
        if not self.transfers:
            maximum = min(maximum, self.manager.max_body_size)
        return maximum + 4

    cdef Parsed batch_missing(self, const char *command, size_t end, size_t have,
                              int32_t announced, bytes error) except RAISED:
        """Wait for a batch that extends to `end`, unless that is too large.

        The announced length is a hint: bytes beyond the batch belong to the next command.
        """
        if end > self.batch_limit():
            return self.batch_too_big(command, end)
        return self.body_missing(max(end, <size_t>announced) - have, error)

    cdef Parsed batch_too_big(self, const char *command, size_t size) except RAISED:
        return self.fatal(b"E_BAD_BODY %s body too big %d > %d" % (
            <bytes>command, size, self.manager.max_body_size))

    cdef Parsed publish_taking(self, const char *command, Topic topic, int64_t delay,
                               const uint8_t *batch, size_t size,
                               uint32_t count) except RAISED:
        """Publish `count` messages, each preceded by its length, to a topic that takes keys or ids
        from them."""
        cdef Publish publish
        cdef uint64_t seq
        cdef uint64_t bodies = 0
        cdef uint32_t fresh
        memset(&publish, 0, sizeof(publish))
        publish.minimum = self.durability
        if topic.may_refuse():
            # A publish that only repeats others needs no room.
            fresh = topic.fresh(batch, count, self.headers, &bodies)
            if fresh or topic.gone:
                refusal = topic.refusal(self.durability, fresh, bodies)
                if refusal is not None:
                    return self.publish_failed(command, refusal)
        topic.add_messages(batch, count, self.headers, delay, &publish)
        seq = topic.end_publish(&publish)
        self.topic_count += count
        if seq:
            self.line_owner = self.manager.index
            self.line_key = self.topic_key
            topic.acknowledge_at(seq, self, self.take_ticket(command, 0))
        elif self.ticket_count:
            self.answer(self.take_ticket(command, 0), ANSWERED, None)
        else:
            self.put_ok()
        return NEXT

    # -- the outcome --

    @cython.final
    cdef Parsed publish_accepted(self, const char *command, Topic topic, uint32_t count,
                                 uint64_t body_bytes) except RAISED:
        self.topic_count += count
        if topic.published(count, body_bytes):
            self.line_owner = self.manager.index
            self.line_key = self.topic_key
            topic.acknowledge_later(self, self.take_ticket(command, 0))
        elif self.ticket_count:
            self.answer(self.take_ticket(command, 0), ANSWERED, None)
        else:
            self.put_ok()
        return NEXT

    cdef Parsed publish_slowly(self, const char *command, Topic topic, Batch batch,
                               const uint8_t *messages, size_t n, uint32_t count) except RAISED:
        """Publish the `n` bytes of a batch that is too large for one turn.

        Until the batch is answered, the session executes no other command, and the batch counts as
        unfinished input.
        """
        cdef BatchWaiter waiter = BatchWaiter.__new__(BatchWaiter)
        batch.source = PyBytes_FromStringAndSize(<const char *>messages, n)
        batch.at = batch.source
        batch.minimum = self.durability
        batch.waiter = waiter
        waiter.session = self
        waiter.size = n
        self.manager.input_grew(self, n)
        self.topic_count += count
        self.line_owner = self.manager.index
        self.line_key = self.topic_key
        batch.ticket = self.take_ticket(command, max(n, <size_t>MAX_FORWARDED))
        topic.add_batch(batch)
        return NEXT

    cdef Parsed publish_refused(self, const char *command, bytes text) except RAISED:
        """Refuse a publish that was read completely but not published."""
        if not self.lenient:
            return self.fatal(text)
        self.answer(self.take_ticket(command, 0), FAILED, text)
        return NEXT

    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED:
        return self.publish_refused(command, b"E_%s_FAILED %s failed %s" % (
            <bytes>command, <bytes>command, reason.encode("utf-8", "surrogateescape")))

    cdef Parsed not_routed(self, const char *command, int why, size_t *used,
                           size_t n) except RAISED:
        """Make a publish with a complete body of `n` bytes wait, unless its topic cannot exist."""
        if why != NO_ROOM or not self.may_join(self.manager.index):
            return BLOCKED
        self.scanned = 0
        used[0] += n
        return self.publish_refused(command, self.no_room(command))

    cdef Parsed forward_publish(self, int owner, const char *command, const uint8_t *line,
                                size_t n, uint32_t messages) except RAISED:
        cdef ForwardingStream forwarding = self.stream_to(owner)
        if owner != self.forwards_to or not self.forwards:
            self.forwards_to = owner
            self.forwards_since = self.manager.scheduler.now
            self.forwards = self.forward_bytes = 0
        self.forwards += 1
        self.forward_bytes += n
        self.line_owner = owner
        forwarding.expected.append(self.take_ticket(command, n))
        forwarding.send(line, n)
        self.topic_count += messages
        return NEXT

    # -- user quota --

    cdef Parsed charge(self, uint32_t messages, uint64_t size) except RAISED:
        """Charge a complete publish to the quota, once per publish, and return NEXT.

        If the quota is exhausted, the publish waits, and no more input is read until then.
        """
        cdef Quota quota = self.quota
        cdef int64_t now = self.manager.scheduler.now
        cdef uint64_t number = self.counted + self.topic_count + 1
        if quota is None or self.paid == number:
            return NEXT
        if quota.wait(now):
            self.await_quota()
            return BLOCKED
        if self.quota_due:
            self.quota_due = 0
            quota.end_wait(now)
        quota.pay(now, messages, size)
        self.paid = number
        return NEXT

    cdef int await_quota(self) except -1:
        cdef Quota quota = self.quota
        cdef int64_t now = self.manager.scheduler.now
        if self.quota_due:
            return 0
        self.quota_due = quota.turn(now)
        quota.begin_wait(now)
        self.set_timer()
        self.manager.lose_favour(self)
        if quota.is_news(now):
            events.quota_reached(self.manager.log, user=quota.user, client=self.remote_address)
        return 0

    # -- publishing to a log --

    cdef Parsed log_pub(self, const uint8_t *line, size_t *used, const uint8_t *rest,
                        size_t left) except RAISED:
        """Publish a batch once, even if the batch is sent repeatedly."""
        cdef Word words[LOG_WORDS]
        cdef uint32_t size
        cdef uint32_t messages
        cdef uint32_t added
        cdef uint64_t bodies
        cdef int32_t invalid_length
        cdef int owner
        cdef size_t length = used[0] - 1
        cdef Topic topic
        cdef ChunkBatch batch
        cdef Parsed parsed
        if length and line[length - 1] == 13:
            length -= 1
        if split_line(line, length, words, LOG_WORDS) < 6:
            return self.fatal(b"E_INVALID LOG_PUB insufficient number of parameters")
        if word_bytes(&words[1]).endswith(b"#ephemeral") or not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC LOG_PUB topic name", &words[1])
        if not name_is_valid(words[2].at, words[2].length):
            return self.bad_name(b"E_INVALID LOG_PUB producer", &words[2])
        epoch = number_of(&words[3], 2**64 - 1)
        part = number_of(&words[4], 2**32 - 1)
        chunk = number_of(&words[5], 2**64 - 1)
        for value, text in ((epoch, "epoch"), (part, "part"), (chunk, "chunk")):
            if value is None:
                return self.fatal(b"E_INVALID LOG_PUB could not parse " + text.encode())
        parsed = self.take_batch(LOG_PUB, rest, left, True, &size, &messages)
        if parsed != NEXT:
            return parsed
        owner = self.route()
        if owner < 0 or not self.may_join(owner):
            return self.not_routed(LOG_PUB, owner, used, 4 + size)
        self.scanned = 0
        if owner != self.manager.index and self.may_migrate(owner):
            return self.migrate_to(owner)
        self.paid = 0  # a stored chunk does not imply that the next one is stored
        used[0] += 4 + size
        if owner != self.manager.index:
            return self.forward_publish(owner, LOG_PUB, line, used[0], messages)
        topic = self.topic
        if topic.limited and not self.transfers:
            invalid_length = topic.invalid_length(rest + 8, messages, self.headers)
            if invalid_length:
                return self.publish_refused(LOG_PUB, topic.size_error(LOG_PUB, invalid_length))
        batch = ChunkBatch.__new__(ChunkBatch)
        batch.name = ChunkName(producer_id(word_bytes(&words[2])), epoch, part, chunk)
        batch.count = messages
        batch.size = size
        batch.headers = self.headers
        batch.moved = self.transfers
        if messages > AT_ONCE and not self.transfers:
            return self.publish_slowly(LOG_PUB, topic, batch, rest + 8, size - 4, messages)
        batch.at = rest + 8
        batch.minimum = self.durability
        try:
            topic.add_chunk(batch, &added, &bodies)
        except ChunkError as error:
            return self.publish_failed(LOG_PUB, str(error))
        return self.publish_accepted(LOG_PUB, topic, added, bodies)

    # -- the other commands for a log --

    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED:
        """Execute a command for a topic's log (docs/PROTOCOL.md).

        The command is answered before the next one is parsed.
        """
        cdef Word words[LOG_WORDS]
        cdef const char *command
        cdef int count
        cdef int needed
        cdef int owner = -1
        cdef size_t length = n - 1
        cdef bytes key
        cdef Topic topic
        cdef Parsed parsed
        if length and line[length - 1] == 13:
            length -= 1
        count = split_line(line, length, words, LOG_WORDS)
        if word_is(words, LOG_META, 8):
            command = LOG_META
            needed = 2
        elif word_is(words, LOG_EPOCHS, 10):
            command = LOG_EPOCHS
            needed = 3
        elif word_is(words, LOG_CURSOR, 10):
            command = LOG_CURSOR
            needed = 5
        elif word_is(words, LOG_SEEK, 8):
            command = LOG_SEEK
            needed = 4
        elif word_is(words, LOG_FETCH, 9):
            command = LOG_FETCH
            needed = 7
        else:
            return self.fatal(b"E_INVALID invalid command " + word_bytes(words))
        if count < needed:
            return self.fatal(b"E_INVALID %s insufficient number of parameters" % command)
        if not name_is_valid(words[1].at, words[1].length):
            return self.bad_name(b"E_BAD_TOPIC %s topic name" % command, &words[1])
        key = word_bytes(&words[1])
        if command == LOG_EPOCHS and not name_is_valid(words[2].at, words[2].length):
            return self.bad_name(b"E_INVALID LOG_EPOCHS producer", &words[2])
        if self.guarded:
            if command == LOG_EPOCHS:
                self.take_topic(&words[1])
            parsed = self.authorize(command, key, b"" if command == LOG_EPOCHS else None)
            if parsed != NEXT:
                return parsed
        parsed = self.find_log_owner(command, key, &owner)
        if owner < 0:
            return parsed
        if owner != self.manager.index:
            if command == LOG_FETCH and self.migratable and self.is_light(owner):
                return self.migrate_to(owner)
            return self.forward_log(owner, command, line, n)
        if self.log_unsent:
            # The client has not yet received the previous response.
            return BLOCKED
        topic = self.manager.shard.find(key)
        if topic is not None and command == LOG_EPOCHS:
            return self.log_epochs(topic, words)
        if topic is None or topic.log is None:
            return self.refuse_topic(key)
        if command == LOG_CURSOR:
            return self.log_cursor(topic, words)
        if command == LOG_META:
            parsed = self.log_meta(topic, words, count)
        elif command == LOG_SEEK:
            parsed = self.log_seek(topic, words)
        else:
            parsed = self.log_fetch(topic, words)
        if self.log_read is not None:
            # The next process may have to repeat the command.
            self.log_line = line[:n]
        self.log_wait = 0
        return parsed

    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED:
        """Find the worker that owns a topic, without creating the topic.

        Return NEXT if there is an owner; otherwise, return how to proceed.
        """
        owner[0] = self.manager.owner_of(key)
        if owner[0] >= 0:
            self.log_due = 0
            self.log_waited = False
            if owner[0] != self.manager.index and not self.manager.is_up(owner[0]):
                owner[0] = -1
                self.manager.wait_for_peer(self)
                return BLOCKED
            return NEXT
        # This worker may not have received a recent placement yet.
        if not self.log_waited:
            if self.log_due == 0:
                self.log_due = self.manager.scheduler.now + PLACED_HEARD
                self.set_timer()
            return BLOCKED
        self.log_waited = False
        return self.refuse_topic(key)

    cdef Parsed refuse_topic(self, bytes key) except RAISED:
        """Respond that a topic has no log, or that the log cannot be read now."""
        if self.manager.shard.is_unloaded(key):
            return self.refuse_log(b"E_LOG_FAILED the topic's files cannot be read now")
        return self.refuse_log(b"E_LOG_NO_TOPIC")

    cdef Parsed forward_log(self, int owner, const char *command, const uint8_t *line,
                            size_t n) except RAISED:
        """Forward a command to the owner of the topic."""
        cdef ForwardingStream forwarding = self.stream_to(owner)
        self.line_owner = -1
        forwarding.expected.append(self.take_ticket(command, n))
        forwarding.send(line, n)
        return NEXT

    cdef Parsed refuse_log(self, bytes text) except RAISED:
        """Respond with an error that does not end the session. Call this only when no answer is
        outstanding."""
        self.put_frame(ERROR, text, len(text))
        return NEXT

    cdef Parsed bad_number(self, const char *command, const char *what,
                           const Word *word) except RAISED:
        return self.fatal(b"E_INVALID %s could not parse %s %s" % (
            <bytes>command, <bytes>what, word_bytes(word)))

    cdef Parsed log_epochs(self, Topic topic, Word *words) except RAISED:
        cdef bytes producer = word_bytes(&words[2])
        cdef bytes answer = json.dumps(
            {"producer": producer.decode(), "epochs": topic.epochs(producer)},
            separators=(",", ":")).encode()
        self.respond(answer, len(answer))
        return NEXT

    cdef Parsed log_meta(self, Topic topic, Word *words, int count) except RAISED:
        cdef uint64_t wait = 0
        cdef uint64_t after = 0
        cdef bytes answer
        if count == 3:
            return self.fatal(b"E_INVALID LOG_META insufficient number of parameters")
        if count > 3:
            if not parse_number(words[2].at, words[2].length, &wait):
                return self.bad_number(LOG_META, b"wait", &words[2])
            if not parse_number(words[3].at, words[3].length, &after):
                return self.bad_number(LOG_META, b"sequence number", &words[3])
        if wait > MAX_LOG_WAIT:
            return self.fatal(
                b"E_INVALID LOG_META wait %d out of range 0-%d" % (wait, MAX_LOG_WAIT))
        if wait == 0 or topic.stable_seq() > after:
            answer = topic.log_meta()
            self.respond(answer, len(answer))
            return NEXT
        self.log_due = self.log_wait or self.manager.scheduler.now + <int64_t>wait * MILLISECOND
        self.set_timer()
        return self.wait_for_log(topic.poll_log(self, self.take_ticket(LOG_META, 0), after))

    cdef Parsed log_seek(self, Topic topic, Word *words) except RAISED:
        cdef uint64_t time = 0
        if not parse_number(words[3].at, words[3].length, &time):
            return self.bad_number(LOG_SEEK, b"time", &words[3])
        return self.wait_for_log(topic.seek_log(
            self, self.take_ticket(LOG_SEEK, 0), word_bytes(&words[2]),
            <int64_t>min(time, <uint64_t>NEVER)))

    cdef Parsed log_fetch(self, Topic topic, Word *words) except RAISED:
        cdef uint64_t start = 0
        cdef uint64_t stop = 0
        cdef uint64_t maximum = 0
        cdef uint32_t columns = 0
        if not parse_number(words[3].at, words[3].length, &start):
            return self.bad_number(LOG_FETCH, b"sequence number", &words[3])
        if not parse_number(words[4].at, words[4].length, &stop):
            return self.bad_number(LOG_FETCH, b"sequence number", &words[4])
        if not parse_number(words[5].at, words[5].length, &maximum):
            return self.bad_number(LOG_FETCH, b"size", &words[5])
        for name in word_bytes(&words[6]).split(b","):
            if name not in _COLUMN_NAMES:
                return self.fatal(b"E_INVALID LOG_FETCH unknown column " + name)
            columns |= <uint32_t>_COLUMN_NAMES[name]
        return self.wait_for_log(topic.fetch_log(
            self, self.take_ticket(LOG_FETCH, 0), word_bytes(&words[2]), start, stop,
            min(maximum, <uint64_t>LARGEST_ANSWER), columns))

    cdef Parsed wait_for_log(self, found) except RAISED:
        """Wait for a topic's read, or send its error, for the command with the last ticket."""
        cdef LogRead read
        self.line_owner = -1
        if isinstance(found, LogRead):
            read = found
            if read.stage != ENDED:
                self.log_read = read
        else:
            self.log_answered(self.ticket_base + self.ticket_count - 1, None, found)
        return NEXT

    cdef Parsed log_cursor(self, Topic topic, Word *words) except RAISED:
        """Execute LOG_CURSOR <topic> <log_id> <name> <seq>.

        With log_id "-", the seq "-" queries the cursor, and the seq "delete" deletes it.
        """
        cdef bytes log_id = word_bytes(&words[2])
        cdef bytes place = word_bytes(&words[4])
        if not name_is_valid(words[3].at, words[3].length):
            return self.bad_name(b"E_INVALID LOG_CURSOR name", &words[3])
        name = word_bytes(&words[3]).decode()
        if log_id != b"-":
            seq = number_of(&words[4], 2**64 - 1)
            if seq is None:
                return self.bad_number(LOG_CURSOR, b"sequence number", &words[4])
            return self.set_log_cursor(topic, log_id, name, seq)
        if place == b"delete":
            return self.delete_log_cursor(topic, name)
        if place != b"-":
            return self.fatal(b"E_INVALID LOG_CURSOR without a log_id is followed by - or delete")
        cursor = topic.find_cursor(name)
        if cursor is None:
            return self.refuse_log(b"E_LOG_NO_CURSOR")
        if cursor.seq < topic.first_seq:
            return self.refuse_log(b"E_LOG_GONE %d" % topic.first_seq)
        answer = cursor_text(name, cursor.log_id, cursor.seq)
        self.respond(answer, len(answer))
        return NEXT

    cdef Parsed set_log_cursor(self, Topic topic, bytes log_id, str name, seq) except RAISED:
        cdef CursorAnswer answer
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef bytes error = topic.log_bounds(log_id, &first, &end)
        if error is not None:
            return self.refuse_log(error)
        if seq < first:
            return self.refuse_log(b"E_LOG_GONE %d" % first)
        if seq > end:
            return self.refuse_log(b"E_LOG_RANGE %d" % end)
        place = bytes.fromhex(log_id.decode())
        answer = self.promise_cursor(name, place, seq)
        try:
            topic.set_cursor(name, place, seq, answer)
        except TooManyCursors:
            self.answer(answer.ticket, REFUSED, b"E_LOG_CURSORS %d" % _MAX_CURSORS)
        return NEXT

    cdef Parsed delete_log_cursor(self, Topic topic, str name) except RAISED:
        cursor = topic.find_cursor(name)
        if cursor is None:
            return self.refuse_log(b"E_LOG_NO_CURSOR")
        topic.delete_cursor(name, self.promise_cursor(name, cursor.log_id, cursor.seq))
        return NEXT

    cdef CursorAnswer promise_cursor(self, str name, bytes log_id, seq):
        """Take a ticket; the returned callback answers it once the journal is written."""
        cdef CursorAnswer answer = CursorAnswer.__new__(CursorAnswer)
        answer.session = self
        answer.ticket = self.take_ticket(LOG_CURSOR, 0)
        answer.text = cursor_text(name, log_id, seq)
        return answer

    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1:
        self.log_read = None
        self.log_line = None
        self.log_due = 0
        if error is not None:
            return self.answer(ticket, REFUSED, error)
        self.answer(ticket, ANSWERED, answer)
        if not self.closed:
            self.hold_answer(len(answer))
        return 0

    cdef int hold_answer(self, uint64_t n) except -1:
        """Count the response toward the worker's memory for responses until it is sent."""
        self.log_unsent = n
        self.log_sent_at = self.output.total_sent + self.output.pending()
        self.manager.shard.host.reserved += n
        return 0

    cdef int answer_left(self) except -1:
        self.manager.shard.host.reserved -= self.log_unsent
        self.log_unsent = 0
        if self.blocked:
            self.wake()
        return 0

    cdef int log_wait_over(self) except -1:
        """Handle a log command whose maximum wait has passed."""
        cdef Topic topic
        self.log_due = 0
        if self.log_read is not None:
            topic = <Topic>self.log_read.window
            return self.log_read.answer(topic.log_meta(), None)
        self.log_waited = True
        self.wake()
        return 0
