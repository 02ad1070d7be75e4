# A channel's messages that are too old, too numerous or out of attempts, and those that move to
# another topic, and back.

from libc.stdint cimport int64_t, uint16_t, uint64_t

from nsqcy.channels.consumer cimport Transfer, TransferReason
from nsqcy.channels.unfinished cimport UnfinishedMessages
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record


cdef class Undeliverable(UnfinishedMessages):
    cdef uint16_t max_attempts              # 0: any number
    cdef bint sifts                         # queued messages may be too old, or out of attempts
    cdef int64_t ttl                        # ns from the publish; 0: forever
    cdef uint64_t max_messages             # the oldest messages beyond it are dropped; 0: no limit
    cdef uint64_t max_bytes
    cdef int stepped                        # records skipped in this dispatch
    cdef uint64_t expired_count             # too old to be delivered
    cdef readonly str dead_letter_topic     # "": none
    cdef object new_transfer                # called as new_transfer(window, channel)
    cdef Transfer transfer                  # None: nothing has been transferred yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # out of attempts, without a dead-letter topic

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
    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client,
                         str text=*) except -1
    cdef int dead_letter_timed_out(self, Entry *entry) except -1
    cdef Transfer make_transfer(self)
    cdef int return_transfer(self, Entry *entry) except -1
    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int drop_transfer(self, Entry *entry) except -1
    cdef int transferred(self, Entry *entry, str client) except -1

    cdef inline bint is_exhausted(self, const Entry *entry) noexcept:
        """Return whether a message is out of attempts."""
        return self.max_attempts and entry.attempts >= self.max_attempts
