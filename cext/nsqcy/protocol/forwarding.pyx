"""Forwarding: commands that another worker executes, and their answers.

The owner of a topic runs a session at the far end of a stream. It receives raw commands and returns
raw frames. Messages are relayed to the client immediately; other frames are answers and wait for
their turn (see tickets). Does not interpret commands.
"""

import json

from libc.string cimport memcmp, memcpy

from nsqcy.base.bytes cimport load_be32
from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.channels.ready_ring cimport ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from nsqcy.protocol.connection cimport INIT, NEXT, OUTPUT_ENOUGH, negotiated
from nsqcy.protocol.tickets cimport ANSWERED, FAILED, REFUSED, RELAYED
from nsqcy.protocol.wire cimport ERROR, FRAME_HEADER, MESSAGE, RESPONSE, frame_bytes

from nsqcy.protocol.connection import NEGOTIATED


cdef enum:
    HELLO_TEXT = 512            # maximum characters of a client's strings sent to its far end
    MIN_RELAYED = 65536         # minimum size of answers that are relayed unassembled
    OK_FRAME = 10               # bytes of an OK frame

cdef const char *OK = b"\0\0\0\6\0\0\0\0OK"

cdef Py_ssize_t live_streams = 0


def live():
    """Return the number of forwarding streams; zero in a release build."""
    return {"legs": live_streams}


cdef inline bint is_refusal(bytes error):
    """Return whether a client may continue after this error.

    It may not after a failed publish, because later pipelined publishes must not be executed.
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
        """Handle frames from the owner, split anywhere; relay messages to the client
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

        This requires that its turn has come and that no other frame can come before its end.
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

    cdef int await_owner(self) except -1:
        if self.upstream is not None:
            # Do this after the owner's answers to earlier commands.
            self.upstream.expected.append(self.take_silent_ticket())
            self.upstream.send(b"NOP ANSWERED\n", 13)
        return 0

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
        """Become the far end of a session in the worker that sent this hello."""
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
        """Adopt what a client has negotiated with another worker."""
        self.durability = state["durability"]
        self.connected_at = state["connected_at"]
        return self.adopt_negotiated(state)

    cdef int adopt_negotiated(self, settings) except -1:
        """Adopt what a client has negotiated, by name."""
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
