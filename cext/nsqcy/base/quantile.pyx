"""Quantiles of a stream of numbers over a rolling window, in bounded memory.

Owns the samples. Independent of messages, channels and the clock.

The sketch is the one by Greenwald and Khanna ("Space-Efficient Online Computation of Quantile
Summaries", 2001), with a buffer in front: its error in rank among n values is at most ERROR * n,
even after several sketches have been merged. (NSQ uses the targeted variant, for quantiles with
different accuracies. With a single accuracy, that variant saves almost no memory, and for some
input orders it keeps all values.)
"""

# Quantiles of a stream of numbers over a rolling window.
#
# A sketch keeps a sorted selection of the values that it received, with bounds on their ranks:
#
#     value      3    17    25        88        the minimum and the maximum are always kept
#     width      1     4     9         2        a rank is at least the sum of the widths up to it,
#     delta      0     2     0         0        and at most `delta` more
#
#     fresh   [ 19  4  77  5 ... ]              values that are not merged into the samples yet
#
# A window consists of two sketches, each covering half its length; the older one is complete.


cdef enum:
    MAX_FRESH = 500            # values that are merged into the samples in one step
    MIN_FRESH = 16
    MAX_MERGED = 2048          # merged sketches with fewer samples are not thinned out

cdef double ERROR = 0.005
cdef double LIFT = 0.01         # a quantile is looked up this far above its rank


# -- sorting --

cdef void sort(int64_t *values, int64_t n) noexcept nogil:
    """Quicksort without callbacks: a callback per comparison would dominate the cost of a value."""
    cdef int64_t pivot, value
    cdef int64_t i, j
    while n > 16:
        pivot = middle(values[0], values[n // 2], values[n - 1])
        i = -1
        j = n
        while True:
            i += 1
            while values[i] < pivot:
                i += 1
            j -= 1
            while values[j] > pivot:
                j -= 1
            if i >= j:
                break
            values[i], values[j] = values[j], values[i]
        j += 1
        if j < n - j:
            sort(values, j)
            values += j
            n -= j
        else:
            sort(values + j, n - j)
            n = j
    for i in range(1, n):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


cdef inline int64_t middle(int64_t a, int64_t b, int64_t c) noexcept nogil:
    return max(min(a, b), min(max(a, b), c))


# -- one sketch --

cdef void clear(Sketch *sketch) noexcept nogil:
    free(sketch.samples)
    free(sketch.fresh)
    memset(sketch, 0, sizeof(Sketch))


cdef int reserve(Sketch *sketch, uint32_t room) noexcept nogil:
    """Reserve memory for `room` samples; return -1 if out of memory."""
    cdef Sample *samples
    if room <= sketch.room:
        return 0
    samples = <Sample *>realloc(sketch.samples, room * sizeof(Sample))
    if samples == NULL:
        return -1
    sketch.samples = samples
    sketch.room = room
    return 0


cdef int reserve_fresh(Sketch *sketch) noexcept nogil:
    cdef uint32_t room = min(max(2 * sketch.fresh_room, <uint32_t>MIN_FRESH),
                             <uint32_t>MAX_FRESH)
    cdef int64_t *fresh = <int64_t *>realloc(sketch.fresh, room * sizeof(int64_t))
    if fresh == NULL:
        return -1
    sketch.fresh = fresh
    sketch.fresh_room = room
    return 0


cdef int merge(Sketch *into, const Sample *others, uint32_t n, uint64_t count) noexcept nogil:
    """Add `n` samples, which represent `count` values; return -1 if out of memory. The uncertainty
    of a sample's rank grows by the uncertainty between its neighbours among the other samples."""
    cdef uint32_t i = into.size
    cdef uint32_t j = n
    cdef uint64_t own_gap = 0           # uncertainty below the last sample taken from `into`
    cdef uint64_t other_gap = 0         # uncertainty below the last sample taken from `others`
    cdef Sample *sample
    if reserve(into, i + n) < 0:
        return -1
    while j:
        sample = &into.samples[i + j - 1]
        if i and into.samples[i - 1].value > others[j - 1].value:
            i -= 1
            sample[0] = into.samples[i]
            own_gap = sample.width + sample.delta - 1
            sample.delta += other_gap
        else:
            j -= 1
            sample[0] = others[j]
            other_gap = sample.width + sample.delta - 1
            sample.delta += own_gap
    into.size += n
    into.count += count
    return 0


cdef void thin(Sketch *sketch) noexcept nogil:
    """Drop samples whose ranks the next sample can also represent. The first and the last sample
    are kept."""
    cdef Sample *samples = sketch.samples
    cdef uint64_t maximum = <uint64_t>(2 * ERROR * <double>sketch.count)
    cdef uint64_t width
    cdef uint32_t i = sketch.size - 1
    cdef uint32_t to = sketch.size - 1
    if sketch.size < 3 or maximum < 2:
        return
    while i > 1:
        i -= 1
        width = samples[i].width + samples[to].width
        if width + samples[to].delta <= maximum:
            samples[to].width = width
        else:
            to -= 1
            samples[to] = samples[i]
    memmove(&samples[1], &samples[to], (sketch.size - to) * sizeof(Sample))
    sketch.size -= to - 1


cdef int merge_fresh(Sketch *into, Sketch *source) noexcept nogil:
    """Add the fresh values of a sketch (they stay in it, sorted); return -1 if out of memory."""
    cdef Sample others[MAX_FRESH]
    cdef uint32_t n = source.fresh_count
    cdef uint32_t i
    sort(source.fresh, n)
    for i in range(n):
        others[i].value = source.fresh[i]
        others[i].width = 1
        others[i].delta = 0
    return merge(into, others, n, n)


cdef inline void insert(Sketch *sketch, int64_t value) noexcept nogil:
    """Add a value. If memory allocation fails, the value is not counted."""
    if sketch.fresh_count == sketch.fresh_room and reserve_fresh(sketch) < 0:
        return
    sketch.fresh[sketch.fresh_count] = value
    sketch.fresh_count += 1
    if sketch.fresh_count == MAX_FRESH:
        if merge_fresh(sketch, sketch) == 0:
            thin(sketch)
        sketch.fresh_count = 0


cdef int absorb(Sketch *into, Sketch *source) noexcept nogil:
    """Add all samples of another sketch; return -1 if out of memory."""
    if merge(into, source.samples, source.size, source.count) < 0 \
            or merge_fresh(into, source) < 0:
        return -1
    if into.size > MAX_MERGED:
        thin(into)
    return 0


cdef int64_t query(const Sketch *sketch, double quantile) noexcept nogil:
    """Return the value of a quantile; 0 if there are no values.

    It is looked up slightly above its rank, as in NSQ: with few values, a high quantile is the
    maximum, which is exact.
    """
    cdef double n = <double>sketch.count
    cdef double rank = min(n, ceil(quantile * n) + ceil(LIFT * n) + 1)
    cdef uint64_t minimum = 0
    cdef uint32_t i
    if sketch.size == 0:
        return 0
    for i in range(sketch.size):
        minimum += sketch.samples[i].width
        if i and minimum + sketch.samples[i].delta > rank:
            return sketch.samples[i - 1].value
    return sketch.samples[sketch.size - 1].value


# -- for Python --

@cython.final
cdef class Percentiles:
    def __cinit__(self, quantiles, int64_t window):
        """quantiles: each in (0, 1]; if empty, latencies are not kept. window: ns"""
        self.quantiles = tuple(quantiles)
        self.window = window
        if self.quantiles and window <= 0:
            raise ValueError("the window must be > 0")

    def summary(self, latencies, int64_t now):
        """Return the combined latencies of several channels, for /stats, as a dict."""
        cdef Sketch total
        cdef Latency latency
        cdef int i
        if not self.quantiles or not latencies:
            return {"count": 0, "percentiles": None}
        memset(&total, 0, sizeof(Sketch))
        try:
            for latency in latencies:
                latency.rotate(now)
                for i in range(2):
                    if absorb(&total, &latency.halves[i]) < 0:
                        raise MemoryError()
            return {
                "count": total.count,
                "percentiles": [
                    {"quantile": each, "value": query(&total, each)}
                    for each in self.quantiles
                ],
            }
        finally:
            clear(&total)


@cython.final
cdef class Latency:
    def __cinit__(self, Percentiles percentiles not None, int64_t now):
        self.length = max(<int64_t>1, percentiles.window // 2)
        self.ends = now + self.length

    def __dealloc__(self):
        clear(&self.halves[0])
        clear(&self.halves[1])

    @property
    def memory_bytes(self):
        cdef uint64_t total = 0
        cdef int i
        for i in range(2):
            total += self.halves[i].room * sizeof(Sample)
            total += self.halves[i].fresh_room * sizeof(int64_t)
        return total

    cpdef void add(self, int64_t value, int64_t now) noexcept nogil:
        """Add one value."""
        if now >= self.ends:
            self.rotate(now)
        insert(&self.halves[self.current], value)

    cpdef void rotate(self, int64_t now) noexcept nogil:
        """Drop values older than the window, and free their memory."""
        cdef int64_t passed
        if now < self.ends:
            return
        passed = (now - self.ends) // self.length + 1
        self.ends += passed * self.length
        self.current ^= 1
        clear(&self.halves[self.current])
        if passed > 1:
            clear(&self.halves[self.current ^ 1])
