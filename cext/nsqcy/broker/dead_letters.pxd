# Dead-letter transfers: messages on their way from a channel to another topic.
#
#   channel ──take_over──► added ──journal──► written ──publish_once──► accepted ──► gone
#                           ▲                                  │
#                           └────────── after a second ────────┘ refused, or no answer
#
# A transfer has a number, which the journal has with the message before anything is published. So
# it is published under the same number after a crash, and a topic accepts each number once.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.dead_lettering cimport TransferReason, Transfer
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class DeadLetterTransfer(Transfer):
    cdef RecordWindow window
    cdef object topic                   # the same, for what only topics can do
    cdef Channel source
    cdef readonly list runs             # journal.TransferRun, ascending: what numbers stand for
    cdef bint begun                     # the last of these is of this process
    cdef uint64_t next_number
    cdef dict clients                   # by number: who had the message last
    cdef set unjournaled                # numbers that the journal is to have ...
    cdef set journaling                 # ... and that are being written
    cdef bint sending                   # the first of the list
    cdef int64_t rests_until            # after a failure

    cdef int begin(self, Entry *entry, TransferReason reason, str client, str target) except -1
    cdef bytes headers_of(self, const Entry *entry, const Record *record, bytes own)
    cdef object run_of(self, uint64_t number)
    cdef int journal_entry(self, Entry *entry) except -1
    cdef bint is_delayed(self, const Entry *entry) noexcept
    cdef int send(self, Entry *entry, const Record *record) except -1
