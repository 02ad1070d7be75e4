"""The part of the scheduler's state that topics and channels use: clocks, dirty channels, timers.

Owns the input of a turn: both clocks as data, the channels with work to do, and the times when
other channels wake up. Also holds the worker's block pool, limits and event receiver. Makes no
decisions: broker/shard owns the order of work in a turn.
"""

# State that a worker's channels share: the turn's clocks, dirty objects, timers; and dropped
# messages.


cdef class SchedulerState:
    def __init__(self, BlockPool pool not None, *, mem_queue_size, max_msg_timeout,
                 topology_aware=False, Percentiles percentiles=None, Events events=None,
                 seed=1, key_index_bytes=256 << 20):
        self.pool = pool
        self.owners = Owners(pool)
        self.key_room = KeyRoom(key_index_bytes)
        self.percentiles = percentiles or Percentiles((), 0)
        self.events = events
        self.mem_queue_size = mem_queue_size
        self.max_msg_timeout = max_msg_timeout
        self.topology_aware = topology_aware
        self.random_state = (seed & 0xffffffff) or 1
        self.dirty_channels = []
        self.discarded = []
        heap_init(&self.channel_timers)

    def __dealloc__(self):
        heap_free(&self.channel_timers)

    cdef uint32_t random_percent(self) noexcept:
        """Return a number in 0 .. 99 (xorshift: sampling needs speed, not secrecy)."""
        cdef uint32_t x = self.random_state
        x ^= x << 13
        x ^= x >> 17
        x ^= x << 5
        self.random_state = x
        return <uint32_t>((<uint64_t>x * 100) >> 32)


@cython.final
@cython.no_gc_clear      # otherwise, the object could not release its part of the window
cdef class Discarded:
    """Owns the entries and pages until all are freed, a bounded number per turn. Freeing a million
    entries in one turn would delay every other client. Independent of the channel."""

    cdef int free_some(self, int budget) noexcept:
        """Free messages up to the budget. Return the unused budget, which is 0 if messages may be
        left."""
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
