"""PUB, MPUB and DPUB.

Checks publishes, charges them to the user's quota, and passes them to the topic or its owner. Does
not know how a topic stores or sends messages.
"""

cimport cython
from libc.string cimport memcmp, memcpy

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.base.headers cimport (
    MAX_HEADERS,
    HEADERS_ROOM,
    HEADERS_SIZE,
    headers_are_valid,
    headers_fault,
)
from nsqcy.broker.topic_queue cimport AT_ONCE, MEMORY
from nsqcy.ipc.quota cimport Quota
from nsqcy.protocol.connection cimport BLOCKED, NEXT
from nsqcy.protocol.forwarding cimport ForwardingStream
from nsqcy.protocol.routing cimport NO_ROOM
from nsqcy.protocol.tickets cimport ANSWERED, FAILED, MAX_FORWARDED
from nsqcy.protocol.wire cimport parse_number, word_bytes
from nsqcy.storage.record cimport Record, record_body

from nsqcy.logging import events
from nsqcy.util.gotext import json_bytes


cdef extern from "Python.h":
    const char *PyBytes_AS_STRING(bytes)
    Py_ssize_t PyBytes_GET_SIZE(bytes)
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


cdef int64_t MILLISECOND = 1000000

cdef enum:
    PUB_NAME = 4                # length of "PUB" and its space

cdef const char *PUB = b"PUB"
cdef const char *MPUB = b"MPUB"
cdef const char *DPUB = b"DPUB"


cdef class BatchWaiter(Waiter):
    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        cdef PublishCommands session = self.session
        session.manager.input_shrank(session, self.size)
        return session.publish_done(ticket, error)


cdef class PublishCommands(Migration):
    # -- one message --

    @cython.final
    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept:
        """Return the length of the line if it is a PUB to the topic that was published to last,
        otherwise 0.

        Such a line, the most frequent one from a producer, need not be split or checked.
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
        """Wait for the rest of a message, unless the client must authenticate first (unlike
        NSQ)."""
        cdef Parsed parsed
        if self.unauthenticated:
            parsed = self.authorize(command, self.topic_key, b"")
            if parsed != NEXT:
                return parsed
        return self.body_missing(
            missing, b"E_BAD_MESSAGE %s failed to read message body" % command)

    cdef inline int64_t size_limit(self, int64_t size) except -1:
        """Return the maximum size of a message to the current topic. A message of the usual `size`
        needs no lookup of the topic's policy: its owner enforces lower limits."""
        if size <= self.manager.max_msg_size:
            return self.manager.max_msg_size
        return self.manager.limits_of(self.topic_key).max_msg_size

    cdef Parsed show_limits(self, Word *words, int count) except RAISED:
        """Answer LIMITS: a client that has the usual limits asks for those of a topic before a
        publish above them."""
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
        """Return the size of a message's body, given the complete message as the client sends
        it."""
        return size - HEADERS_SIZE - load_be16(message) if self.headers else size

    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED:
        """Check a body and its headers; NEXT if they are valid."""
        cdef size_t headers
        cdef int64_t body
        if n < HEADERS_SIZE:
            return self.fatal(
                b"E_BAD_MESSAGE %s message of %d bytes has no room for the length of its headers"
                % (<bytes>command, n))
        headers = load_be16(message)
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
        count and the sizes of the messages determine the end of an MPUB, because several clients
        announce a length that is too small. `exact`: the announced length must be correct. The
        caller resets `scanned` once it is done with the body.
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
                return self.fatal(b"E_BAD_MESSAGE %s invalid message(%d) body size %d" % (
                    <bytes>command, i, length))
            if length > longest and not self.transfers:
                longest = self.size_limit(length) + (HEADERS_ROOM if self.headers else 0)
            if length > longest and not self.transfers:
                return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                    <bytes>command, length, longest))
            end += length
            if end > have:
                break
            at = end
            i += 1
        if self.headers:
            parsed = self.check_messages(command, rest + first, at - first)
            if parsed != NEXT:
                return parsed
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

        Until it is answered, the session executes nothing else, and the batch counts as unfinished
        input.
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
        """Refuse a publish that was read completely; nothing was published."""
        if not self.lenient:
            return self.fatal(text)
        self.answer(self.take_ticket(command, 0), FAILED, text)
        return NEXT

    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED:
        return self.publish_refused(command, b"E_%s_FAILED %s failed %s" % (
            <bytes>command, <bytes>command, reason.encode("utf-8", "surrogateescape")))

    cdef Parsed not_routed(self, const char *command, int why, size_t *used,
                           size_t n) except RAISED:
        """Let a publish with a complete body of `n` bytes wait, unless its topic cannot exist."""
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
