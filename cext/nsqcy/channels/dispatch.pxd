# Which message is sent to which consumer, and when.

from libc.stdint cimport uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.undeliverable cimport Undeliverable
from nsqcy.channels.scheduler_state cimport Timer
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class Dispatch(Undeliverable):
    cdef readonly bint paused
    cdef bint cut_off                       # delivers nothing for now; not a state of the channel
    cdef readonly double rate               # messages per second that may be sent; 0: no limit
    cdef double next_send                   # when the rate allows the next message; monotonic, ns
    cdef bint held_back                     # the last dispatch sent everything that the rate allows
    cdef Timer pacer                        # its timer in the scheduler, until the rate allows more
    cdef uint64_t redriving                 # number of waiting messages to redrive, or to check
    cdef tuple targets                      # topics that they may be sent to; None: all
    cdef uint64_t wanted                    # the only message to redrive or drop; 0: all
    cdef bint drops_wanted                  # drop it instead of redriving it
    cdef object wanted_done                 # called with the result; None: there is one already
    cdef bint moves                         # its messages always move to the open topic
    cdef uint64_t full_count                # oldest messages dropped, because there were too many
    cdef readonly uint64_t sampled_count    # consumed without delivery

    cdef int dispatch(self, int budget) except -1
    cdef int dispatch_at_rate(self, int budget) except -1
    cdef int hand_out(self, int budget) except -1
    cdef int collect(self) except -1
    cdef Entry *take(self, int maximum) except? NULL
    cdef Entry *take_sifted(self, int maximum) except? NULL
    cdef inline Entry *take_record(self, Record *record) except NULL
    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1
    cdef int clear_out(self, int budget) except -1
    cdef int drop_oldest(self, int budget) except -1
    cdef int redrive_some(self, int budget) except -1
    cdef int check_wanted(self, Entry *entry, Record *record) except -1
    cdef int end_search(self, str problem) except -1
