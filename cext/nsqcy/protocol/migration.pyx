"""Connection migration: sessions move to the worker of their topic, or away from a busy one.

A plain session with nothing outstanding may migrate once. If it migrates to the owner of its topic,
its commands are no longer forwarded. A busy owner gives producers to a less busy worker: if
messages are published one by one, socket calls take most of the CPU time. The master passes on the
socket and the packed state (see nsqcy.nsqd.worker.engine). Decides when a migration pays off. Does
not know how a socket is passed on.
"""

from libc.stdint cimport uint8_t

from nsqcy.protocol.connection cimport BLOCKED, negotiated


cdef int64_t SECOND = 1000000000

cdef enum:
    MAX_MIGRATION = 65536      # maximum unread or unsent bytes in a migrating session
    MAX_GIVEN = 4096            # bytes of a command after which a busy owner gives a producer away
    MIGRATION_BUSY = 600        # permille of the last second; a busier owner accepts no producers
    MIGRATION_BYTES = 1048576   # publishes to one owner after which a producer migrates there, or
    MIGRATION_FORWARDS = 256    # that number of publishes over a time long enough for their cost
cdef int64_t MIGRATION_AFTER = 2 * SECOND       # to be part of the owner's load figure


cdef class Migration(Routing):
    # -- when --

    cdef bint may_migrate(self, int owner) except *:
        """Return whether a producer has published to one owner long enough to migrate there."""
        return (self.migratable and owner == self.forwards_to and self.is_faithful()
                and self.channel is None and self.upstream is None and len(self.streams) == 1
                and self.is_light(owner) and self.manager.may_lose_more())

    cdef bint is_faithful(self) noexcept:
        """Return whether the consecutively forwarded publishes justify a migration. Many bytes do,
        because forwarding copies them. Small messages do not: most of their cost is in socket
        calls, which a migration only moves to another worker."""
        return self.forward_bytes >= MIGRATION_BYTES or (
            self.forwards >= MIGRATION_FORWARDS
            and self.manager.scheduler.now - self.forwards_since >= MIGRATION_AFTER)

    cdef bint is_light(self, int owner) except *:
        """Return whether the session's state is small enough to migrate and `owner` has room."""
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

    # -- how --

    def pack(self):
        """Pack the session for another worker: (state, unread bytes, unsent bytes)."""
        cdef const uint8_t *data[64]
        cdef size_t lengths[64]
        cdef int i
        self.note_counts()
        unsent = b"".join([
            data[i][:lengths[i]] for i in range(self.output.pieces(data, lengths, 64))])
        state = negotiated(self) | {
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
        return state, self.kept[self.kept_start:self.kept_end], unsent

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

    def fileno(self):
        """Return the socket's file descriptor."""
        return self.transport.fileno()

    def stay(self):
        """Continue in this worker after a failed migration."""
        if not self.closed:
            self.migrating = False
            self.touch_dirty()
            if self.manager.winding_down:
                self.wind_down()
            self.wake()

    def leave(self):
        """Release the connection after a migration; another worker has it."""
        if not self.closed:
            self.transport.abandon()
            self.close()
