"""Statistics about the keys of a channel, and lists of its keys.

Walks over the flows of the index, a limited number per turn, so that no request takes long. Reads
the text of a key from one of its messages. Changes nothing.
"""

cdef enum:
    COUNTED_PER_TICK = 16384        # flows per second that the statistics visit
    LARGEST_KEYS = 10
    MAX_LISTED_KEYS = 10000
    BLOCKED_LONG = 900              # seconds


cdef bint has_more(const ListedKey *one, const ListedKey *other) noexcept nogil:
    """Return whether a key precedes another in a list."""
    if one.waiting != other.waiting:
        return one.waiting > other.waiting
    return one.since < other.since


@cython.final
cdef class LargestKeys:
    """The keys with the most messages of those offered; a heap whose first is the smallest."""

    def __cinit__(self, uint32_t limit):
        self.keys = <ListedKey *>malloc(limit * sizeof(ListedKey))
        if self.keys == NULL:
            raise MemoryError()
        self.limit = limit

    def __dealloc__(self):
        free(self.keys)

    cdef void offer(self, const ListedKey *key) noexcept:
        cdef uint32_t at
        cdef uint32_t child
        if self.count < self.limit:
            at = self.count
            self.count += 1
            while at and has_more(&self.keys[(at - 1) >> 1], key):
                self.keys[at] = self.keys[(at - 1) >> 1]
                at = (at - 1) >> 1
            self.keys[at] = key[0]
            return
        if self.limit == 0 or not has_more(key, &self.keys[0]):
            return
        at = 0
        while 2 * at + 1 < self.count:
            child = 2 * at + 1
            if child + 1 < self.count and has_more(&self.keys[child], &self.keys[child + 1]):
                child += 1
            if not has_more(key, &self.keys[child]):
                break
            self.keys[at] = self.keys[child]
            at = child
        self.keys[at] = key[0]

    cdef void sort(self) noexcept:
        """Put the key with the most messages first."""
        qsort(self.keys, self.count, sizeof(ListedKey), compare_listed)


cdef int compare_listed(const void *a, const void *b) noexcept nogil:
    if has_more(<const ListedKey *>a, <const ListedKey *>b):
        return -1
    return has_more(<const ListedKey *>b, <const ListedKey *>a)


@cython.final
cdef class KeyCensus:
    """Counts of a channel's keys. A walk takes several turns if there are many keys: the numbers
    are those of the latest complete walk."""

    def __cinit__(self):
        self.found = LargestKeys(LARGEST_KEYS)
        self.largest = LargestKeys(LARGEST_KEYS)
        self.texts = {}

    cdef bint walk(self, KeyIndex keys, uint32_t budget) noexcept:
        """Visit up to `budget` flows; return whether a walk has been completed."""
        cdef ListedKey key
        self.at = max(self.at, <uint32_t>1)
        while self.at < keys.flow_end:
            if budget == 0:
                return False
            budget -= 1
            if keys.list_flow(self.at, &key):
                self.count(keys, &key)
            self.at += 1
        self.latest = self.counts
        self.found.sort()
        self.found, self.largest = self.largest, self.found
        self.restart()
        return True

    cdef void restart(self) noexcept:
        """Begin another walk."""
        self.found.count = 0
        memset(&self.counts, 0, sizeof(self.counts))
        self.at = 1

    cdef void count(self, KeyIndex keys, const ListedKey *key) noexcept:
        cdef uint32_t seconds = 0
        if key.waiting == 0:
            return
        self.found.offer(key)
        if not key.blocked:
            self.counts.waiting += 1
            return
        self.counts.blocked += 1
        if key.paused:
            return
        seconds = keys.seconds() - key.since
        self.counts.seconds = max(self.counts.seconds, seconds)
        self.counts.blocked_long += seconds >= BLOCKED_LONG

    cdef list largest_keys(self, KeyIndex keys):
        """Return the keys with the most messages. A text that must be read from disk is None, and
        is requested for the next call."""
        cdef const ListedKey *key
        cdef uint32_t i
        shown = []
        texts = {}
        for i in range(self.largest.count):
            key = &self.largest.keys[i]
            hash = (key.high, key.low)
            text = self.texts.get(hash)
            if text is None:
                text = keys.text_of(key)
            if text is not None:
                texts[hash] = text
            shown.append({
                "key": None if not text else text.decode("utf-8", "backslashreplace"),
                "depth": key.waiting,
                "in_flight": key.held,
                "blocked": bool(key.blocked),
                "paused": bool(key.paused),
            })
        self.texts = texts
        return shown


@cython.final
cdef class KeyListing:
    """The keys of a channel with the most messages, walked in several turns."""

    def __init__(self, KeyedMessages channel not None, bint only_blocked, bint only_paused):
        self.channel = channel
        self.only_blocked = only_blocked
        self.only_paused = only_paused
        self.largest = LargestKeys(MAX_LISTED_KEYS)
        self.at = 1

    def walk(self, uint32_t budget):
        """Visit up to `budget` flows; return whether all have been visited."""
        cdef KeyIndex keys = self.channel.keys
        cdef ListedKey key
        while keys is not None and self.at < keys.flow_end:
            if budget == 0:
                return False
            budget -= 1
            if keys.list_flow(self.at, &key) and (key.high or key.low):
                self.offer(&key)
            self.at += 1
        self.largest.sort()
        return True

    cdef int offer(self, const ListedKey *key) except -1:
        if self.only_paused and not key.paused or self.only_blocked and not key.blocked:
            return 0
        if key.waiting or key.held or key.paused:
            self.matching += 1
            self.largest.offer(key)
        return 0

    def find(self, bytes text not None):
        """List only this key, if the index has it."""
        cdef KeyIndex keys = self.channel.keys
        cdef KeyHash hash = self.channel.hash_of(text)
        cdef MessageKey wanted
        cdef Flow *flow
        cdef ListedKey key
        wanted.high = hash.high
        wanted.low = hash.low
        wanted.level = 0
        flow = NULL if keys is None else keys.any_flow(&wanted)
        if flow != NULL and keys.list_flow(flow.key, &key):
            self.offer(&key)

    def __len__(self):
        return self.largest.count

    @property
    def is_cut(self):
        """Whether there are more keys than a list can have."""
        return self.matching > self.largest.count

    def text(self, uint32_t i):
        """Return the text of a key: None if it must be read from disk first, which is requested;
        empty if the key has no message any more."""
        cdef KeyIndex keys = self.channel.keys
        if keys is None or i >= self.largest.count:
            return b""
        return keys.text_of(&self.largest.keys[i])

    def facts(self, uint32_t i):
        """Return a key's waiting messages, its messages that count for its limits, whether it is
        blocked, for how many seconds, and whether it is paused."""
        cdef const ListedKey *key = &self.largest.keys[i]
        cdef KeyIndex keys = self.channel.keys
        cdef uint32_t seconds = 0
        if key.blocked and keys is not None:
            seconds = keys.seconds() - key.since
        return key.waiting, key.held, bool(key.blocked), seconds, bool(key.paused)
