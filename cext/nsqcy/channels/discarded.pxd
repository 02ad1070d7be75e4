# Messages of an emptied or deleted channel, freed in pieces.

cimport cython

from nsqcy.storage.entry cimport Entry, Pages
from nsqcy.storage.record_window cimport RecordWindow


@cython.final
cdef class Discarded:
    """A channel's dropped messages, to be freed in pieces."""
    cdef RecordWindow window
    cdef Entry *entries         # linked by `next`
    cdef Pages pages

    cdef int free_some(self, int budget) noexcept
