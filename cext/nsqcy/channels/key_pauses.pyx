"""Paused keys of a channel, and keys whose waiting messages are being dropped.

Owns the texts of these keys, which the journal contains, and their hashes, which the index looks
up. A key that is emptied stays here until the scan of the index has passed every record that waited
at that time. Independent of why a key has messages.
"""

cdef enum:
    MAX_PAUSED_KEYS = 1000
    MAX_EMPTIED_KEYS = 1000
    EMPTIED_AT_ONCE = 16384         # messages of emptied keys dropped per turn


# Shared by all channels without paused keys; never changed.
cdef dict NO_PAUSED_KEYS = {}


@cython.final
cdef class KeyTable:
    """Hashes of keys, each with a sequence number. Lookups cost one or two cache misses."""

    def __dealloc__(self):
        free(self.slots)

    cdef int add(self, uint64_t high, uint64_t low, uint64_t seq) except -1:
        """Add a key, or raise its sequence number."""
        cdef KeySlot *slot
        if self.slots == NULL or 2 * self.count > self.mask:
            self.grow()
        slot = self.slot_of(high, low)
        if slot.seq == 0:
            self.count += 1
        slot.high = high
        slot.low = low
        slot.seq = max(slot.seq, seq)
        return 0

    cdef int grow(self) except -1:
        cdef KeySlot *before = self.slots
        cdef uint32_t count = 0 if before == NULL else self.mask + 1
        cdef uint32_t i
        cdef KeySlot *grown = <KeySlot *>calloc(max(<uint32_t>16, 4 * count), sizeof(KeySlot))
        if grown == NULL:
            raise MemoryError()
        self.slots = grown
        self.mask = max(<uint32_t>16, 4 * count) - 1
        for i in range(count):
            if before[i].seq:
                self.slot_of(before[i].high, before[i].low)[0] = before[i]
        free(before)
        return 0

    cdef void clear(self) noexcept:
        free(self.slots)
        self.slots = NULL
        self.count = 0


@cython.final
cdef class EmptiedKey:
    """A key whose messages up to a place are being dropped."""


cdef class ChosenKeys(Undeliverable):
    def __cinit__(self):
        self.paused_keys = NO_PAUSED_KEYS
        self.emptied_keys = ()

    cdef KeyHash hash_of(self, bytes text) except *:
        return key_hash(self.window.key_secret(), <const uint8_t *><const char *>text, len(text))

    # -- paused keys --

    cdef int set_key_paused(self, bytes text, bint paused) except -1:
        """Pause a key, or unpause it."""
        cdef KeyHash hash = self.hash_of(text)
        cdef KeyHash each
        if paused == (text in self.paused_keys):
            return 0
        if self.pauses is None:
            self.pauses = KeyTable()
        self.paused_keys = dict(self.paused_keys)
        if paused:
            self.paused_keys[text] = True
            self.pauses.add(hash.high, hash.low, 1)
        else:
            del self.paused_keys[text]
            self.pauses.clear()
            for other in self.paused_keys:
                each = self.hash_of(other)
                self.pauses.add(each.high, each.low, 1)
        if self.keys is not None:
            self.keys.pauses = self.pauses if self.paused_keys else None
            self.keys.update_hash(&hash)
        self.touch_dirty()
        return 0

    def why_not_pause(self, bytes text not None):
        """Return the code of the reason why this key cannot be paused; None if it can."""
        if text in self.paused_keys:
            return None
        if not self.keyed:
            return "NO_KEY_RULES"
        return "TOO_MANY_PAUSED_KEYS" if len(self.paused_keys) >= MAX_PAUSED_KEYS else None

    # -- emptied keys --

    def why_not_empty(self):
        """Return the code of the reason why no key can be emptied; None if one can."""
        if not self.keyed:
            return "NO_KEY_RULES"
        return "TOO_MANY_EMPTIED_KEYS" if len(self.emptied_keys) >= MAX_EMPTIED_KEYS else None

    cdef int add_emptied(self, bytes text, uint64_t seq, uint64_t place, done) except -1:
        """Drop the messages of a key that wait: those before `place` in the index, and the records
        before `seq` that the scan finds later. Calls done() once the index has no more."""
        cdef EmptiedKey emptied = EmptiedKey.__new__(EmptiedKey)
        emptied.text = text
        emptied.hash = self.hash_of(text)
        emptied.seq = seq
        emptied.place = place
        emptied.searched = place == 0
        emptied.resolved = place == 0 or self.queue_first == NULL
        emptied.done = done
        self.emptied_keys = (*self.emptied_keys, emptied)
        return self.set_emptied()

    cdef int set_emptied(self) except -1:
        """Let the index look up the emptied keys."""
        cdef EmptiedKey emptied
        if self.keys is None:
            return 0
        self.keys.emptied = None
        if self.emptied_keys:
            self.keys.emptied = KeyTable()
            for emptied in self.emptied_keys:
                self.keys.emptied.add(emptied.hash.high, emptied.hash.low, emptied.seq)
        return 0

    cdef int drop_emptied(self) except -1:
        """Drop messages of emptied keys, a limited number per turn; forget the keys without any."""
        cdef EmptiedKey emptied
        cdef int budget = EMPTIED_AT_ONCE
        cdef bint over = False
        self.emptied_count += self.keys.emptied_items
        self.keys.emptied_items = 0
        for emptied in self.emptied_keys:
            if not emptied.searched and not self.keys.single:
                budget = self.drop_waiting(emptied, budget)
            emptied.resolved = emptied.resolved or self.queue_first == NULL
            if emptied.searched and emptied.resolved:
                self.answer_emptied(emptied)
                over = over or emptied.seq <= self.keys.at.seq
        if over:
            self.emptied_keys = tuple([
                each for each in self.emptied_keys if not self.is_emptied(each)])
            self.note_due = True
            self.set_emptied()
        if budget == 0:
            self.touch_dirty()
        return 0

    cdef bint is_emptied(self, EmptiedKey emptied) noexcept:
        return emptied.searched and emptied.resolved and emptied.seq <= self.keys.at.seq

    cdef int answer_emptied(self, EmptiedKey emptied) except -1:
        done, emptied.done = emptied.done, None
        if done is not None:
            done()
        return 0

    cdef int drop_waiting(self, EmptiedKey emptied, int budget) except -1:
        """Drop messages of an emptied key from the index; return the unused budget."""
        cdef KeyIndex keys = self.keys
        cdef MessageKey key
        cdef Flow *flow
        cdef Entry *entry
        key.high = emptied.hash.high
        key.low = emptied.hash.low
        key.level = 0
        while True:
            flow = keys.any_flow(&key)
            if flow != NULL:
                flow = keys.first_before(flow, emptied.place)
            if flow == NULL:
                emptied.searched = True
                return budget
            if keys.is_hungry(flow):
                return budget       # the records are dropped when they are read again
            if budget == 0:
                return 0
            budget -= 1
            keys.drop_head(flow, &entry)
            keys.update_flow(flow)
            keys.free_if_unused(flow)
            self.emptied_count += 1
            if entry != NULL:
                self.queued -= 1
                self.drop_entry(entry)

    cdef bint is_entry_emptied(self, const Entry *entry, const Record *record) except -1:
        """Return whether a message, whose key has just become known, was emptied."""
        cdef EmptiedKey emptied
        cdef KeyHash hash
        if record == NULL:
            return False
        hash = record_key_hash(record, self.window.key_secret())
        for emptied in self.emptied_keys:
            if not emptied.resolved and emptied.hash.high == hash.high \
                    and emptied.hash.low == hash.low and place_of(entry) < emptied.place:
                return True
        return False

    cdef int forget_emptied(self) except -1:
        """Forget the emptied keys: the channel has no message any more."""
        cdef EmptiedKey emptied
        gone, self.emptied_keys = self.emptied_keys, ()
        self.note_due = self.note_due or len(gone) != 0
        if self.keys is not None:
            self.emptied_count += self.keys.emptied_items
            self.keys.emptied_items = 0
            self.keys.emptied = None
        for emptied in gone:
            self.answer_emptied(emptied)
        return 0
