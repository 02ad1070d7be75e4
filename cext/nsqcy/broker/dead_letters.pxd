# Messages on their way from a channel to another topic.
#
#   channel ──take_over──► held ──journal──► told ──publish_once──► accepted ──► gone
#                           ▲                            │
#                           └─────── after a second ─────┘ refused, or nobody knows
#
# A move has a number, and the journal has it with the message before anything is published. So it
# is published under the same number after a crash, and a topic takes one number once.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.dead_lettering cimport MoveReason, Mover
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class Moves(Mover):
    cdef RecordWindow window
    cdef object topic                   # the same, for what only topics can do
    cdef Channel source
    cdef readonly list runs             # journal.MoveRun, ascending: what numbers stand for
    cdef bint begun                     # the last of these is of this process
    cdef uint64_t next_number
    cdef dict clients                   # by number: who had the message last
    cdef set untold                     # numbers that the journal is to be told of ...
    cdef set telling                    # ... and is being told of
    cdef bint sending                   # the first that is held
    cdef int64_t rests_until            # after a failure

    cdef int begin(self, Entry *entry, MoveReason reason, str client, str target) except -1
    cdef bytes headers_of(self, const Entry *entry, const Record *record, bytes own)
    cdef object run_of(self, uint64_t number)
    cdef int tell(self, Entry *entry) except -1
    cdef bint is_delayed(self, const Entry *entry) noexcept
    cdef int send(self, Entry *entry, const Record *record) except -1
