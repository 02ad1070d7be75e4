"""Commands for a topic's log (docs/PROTOCOL.md).

LOG_PUB publishes a batch once, even if the batch is sent repeatedly, and LOG_EPOCHS lists which
batches are remembered; the other commands read the log and manage cursors. Each command is answered
before the next one is executed. A response counts toward the worker's memory for responses until it
is sent. Does not know how a log is read (broker/log_fetch).
"""

import json

from libc.stdint cimport int32_t, uint32_t

from nsqcy.broker.log_fetch cimport ENDED, LARGEST_ANSWER
from nsqcy.broker.topic_queue cimport AT_ONCE, ChunkBatch
from nsqcy.protocol.connection cimport BLOCKED, NEXT
from nsqcy.protocol.forwarding cimport ForwardingStream
from nsqcy.protocol.tickets cimport ANSWERED, REFUSED
from nsqcy.protocol.wire cimport (
    ERROR,
    name_is_valid,
    parse_number,
    split_line,
    word_bytes,
    word_is,
)
from nsqcy.broker.log_fetch import COLUMN_NAMES as _COLUMN_NAMES
from nsqcy.broker.named_cursors import MAX_CURSORS as _MAX_CURSORS
from nsqcy.broker.named_cursors import TooManyCursors
from nsqcy.broker.producers import ChunkError, ChunkName, producer_id


cdef int64_t MILLISECOND = 1000000
cdef int64_t NEVER = 0x7fffffffffffffff
cdef int64_t PLACED_HEARD = 100 * MILLISECOND   # time to learn the owner of a topic

cdef enum:
    LOG_WORDS = 7               # words of a line: name and parameters
    MAX_LOG_WAIT = 60000       # ms

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


cdef class CursorAnswer:
    def __call__(self, error):
        if error is None:
            self.session.answer(self.ticket, ANSWERED, self.text)
        else:
            self.session.answer(self.ticket, REFUSED, b"E_LOG_FAILED "
                                + error.encode("utf-8", "surrogateescape"))


cdef class LogCommands(PublishCommands):
    # -- publishing --

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
        self.paid = 0  # having this chunk implies nothing about the next one
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

    # -- the other commands --

    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED:
        """Execute a command for a topic's log (docs/PROTOCOL.md).

        It is answered before the next command is parsed.
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
        if command == LOG_META:
            return self.log_meta(topic, words, count)
        if command == LOG_SEEK:
            return self.log_seek(topic, words)
        if command == LOG_CURSOR:
            return self.log_cursor(topic, words)
        return self.log_fetch(topic, words)

    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED:
        """Find the worker that owns a topic, without creating the topic.

        Return NEXT if there is one; otherwise, how to proceed.
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
        # This worker may not have learned about a recent placement yet.
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
        """Respond with an error that does not end the session. Nothing is outstanding."""
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
        self.log_due = self.manager.scheduler.now + <int64_t>wait * MILLISECOND
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

        With log_id "-", seq "-" queries the cursor and "delete" deletes it.
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
