"""Hand-over: a session continues in the process that takes over its worker.

Owns the form of a packed session. A migration (Session.pack) moves a producer that has nothing
outstanding; a hand-over moves any session at rest: consumers with their messages in flight, far
ends of streams, input and output of any size, and answers that another worker still owes. A query
of a log or of an auth server is repeated. Independent of sockets, and of how the bytes travel.
"""

cdef str text_of(data):
    """Return bytes as text for JSON."""
    return b2a_base64(data, newline=False).decode()


cdef bytes bytes_of(str text):
    return a2b_base64(text)


@cython.final
cdef class HandOver:
    def __init__(self, Session session not None):
        self.session = session
        self.manager = session.manager

    # -- rest --

    cdef bint is_at_rest(self) except -1:
        """Return whether the session can be packed: nothing that it waits for would be lost."""
        cdef Session session = self.session
        cdef set known
        cdef uint32_t i
        cdef Ticket *ticket
        if session.closed:
            return True
        if session.is_internal():
            # A transfer is repeated by the next process.
            return session.transfers or session.ticket_count == 0 and session.kept == NULL
        if session.migrating:
            return False
        if session.ticket_count == 0 or session.log_read is not None:
            return True
        known = self.owed()
        for i in range(session.ticket_count):
            ticket = ticket_at(session, i)
            if ticket.state == WAITING and session.ticket_base + i not in known:
                return False
        return True

    cdef set owed(self):
        """Return the numbers of the tickets that do not wait for this process."""
        cdef Session session = self.session
        cdef ForwardingStream forwarding
        found = set()
        for forwarding in session.streams.values():
            found.update(forwarding.expected[forwarding.expected_first:])
        if session.auth_asked and session.authorization is None:
            found.add(session.auth_ticket)
        return found

    # -- packing --

    cdef tuple pack(self):
        cdef Session session = self.session
        cdef bytes unread = session.kept[session.kept_start:session.kept_end]
        session.note_counts()
        state = negotiated(session) | self.facts() | self.figures()
        if session.log_read is not None:
            unread = session.log_line + unread
            state["blocked"] = True
            state["log_wait"] = session.log_due
        else:
            state["log_due"] = session.log_due
            state["tickets"] = self.tickets()
        if session.secret is not None:
            state["secret"] = session.secret.decode("latin-1")
        if session.authorization is not None and not session.remote:
            state["authorization"] = session.authorization.source.decode("latin-1")
            state["auth_expires"] = session.auth_expires
        elif session.auth_asked:
            state["auth_ticket"] = session.auth_ticket - session.ticket_base
        if session.log_unsent:
            state["log_unsent"] = [
                session.log_unsent, session.log_sent_at - session.output.total_sent]
        if session.channel is not None:
            state["topic"] = session.subscribed.name
            state["in_flight"] = (<Channel>session.channel).in_flight_to(session)
        elif session.awaited is not None:
            state["topic"] = session.awaited["topic"]
            state["in_flight"] = session.awaited["in_flight"]
        if session.streams:
            state["streams"] = [self.packed_stream(each) for each in session.streams.values()]
        state["transport"] = session.transport.pack()
        return state, unread, session.output.unsent()

    cdef dict facts(self):
        cdef Session session = self.session
        cdef int relaying = -1
        if session.relaying is not None:
            relaying = (<ForwardingStream>session.relaying).peer
        return {
            "format": formats.SESSION.number,
            "remote_address": session.remote_address,
            "connected_at": session.connected_at,
            "durability": session.durability,
            "magic_seen": bool(session.magic_seen),
            "remote": bool(session.remote),
            "lenient": bool(session.lenient),
            "transfers": bool(session.transfers),
            "tls": session.tls,
            "snappy": bool(session.snappy),
            "deflate": bool(session.deflate),
            "upgraded": bool(session.upgraded),
            "certificate_names": list(session.certificate_names),
            "authed": bool(session.authed),
            "auth_identity": session.auth_identity,
            "auth_identity_url": session.auth_identity_url,
            "state": <int>session.state,
            "channel": session.subscribed_channel,
            "blocked": bool(session.blocked),
            "stopping": bool(session.stopping),
            "lingers": bool(session.lingers),
            "eof": bool(session.eof),
            "migratable": bool(session.migratable),
            "upstream": -1 if session.upstream is None else session.upstream.peer,
            "relaying": relaying,
            "aside": None if session.aside is None else text_of(session.aside),
            "line_owner": session.line_owner,
        }

    cdef dict figures(self):
        cdef Session session = self.session
        return {
            "ready_count": session.ready_count,
            "message_count": session.message_count,
            "finish_count": session.finish_count,
            "requeue_count": session.requeue_count,
            "pub_counts": session.pub_counts,
            "paid": session.counted + 1 == session.paid,
            "forwards": [session.forwards_to, session.forwards, session.forward_bytes,
                         session.forwards_since],
            "heartbeat_interval": session.heartbeat_interval,
            "next_heartbeat": session.next_heartbeat,
            "last_command": session.last_command,
            "heard_at": session.heard_at,
            "stuck_since": session.stuck_since,
        }

    cdef list tickets(self):
        """Return the tickets as (state, whether it is silent, forwarded bytes, text)."""
        cdef Session session = self.session
        cdef Ticket *ticket
        cdef uint32_t i
        found = []
        for i in range(session.ticket_count):
            ticket = ticket_at(session, i)
            found.append([
                <int>ticket.state, ticket.command == SILENT, ticket.forwarded,
                None if ticket.text == NULL else text_of(<bytes>ticket.text)])
        return found

    cdef dict packed_stream(self, ForwardingStream forwarding):
        cdef uint64_t base = self.session.ticket_base
        # Tickets that were dropped are older than all others.
        return {
            "peer": forwarding.peer,
            "number": forwarding.stream.number,
            "expected": [
                <int64_t>(<uint64_t>each - base)
                for each in forwarding.expected[forwarding.expected_first:]],
            "unsent": text_of(forwarding.unsent),
            "header": text_of(forwarding.header[:forwarding.header_have]),
            "frame_type": forwarding.frame_type,
            "frame_left": forwarding.frame_left,
            "answer": text_of(forwarding.answer),
            "unconsumed": forwarding.unconsumed,
        }

    # -- unpacking --

    cdef int unpack(self, dict state, bytes unread, bytes unsent) except -1:
        """Restore a session in the first turn of the next process, or before it."""
        cdef Session session = self.session
        cdef bint kept = True
        self.restore_facts(state)
        self.restore_figures(state)
        self.restore_authorization(state)
        if unsent:
            session.output.put(unsent, len(unsent))
        session.ticket_base = 1         # earlier tickets were dropped
        self.restore_tickets(state.get("tickets", ()))
        if "auth_ticket" in state:
            session.auth_ticket = session.ticket_base + <uint64_t>state["auth_ticket"]
            session.ask_auth()
        for each in state.get("streams", ()):
            kept = self.restore_stream(each, state["upstream"]) and kept
        session.upstream = session.streams.get(state["upstream"])
        session.relaying = session.streams.get(state["relaying"])
        if state["aside"] is not None:
            session.aside = bytearray(bytes_of(state["aside"]))
        if "log_unsent" in state:
            size, left = state["log_unsent"]
            session.hold_answer(size)
            session.log_sent_at = left
        if "topic" in state:
            kept = self.restore_subscription(state) and kept
        elif session.upstream is not None and not session.stopping:
            self.manager.count_consumer(session, True)
        if not kept:
            session.drop_tickets()
            session.stop()
        if not session.stopping:
            self.restore_input(state, unread)
        session.heard_at = state["heard_at"]
        session.touch_dirty()
        session.set_timer()
        if self.manager.winding_down:
            session.wind_down()
        return session.check_appetite()

    cdef int restore_facts(self, dict state) except -1:
        cdef Session session = self.session
        session.magic_seen = state["magic_seen"]
        session.remote = state["remote"]
        session.lenient = state["lenient"]
        session.transfers = state["transfers"]
        session.tls = state["tls"]
        session.snappy = state["snappy"]
        session.deflate = state["deflate"]
        session.upgraded = state["upgraded"]
        session.certificate_names = tuple(state["certificate_names"])
        session.state = <State><int>state["state"]
        session.subscribed_channel = state["channel"]
        session.stopping = state["stopping"]
        session.lingers = state["lingers"]
        session.eof = state["eof"]
        session.migratable = state["migratable"]
        session.line_owner = state["line_owner"]
        session.barred = (self.manager.tls_required and session.tls is None
                          and not session.remote)
        if session.remote:
            session.guarded = False
        return session.adopt_elsewhere(state)

    cdef int restore_figures(self, dict state) except -1:
        cdef Session session = self.session
        session.ready_count = state["ready_count"]
        session.message_count = state["message_count"]
        session.finish_count = state["finish_count"]
        session.requeue_count = state["requeue_count"]
        session.pub_counts = dict(state["pub_counts"])
        session.counted = sum(session.pub_counts.values())
        if state["paid"]:
            session.paid = session.counted + 1
        (session.forwards_to, session.forwards, session.forward_bytes,
         session.forwards_since) = state["forwards"]
        session.heartbeat_interval = state["heartbeat_interval"]
        session.next_heartbeat = state["next_heartbeat"]
        session.last_command = state["last_command"]
        session.stuck_since = state["stuck_since"]
        session.log_due = state.get("log_due", 0)
        return 0

    cdef int restore_authorization(self, dict state) except -1:
        cdef Session session = self.session
        if "secret" in state:
            session.secret = state["secret"].encode("latin-1")
        if "authorization" in state and self.manager.auth is not None:
            session.adopt_authorization(
                self.manager.auth.restore(state["authorization"].encode("latin-1")),
                state["auth_expires"])
        session.authed = state["authed"]
        session.auth_identity = state["auth_identity"]
        session.auth_identity_url = state["auth_identity_url"]
        return session.set_limits()

    cdef int restore_tickets(self, tickets) except -1:
        cdef Session session = self.session
        cdef Ticket *ticket
        for state, silent, forwarded, text in tickets:
            session.take_ticket(SILENT if silent else NULL, forwarded)
            ticket = ticket_at(session, session.ticket_count - 1)
            give_answer(ticket, <TicketState><int>state,
                        None if text is None else bytes_of(text))
        return 0

    cdef bint restore_stream(self, packed, int upstream) except -1:
        """Continue a stream to another worker. Return False if it has ended and the session needs
        it."""
        cdef Session session = self.session
        cdef ForwardingStream forwarding = ForwardingStream.__new__(ForwardingStream)
        cdef bytes header = bytes_of(packed["header"])
        forwarding.session = session
        forwarding.peer = packed["peer"]
        forwarding.up = True
        forwarding.expected = [
            session.ticket_base + <uint64_t>each if each >= 0 else 0
            for each in packed["expected"]]
        forwarding.unsent = bytearray(bytes_of(packed["unsent"]))
        forwarding.header_have = <uint32_t>min(<size_t>len(header), <size_t>FRAME_HEADER)
        memcpy(forwarding.header, <const char *>header, forwarding.header_have)
        forwarding.frame_type = packed["frame_type"]
        forwarding.frame_left = packed["frame_left"]
        forwarding.answer = bytearray(bytes_of(packed["answer"]))
        forwarding.unconsumed = packed["unconsumed"]
        if self.manager.mesh is not None:
            forwarding.stream = self.manager.mesh.claim(
                forwarding.peer, packed["number"], forwarding)
        if forwarding.stream is None:
            return forwarding.peer != upstream and not forwarding.expected
        session.streams[forwarding.peer] = forwarding
        return True

    cdef bint restore_subscription(self, dict state) except -1:
        """Subscribe again, and take the messages that were in flight. Return False if the topic
        cannot be used. If it cannot be used yet, the session waits for it."""
        cdef Session session = self.session
        cdef bytes key = state["topic"].encode()
        cdef Topic topic = self.manager.shard.find(key)
        cdef Channel channel
        cdef Py_ssize_t missing = 0
        if topic is None and not self.may_subscribe(key):
            session.awaited = {"topic": state["topic"], "in_flight": state["in_flight"]}
            session.blocked = True
            self.manager.ask(session, key)
            return True
        if topic is None:
            # An ephemeral topic that was not in the memory of the predecessor. Its channel existed.
            topic = self.manager.shard.find_or_create(key)
            if topic is None:
                return False
            topic.end_hold()
        channel = topic.channel(session.subscribed_channel)
        channel.add_consumer(session)
        session.subscribed = topic
        self.manager.count_consumer(session, True)
        for id, deadline in state["in_flight"]:
            missing += not channel.claim(session, int(id, 16), deadline)
        if missing:
            topic.host.report_missing(
                topic.name, f"{missing} messages that were in flight to {session.remote_address}")
        session.set_ready(session.ready_count)
        return True

    cdef bint may_subscribe(self, bytes key) except -1:
        """Return whether a topic exists, or may be created now."""
        return (not self.manager.gated or self.manager.shard.find(key) is not None
                or self.manager.owner_of(key) >= 0)

    cdef int restore_input(self, dict state, bytes unread) except -1:
        cdef Session session = self.session
        if unread:
            session.keep(unread, len(unread))
        if state["blocked"] or session.awaited is not None:
            # Complete commands are executed in the turn, when all sessions are here.
            session.blocked = True
            session.log_wait = state.get("log_wait", 0)
            session.wake()
        elif unread:
            session.parse_kept()
        if session.eof and not session.blocked and not session.stopping:
            session.finish_input()
        return 0


cdef inline Ticket *ticket_at(Session session, uint32_t i) noexcept:
    return &session.tickets[(session.ticket_first + i) % session.ticket_room]
