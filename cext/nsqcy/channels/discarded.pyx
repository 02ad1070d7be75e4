"""Messages of an emptied or deleted channel.

Owns their entries and pages until all are freed, a bounded number per turn: freeing a million of
them in one turn would delay every other client. Does not know the channel or when it is called.
"""

cimport cython
from libc.stdint cimport uint32_t

from nsqcy.storage.entry cimport Deferred, Page, deferred_of


@cython.final
@cython.no_gc_clear      # or it could not release its part of the window
cdef class Discarded:
    cdef int free_some(self, int budget) noexcept:
        """Free messages up to the budget; return the unused budget; 0 if messages may be left."""
        cdef Entry *entry
        cdef Page *page
        cdef Deferred *deferred
        cdef uint32_t left
        while self.entries != NULL and budget > 0:
            entry = self.entries
            self.entries = entry.next
            self.window.unref(entry.block)
            self.window.pool.free_entry(entry)
            budget -= 1
        while self.pages.first != NULL and budget > 0:
            page = self.pages.first
            deferred = deferred_of(page)
            left = page.used            # the page is freed with its last message
            budget -= left
            while left:
                if deferred.block != NULL:
                    self.window.unref(deferred.block)
                    self.window.pool.free_deferred(&self.pages, deferred)
                    left -= 1
                deferred += 1
        return max(0, budget)
