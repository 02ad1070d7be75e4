"""Sessions: the V2 protocol of one connection.

A session receives bytes and writes frames into its output; a transport (a socket, or a stream to
another worker) moves them. It executes commands for topics on its own worker. Other commands are
sent through a forwarding stream, with a session like this one at the far end. Knows nothing about
sockets or the event loop, and reads no clock.

A session is a chain of classes, each owning a part of the state (see session.pxd). This module
contains the parser, IDENTIFY, the timer and the end of a session. Publishes may be pipelined; any
other command waits until no ticket is outstanding.
"""

cimport cython
from libc.stdint cimport int32_t
from libc.string cimport memchr, memcmp

from nsqcy.base.bytes cimport load_be32
from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.base.heap cimport HEAP_NOWHERE, heap_push, heap_remove, heap_update
from nsqcy.broker.topic_queue cimport durability_of
from nsqcy.channels.channel cimport Channel
from nsqcy.protocol.connection cimport (
    BLOCKED,
    INIT,
    MORE,
    NEXT,
    OUTPUT_ENOUGH,
    STOPPED,
    Transport,
    negotiated,
)
from nsqcy.protocol.forwarding cimport STREAM_BACKLOG, ForwardingStream
from nsqcy.protocol.session_manager cimport SessionManager
from nsqcy.protocol.wire cimport (
    ERROR,
    MAX_LINE,
    RESPONSE,
    split_line,
    word_bytes,
    word_is,
)
from nsqcy.errors import ClientError
from nsqcy.logging import events
from nsqcy.protocol import forwarding as _forwarding
from nsqcy.protocol import tickets as _tickets


cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


cdef int64_t SECOND = 1000000000
cdef int64_t NEVER = 0x7fffffffffffffff
cdef int64_t MAGIC_TIMEOUT = 60 * SECOND        # time for the protocol magic of a new peer
cdef int64_t PEER_TIMEOUT = 5 * SECOND          # maximum time that a publish waits for its worker

cdef enum:
    MAX_IDENTIFY = 65536        # bytes of a body; clients send less than 2,000
    WORDS = 4                   # words in a line: name and parameters of NSQ's commands


cdef const uint8_t *GOODBYE = b"_goodbye_"

# Whether this is the debug build, which counts live objects.
COUNTED = bool(NSQCY_DEBUG)

cdef Py_ssize_t live_sessions = 0


def live():
    """Return the numbers of sessions, forwarding streams and waiting answers; zeros in a release
    build."""
    return {"sessions": live_sessions} | _forwarding.live() | _tickets.live()


@cython.no_gc_clear      # __dealloc__ needs the manager
cdef class Session(Subscription):
    def __cinit__(self, SessionManager manager not None, Transport transport not None,
                  str remote_address, *args, **kwargs):
        global live_sessions
        self.manager = manager
        self.transport = transport
        transport.session = self
        self.remote_address = remote_address
        self.address = remote_address.rpartition(":")[0]
        self.client_id = self.hostname = self.address.strip("[]")
        self.guarded = manager.auth is not None
        self.msg_timeout = manager.msg_timeout
        self.output_buffer_timeout = manager.options.output_buffer_timeout
        self.connected_at = manager.scheduler.wall
        self.barred = manager.tls_required
        self.set_limits()
        self.last_command = manager.scheduler.now
        manager.add(self)
        self.set_timer()
        if NSQCY_DEBUG:
            live_sessions += 1

    def __init__(self, *args, **kwargs):
        """Handle a command that needs no more work; a subclass refuses here."""

    def __dealloc__(self):
        global live_sessions
        if NSQCY_DEBUG:
            live_sessions -= 1
        if self.timer.node.index != HEAP_NOWHERE and self.manager is not None:
            heap_remove(&self.manager.timers, &self.timer.node)

    # -- input --

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

    @cython.final
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

    @cython.final
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
        """Resume the session after an upgrade; the time it took does not count as client
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

    # -- streams to other workers --

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

    # -- time --

    cdef int set_timer(self) except -1:
        """Set the timer to the next due time."""
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

    cdef int on_timer(self) except -1:
        cdef int64_t now = self.manager.scheduler.now
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

    cdef int peer_timed_out(self) except -1:
        """Handle a topic owner that did not restart in time."""
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

    cdef int after_flush(self) except -1:
        """Handle the end of a send: the transport has sent as much as it could."""
        cdef ForwardingStream forwarding
        cdef size_t pending = self.output.pending() + self.transport.held
        cdef uint64_t total_sent
        if pending:
            # Only a client that receives nothing is stuck; a slow one is not.
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

    cdef int wind_down(self) except -1:
        """Execute no more commands, and close once the executed ones are answered. A client that
        requested a goodbye gets it after these answers, and closes the connection itself: otherwise
        its unread commands would make the kernel reset the connection and drop the goodbye."""
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
        if self.timer.node.index != HEAP_NOWHERE:
            heap_remove(&self.manager.timers, &self.timer.node)
        self.manager.remove(self)
        self.transport.close()
        return 0

    # -- statistics --

    def counters(self):
        """Return the client's statistics for /stats, as a dict."""
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
