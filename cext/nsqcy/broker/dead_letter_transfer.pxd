# Dead-letter transfers: messages on their way from a channel to another topic.
#
#   channel ──take_over──► added ──journal──► written ──publish_once──► accepted ──► gone
#                           ▲                                  │
#                           └────────── after a second ────────┘ refused, or no answer
#
# Each transfer has a number. The journal records the number and the message before the message is
# published. After a crash, the message is published under the same number, and a topic accepts each
# number once.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.consumer cimport TransferReason, Transfer
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class DeadLetterTransfer(Transfer):
    cdef RecordWindow window
    cdef object topic                   # the same object, for the topic's methods
    cdef Channel source
    cdef bytes producer                 # producer id for the chunks of its transfers
    cdef readonly list runs             # ranges of numbers (journal.TransferRun), ascending
    cdef bint begun                     # the last run belongs to this process
    cdef uint64_t next_number
    cdef dict clients                   # number -> the client that had the message last
    cdef dict texts                     # number -> its reason for rejecting the message
    cdef set unjournaled                # numbers to be written to the journal
    cdef set journaling                 # numbers being written to the journal
    cdef uint64_t batch_end             # number of the last transfer in the batch being sent
    cdef bint sending                   # the first transfer in the list is being published
    cdef int64_t rests_until            # time of the next attempt after a failure

    cdef int begin(self, Entry *entry, TransferReason reason, str client, str target) except -1
    cdef bytes headers_of(self, const Entry *entry, const Record *record, bytes own)
    cdef object run_of(self, uint64_t number)
    cdef int journal_entry(self, Entry *entry) except -1
    cdef bint is_delayed(self, const Entry *entry) noexcept
    cdef object origin_of(self, bytes own)
    cdef int send(self, Entry *entry, const Record *record) except -1
    cdef bint move_batch(self) except -1
    cdef list next_batch(self)
    cdef int end_group(self, object run, uint64_t group) except -1
