"""Unfinished input of a session.

Commands are parsed in the transport's buffer; incomplete and waiting commands are kept here.
Reading stops while parsing waits, or while the worker's unfinished input exceeds its budget (see
SessionManager). Knows nothing about commands: parse() recognizes them.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from nsqcy.protocol.connection cimport MORE


cdef enum:
    KEPT_FREELY = 65536         # unfinished input that a session may always have
    LINE_STEP = 256             # bytes added to continue a line of unknown length


cdef class InputBuffer(AnswerQueue):
    def __dealloc__(self):
        free(self.kept)

    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0:
        """Execute complete commands; return the number of bytes consumed."""
        raise NotImplementedError

    cdef int feed(self, const uint8_t *data, size_t n) except -1:
        """Execute complete commands in the kept and the new bytes; keep the rest."""
        cdef size_t used = 0
        if self.stopping or self.closed:
            return 0
        if self.manager.favoured is self:
            self.manager.favoured_at = self.manager.scheduler.now
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

        Takes few bytes beyond the command, so that later commands are parsed in place.
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
                # It was an IDENTIFY: bytes received together with its end are lost.
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
        self.blocked = False
        self.last_command = self.manager.scheduler.now
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
        """Keep unfinished input. Memory use grows with the received bytes, never with the announced
        size."""
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
                self.manager.input_grew(self, capacity - self.kept_capacity)
                self.kept = grown
                self.kept_capacity = capacity
        memcpy(self.kept + self.kept_end, data, n)
        self.kept_end += n
        self.heard_at = self.manager.scheduler.now
        if self.unauthenticated:
            self.count_unauthenticated()
        return 0

    cdef int count_unauthenticated(self) except -1:
        """Count the kept input of a client that must still authenticate, and end the sessions that
        exceed the limit for such clients."""
        cdef InputBuffer session
        pool = self.manager.unauthenticated
        pool.hold(self, self.address, self.kept_capacity, droppable=not self.blocked)
        for session in pool.excess(self.address):
            session.fatal(b"E_INVALID too much unfinished input before AUTH")
        return 0

    cdef int drop_kept(self) except -1:
        cdef int64_t capacity = self.kept_capacity
        free(self.kept)
        self.kept = NULL
        self.kept_start = self.kept_end = self.kept_capacity = 0
        self.manager.input_shrank(self, capacity)
        if self.unauthenticated:
            self.manager.unauthenticated.hold(self, self.address, 0)
        return 0

    cdef int drop_if_silent(self, int64_t since) except -1:
        """End the session if it has much unfinished input and has sent nothing since then."""
        if (self.reading and self.kept_capacity > KEPT_FREELY and self.heard_at <= since
                and self.unread_error is not None and not self.blocked
                and self.manager.is_over(self)):
            self.fatal(self.unread_error)
        return 0

    cdef int check_appetite(self) except -1:
        """Decide whether to read more input.

        Do not read while parsing waits, or while the worker, or the client's address, has too much
        unfinished input and this session contributes to it.
        """
        cdef bint starve = (self.kept_capacity > KEPT_FREELY
                            and self.manager.is_over(self)
                            and not self.quota_due and not self.manager.favours(self))
        cdef bint wanted = not (self.blocked or (self.stopping and not self.lingers) or self.eof
                                or starve or self.upgrading)
        if starve and not self.starved:
            self.starved = True
            self.manager.starved.append(self)
        if wanted != self.reading and not self.closed:
            self.reading = wanted
            if wanted:
                self.heard_at = self.manager.scheduler.now
            self.transport.watch_input(wanted)
        return 0

    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED:
        """Wait for about `missing` more bytes of a body; `error` is used if the input ends before
        that."""
        self.missing = missing
        self.unread_error = error
        return MORE
