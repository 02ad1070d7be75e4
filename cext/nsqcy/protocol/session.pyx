"""Sessions: the V2 protocol of one connection; and the sessions of a worker.

A session is fed bytes and writes frames into its output; a transport (a socket, or a stream to
another worker) moves them. It executes commands on topics of its own worker, and forwards those
about topics of others through a leg: a stream whose far end is a session like this one. Knows
neither sockets nor the event loop, and reads no clock.

Answers leave in the order of their commands: one that is not known yet (a publish that waits for
the log, or was forwarded) takes a ticket, and what comes behind it waits. Publishes may be
pipelined; any other command waits until no ticket is outstanding. Heartbeats and messages pass.
"""

import json
from collections import deque

cimport cython
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from nsqcy.base.bytes cimport hex16_parse, load_be16, load_be32
from nsqcy.broker.channel cimport DONE, NOT_IN_FLIGHT, Outcome
from nsqcy.broker.ready_ring cimport ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.base.headers cimport (
    HEADERS_MOST,
    HEADERS_ROOM,
    HEADERS_SIZE,
    headers_are_valid,
    headers_fault,
)
from nsqcy.base.heap cimport (
    HEAP_NOWHERE,
    heap_first_due,
    heap_free,
    heap_init,
    heap_peek,
    heap_push,
    heap_remove,
    heap_update,
)
from nsqcy.broker.log_reader cimport ENDED, LARGEST_ANSWER, LogRead
from nsqcy.storage.record cimport record_body
from nsqcy.broker.topic cimport MEMORY, durability_of
from nsqcy.protocol.wire cimport (
    BY_REFERENCE,
    ERROR,
    FIN_LINE,
    FRAME_HEADER,
    LONGEST_LINE,
    MESSAGE,
    RESPONSE,
    frame_bytes,
    name_is_valid,
    parse_number,
    split_line,
)
from nsqcy.broker.log_reader import COLUMN_NAMES as _COLUMN_NAMES
from nsqcy.errors import ClientError
from nsqcy.broker.named_cursors import CURSORS_MOST as _CURSORS_MOST
from nsqcy.broker.named_cursors import TooManyCursors
from nsqcy.names import quote
from nsqcy.broker.producers import ChunkError, ChunkName, producer_id


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_XDECREF(void *)
    const char *PyBytes_AS_STRING(bytes)
    Py_ssize_t PyBytes_GET_SIZE(bytes)
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


cdef int64_t MILLISECOND = 1000000
cdef int64_t SECOND = 1000000000
cdef int64_t NEVER = 0x7fffffffffffffff
cdef int64_t MAGIC_TIMEOUT = 60 * SECOND        # a peer that does not even say what it speaks
cdef enum:
    MOVE_MOST = 65536           # bytes unread, and unsent, that a session may take along
    MOVE_BUSY = 600             # permille of the last second above which an owner takes nobody in
    MOVE_BYTES = 1048576        # forwarded to one owner that make a producer move there, or
    MOVE_FORWARDS = 256         # as many publishes, and for so long that what they cost the owner
cdef int64_t MOVE_AFTER = 2 * SECOND            # is in the figure that says how busy it is
cdef enum:
    MOVES_MOST = 16             # sessions gone from here in a second, before producers must wait

cdef int64_t FAVOUR = 2 * SECOND                # of silence, for who is read beyond the budget
cdef int64_t PEER_TIMEOUT = 5 * SECOND          # how long a publish waits for a dead worker
cdef int64_t PLACED_HEARD = 100 * MILLISECOND   # until all know who owns a new topic, amply

cdef enum:
    KEPT_FREELY = 65536         # unfinished input of one session that the worker's budget allows
    LEG_BACKLOG = 262144        # bytes of commands that wait for credit before parsing stops
    DRAIN_BYTES = 1048576       # of the rings in one turn
    SECRET_MOST = 65536         # bytes of a secret that a server is asked about
    HELLO_TEXT = 512            # characters of a text about a client that its far end is told
    OK_FRAME = 10               # bytes of it
    WORDS = 4                   # of a line: the name and as many parameters as NSQ's commands have
    LOG_WORDS = 7               # the same of the LOG_ commands
    LOG_WAIT_MOST = 60000       # ms
    RELAYED_LEAST = 65536       # bytes of an answer from which on it is not put together first
    PUB_NAME = 4                # bytes of "PUB" and its space
    LINE_STEP = 256             # bytes taken to go on with a line of unknown length
    NO_ROOM = -2                # as an owner: the topic is not there and may not be made

cdef const char *OK = b"\0\0\0\6\0\0\0\0OK"
cdef const char *PUB = b"PUB"
cdef const char *MPUB = b"MPUB"
cdef const char *DPUB = b"DPUB"
cdef const char *SUB = b"SUB"
cdef const char *AUTH = b"AUTH"
cdef const char *LOG_PUB = b"LOG_PUB"
cdef const char *LOG_META = b"LOG_META"
cdef const char *LOG_CURSOR = b"LOG_CURSOR"
cdef const char *LOG_SEEK = b"LOG_SEEK"
cdef const char *LOG_FETCH = b"LOG_FETCH"
cdef const char *SILENT = b""           # of a ticket whose answer the client does not see


# Whether this is the debug build, which counts what is alive.
COUNTED = bool(NSQCY_DEBUG)

cdef Py_ssize_t live_sessions = 0
cdef Py_ssize_t live_legs = 0
cdef Py_ssize_t live_answers = 0        # texts that tickets own


def live():
    """How many sessions, legs and waiting answers exist; zeros in a release build."""
    return {"sessions": live_sessions, "legs": live_legs, "answers": live_answers}


cdef inline void drop_answer(Ticket *ticket) noexcept:
    global live_answers
    if ticket.text != NULL:
        Py_XDECREF(ticket.text)
        ticket.text = NULL
        if NSQCY_DEBUG:
            live_answers -= 1


cdef class Transport:
    cdef int flush(self) except -1:
        """Send what the output holds, as far as it goes; call session.after_flush()."""
        raise NotImplementedError

    cdef int watch_input(self, bint on) except -1:
        """Whether input is wanted."""
        raise NotImplementedError

    cdef int close(self) except -1:
        raise NotImplementedError

    cdef int abandon(self) except -1:
        """Let go of the peer without a word: another worker has it now."""
        raise NotImplementedError

    cdef int upgrade(self, identity) except -1:
        """From here on speak what was negotiated; session.upgrade_done() says when."""
        raise NotImplementedError

    cdef int read_on(self) except -1:
        """Go on with input that was received and not decoded yet."""
        return 0

    cdef int rest(self) except -1:
        """Give back memory that is of no use now."""
        return 0


cdef inline bint word_is(const Word *word, const char *text, size_t length) noexcept:
    return word.length == length and memcmp(word.at, text, length) == 0


cdef inline bytes word_bytes(const Word *word):
    return PyBytes_FromStringAndSize(<const char *>word.at, word.length)


cdef inline bint is_refusal(bytes error):
    """Whether a client goes on after it. Not after a publish that failed: what it has sent behind
    it must not be published."""
    return error.startswith(b"E_LOG_") and not error.startswith(b"E_LOG_PUB_")


cdef object number_of(const Word *word, most):
    """The number that a word is; None if it is none, or above `most`."""
    cdef bytes text = word_bytes(word)
    if not text.isdigit() or len(text) > 20:
        return None
    number = int(text)
    return number if number <= most else None


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


cdef int _log_error(Session session, bytes text) except -1:
    """What a client is told of its mistake."""
    cdef str shown = text.decode("utf-8", "replace")
    session.home.log.error(f"[{session.remote_address}] - {shown}", event="client_error",
                           client=session.remote_address, error=shown)
    return 0


@cython.no_gc_clear      # __dealloc__ needs the home
cdef class Session(Consumer):
    def __cinit__(self, Home home not None, Transport transport not None, str remote_address,
                  *args, **kwargs):
        global live_sessions
        self.home = home
        self.transport = transport
        transport.session = self
        self.remote_address = remote_address
        self.output = Output()
        self.legs = {}
        self.pub_counts = {}
        self.client_id = self.hostname = remote_address.rpartition(":")[0].strip("[]")
        self.user_agent = self.topology_region = self.topology_zone = ""
        self.auth_identity = self.auth_identity_url = ""
        self.certificate_names = ()
        self.guarded = home.auth is not None
        self.locality = ANYWHERE
        self.msg_timeout = home.msg_timeout
        self.output_buffer_size = 16384
        self.output_buffer_timeout = home.options.output_buffer_timeout
        self.connected_at = home.agenda.wall
        self.barred = home.tls_required
        self.last_command = home.agenda.now
        self.reading = True
        self.timer.node.index = HEAP_NOWHERE
        self.timer.owner = <void *>self
        home.sessions.add(self)
        self.set_timer()
        if NSQCY_DEBUG:
            live_sessions += 1

    def __dealloc__(self):
        global live_sessions
        if NSQCY_DEBUG:
            live_sessions -= 1
        self.drop_tickets()
        free(self.tickets)
        free(self.kept)
        if self.timer.node.index != HEAP_NOWHERE and self.home is not None:
            heap_remove(&self.home.timers, &self.timer.node)

    # -- input --

    cdef int feed(self, const uint8_t *data, size_t n) except -1:
        """Execute the complete commands in what was kept and these bytes; keep the rest."""
        cdef size_t used = 0
        if self.stopping or self.closed:
            return 0
        if self.home.favoured is self:
            self.home.favoured_at = self.home.agenda.now
        if self.kept_end > self.kept_start and not self.blocked:
            used = self.complete_kept(data, n)
        if used < n and not self.blocked and not self.stopping:
            used += self.parse(data + used, n - used)
        if used < n and not self.stopping:
            self.keep(data + used, n - used)
        self.check_appetite()
        return 0

    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0:
        """Execute the command that was kept, with as many of these bytes as it takes and not many
        more: all behind it can be parsed where it lies. Returns how many were used."""
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
                # It was an IDENTIFY: what came with its end is lost, as it says.
                return n
            left = self.kept_end - self.kept_start
            if left <= used and not self.blocked:
                # All that was kept is executed; what is left of these bytes goes back to them.
                used -= left
                if left:
                    self.drop_kept()
                break
        return used

    cdef int end_of_input(self) except -1:
        """The peer has sent all it will: what is complete is answered, then the session ends."""
        self.eof = True
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
        """What parsing waited for may have come."""
        self.resumable = False
        if self.closed or self.stopping or self.moving or not self.blocked:
            return 0
        self.blocked = False
        self.last_command = self.home.agenda.now
        self.parse_kept()
        if self.eof and not self.blocked and not self.stopping:
            self.finish_input()
        self.check_appetite()
        return 0

    cdef int parse_kept(self) except -1:
        cdef size_t used = self.parse(self.kept + self.kept_start, self.kept_end - self.kept_start)
        self.kept_start += used
        if self.kept_start >= self.kept_end or self.stopping:
            self.drop_kept()
        return 0

    cdef int keep(self, const uint8_t *data, size_t n) except -1:
        """Unfinished input grows with what arrived, never with what was announced."""
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
                self.home.input_bytes += capacity - self.kept_capacity
                self.kept = grown
                self.kept_capacity = capacity
        memcpy(self.kept + self.kept_end, data, n)
        self.kept_end += n
        return 0

    cdef int drop_kept(self) except -1:
        cdef int64_t capacity = self.kept_capacity
        free(self.kept)
        self.kept = NULL
        self.kept_start = self.kept_end = self.kept_capacity = 0
        self.home.input_shrank(self, capacity)
        return 0

    cdef int check_appetite(self) except -1:
        """Whether more input is wanted: not while parsing waits, nor while the worker holds too
        much unfinished input and this session is among those who hold it."""
        cdef bint starve = (self.kept_capacity > KEPT_FREELY
                            and self.home.input_bytes > self.home.max_input_bytes
                            and not self.quota_due and not self.home.favours(self))
        cdef bint wanted = not (self.blocked or self.stopping or self.eof or starve
                                or self.upgrading)
        if starve and not self.starved:
            self.starved = True
            self.home.starved.append(self)
        if wanted != self.reading and not self.closed:
            self.reading = wanted
            self.transport.watch_input(wanted)
        return 0

    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0:
        """Execute complete commands; returns how many bytes they took."""
        cdef size_t at = 0
        cdef size_t used = 0
        cdef Parsed parsed
        self.missing = 0
        if not self.magic_seen:
            if n < 4:
                return 0
            if memcmp(data, b"  V2", 4) != 0:
                self.put_frame(ERROR, b"E_BAD_PROTOCOL", 14)
                self.home.log.error(
                    f"client({self.remote_address}) bad protocol magic "
                    f"'{data[:4].decode('latin-1')}'",
                    event="bad_magic", client=self.remote_address)
                self.stop()
                return 4
            self.magic_seen = True
            self.heartbeat_interval = self.home.heartbeat_default
            self.next_heartbeat = self.home.agenda.now + self.heartbeat_interval
            self.last_command = self.home.agenda.now
            self.set_timer()
            at = 4
        self.unread_error = None
        while at < n:
            if self.is_crammed():
                self.blocked = self.crammed = True
                break
            if self.leg is None:
                used = self.finish_here(data + at, n - at)
            else:
                used = self.finish_there(data + at, n - at)
            if used:
                at += used
                continue
            self.unread_error = None
            used = self.publish_line(data + at, n - at)
            if used:
                parsed = self.publish_one(
                    PUB, 0, data + at, &used, data + at + used, n - at - used)
            else:
                parsed = self.command(data + at, n - at, &used)
            if parsed == NEXT:
                at += used
                continue
            if parsed == BLOCKED:
                self.blocked = True
            break
        if at:
            self.last_command = self.home.agenda.now
        return at

    @cython.final
    cdef size_t finish_here(self, const uint8_t *lines, size_t n) noexcept:
        """The short way of the most frequent command, of which many come together: the bytes of the
        FINs here that were of messages of this client's, and are done. Everything else goes the
        long way. Of such a run the age of the first message is taken for that of all."""
        cdef Channel channel = self.channel
        cdef const uint8_t *line = lines
        cdef uint64_t id
        cdef int64_t age
        if channel is None or self.ticket_count or n < FIN_LINE or memcmp(line, b"FIN ", 4) != 0:
            return 0
        if hex16_parse(line + 4, &id) != 0:
            return 0
        age = channel.age_of(id)
        while (n >= FIN_LINE and memcmp(line, b"FIN ", 4) == 0 and line[FIN_LINE - 1] == 10
               and hex16_parse(line + 4, &id) == 0 and channel.finish(self, id) == DONE):
            line += FIN_LINE
            n -= FIN_LINE
        if line != lines:
            channel.note_ages(age, (line - lines) // FIN_LINE)
        return line - lines

    cdef size_t finish_there(self, const uint8_t *lines, size_t n) except? 0:
        """The same for the messages of another worker's topic: as many FINs as follow each other go
        there in one piece. Returns their bytes."""
        cdef size_t used = 0
        cdef uint64_t id
        if self.ticket_count or len(self.leg.unsent) > LEG_BACKLOG:
            return 0
        while (n - used >= FIN_LINE and memcmp(lines + used, b"FIN ", 4) == 0
                and lines[used + FIN_LINE - 1] == 10 and hex16_parse(lines + used + 4, &id) == 0):
            used += FIN_LINE
        if used:
            self.leg.send(lines, used)
        return used

    @cython.final
    cdef size_t publish_line(self, const uint8_t *line, size_t n) noexcept:
        """Bytes of the line if it is a PUB to the topic published to last, as most of a producer's
        are: nothing in it has to be split or checked. 0 if it is something else."""
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

    @cython.final
    cdef Parsed command(self, const uint8_t *line, size_t n, size_t *used) except RAISED:
        """Execute one command, if all of it is there."""
        cdef const uint8_t *end = <const uint8_t *>memchr(
            line, 10, min(n, <size_t>LONGEST_LINE))
        cdef size_t length
        cdef Word words[WORDS]
        cdef int count
        if end == NULL:
            if n >= LONGEST_LINE:
                self.stop()
                return STOPPED
            return MORE
        used[0] = end - line + 1
        length = end - line
        if length and line[length - 1] == 13:
            length -= 1
        count = split_line(line, length, words, WORDS)
        return self.execute(words, count, line, used, end + 1, n - used[0])

    @cython.final
    cdef Parsed execute(self, Word *words, int count, const uint8_t *line, size_t *used,
                        const uint8_t *rest, size_t left) except RAISED:
        """Commands by name, the frequent ones first. Those without a body take bytes [line, line +
        used); the others add their body to `used`."""
        cdef Word *name = words
        if self.barred and not word_is(name, b"IDENTIFY", 8):
            return self.fatal(
                b"E_INVALID cannot %s in current state (TLS required)" % word_bytes(name))
        if word_is(name, PUB, 3):
            return self.pub(words, count, line, used, rest, left)
        if word_is(name, MPUB, 4):
            return self.mpub(words, count, line, used, rest, left)
        if word_is(name, DPUB, 4):
            return self.dpub(words, count, line, used, rest, left)
        if self.topic_log and word_is(name, LOG_PUB, 7):
            return self.log_pub(line, used, rest, left)
        if self.ticket_count:
            return BLOCKED
        if self.leg is not None and len(self.leg.unsent) > LEG_BACKLOG:
            return BLOCKED
        if word_is(name, b"FIN", 3):
            return self.fin(words, count, line, used[0])
        if word_is(name, b"RDY", 3):
            return self.rdy(words, count, line, used[0])
        if word_is(name, b"REQ", 3):
            return self.req(words, count, line, used[0])
        if word_is(name, b"TOUCH", 5):
            return self.touch_message(words, count, line, used[0])
        if word_is(name, b"NOP", 3):
            if self.remote and count > 1:
                # The client's home wants to know when all before this has been answered.
                self.respond(b"OK", 2)
            return NEXT
        if word_is(name, SUB, 3):
            return self.sub(words, count, line, used[0])
        if word_is(name, b"CLS", 3):
            return self.cls(line, used[0])
        if word_is(name, b"IDENTIFY", 8):
            return self.identify(used, rest, left)
        if word_is(name, b"AUTH", 4):
            return self.auth(count, used, rest, left)
        if self.topic_log and name.length > 4 and memcmp(name.at, b"LOG_", 4) == 0:
            return self.log_command(line, used[0])
        return self.fatal(b"E_INVALID invalid command " + word_bytes(name))

    # -- answers --

    @cython.final
    cdef bint is_crammed(self) noexcept:
        """Whether so many answers wait for the client that it gets no more before it reads."""
        cdef size_t waiting = self.output.end - self.output.start
        if self.aside is not None:
            waiting += len(self.aside)
        return waiting > ANSWERS_MOST

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

    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1:
        """In the middle of a message frame from another worker: right behind it."""
        cdef Output aside = Output()
        aside.put_frame(type, data, n)
        if self.aside is None:
            self.aside = bytearray()
        self.aside += aside.buffer[:aside.end]
        return 0

    cdef int respond(self, const uint8_t *data, size_t n) except -1:
        """Answer a command: at once if nothing before it is unanswered."""
        if self.ticket_count == 0:
            return self.put_frame(RESPONSE, data, n)
        self.take_ticket(NULL, 0)
        self.answer(self.ticket_base + self.ticket_count - 1, ANSWERED,
                    PyBytes_FromStringAndSize(<const char *>data, n))
        return 0

    cdef Parsed fatal(self, bytes text) except RAISED:
        """An error after which nothing more is executed: answered in its turn, then the end."""
        _log_error(self, text)
        if self.leg is not None and not self.ticket_count:
            # Behind whatever the owner still has to say to the commands before it.
            self.leg.expected.append(self.take_ticket(SILENT, 0))
            self.leg.send(b"NOP ANSWERED\n", 13)
        if self.ticket_count:
            self.take_ticket(NULL, 0)
            self.stopping = True
            self.answer(self.ticket_base + self.ticket_count - 1, FAILED, text)
        else:
            self.put_frame(ERROR, text, len(text))
            self.stop()
        return STOPPED

    cdef int refuse(self, const char *command, const Word *id, Outcome outcome) except -1:
        """FIN, REQ or TOUCH of a message that is not the client's."""
        cdef bytes text = b"E_%s_FAILED %s %s failed %s" % (
            <bytes>command, <bytes>command, word_bytes(id),
            b"ID not in flight" if outcome == NOT_IN_FLIGHT else b"client does not own message")
        return self.put_frame(ERROR, text, len(text))

    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0:
        """A place in the line of answers; returns its number."""
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

    cdef int answer(self, uint64_t number, TicketState state, bytes text) except -1:
        """The answer behind a ticket is known; whatever is first in line and known leaves."""
        global live_answers
        cdef Ticket *ticket
        if self.closed or number < self.ticket_base \
                or number >= self.ticket_base + self.ticket_count:
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        ticket.state = state
        if text is not None:
            Py_INCREF(text)
            ticket.text = <void *>text
            if NSQCY_DEBUG:
                live_answers += 1
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
                self.put_frame(RESPONSE, b"OK", 2)
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
        return self.ticket_count < TICKETS_MOST and self.forwarded < FORWARDED_MOST

    @cython.final
    cdef bint may_join(self, int owner) noexcept:
        """Whether a publish may go ahead of the answers outstanding. Not if there are too many, or
        one of them can be an error that the owner, or here the topic, does not know of: nothing is
        executed after it."""
        if self.ticket_count == 0:
            return True
        if not self.can_pipeline():
            return False
        if self.lenient:
            return True
        if owner != self.line_owner:
            return False
        return owner != self.home.index or self.topic_key is self.line_key

    cdef int publish_done(self, uint64_t number, str error) except -1:
        cdef Ticket *ticket
        cdef bytes command
        if error is None:
            return self.answer(number, ANSWERED, None)
        if self.closed or number < self.ticket_base:
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        command = ticket.command
        return self.answer(number, FAILED, b"E_%s_FAILED %s failed %s" % (
            command, command, error.encode("utf-8", "surrogateescape")))

    # -- publishing --

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
        cdef uint64_t most = <uint64_t>(self.home.max_defer_timeout // MILLISECOND)
        if count < 3:
            return self.fatal(b"E_INVALID DPUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC DPUB topic name", &words[1])
        if not parse_number(words[2].at, words[2].length, &milliseconds):
            return self.fatal(b"E_INVALID DPUB could not parse timeout " + word_bytes(&words[2]))
        if milliseconds > most:
            return self.fatal(b"E_INVALID DPUB timeout %d out of range 0-%d" % (milliseconds, most))
        return self.publish_one(DPUB, <int64_t>milliseconds * MILLISECOND, line, used, rest, left)

    @cython.final
    cdef Parsed publish_one(self, const char *command, int64_t delay, const uint8_t *line,
                            size_t *used, const uint8_t *rest, size_t left) except RAISED:
        """PUB and DPUB, to the topic that was taken."""
        cdef int32_t size
        cdef int64_t most = self.home.max_msg_size
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
        if size > most and not (self.headers and size <= most + HEADERS_ROOM):
            return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, size, most + HEADERS_ROOM if self.headers else most))
        if left - 4 < <size_t>size:
            return self.body_missing(
                4 + size - left, b"E_BAD_MESSAGE %s failed to read message body" % command)
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
        if owner != self.home.index and self.may_move(owner):
            return self.move_to(owner)
        used[0] += 4 + size
        if owner != self.home.index:
            return self.forward_publish(owner, command, line, used[0], 1)
        topic = self.topic
        if topic.limited and not topic.fits(self.body_size(rest + 4, size)):
            return self.publish_refused(
                command, topic.objection(command, self.body_size(rest + 4, size)))
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

    cdef inline int32_t body_size(self, const uint8_t *message, int32_t size) noexcept:
        """Of a whole message, as the client sends it."""
        return size - HEADERS_SIZE - load_be16(message) if self.headers else size

    cdef Parsed mpub(self, Word *words, int count, const uint8_t *line, size_t *used,
                     const uint8_t *rest, size_t left) except RAISED:
        cdef uint32_t size
        cdef uint32_t messages
        cdef int32_t length
        cdef uint64_t bodies
        cdef int owner
        cdef Topic topic
        cdef Parsed parsed
        if count < 2:
            return self.fatal(b"E_INVALID MPUB insufficient number of parameters")
        if not self.take_topic(&words[1]):
            return self.bad_name(b"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name", &words[1])
        parsed = self.take_batch(MPUB, rest, left, &size, &messages)
        if parsed != NEXT:
            return parsed
        owner = self.route()
        if owner < 0 or not self.may_join(owner):
            return self.not_routed(MPUB, owner, used, 4 + size)
        self.scanned = 0
        if owner != self.home.index and self.may_move(owner):
            return self.move_to(owner)
        used[0] += 4 + size
        if owner != self.home.index:
            return self.forward_publish(owner, MPUB, line, used[0], messages)
        topic = self.topic
        if topic.limited:
            length = topic.misfit(rest + 8, messages, self.headers)
            if length:
                return self.publish_refused(MPUB, topic.objection(MPUB, length))
        if topic.may_refuse():
            refusal = topic.refusal(self.durability, messages, size)
            if refusal is not None:
                return self.publish_failed(MPUB, refusal)
        if self.durability != MEMORY:
            topic.demand(self.durability)
        if self.headers:
            bodies = topic.add_headered_batch(rest + 8, messages)
        else:
            topic.new_batch(rest + 8, messages)
            bodies = size - 4 - 4 * <uint64_t>messages
        return self.publish_accepted(MPUB, topic, messages, bodies)

    cdef Parsed check_message(self, const char *command, const uint8_t *message,
                              size_t n) except RAISED:
        """Whether a body with headers before it is as it may be: NEXT."""
        cdef size_t headers
        cdef int64_t body
        if n < HEADERS_SIZE:
            return self.fatal(
                b"E_BAD_MESSAGE %s message of %d bytes has no room for the length of its headers"
                % (<bytes>command, n))
        headers = load_be16(message)
        if headers > HEADERS_MOST:
            return self.fatal(b"E_BAD_MESSAGE %s headers of %d bytes (at most %d)" % (
                <bytes>command, headers, <int>HEADERS_MOST))
        body = <int64_t>n - HEADERS_SIZE - <int64_t>headers
        if body < 0:
            return self.fatal(
                b"E_BAD_MESSAGE %s headers of %d bytes end behind a message of %d" % (
                    <bytes>command, headers, n))
        if body == 0:
            return self.fatal(b"E_BAD_MESSAGE %s invalid message body size 0" % command)
        if body > self.home.max_msg_size:
            return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, body, self.home.max_msg_size))
        if not headers_are_valid(message + HEADERS_SIZE, headers):
            return self.fatal(b"E_BAD_MESSAGE %s %s" % (
                <bytes>command, headers_fault(message + HEADERS_SIZE, headers).encode()))
        return NEXT

    cdef Parsed check_batch(self, const char *command, const uint8_t *batch,
                            uint32_t count) except RAISED:
        """The same for each message of a batch, whose lengths were checked."""
        cdef size_t length
        cdef Parsed parsed
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            parsed = self.check_message(command, batch + 4, length)
            if parsed != NEXT:
                return parsed
            batch += 4 + length
        return NEXT

    cdef Parsed take_batch(self, const char *command, const uint8_t *rest, size_t left,
                           uint32_t *body_size, uint32_t *count) except RAISED:
        """Check the body of an MPUB or LOG_PUB to the topic that was taken: NEXT if it is complete
        and valid, and the client may publish. The count and the sizes of the messages say where an
        MPUB ends, as in NSQ: several clients announce too small a length. The caller resets
        `scanned` when it is done with the body."""
        cdef int32_t announced
        cdef int32_t messages
        cdef int32_t length
        cdef int64_t longest = self.home.max_msg_size + (HEADERS_ROOM if self.headers else 0)
        cdef size_t limit = self.batch_limit()
        cdef size_t at
        cdef size_t end
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
        if announced > self.home.max_body_size and not self.moves:
            return self.batch_too_big(command, announced)
        rest += 4
        have = min(left - 4, limit)
        if have < 4:
            return self.body_missing(
                max(<size_t>announced, 4) - have,
                b"E_BAD_BODY %s failed to read message count" % command)
        messages = <int32_t>load_be32(rest)
        if messages <= 0 or messages > (self.home.max_body_size - 4) // 5:
            return self.fatal(
                b"E_BAD_BODY %s invalid message count %d" % (<bytes>command, messages))
        # Check as far as the bytes reach, going on where the last look ended.
        at = self.scanned if self.scanned else 4
        i = self.scanned_count if self.scanned else 0
        while i < <uint32_t>messages:
            end = at + 4
            if end > have:
                self.scanned, self.scanned_count = at, i
                return self.batch_missing(
                    command, end, have, announced,
                    b"E_BAD_MESSAGE %s failed to read message(%d) body size" % (
                        <bytes>command, i))
            length = <int32_t>load_be32(rest + at)
            if length <= 0:
                return self.fatal(b"E_BAD_MESSAGE %s invalid message(%d) body size %d" % (
                    <bytes>command, i, length))
            if length > longest and not self.moves:
                return self.fatal(b"E_BAD_MESSAGE %s message too big %d > %d" % (
                    <bytes>command, length, longest))
            end += length
            if end > have:
                self.scanned, self.scanned_count = at, i
                return self.batch_missing(
                    command, end, have, announced,
                    b"E_BAD_MESSAGE %s failed to read message body" % command)
            at = end
            i += 1
        if at != <size_t>announced and command == LOG_PUB:
            return self.fatal(b"E_BAD_BODY %s body of %d bytes holds messages for %d" % (
                <bytes>command, announced, at))
        if self.headers:
            parsed = self.check_batch(command, rest + 4, messages)
            if parsed != NEXT:
                return parsed
        body_size[0] = <uint32_t>at
        count[0] = messages
        return NEXT if self.quota is None else self.charge(messages, at)

    cdef size_t batch_limit(self) noexcept:
        """Bytes that a batch may have. The count comes on top of `--max-body-size`, as clients
        leave it out of the length they announce."""
        cdef int64_t most = 0x7fffffff
        if not self.moves:
            most = min(most, self.home.max_body_size)
        return most + 4

    cdef Parsed batch_missing(self, const char *command, size_t end, size_t have,
                              int32_t announced, bytes error) except RAISED:
        """Wait for the part of a batch up to `end`, unless that would be too much. The announced
        length is a hint: what is taken beyond the batch is the next command."""
        if end > self.batch_limit():
            return self.batch_too_big(command, end)
        return self.body_missing(max(end, <size_t>announced) - have, error)

    cdef Parsed batch_too_big(self, const char *command, size_t size) except RAISED:
        return self.fatal(b"E_BAD_BODY %s body too big %d > %d" % (
            <bytes>command, size, self.home.max_body_size))

    cdef Parsed log_pub(self, const uint8_t *line, size_t *used, const uint8_t *rest,
                        size_t left) except RAISED:
        """A batch that is published once, however often it is sent."""
        cdef Word words[LOG_WORDS]
        cdef uint32_t size
        cdef uint32_t messages
        cdef uint32_t added
        cdef uint64_t bodies
        cdef int32_t misfit
        cdef int owner
        cdef size_t length = used[0] - 1
        cdef Topic topic
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
        parsed = self.take_batch(LOG_PUB, rest, left, &size, &messages)
        if parsed != NEXT:
            return parsed
        owner = self.route()
        if owner < 0 or not self.may_join(owner):
            return self.not_routed(LOG_PUB, owner, used, 4 + size)
        self.scanned = 0
        if owner != self.home.index and self.may_move(owner):
            return self.move_to(owner)
        self.paid = 0  # a chunk that is there already adds nothing by which to tell the next one
        used[0] += 4 + size
        if owner != self.home.index:
            return self.forward_publish(owner, LOG_PUB, line, used[0], messages)
        topic = self.topic
        if topic.limited and not self.moves:
            misfit = topic.misfit(rest + 8, messages, self.headers)
            if misfit:
                return self.publish_refused(LOG_PUB, topic.objection(LOG_PUB, misfit))
        name = ChunkName(producer_id(word_bytes(&words[2])), epoch, part, chunk)
        try:
            topic.add_chunk(
                name, rest + 8, size, messages, self.headers, self.durability, &added, &bodies,
                self.moves)
        except ChunkError as error:
            return self.publish_failed(LOG_PUB, str(error))
        return self.publish_accepted(LOG_PUB, topic, added, bodies)

    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED:
        """Wait for about `missing` more bytes of a body; `error` is what it means if they never
        arrive."""
        self.missing = missing
        self.unread_error = error
        return MORE

    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED:
        quoted = quote(word_bytes(name)).encode("utf-8", "surrogateescape")
        return self.fatal(b"%s %s is not valid" % (prefix, quoted))

    @cython.final
    cdef bint same_topic(self, Word *name) noexcept:
        """Whether `name` is the topic published to last (and so valid)."""
        cdef bytes key = self.topic_key
        return (key is not None and <size_t>len(key) == name.length
                and memcmp(<const char *>key, name.at, name.length) == 0)

    @cython.final
    cdef bint take_topic(self, Word *name) except -1:
        """Make it the topic published to last; whether it is a valid name, without which nothing
        changes."""
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

    @cython.final
    cdef int route(self) except? -1:
        """Which worker owns the topic that was taken; -1: not known yet, or it is down; NO_ROOM: it
        would be this one. self.topic is the topic when it is this one."""
        cdef int owner
        if self.topic_owner < 0:
            self.topic_owner = self.home.owner_of(self.topic_key)
        owner = self.topic_owner
        if owner < 0:
            self.home.ask(self, self.topic_key)
        elif owner != self.home.index:
            if not self.home.is_up(owner):
                self.home.wait_for_peer(self)
                return -1
        elif self.topic is None or self.topic.gone:
            return self.find_topic()
        return owner

    cdef int find_topic(self) except? -1:
        self.topic = self.home.shard.find_or_create(self.topic_key)
        return NO_ROOM if self.topic is None else self.home.index

    cdef Parsed publish_failed(self, const char *command, str reason) except RAISED:
        return self.publish_refused(command, b"E_%s_FAILED %s failed %s" % (
            <bytes>command, <bytes>command, reason.encode("utf-8", "surrogateescape")))

    cdef Parsed not_routed(self, const char *command, int why, size_t *used,
                           size_t n) except RAISED:
        """A publish whose body of `n` bytes is there waits, unless its topic can never be."""
        if why != NO_ROOM or not self.may_join(self.home.index):
            return BLOCKED
        self.scanned = 0
        used[0] += n
        return self.publish_refused(command, self.no_room(command))

    cdef bytes no_room(self, const char *command):
        """Why the topic that was taken is not made."""
        return b'E_BAD_TOPIC %s topic "%s" exceeds limit of %d topics' % (
            <bytes>command, self.topic_key, self.home.options.max_topics)

    cdef Parsed publish_refused(self, const char *command, bytes text) except RAISED:
        """Nothing of it was published, and it has been read."""
        if not self.lenient:
            return self.fatal(text)
        self.answer(self.take_ticket(command, 0), FAILED, text)
        return NEXT

    @cython.final
    cdef Parsed publish_accepted(self, const char *command, Topic topic, uint32_t count,
                                 uint64_t body_bytes) except RAISED:
        self.topic_count += count
        if topic.published(count, body_bytes):
            self.line_owner = self.home.index
            self.line_key = self.topic_key
            topic.promise(self, self.take_ticket(command, 0))
        elif self.ticket_count:
            self.answer(self.take_ticket(command, 0), ANSWERED, None)
        else:
            self.put_frame(RESPONSE, b"OK", 2)
        return NEXT

    cdef Parsed forward_publish(self, int owner, const char *command, const uint8_t *line,
                                size_t n, uint32_t messages) except RAISED:
        cdef Leg leg = self.leg_to(owner)
        if owner != self.forwards_to or not self.forwards:
            self.forwards_to = owner
            self.forwards_since = self.home.agenda.now
            self.forwards = self.forward_bytes = 0
        self.forwards += 1
        self.forward_bytes += n
        self.line_owner = owner
        leg.expected.append(self.take_ticket(command, n))
        leg.send(line, n)
        self.topic_count += messages
        return NEXT

    cdef int note_counts(self) except -1:
        """Move the count of the topic published to last into pub_counts."""
        if self.topic_count:
            name = self.topic_key.decode()
            self.pub_counts[name] = self.pub_counts.get(name, 0) + self.topic_count
            self.counted += self.topic_count
            self.topic_count = 0
        return 0

    # -- subscribing --

    cdef Parsed invalid_state(self, const char *command) except RAISED:
        return self.fatal(b"E_INVALID cannot %s in current state" % command)

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
        if owner == self.home.index:
            return self.subscribe(self.topic, self.subscribed_channel)
        if self.movable and self.is_light(owner):
            return self.move_to(owner)
        self.leg = self.leg_to(owner)
        self.line_owner = -1
        self.leg.expected.append(self.take_ticket(SUB, n))
        self.leg.send(line, n)
        self.state = SUBSCRIBED
        return NEXT

    cdef Parsed subscribe(self, Topic topic, str name) except RAISED:
        cdef Channel channel
        cdef uint32_t limit = self.home.max_channel_consumers
        if topic.gone or topic.shard.closing:
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
        if ready > self.home.max_rdy_count:
            return self.fatal(
                b"E_INVALID RDY count %d out of range 0-%d" % (ready, self.home.max_rdy_count))
        if self.leg is not None:
            self.ready_count = <uint32_t>ready
            return self.forward(line, n)
        self.set_ready(<uint32_t>ready)
        return NEXT

    cdef int set_ready(self, uint32_t ready) except -1:
        self.ready_count = ready
        if self.channel is not None:
            self.channel.check_ready(self)
        return 0

    cdef Parsed forward(self, const uint8_t *line, size_t n) except RAISED:
        self.leg.send(line, n)
        return NEXT

    @cython.final
    cdef Parsed message_command(self, const char *command, Word *words, int count, int needed,
                                uint64_t *id) except RAISED:
        """What FIN, REQ and TOUCH check alike; NEXT if all is well. An id that no message can have
        becomes 0, which none has."""
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
        if self.leg is not None:
            return self.forward(line, n)
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            age = self.channel.age_of(id)
            outcome = self.channel.finish(self, id)
            if outcome == DONE:
                self.channel.note_ages(age, 1)
        if outcome != DONE:
            self.refuse(b"FIN", &words[1], outcome)
        return NEXT

    cdef Parsed req(self, Word *words, int count, const uint8_t *line, size_t n) except RAISED:
        cdef uint64_t id = 0
        cdef uint64_t milliseconds = 0
        cdef int64_t delay
        cdef Outcome outcome
        cdef Parsed parsed = self.message_command(b"REQ", words, count, 3, &id)
        if parsed != NEXT:
            return parsed
        if not parse_number(words[2].at, words[2].length, &milliseconds):
            return self.fatal(b"E_INVALID REQ could not parse timeout " + word_bytes(&words[2]))
        if self.leg is not None:
            return self.forward(line, n)
        delay = self.home.max_req_timeout
        if milliseconds < <uint64_t>(delay // MILLISECOND):
            delay = <int64_t>milliseconds * MILLISECOND
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            outcome = self.channel.requeue(self, id, delay)
        if outcome != DONE:
            self.refuse(b"REQ", &words[1], outcome)
        return NEXT

    cdef Parsed touch_message(self, Word *words, int count, const uint8_t *line,
                              size_t n) except RAISED:
        cdef uint64_t id = 0
        cdef Outcome outcome
        cdef Parsed parsed = self.message_command(b"TOUCH", words, count, 2, &id)
        if parsed != NEXT:
            return parsed
        if self.leg is not None:
            return self.forward(line, n)
        outcome = NOT_IN_FLIGHT
        if self.channel is not None:
            outcome = self.channel.touch(self, id)
        if outcome != DONE:
            self.refuse(b"TOUCH", &words[1], outcome)
        return NEXT

    cdef Parsed cls(self, const uint8_t *line, size_t n) except RAISED:
        if self.state != SUBSCRIBED:
            return self.invalid_state(b"CLS")
        self.state = CLOSING
        self.ready_count = 0
        if self.leg is not None:
            self.line_owner = -1
            self.leg.expected.append(self.take_ticket(SUB, n))
            return self.forward(line, n)
        self.set_ready(0)
        self.respond(b"CLOSE_WAIT", 10)
        return NEXT

    # -- negotiation --

    cdef Parsed identify(self, size_t *used, const uint8_t *rest, size_t left) except RAISED:
        cdef int32_t size
        if self.state != INIT:
            return self.invalid_state(b"IDENTIFY")
        if left < 4:
            return self.body_missing(4 - left, b"E_BAD_BODY IDENTIFY failed to read body size")
        size = <int32_t>load_be32(rest)
        if size > self.home.max_body_size:
            return self.fatal(
                b"E_BAD_BODY IDENTIFY body too big %d > %d" % (size, self.home.max_body_size))
        if size <= 0:
            return self.fatal(b"E_BAD_BODY IDENTIFY invalid body size %d" % size)
        if left - 4 < <size_t>size:
            return self.body_missing(
                4 + size - left, b"E_BAD_BODY IDENTIFY failed to read body")
        used[0] += 4 + size
        try:
            identity = self.home.negotiate(
                PyBytes_FromStringAndSize(<const char *>rest + 4, size), self.home.options, self)
        except ClientError as error:
            return self.fatal(error.wire)
        self.adopt_identity(identity)
        self.respond(identity.answer, len(identity.answer))
        if identity.tls or identity.snappy or identity.deflate:
            # What the client has sent behind it was not encoded, and is lost, as in NSQ.
            used[0] += left - 4 - size
            return self.upgrade(identity)
        return NEXT

    cdef Parsed upgrade(self, identity) except RAISED:
        """Change over to TLS, to a codec or to both. Such a session stays where it is."""
        self.upgraded = self.upgrading = True
        self.movable = False
        self.snappy = identity.snappy
        self.deflate = identity.deflate
        self.transport.upgrade(identity)
        return NEXT

    cdef int upgrade_done(self) except -1:
        """The client can be spoken to again; the time this took is not held against it."""
        cdef int64_t now = self.home.agenda.now
        self.upgrading = False
        if self.tls is not None:
            self.barred = False
        self.last_command = now
        self.next_heartbeat = now + self.heartbeat_interval
        self.set_timer()
        return self.check_appetite()

    cdef int adopt_identity(self, identity) except -1:
        """Apply what was negotiated, all of it at once."""
        self.client_id = identity.client_id
        self.hostname = identity.hostname
        self.user_agent = identity.user_agent
        self.topology_region = identity.topology_region
        self.topology_zone = identity.topology_zone
        self.msg_timeout = identity.msg_timeout
        self.asked_timeout = identity.asked_timeout
        self.sample_rate = identity.sample_rate
        self.output_buffer_size = identity.output_buffer_size
        self.output_buffer_timeout = identity.output_buffer_timeout
        self.topic_log = identity.topic_log
        self.heartbeat_interval = 0 if self.remote else identity.heartbeat_interval
        self.next_heartbeat = self.home.agenda.now + self.heartbeat_interval
        if identity.durability:
            self.durability = durability_of(identity.durability)
        self.headers = identity.headers
        # Owners that it has published to are told with its next command: nothing is outstanding.
        self.leave_legs()
        self.find_locality()
        self.set_timer()
        return 0

    cdef int find_locality(self) except -1:
        options = self.home.options
        self.locality = ANYWHERE
        if self.home.agenda.topology_aware:
            if options.topology_zone and options.topology_zone == self.topology_zone:
                self.locality = ZONE_LOCAL
            elif options.topology_region and options.topology_region == self.topology_region:
                self.locality = REGION_LOCAL
        return 0

    cdef Parsed auth(self, int count, size_t *used, const uint8_t *rest, size_t left) except RAISED:
        cdef int32_t size
        if self.state != INIT:
            return self.invalid_state(b"AUTH")
        if count != 1:
            return self.fatal(b"E_INVALID AUTH invalid number of parameters")
        if left < 4:
            return self.body_missing(4 - left, b"E_BAD_BODY AUTH failed to read body size")
        size = <int32_t>load_be32(rest)
        if size > self.home.max_body_size:
            return self.fatal(
                b"E_BAD_BODY AUTH body too big %d > %d" % (size, self.home.max_body_size))
        if size <= 0:
            return self.fatal(b"E_BAD_BODY AUTH invalid body size %d" % size)
        if left - 4 < <size_t>size:
            return self.body_missing(4 + size - left, b"E_BAD_BODY AUTH failed to read body")
        used[0] += 4 + size
        if self.authorization is not None:
            return self.fatal(b"E_INVALID AUTH already set")
        if self.home.auth is None:
            return self.fatal(b"E_AUTH_DISABLED AUTH disabled")
        if size > SECRET_MOST:
            self.home.log.warn(f"PROTOCOL(V2): [{self.remote_address}] AUTH failed "
                               f"a secret of {size} bytes (at most {SECRET_MOST})",
                               event="secret_too_long", client=self.remote_address)
            return self.fatal(b"E_AUTH_FAILED AUTH failed")
        self.secret = PyBytes_FromStringAndSize(<const char *>rest + 4, size)
        self.auth_ticket = self.take_ticket(AUTH, 0)
        self.line_owner = -1
        self.ask_auth()
        return NEXT

    # -- authorization --

    cdef int ask_auth(self) except -1:
        """Have a server asked; nothing that needs its answer is executed before it is there."""
        self.auth_asked = True
        self.home.auth.ask(self)
        return 0

    def tls_facts(self):
        """What an auth server is told of the connection: whether it is encrypted, and the common
        name of the client's certificate."""
        if self.tls is None:
            return False, ""
        return True, self.tls["common_name"]

    def authorized(self, authorization not None):
        """A server has answered, and the session is not closed. What waited for it goes on."""
        cdef bint first = self.authorization is None
        self.auth_asked = False
        self.last_command = self.home.agenda.now
        if first and not authorization.grants:
            self.refuse_auth(b"E_UNAUTHORIZED AUTH no authorizations found")
            return
        if first and not self.admit(authorization.quota):
            self.refuse_auth(self.no_place(authorization.quota))
            return
        self.adopt_authorization(
            authorization, self.home.agenda.now + <int64_t>authorization.ttl * SECOND)
        if first:
            self.answer(self.auth_ticket, ANSWERED, authorization.response)
        elif self.blocked:
            self.wake()

    def auth_failed(self):
        """No server has given an answer that can be used."""
        self.auth_asked = False
        self.last_command = self.home.agenda.now
        if self.authorization is None:
            self.refuse_auth(b"E_AUTH_FAILED AUTH failed")
        elif not self.stopping:
            self.fatal(b"E_AUTH_FAILED AUTH failed")

    cdef int refuse_auth(self, bytes text) except -1:
        """The answer to AUTH is an error."""
        _log_error(self, text)
        return self.answer(self.auth_ticket, FAILED, text)

    cdef Parsed recognize(self, const char *command) except RAISED:
        """Whether the certificate of who has said nothing says enough: NEXT."""
        authorization = None
        if self.certificate_names:
            authorization = self.home.auth.of_certificate(self.certificate_names)
        if authorization is None:
            return self.fatal(b"E_AUTH_FIRST AUTH required before " + <bytes>command)
        if not self.admit(authorization.quota):
            return self.fatal(self.no_place(authorization.quota))
        self.adopt_authorization(
            authorization, self.home.agenda.now + <int64_t>authorization.ttl * SECOND)
        return NEXT

    cdef bint admit(self, Quota quota) except -1:
        """Whether the user may have one more connection: then this one counts."""
        if quota is not None and quota is not self.quota:
            if not quota.enter():
                return False
            self.quota = quota
        return True

    cdef bytes no_place(self, Quota quota):
        return b"E_AUTH_FAILED AUTH failed: user %s has its max_connections of %d" % (
            quota.user.encode(), quota.max_connections)

    cdef int adopt_authorization(self, authorization, int64_t expires) except -1:
        self.authorization = authorization
        self.auth_expires = expires
        self.may_publish_until = 0
        self.authed = True
        self.auth_identity = authorization.identity
        self.auth_identity_url = authorization.identity_url
        if authorization.quota is not self.quota:
            # Who is known already stays, whatever has become of his quota.
            self.forget_quota()
            self.quota = authorization.quota
            if self.quota is not None:
                self.quota.join()
        return 0

    @cython.final
    cdef bint may_publish(self) noexcept:
        """Whether authorize() need not be asked again: what it said last still holds."""
        return self.home.agenda.now < self.may_publish_until

    cdef Parsed authorize(self, const char *command, bytes topic, bytes channel) except RAISED:
        """Whether the client may do this: NEXT. The names are valid; an empty channel: a publish to
        the topic that was taken; None: reading its log."""
        cdef Parsed parsed
        if self.auth_asked:
            return BLOCKED
        if self.authorization is None:
            parsed = self.recognize(command)
            if parsed != NEXT:
                return parsed
        if self.home.agenda.now >= self.auth_expires:
            self.ask_auth()
            return BLOCKED
        if channel is None:
            permitted = self.authorization.permits_log(topic.decode())
        else:
            permitted = self.authorization.permits(topic.decode(), channel.decode())
        if not permitted:
            return self.fatal(b'E_UNAUTHORIZED AUTH failed for %s on "%s" "%s"' % (
                <bytes>command, topic, channel or b""))
        if channel == b"" and (self.quota is None or not self.quota.limits_publishes()):
            self.may_publish_until = self.auth_expires
        return NEXT

    # -- the quota of its user --

    cdef Parsed charge(self, uint32_t messages, uint64_t size) except RAISED:
        """A publish that is there is paid for, once, however often it is looked at: NEXT. Or it
        has to wait, and nothing more is read meanwhile."""
        cdef Quota quota = self.quota
        cdef int64_t now = self.home.agenda.now
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
        cdef int64_t now = self.home.agenda.now
        if self.quota_due:
            return 0
        self.quota_due = quota.turn(now)
        quota.begin_wait(now)
        self.set_timer()
        self.home.lose_favour(self)
        if quota.is_news(now):
            self.home.log.warn(
                f"AUTH: user {quota.user} publishes more than its quota",
                event="quota_reached", user=quota.user, client=self.remote_address)
        return 0

    cdef int look_again(self) except -1:
        """The quota may have something for what waits for it."""
        self.quota_due = 0
        self.quota.end_wait(self.home.agenda.now)
        self.wake()
        return 0

    cdef int forget_quota(self) except -1:
        """The connection counts no more, and waits no more."""
        if self.quota is None:
            return 0
        if self.quota_due:
            self.look_again()
        self.quota.leave()
        self.quota = None
        return 0

    # -- logs of topics --

    cdef Parsed log_command(self, const uint8_t *line, size_t n) except RAISED:
        """A command about the log of a topic (docs/PROTOCOL.md). It is answered before the next one
        is looked at."""
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
        if self.guarded:
            parsed = self.authorize(command, key, None)
            if parsed != NEXT:
                return parsed
        parsed = self.find_log_owner(command, key, &owner)
        if owner < 0:
            return parsed
        if owner != self.home.index:
            if command == LOG_FETCH and self.movable and self.is_light(owner):
                return self.move_to(owner)
            return self.forward_log(owner, command, line, n)
        if self.log_unsent:
            # The client has not taken the answer to the one before yet.
            return BLOCKED
        topic = self.home.shard.find(key)
        if topic is None or topic.log is None:
            return self.refuse_log(b"E_LOG_NO_TOPIC")
        if command == LOG_META:
            return self.log_meta(topic, words, count)
        if command == LOG_SEEK:
            return self.log_seek(topic, words)
        if command == LOG_CURSOR:
            return self.log_cursor(topic, words)
        return self.log_fetch(topic, words)

    cdef Parsed find_log_owner(self, const char *command, bytes key, int *owner) except RAISED:
        """Which worker owns a topic, which is not made. Without one: what is to be done."""
        owner[0] = self.home.owner_of(key)
        if owner[0] >= 0:
            self.log_due = 0
            self.log_waited = False
            if owner[0] != self.home.index and not self.home.is_up(owner[0]):
                owner[0] = -1
                self.home.wait_for_peer(self)
                return BLOCKED
            return NEXT
        # That it was just placed may not have been heard of here.
        if not self.log_waited:
            if self.log_due == 0:
                self.log_due = self.home.agenda.now + PLACED_HEARD
                self.set_timer()
            return BLOCKED
        self.log_waited = False
        return self.refuse_log(b"E_LOG_NO_TOPIC")

    cdef Parsed forward_log(self, int owner, const char *command, const uint8_t *line,
                            size_t n) except RAISED:
        """Have the owner of the topic execute it."""
        cdef Leg leg = self.leg_to(owner)
        self.line_owner = -1
        leg.expected.append(self.take_ticket(command, n))
        leg.send(line, n)
        return NEXT

    cdef Parsed refuse_log(self, bytes text) except RAISED:
        """An error after which the session goes on. Nothing is outstanding."""
        self.put_frame(ERROR, text, len(text))
        return NEXT

    cdef Parsed bad_number(self, const char *command, const char *what,
                           const Word *word) except RAISED:
        return self.fatal(b"E_INVALID %s could not parse %s %s" % (
            <bytes>command, <bytes>what, word_bytes(word)))

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
        if wait > LOG_WAIT_MOST:
            return self.fatal(
                b"E_INVALID LOG_META wait %d out of range 0-%d" % (wait, LOG_WAIT_MOST))
        if wait == 0 or topic.stable_seq() > after:
            answer = topic.log_meta()
            self.respond(answer, len(answer))
            return NEXT
        self.log_due = self.home.agenda.now + <int64_t>wait * MILLISECOND
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
        cdef uint64_t most = 0
        cdef uint32_t columns = 0
        if not parse_number(words[3].at, words[3].length, &start):
            return self.bad_number(LOG_FETCH, b"sequence number", &words[3])
        if not parse_number(words[4].at, words[4].length, &stop):
            return self.bad_number(LOG_FETCH, b"sequence number", &words[4])
        if not parse_number(words[5].at, words[5].length, &most):
            return self.bad_number(LOG_FETCH, b"size", &words[5])
        for name in word_bytes(&words[6]).split(b","):
            if name not in _COLUMN_NAMES:
                return self.fatal(b"E_INVALID LOG_FETCH unknown column " + name)
            columns |= <uint32_t>_COLUMN_NAMES[name]
        return self.wait_for_log(topic.fetch_log(
            self, self.take_ticket(LOG_FETCH, 0), word_bytes(&words[2]), start, stop,
            min(most, <uint64_t>LARGEST_ANSWER), columns))

    cdef Parsed wait_for_log(self, found) except RAISED:
        """What a topic says to the command whose ticket is the last one: a read, or an error."""
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
        """LOG_CURSOR <topic> <log_id> <name> <seq>; with log_id "-": "-" asks, "delete" deletes."""
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
            self.answer(answer.ticket, REFUSED, b"E_LOG_CURSORS %d" % _CURSORS_MOST)
        return NEXT

    cdef Parsed delete_log_cursor(self, Topic topic, str name) except RAISED:
        cursor = topic.find_cursor(name)
        if cursor is None:
            return self.refuse_log(b"E_LOG_NO_CURSOR")
        topic.delete_cursor(name, self.promise_cursor(name, cursor.log_id, cursor.seq))
        return NEXT

    cdef CursorAnswer promise_cursor(self, str name, bytes log_id, seq):
        """Takes a ticket; the answer is for who knows when the journal says so."""
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
        """The answer counts among those of the worker until it has left."""
        self.log_unsent = n
        self.log_sent_at = self.output.total_sent + self.output.pending()
        self.home.shard.reserved += n
        return 0

    cdef int answer_left(self) except -1:
        self.home.shard.reserved -= self.log_unsent
        self.log_unsent = 0
        if self.blocked:
            self.wake()
        return 0

    cdef int log_wait_over(self) except -1:
        """A command about a log has waited as long as it may."""
        cdef Topic topic
        self.log_due = 0
        if self.log_read is not None:
            topic = <Topic>self.log_read.window
            return self.log_read.answer(topic.log_meta(), None)
        self.log_waited = True
        self.wake()
        return 0

    # -- as a consumer --

    @cython.final
    cdef bint has_room(self) noexcept:
        return not self.stopping and self.output.pending() < OUTPUT_ENOUGH

    cdef int64_t usual_timeout(self) noexcept:
        return self.home.msg_timeout

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

    # -- moving to the owner --

    cdef bint may_move(self, int owner) except *:
        """Whether a producer has published to this one owner for long enough, and may go there."""
        return (self.movable and owner == self.forwards_to and self.is_faithful()
                and self.channel is None and self.leg is None and len(self.legs) == 1
                and self.is_light(owner) and self.home.may_lose_more())

    cdef bint is_faithful(self) noexcept:
        """Whether what was forwarded in a row is worth a move. Bytes are, as they are copied once
        more; of small messages the socket is most of the work, which a move only moves."""
        return self.forward_bytes >= MOVE_BYTES or (
            self.forwards >= MOVE_FORWARDS
            and self.home.agenda.now - self.forwards_since >= MOVE_AFTER)

    cdef bint is_light(self, int owner) except *:
        """Whether the session can go to `owner` with what it carries, and the owner has room."""
        return (self.output.pending() <= MOVE_MOST and self.kept_end - self.kept_start <= MOVE_MOST
                and self.auth_size() <= MOVE_MOST
                and self.home.mesh.shared.busy(owner) < MOVE_BUSY)

    cdef size_t auth_size(self) except? 0:
        """Bytes of its authorization and secret."""
        if self.authorization is None:
            return 0
        return len(self.secret) + <size_t>len(self.authorization.source)

    cdef Parsed move_to(self, int owner) except RAISED:
        """Go on at the owner, from this command on; with nothing outstanding."""
        if self.ticket_count == 0:
            self.movable = False
            self.moving = True
            self.home.lose(self, owner)
        return BLOCKED

    def pack(self):
        """The session as the worker it moves to needs it: (state, unread bytes, unsent bytes)."""
        cdef const uint8_t *data[64]
        cdef size_t lengths[64]
        cdef int i
        self.note_counts()
        unsent = b"".join([
            data[i][:lengths[i]] for i in range(self.output.pieces(data, lengths, 64))])
        state = {
            name: getattr(self, name) for name in (
                "remote_address", "client_id", "hostname", "user_agent", "topology_region",
                "topology_zone", "msg_timeout", "asked_timeout", "sample_rate",
                "heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "durability",
                "headers", "topic_log", "connected_at", "pub_counts")}
        state["next_heartbeat"] = self.next_heartbeat
        state["last_command"] = self.last_command
        if self.authorization is not None:
            state["secret"] = self.secret.decode("latin-1")
            state["authorization"] = self.authorization.source.decode("latin-1")
            state["auth_expires"] = self.auth_expires
        return state, self.kept[self.kept_start:self.kept_end], unsent

    def unpack(self, state, bytes unread not None, bytes unsent not None):
        """Be the session that was packed in another worker."""
        self.magic_seen = True
        self.movable = False
        self.adopt_names(state)
        self.heartbeat_interval = state["heartbeat_interval"]
        self.next_heartbeat = state["next_heartbeat"]
        self.last_command = state["last_command"]
        self.pub_counts = state["pub_counts"]
        if "secret" in state:
            self.secret = state["secret"].encode("latin-1")
            self.adopt_authorization(
                self.home.auth.restore(state["authorization"].encode("latin-1")),
                state["auth_expires"])
        if unsent:
            self.output.put(unsent, len(unsent))
            self.touch_dirty()
        self.set_timer()
        self.feed(unread, len(unread))

    def fileno(self):
        """The descriptor of its socket."""
        return self.transport.fileno()

    def stay(self):
        """The move failed: go on here."""
        if not self.closed:
            self.moving = False
            self.wake()

    def leave(self):
        """The move succeeded: the connection is another worker's."""
        if not self.closed:
            self.transport.abandon()
            self.close()

    # -- streams to other workers --

    cdef Leg leg_to(self, int peer):
        cdef Leg leg = self.legs.get(peer)
        if leg is None:
            leg = Leg.__new__(Leg)
            leg.session = self
            leg.peer = peer
            leg.up = True
            leg.expected = []
            leg.unsent = bytearray()
            leg.answer = bytearray()
            leg.stream = self.home.mesh.open(peer, self.hello(), leg)
            self.legs[peer] = leg
            leg.send(b"  V2", 4)
        return leg

    cdef int leave_legs(self) except -1:
        """Close the streams to other workers; what is outstanding on them will not be answered."""
        cdef Leg leg
        for leg in self.legs.values():
            leg.leave()
        self.legs = {}
        return 0

    cdef bytes hello(self):
        """What the owner must know of a client whose home is here. Texts that the client or its
        auth server chose are cut, as a stream begins with one record."""
        return json.dumps({
            "remote_address": self.remote_address,
            "client_id": self.client_id[:HELLO_TEXT],
            "hostname": self.hostname[:HELLO_TEXT],
            "user_agent": self.user_agent[:HELLO_TEXT],
            "topology_region": self.topology_region[:HELLO_TEXT],
            "topology_zone": self.topology_zone[:HELLO_TEXT],
            "msg_timeout": self.msg_timeout,
            "asked_timeout": bool(self.asked_timeout),
            "sample_rate": self.sample_rate,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": self.output_buffer_timeout,
            "durability": self.durability,
            "topic_log": self.topic_log,
            "headers": bool(self.headers),
            "connected_at": self.connected_at,
            "authed": bool(self.authed),
            "auth_identity": self.auth_identity[:HELLO_TEXT],
            "auth_identity_url": self.auth_identity_url[:HELLO_TEXT],
            "lenient": bool(self.lenient),
            "moves": bool(self.moves),
            "tls": self.tls,
            "snappy": bool(self.snappy),
            "deflate": bool(self.deflate),
        }).encode()

    def adopt_hello(self, hello):
        """Be the far end of a session whose home sent this hello."""
        self.remote = True
        self.guarded = False
        self.lenient = hello["lenient"]
        self.moves = hello["moves"]
        self.tls = hello["tls"]
        self.snappy = hello["snappy"]
        self.deflate = hello["deflate"]
        self.barred = False
        self.authed = hello["authed"]
        self.auth_identity = hello["auth_identity"]
        self.auth_identity_url = hello["auth_identity_url"]
        self.adopt_names(hello)
        self.set_timer()

    cdef int adopt_names(self, state) except -1:
        """What a client has told of itself, to another worker."""
        self.client_id = state["client_id"]
        self.hostname = state["hostname"]
        self.user_agent = state["user_agent"]
        self.topology_region = state["topology_region"]
        self.topology_zone = state["topology_zone"]
        self.msg_timeout = state["msg_timeout"]
        self.asked_timeout = state["asked_timeout"]
        self.sample_rate = state["sample_rate"]
        self.output_buffer_size = state["output_buffer_size"]
        self.output_buffer_timeout = state["output_buffer_timeout"]
        self.durability = state["durability"]
        self.topic_log = state["topic_log"]
        self.headers = state["headers"]
        self.connected_at = state["connected_at"]
        return self.find_locality()

    def be_lenient(self, *, bint headers=False, bint moves=False):
        """Be a session without a client: one that publishes for others of this worker, with
        headers or without, or one that moves messages from other topics, by LOG_PUB."""
        self.lenient = True
        self.moves = moves
        self.topic_log = moves
        self.headers = headers
        self.barred = False
        self.guarded = False
        self.magic_seen = True
        self.set_timer()

    # -- time --

    cdef int set_timer(self) except -1:
        """Keep the timer at the next moment something must happen by itself."""
        cdef int64_t due = NEVER
        if self.closed:
            return 0
        if self.stopping:
            due = self.last_command + MAGIC_TIMEOUT
            if self.heartbeat_interval:
                due = self.last_command + 2 * self.heartbeat_interval
        elif self.remote or self.upgrading:
            pass
        elif not self.magic_seen:
            due = self.last_command + MAGIC_TIMEOUT
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
        if self.home.favoured is self:
            due = min(due, self.home.favoured_at + FAVOUR)
        if due == NEVER:
            if self.timer.node.index != HEAP_NOWHERE:
                heap_remove(&self.home.timers, &self.timer.node)
        elif self.timer.node.index == HEAP_NOWHERE:
            if heap_push(&self.home.timers, &self.timer.node, due) < 0:
                raise MemoryError()
        else:
            heap_update(&self.home.timers, &self.timer.node, due)
        return 0

    cdef int on_timer(self) except -1:
        cdef int64_t now = self.home.agenda.now
        cdef int64_t silence
        if self.stopping or not (self.magic_seen or self.remote):
            if now >= self.last_command + (2 * self.heartbeat_interval or MAGIC_TIMEOUT):
                return self.close()
        if self.waiting_since and now >= self.waiting_since + PEER_TIMEOUT:
            self.peer_timed_out()
        if self.log_due and now >= self.log_due:
            self.log_wait_over()
        if self.quota_due and now >= self.quota_due:
            self.look_again()
        if self.home.favoured is self and now >= self.home.favoured_at + FAVOUR:
            # Others wait for what it holds.
            self.home.favoured_at = now
            if self.home.starved and self.unread_error is not None and not self.blocked:
                self.fatal(self.unread_error)
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

    cdef int peer_timed_out(self) except -1:
        """The worker that owns the topic did not come back in time."""
        cdef Word words[WORDS]
        cdef const uint8_t *line = self.kept + self.kept_start
        cdef const uint8_t *end = <const uint8_t *>memchr(
            line, 10, self.kept_end - self.kept_start)
        self.waiting_since = 0
        if end == NULL:
            return 0
        split_line(line, end - line, words, WORDS)
        command = word_bytes(&words[0])
        self.fatal(b"E_%s_FAILED %s failed exiting" % (command, command))
        return 0

    # -- the turn --

    @cython.final
    cdef void touch_dirty(self) noexcept:
        """Have the transport flushed at the end of the turn."""
        if not self.dirty:
            self.dirty = True
            self.home.dirty.append(self)

    cdef void wake(self) noexcept:
        """Have resume called this turn."""
        if not self.resumable:
            self.resumable = True
            self.home.resumable.append(self)

    cdef int after_flush(self) except -1:
        """The transport has sent what it could."""
        cdef Leg leg
        cdef size_t pending = self.output.pending() + self.transport.held
        cdef uint64_t total_sent
        if pending:
            # Stuck is who takes nothing at all; who is only slow is not.
            total_sent = self.output.total_sent + self.transport.moved
            if not self.stuck_since or total_sent != self.sent_before:
                self.stuck_since = self.home.agenda.now
                self.sent_before = total_sent
                self.set_timer()
        else:
            self.stuck_since = 0
            if self.stopping and self.ticket_count == 0:
                return self.close()
        if self.leg is not None or self.relaying is not None:
            leg = self.relaying if self.leg is None else self.leg
            if leg.unconsumed and self.output.pending() < OUTPUT_ENOUGH:
                leg.stream.consumed(leg.unconsumed)
                leg.unconsumed = 0
        if self.crammed and not self.is_crammed():
            self.crammed = False
            self.wake()
        if self.log_unsent and self.output.total_sent >= self.log_sent_at:
            self.answer_left()
        if self.channel is not None:
            self.channel.check_ready(self)
        return 0

    # -- the end --

    cdef int stop(self) except -1:
        """Execute nothing more; close when what is owed has been sent."""
        self.stopping = True
        # It has as long as a silent client to take it.
        self.last_command = self.home.agenda.now
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
        cdef Channel channel = self.channel
        cdef Topic topic = self.subscribed
        self.subscribed = None
        if channel is not None:
            channel.remove_consumer(self)
            topic.consumer_left(channel)
        return 0

    cdef int close(self) except -1:
        """The end of the session, now."""
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
        self.leave_legs()
        self.forget_quota()
        self.leg = self.relaying = None
        self.topic = None
        if self.timer.node.index != HEAP_NOWHERE:
            heap_remove(&self.home.timers, &self.timer.node)
        self.home.sessions.discard(self)
        self.transport.close()
        return 0

    # -- numbers --

    def counters(self):
        """What /stats shows of the client, as a dict."""
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


cdef class Leg(StreamEnd):
    def __cinit__(self):
        global live_legs
        if NSQCY_DEBUG:
            live_legs += 1

    def __dealloc__(self):
        global live_legs
        if NSQCY_DEBUG:
            live_legs -= 1

    cdef int send(self, const uint8_t *data, size_t n) except -1:
        """Commands to the owner; what exceeds the stream's credit waits here."""
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
        if self.session.blocked and len(self.unsent) <= LEG_BACKLOG:
            self.session.wake()
        return 0

    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        """Frames of the owner, cut anywhere. Messages go straight on to the client."""
        cdef size_t step
        cdef Session session = self.session
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
        if session.leg is not self and (
                session.relaying is not self or session.output.pending() < OUTPUT_ENOUGH):
            self.stream.consumed(self.unconsumed)
            self.unconsumed = 0
        return 0

    cdef size_t take_whole(self, const uint8_t *data, size_t n) except? 0:
        """The short way of the most frequent frames, messages and OKs, as far as they are whole.
        Returns their bytes."""
        cdef Session session = self.session
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
        """Whether the frame that begins is a large answer that can go straight on to the client: it
        is its turn, and nothing else comes in between."""
        cdef Session session = self.session
        return (self.frame_type == RESPONSE and self.frame_left >= RELAYED_LEAST
                and session.state == INIT and session.relaying is None
                and self.expected_first < <size_t>len(self.expected)
                and <uint64_t>self.expected[self.expected_first] == session.ticket_base)

    cdef uint64_t next_ticket(self) except? 0:
        """The ticket that the next answer is for."""
        cdef uint64_t ticket = self.expected[self.expected_first]
        self.expected_first += 1
        if self.expected_first > 64 and 2 * self.expected_first > <size_t>len(self.expected):
            del self.expected[:self.expected_first]
            self.expected_first = 0
        return ticket

    cdef int end_frame(self) except -1:
        cdef Session session = self.session
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
                (b"E_FIN_FAILED ", b"E_REQ_FAILED ", b"E_TOUCH_FAILED ")):
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
        """The owner closed its end, or died. An answer that will never come, or a subscription that
        is gone, ends the connection; an idle leg is just forgotten."""
        cdef Session session = self.session
        self.up = False
        if session is None or session.closed:
            return 0
        session.legs.pop(self.peer, None)
        if session.leg is self or self.expected_first < <size_t>len(self.expected):
            session.leg = None
            session.drop_tickets()
            session.stop()
        return 0

    cdef int leave(self) except -1:
        if self.up:
            self.up = False
            self.stream.close()
        self.session = None
        return 0


cdef class Home:
    def __init__(self, *, Shard shard not None, Mesh mesh, int index, options, negotiate,
                 ask_placement, move=None, auth=None, log):
        """
        mesh: the streams to other workers; None when this is the only one
        options: the daemon's
        negotiate: negotiate(identify body, options, session) -> identity, or ClientError
        ask_placement: called with the name of a topic whose owner is not known; placed() follows
        move: called with a session and the worker it should move to; its leave() or stay() follows
        auth: its ask() is called with a session whose client must be authorized; the session's
            authorized() or auth_failed() follows. Its of_certificate() knows the authorization of
            clients by names of their certificates, or None. None: AUTH is disabled
        """
        self.shard = shard
        self.agenda = shard.agenda
        self.mesh = mesh
        self.index = index
        self.options = options
        self.negotiate = negotiate
        self.ask_placement = ask_placement
        self.move = move
        self.auth = auth
        self.movers = []
        self.log = log
        self.sessions = set()
        self.owners = {}
        self.askers = {}
        self.peer_waiters = []
        self.dirty = []
        self.resumable = []
        self.undecoded = []
        self.starved = deque()
        # The rest is for those who are read nevertheless.
        self.max_input_bytes = options.max_input_bytes // 4 * 3
        self.max_msg_size = options.max_msg_size
        self.max_body_size = options.max_body_size
        self.msg_timeout = options.msg_timeout
        self.max_rdy_count = options.max_rdy_count
        self.max_req_timeout = options.max_req_timeout
        self.max_defer_timeout = options.max_defer_timeout or options.max_req_timeout
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

    # -- who owns what --

    @cython.final
    cdef int owner_of(self, bytes key) noexcept:
        if self.mesh is None:
            return self.index
        owner = self.owners.get(key)
        return -1 if owner is None else <int>owner

    def owner(self, bytes key not None):
        """The worker that owns a topic; None if nobody does, as far as is known here."""
        cdef int owner = self.owner_of(key)
        return None if owner < 0 else owner

    cdef bint is_up(self, int peer):
        return self.mesh.up(peer)

    cdef int ask(self, Session session, bytes key) except -1:
        waiting = self.askers.get(key)
        if waiting is None:
            self.askers[key] = [session]
            self.ask_placement(key)
        else:
            waiting.append(session)
        return 0

    def placed(self, bytes key not None, int owner):
        """The master has said who owns a topic."""
        cdef Session session
        self.owners[key] = owner
        for session in self.askers.pop(key, ()):
            session.wake()

    cdef int wait_for_peer(self, Session session) except -1:
        if not session.waiting_since:
            session.waiting_since = self.agenda.now
            session.set_timer()
        self.peer_waiters.append(session)
        return 0

    def peer_up(self, int peer, generation):
        cdef Session session
        self.mesh.peer_up(peer, generation)
        waiting = self.peer_waiters
        self.peer_waiters = []
        for session in waiting:
            session.waiting_since = 0
            session.wake()

    def peer_down(self, int peer):
        self.mesh.peer_down(peer)

    # -- moves --

    cdef bint may_lose_more(self) noexcept:
        """Whether a producer may move now. Many that meet an idle owner at once would all go there
        before its figure says what the first of them cost."""
        return self.lost < MOVES_MOST or self.agenda.now - self.lost_since >= SECOND

    cdef int lose(self, Session session, int owner) except -1:
        """Have a session moved at the end of the turn."""
        if self.agenda.now - self.lost_since >= SECOND:
            self.lost = 0
            self.lost_since = self.agenda.now
        self.lost += 1
        self.movers.append((session, owner))
        return 0

    # -- input budget --

    cdef bint favours(self, Session session):
        """Beyond the budget one session at a time is still read, or nobody's input would ever be
        complete and leave."""
        if self.favoured is None:
            self.favoured = session
            self.favoured_at = self.agenda.now
            session.set_timer()
        return self.favoured is session

    cdef int input_shrank(self, Session session, int64_t n) except -1:
        self.input_bytes -= n
        if session is self.favoured:
            self.favoured = None
        return self.feed_starved()

    cdef int lose_favour(self, Session session) except -1:
        """It waits, and not for its input: another one is read."""
        if session is self.favoured:
            self.favoured = None
            return self.feed_starved()
        return 0

    cdef int feed_starved(self) except -1:
        """Read those again whom the budget, or its favour, allows."""
        cdef Session session
        while self.starved and (self.favoured is None
                                or self.input_bytes <= self.max_input_bytes):
            session = self.starved.popleft()
            session.starved = False
            session.check_appetite()
        return 0

    # -- turns --

    cdef int64_t turn(self) except? -1:
        """The end of a turn of the loop: timers, resumed sessions, topics, channels, output.
        Returns when it must be called again (agenda.now: at once)."""
        cdef int64_t due = 0
        cdef HeapNode *node
        cdef Session session
        cdef list work
        cdef int _round
        cdef bint left = False
        if self.mesh is not None:
            self.mesh.drain(DRAIN_BYTES)
        if self.undecoded:
            self.decode()
        for _round in range(4):
            while True:
                if heap_first_due(&self.timers) > self.agenda.now:
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
                for session in work:
                    try:
                        session.resume()
                    except Exception as error:
                        self.report(session, error)
            due = self.shard.turn()
            if not self.resumable:
                break
        if self.movers:
            work = self.movers
            self.movers = []
            for session, owner in work:
                self.move(session, owner)
        work = self.dirty
        self.dirty = []
        for session in work:
            session.dirty = False
            if session.closed:
                continue
            try:
                session.transport.flush()
            except Exception as error:
                self.report(session, error)
        if self.agenda.events is not None:
            self.tell_events()
        if self.mesh is not None:
            left = self.mesh.drain(DRAIN_BYTES)
            self.mesh.flush()
        if left or self.resumable or self.dirty or self.undecoded or self.shard.has_work():
            return self.agenda.now
        due = min(due, heap_first_due(&self.timers))
        return due

    cdef int tell_events(self) except -1:
        """Publish what has happened to messages; that is work for the next turn, or an answer of
        their topic's owner brings it."""
        try:
            self.agenda.events.flush()
        except Exception as error:
            self.log.error(f"events: {type(error).__name__}: {error}", event="events_failed",
                           error=str(error))
        return 0

    cdef int decode(self) except -1:
        """Input that has been received, and was more than a turn's work or not wanted then."""
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
        """A whole turn from outside (tests, tools): set the clocks, do the work."""
        self.agenda.now = now
        self.agenda.wall = wall
        return self.turn()

    def report(self, Session session, error):
        """A session met something that should not happen: it ends, the others go on."""
        self.log.error(f"client({session.remote_address}) - {type(error).__name__}: {error}",
                       event="session_failed", client=session.remote_address, error=str(error))
        session.close()

    def producers(self):
        """The sessions of clients connected here that have published."""
        cdef Session session
        return [session for session in self.sessions
                if (session.topic_count or session.pub_counts)
                and not session.remote and not session.lenient]

    def connections(self):
        """How many clients are connected here."""
        cdef Session session
        cdef Py_ssize_t count = 0
        for session in self.sessions:
            count += not session.remote and not session.lenient
        return count

    def quotas_changed(self):
        """What users may publish has changed: those who wait look again."""
        cdef Session session
        for session in self.sessions:
            if session.quota_due:
                session.look_again()

    def close_sessions(self):
        """Every connection ends, as nsqd closes them at its exit: what waits is not sent."""
        cdef Session session
        for session in list(self.sessions):
            session.close()
