"""User quotas: limits on connections and publishes, across all workers.

Owns the rows in shared memory and the rate arithmetic. Independent of sessions, files and the
clock: times are arguments, in ns of the machine's monotonic clock.

The wait after a publish enforces the rate: a user that has published nothing for a second may
publish a second's worth in one burst, and then continue at the rate. The row stores the time until
which the publishes are paid for; while that time is more than a second ahead, further publishes
wait.
"""

# Quota usage per user, in memory that all workers of one nsqd share.
#
#       0  one Used per user       assigned in turn, and never released
#
# A rate is one word: the time until which the published bytes are paid for. To pay is to add to
# that word, so workers stay within the rate together, without a lock or fixed shares. Connections
# are counted in one word per worker, which is reset when that worker restarts. The counters for
# /metrics are never reset.

cdef enum:
    SECOND = 1_000_000_000
    BURST = SECOND              # credit for one burst of publishes after a pause
    SLICE = 10_000_000          # time slice of each waiting publisher
cdef int64_t TOLD_AGAIN = 60 * <int64_t>SECOND
cdef double MAX_COST = 1e17    # maximum ns that one publish may cost: three years


@cython.final
cdef class QuotaTable:
    """The rows of all users, as seen by one worker. `memory` is all zeros before the first worker
    starts."""

    def __cinit__(self, memory, int worker):
        PyObject_GetBuffer(memory, &self._view, PyBUF_WRITABLE)
        if <size_t>self._view.buf % 8:
            raise ValueError("the quota memory is not aligned")
        if not 0 <= worker < MAX_WORKERS:
            raise ValueError(f"there is no worker {worker}")
        self._rows = <size_t>self._view.len // sizeof(Used)
        self.worker = worker
        self._forget_connections()

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    def _forget_connections(self):
        """Release the connections of a crashed worker."""
        cdef Used *used = <Used *>self._view.buf
        cdef size_t i
        for i in range(self._rows):
            if load_acquire_u64(&used[i].key) == 0:
                break
            store_relaxed_u32(&used[i].connections[self.worker], 0)

    cdef Used *row(self, uint64_t key) noexcept:
        """Return the row of a key, assigning a free one if needed; NULL if none is left."""
        cdef Used *used = <Used *>self._view.buf
        cdef size_t i
        cdef uint64_t seen
        for i in range(self._rows):
            seen = load_acquire_u64(&used[i].key)
            if seen == 0 and compare_exchange_u64(&used[i].key, &seen, key):
                return &used[i]
            if seen == key:
                return &used[i]
        return NULL


@cython.final
cdef class Quota:
    """The quota of one user. A limit of 0 means no limit."""

    def __cinit__(self, QuotaTable table not None, str user not None,
                  uint32_t max_connections=0, double rate=0, double bytes_rate=0):
        cdef bytes digest = hashlib.sha256(user.encode()).digest()
        self.table = table
        self.user = user
        # In practice, two names never have the same key. The key is odd, so it is never 0.
        self.used = table.row(int.from_bytes(digest[:8], "little") | 1)
        if self.used == NULL:
            memset(&self.alone, 0, sizeof(Used))
            self.used = &self.alone
        self.max_connections = max_connections
        self.rate = rate
        self.bytes_rate = bytes_rate

    def change(self, uint32_t max_connections, double rate, double bytes_rate):
        """Set the limits. Messages published at an earlier rate are not charged again."""
        self.max_connections = max_connections
        if (rate, bytes_rate) != (self.rate, self.bytes_rate):
            store_release_u64(&self.used.messages_until, 0)
            store_release_u64(&self.used.bytes_until, 0)
        self.rate = rate
        self.bytes_rate = bytes_rate

    cpdef uint32_t connections(self) noexcept:
        """Number of connections, across all workers."""
        cdef uint32_t count = 0
        cdef int i
        for i in range(MAX_WORKERS):
            count += load_relaxed_u32(&self.used.connections[i])
        return count

    cpdef bint enter(self) noexcept:
        """Count one more connection. Return False, without counting it, if the limit is reached. If
        two connections compete for the last slot, both may be refused."""
        self.join()
        if self.max_connections and self.connections() > self.max_connections:
            self.leave()
            fetch_add_u64(&self.used.connections_refused, 1)
            return False
        return True

    cpdef void join(self) noexcept:
        """Count an existing connection, without checking the limit."""
        fetch_add_u32(&self.used.connections[self.table.worker], 1)

    cpdef void leave(self) noexcept:
        fetch_add_u32(&self.used.connections[self.table.worker], <uint32_t>-1)

    cpdef bint limits_publishes(self) noexcept:
        return self.rate > 0 or self.bytes_rate > 0

    cpdef int64_t wait(self, int64_t now) noexcept:
        """Return the nanoseconds until a publish is allowed; 0 if it is allowed now."""
        cdef int64_t minimum = 0
        if self.rate > 0:
            minimum = max(minimum, _owed(&self.used.messages_until, now))
        if self.bytes_rate > 0:
            minimum = max(minimum, _owed(&self.used.bytes_until, now))
        return minimum

    cpdef void begin_wait(self, int64_t now) noexcept:
        """Count one more waiting session."""
        self.count_waits(now)
        self.waiting += 1

    cpdef void end_wait(self, int64_t now) noexcept:
        self.count_waits(now)
        self.waiting -= 1

    cdef void count_waits(self, int64_t now) noexcept:
        if now > self.waited_until:
            fetch_add_u64(&self.used.waited, self.waiting * <uint64_t>(now - self.waited_until))
            self.waited_until = now

    cpdef int64_t turn(self, int64_t now) noexcept:
        """Return the time when the next waiting session should retry."""
        return now + self.wait(now) + (1 + <int64_t>self.waiting) * SLICE

    cpdef void pay(self, int64_t now, uint64_t messages, uint64_t size) noexcept:
        if not self.limits_publishes():
            return
        fetch_add_u64(&self.used.messages, messages)
        fetch_add_u64(&self.used.size, size)
        if self.rate > 0:
            _pay(&self.used.messages_until, now, messages / self.rate)
        if self.bytes_rate > 0:
            _pay(&self.used.bytes_until, now, size / self.bytes_rate)

    cpdef void refuse_publish(self) noexcept:
        """Count a refused publish."""
        fetch_add_u64(&self.used.publishes_refused, 1)

    def figures(self, int64_t now):
        """Return the totals for all workers: open and refused connections, messages, bytes,
        nanoseconds of waiting, refused publishes."""
        self.count_waits(now)
        return (
            self.connections(),
            load_relaxed_u64(&self.used.connections_refused),
            load_relaxed_u64(&self.used.messages),
            load_relaxed_u64(&self.used.size),
            load_relaxed_u64(&self.used.waited),
            load_relaxed_u64(&self.used.publishes_refused),
        )

    @property
    def is_shared(self):
        """Return whether all workers share their counts; if not, each worker has its own counts."""
        return self.used != &self.alone

    cpdef bint is_news(self, int64_t now) noexcept:
        """Return whether to log that the user must wait: at most once a minute."""
        if now < self.told_until:
            return False
        self.told_until = now + TOLD_AGAIN
        return True


cdef inline int64_t _owed(const uint64_t *until, int64_t now) noexcept:
    return <int64_t>load_acquire_u64(until) - now - BURST + 1


cdef inline void _pay(uint64_t *until, int64_t now, double seconds) noexcept:
    cdef uint64_t cost = <uint64_t>min(seconds * SECOND, MAX_COST)
    cdef uint64_t seen = load_acquire_u64(until)
    while not compare_exchange_u64(until, &seen, max(seen, <uint64_t>now) + cost):
        pass
