# Records that a channel needs next, read one by one if their blocks are not in memory.
#
#   queue    ┌───┐ ┌───┐ ┌───┐ ┌───┐ ┌───┐
#            │ a │►│ b │►│ c │►│ d │►│ e │►
#            └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘
#              │   in memory │     │     └──┐
#   disk     ──▼─────────────▼─────▼────────▼──     in order of location
#   prefetch     a             c     d        e
#
# Due messages may be anywhere on disk: reading a whole block for each would read a thousand times
# more bytes than needed.

from libc.stdint cimport uint32_t, uint64_t

from nsqcy.storage.io cimport IoPick, IoPicked
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class ReadAhead:
    cdef RecordWindow window
    cdef readonly uint64_t first_seq    # seq of the record that is needed first
    cdef readonly bint reading
    cdef Block *block               # the copies, with no other references; NULL: none yet
    cdef IoPick *picks              # in order of location; once read, in order of seq
    cdef uint32_t count
    cdef uint32_t room
    cdef uint64_t bytes             # upper bound of their memory, if their sizes are as expected
    cdef IoPicked picked

    # Add an entry from the queue; return False if nothing more fits.
    cdef bint add(self, const Entry *entry) except -1
    # Begin; the window's on_loaded follows. Return False if nothing is left to read here.
    cdef bint read(self) except -1
    # Return the copy of a record; NULL if there is none.
    cdef Record *find(self, uint64_t seq) noexcept
    cdef int on_read(self) except -1
    cdef int load_whole(self) except -1
