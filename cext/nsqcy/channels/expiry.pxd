# A channel's messages that are too old, too numerous or out of attempts.

from libc.stdint cimport int64_t, uint16_t, uint64_t

from nsqcy.channels.dead_lettering cimport DeadLettering
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record


cdef class Expiry(DeadLettering):
    cdef uint16_t max_attempts              # 0: any number
    cdef bint sifts                         # queued messages may be too old, or out of attempts
    cdef int64_t ttl                        # ns from the publish; 0: forever
    cdef uint64_t max_messages             # the oldest messages beyond it are dropped; 0: no limit
    cdef uint64_t max_bytes
    cdef int stepped                        # records skipped in this dispatch
    cdef uint64_t expired_count             # too old to be delivered

    cdef void set_ttl(self, int64_t ttl) noexcept
    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept
    cdef bint is_over(self) noexcept
    cdef bint is_expired(self, const Record *record) noexcept
    cdef void report_expired(self, const Record *record, uint16_t attempts) noexcept
    cdef bint drop_queued(self) except -1
    cdef bint drop_spoiled(self, Entry *entry) except -1
    cdef int dead_letter_expired(self, Entry *entry, const Record *record) except -1
    cdef bint leaves_out(self, Record *record) except -1
    cdef int drop_expired(self, int budget) except -1

    cdef inline bint is_exhausted(self, const Entry *entry) noexcept:
        """Return whether a message is out of attempts."""
        return self.max_attempts and entry.attempts >= self.max_attempts
