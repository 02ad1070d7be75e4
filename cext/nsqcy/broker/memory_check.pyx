"""Memory check: compares what the next process would read in the state memory with the live topics.

For tests. Reads the memory in place, so an object that is found there is the live one: it remains
to show that exactly the live objects are found, and that the fields which only the next process
reads agree with their places. Changes nothing. Independent of how a topic is restored.
"""


def memory_differences(Shard shard not None):
    """Return how the state memory differs from a shard's topics, one text for each difference.

    Call this between two turns. A difference means that a process that died now would lose
    messages, or that the next one would deliver them in another state.
    """
    return MemoryCheck(shard).run()


def discarded_differences(Shard shard not None):
    """Return how messages that wait to be freed differ from those that the next process must not
    find, one text for each difference. Call this between two turns."""
    cdef Discarded discarded
    cdef Topic topic
    cdef Channel channel
    if not shard.scheduler.discarded:
        return []
    numbers = set()
    for topic in shard.all_topics():
        for channel in topic.channels.values():
            if channel.owner != NULL:
                numbers.add(channel.owner.number)
    found = []
    for discarded in shard.scheduler.discarded:
        if discarded.entries != NULL and discarded.entries.owner in numbers:
            found.append(f"dropped message {discarded.entries.seq} belongs to a channel")
        if discarded.pages.first != NULL and discarded.pages.first.owner in numbers:
            found.append("a page of dropped messages belongs to a channel")
    return found


cdef class MemoryCheck:
    cdef Shard shard
    cdef LeftMemory left
    cdef set pieces             # (kind, offset, units) of the records' memory
    cdef list found
    cdef str name               # of the topic or channel that is being compared
    cdef uint64_t owners        # live
    cdef uint64_t notes         # that live owners refer to

    def __init__(self, Shard shard not None):
        self.shard = shard
        self.found = []

    cdef list run(self):
        cdef BlockPool pool = self.shard.pool
        cdef Topic topic
        self.left = LeftMemory(pool.state)
        self.left.read()
        self.name = "memory"
        if self.left.refusal is not None:
            return [self.left.refusal]
        self.expect("damaged parts", self.left.damaged, 0)
        self.pieces = set(pool.records.pieces())
        topics = {}
        for topic in self.shard.all_topics():
            self.name = topic.name
            owned = self.shard.data_path is not None and (
                topic.log is None
                or os.path.dirname(topic.log.directory) == self.shard.data_path)
            self.expect("has an owner", topic.owner != NULL, owned)
            if topic.owner != NULL:
                topics[topic.key] = topic
        self.name = "memory"
        self.expect("topics", sorted(self.left.topics), sorted(topics))
        for key in topics.keys() & self.left.topics.keys():
            topic = topics[key]
            self.name = topic.name
            self.check_topic(topic, self.left.topics[key])
        self.name = "memory"
        self.expect("owners in use", self.shard.scheduler.owners.count, self.owners)
        self.expect("notes in use", self.shard.scheduler.owners.notes, self.notes)
        return self.found

    cdef int expect(self, str what, there, wanted) except -1:
        if there != wanted:
            self.found.append(f"{self.name}: {what}: {there!r} in memory, not {wanted!r}")
        return 0

    cdef int check_owner(self, const Owner *owner, uint32_t number, left) except -1:
        cdef const Position *position = &owner.positions[owner.current]
        self.owners += 1
        self.notes += (position.note != NULL) + (position.bits != NULL)
        self.expect("number", owner.number, number)
        self.expect("owner of its number", self.left._numbers.get(number), left)
        return 0

    # -- topics --

    cdef int check_topic(self, Topic topic, LeftTopic left) except -1:
        cdef Channel channel
        self.check_owner(topic.owner, topic.number, left)
        self.expect("visible", left.visible, topic.visible.seq)
        self.expect("fan-out position", left.seq, topic.fanout.seq)
        if topic.log is not None:
            self.expect("log_id", left.log_id, topic.log.log_id)
            self.expect("log_first", left.log_first, topic.log_first)
        self.check_note(left.note, topic.note_state(), topic.min_seq())
        self.check_blocks(topic, left)
        self.check_ids(topic.once, left)
        channels = {}
        for channel in topic.channels.values():
            self.name = f"{topic.name}/{channel.name}"
            self.expect("has an owner", channel.owner != NULL, True)
            if channel.owner != NULL:
                channels[channel.name] = channel
        self.name = topic.name
        self.expect("channels", sorted(left.channels), sorted(channels))
        for name in channels.keys() & left.channels.keys():
            channel = channels[name]
            self.name = f"{topic.name}/{name}"
            self.check_channel(topic, channel, left.channels[name])
        return 0

    cdef int check_ids(self, Once once, LeftTopic left) except -1:
        """Check that the next process finds the cells of all ids, and no id that was removed."""
        cdef IdCell *cell
        cdef uint64_t number
        cdef size_t i
        cdef int j
        wanted = [] if once is None else [
            <size_t>once.chunks[once.chunks_first + i].cell for i in range(once.chunks_count)]
        self.expect("cells of ids", [<size_t>left.id_cells[i] for i in range(left.id_cell_count)],
                    wanted)
        for i in range(left.id_cell_count):
            cell = left.id_cells[i]
            for j in range(CELL_IDS):
                number = cell.first + j
                if once is not None and not once.first <= number < once.end \
                        and cell.ids[j].time not in (0, FORGOTTEN):
                    self.expect("removed id", number, None)
        return 0

    cdef int check_note(self, bytes note, state, uint64_t seq) except -1:
        """Compare a note with the TopicState or None that it would contain now. Ranges that end
        before record `seq` no longer matter. Later chunks of producers are found in the records.
        """
        wanted = {} if state is None else self.facts(journal.encode_snapshot(state), seq)
        there = {} if note is None else self.facts(note, seq)
        # Runs that have ended may still be there.
        runs = there.pop("transfers", ())
        self.expect("runs of transfers", runs, runs if set(wanted.pop("transfers", ())) <= set(runs)
                    else "all current runs")
        if "secret" not in there:
            wanted.pop("secret", None)      # a new one does as well
        for name in sorted(there.keys() | wanted.keys()):
            self.expect(f"note's {name}", there.get(name), wanted.get(name))
        return 0

    cdef dict facts(self, bytes note, uint64_t seq):
        """Return the facts in a note that are not empty."""
        state = journal.replay([note])
        found = {
            "paused": state.paused, "cursors": state.cursors, "secret": state.secret,
            "holes": [each for each in state.holes if each[1] > seq],
            "past": [each for each in state.past if each.end > seq],
            "missing": [each for each in state.missing if each[1] > seq],
        }
        for channel in state.channels:
            found |= {
                "channel's pause": channel.paused,
                "finished": [each for each in channel.finished if each[1] > seq],
                "transfers": channel.transfers, "paused keys": channel.paused_keys,
                "emptied keys": channel.emptied_keys,
            }
        return {name: each for name, each in found.items() if each}

    cdef int check_blocks(self, Topic topic, LeftTopic left) except -1:
        cdef Block *block = topic.oldest
        cdef size_t count = 0
        while block != NULL:
            count += 1
            self.check_block(topic, block)
            block = block.next
        block = topic.stragglers
        while block != NULL:
            count += 1
            self.check_block(topic, block)
            block = block.next
        # All live blocks have the topic's number, so equal counts mean that there are no others.
        return self.expect("blocks", left.block_count, count)

    cdef int check_block(self, Topic topic, const Block *block) except -1:
        cdef uint64_t offset
        cdef Record *record
        if block.owner != topic.number or self.left.block(block) != block:
            self.expect(f"owner of block {block.first_seq}", block.owner, topic.number)
        if block.extent.segment != NULL and block.extent.number != block.extent.segment.number:
            self.expect(f"segment of block {block.first_seq}", block.extent.number,
                        block.extent.segment.number)
        if block.data == NULL:
            return 0
        offset = block.data - self.shard.pool.records.range.base
        if not self.is_memory(offset, block.capacity) or block.size > block.capacity:
            self.expect(f"memory of block {block.first_seq}", (offset, block.size, block.capacity),
                        "the pool's")
        if block.flags & LOADING or block.size == 0 or block.flags & SURVIVORS or block.stored:
            return 0
        record = <Record *>block.data
        if record.seq < block.first_seq:
            self.expect("first_seq of a block", block.first_seq, record.seq)
        return 0

    cdef bint is_memory(self, uint64_t offset, uint32_t capacity) except -1:
        """Return whether the table states that a block of this capacity may be at an offset."""
        cdef uint32_t units = (capacity + RANGE_UNIT - 1) // RANGE_UNIT
        cdef uint64_t base = offset - offset % ARENA_SIZE
        cdef int kind
        if capacity > LARGEST_BLOCK:
            return (UNIT_LARGE, offset, units) in self.pieces
        for kind in range(BLOCK_CLASSES):
            if capacity == <uint32_t>MIN_BLOCK << kind:
                return offset % capacity == 0 \
                    and (UNIT_ARENA + kind, base, CHUNK_UNITS) in self.pieces
        return False

    # -- channels --

    cdef int check_channel(self, Topic topic, Channel channel, LeftChannel left) except -1:
        cdef uint64_t seq = channel.cursor.at.seq
        self.check_owner(channel.owner, channel.number, left)
        self.expect("topic", channel.owner.topic, topic.number)
        self.expect("cursor", left.seq, seq)
        self.expect("skipped", left.skipped, channel.cursor.skipped)
        self.expect("replay_end", left.replay_end, channel.cursor.replay_end)
        self.check_note(left.note, topic.channel_note_state(channel), seq)
        self.expect("bits", bits_from(left.bits, seq),
                    bits_from(b"" if channel.keys is None else channel.keys.packed_bits(), seq))
        return self.check_messages(topic, channel, left)

    cdef int check_messages(self, Topic topic, Channel channel, LeftChannel left) except -1:
        """Compare the messages of a channel."""
        cdef size_t entries = 0
        cdef size_t deferred = 0
        cdef int64_t last = INT64_MIN
        cdef uint32_t i
        cdef Entry *entry = channel.queue_first
        cdef InFlightList *in_flight = channel.in_flight_lists
        cdef Deferred *message
        while entry != NULL:
            entries += 1
            self.check_entry(topic, channel, entry, QUEUED)
            if entry.due <= last:
                self.expect(f"place of message {entry.seq} in the queue", entry.due, last + 1)
            last = entry.due
            entry = entry.next
        if channel.keys is not None:
            for i in range(1, channel.keys.flow_end):
                if not channel.keys.flow_at(i).used:
                    continue
                entry = channel.keys.flow_at(i).first_entry
                while entry != NULL:
                    entries += 1
                    self.check_entry(topic, channel, entry, QUEUED)
                    entry = entry.next
        while in_flight != NULL:
            last = INT64_MIN
            entry = in_flight.first
            while entry != NULL:
                entries += 1
                self.check_entry(topic, channel, entry,
                                 TRANSFERRING if entry.due >= NEVER else IN_FLIGHT)
                if entry.due < last:
                    self.expect(f"deadline of message {entry.seq}", entry.due, last)
                last = entry.due
                entry = entry.next
            in_flight = in_flight.next
        for i in range(channel.timers.size):
            if channel.timers.slots[i].node.tag & 1 == IN_FLIGHT_TIMER:
                continue
            message = <Deferred *>channel.timers.slots[i].node
            deferred += 1
            self.check_message(topic, channel, message, page_of(message).owner, DEFERRED)
            if message.due != channel.timers.slots[i].due:
                self.expect(f"due time of message {message.seq}", message.due,
                            channel.timers.slots[i].due)
        # All live messages have the channel's number.
        self.expect("entries", left.entry_count, entries)
        self.expect("deferred messages", left.deferred_count, deferred)
        return 0

    cdef int check_entry(self, Topic topic, Channel channel, const Entry *entry,
                         int state) except -1:
        return self.check_message(topic, channel, <const Deferred *>entry, entry.owner, state)

    cdef int check_message(self, Topic topic, Channel channel, const Deferred *message,
                           uint32_t owner, int state) except -1:
        cdef const Block *block = message.block
        cdef const Record *record
        if owner != channel.number:
            self.expect(f"owner of message {message.seq}", owner, channel.number)
        if message.state != state:
            self.expect(f"state of message {message.seq}", message.state, state)
        if self.left.block(block) != block or block.owner != topic.number:
            return self.expect(f"block of message {message.seq}", <uint64_t>block, "the topic's")
        if block.data == NULL or block.flags & LOADING or block.stored:
            return 0                # what was read from disk may be damaged
        record = <const Record *>(block.data + message.offset)
        if message.offset >= block.size or record.seq != message.seq:
            self.expect(f"record of message {message.seq}", message.offset, "its place")
        elif message.id and message.id != record.id:
            self.expect(f"id of message {message.seq}", message.id, record.id)
        return 0


cdef bytes bits_from(bytes bits, uint64_t seq):
    """Return the bits of the records from `seq` on, without the last words that have none. `bits`
    begin with the word of record `seq`."""
    cdef uint64_t word
    if bits:
        memcpy(&word, <const char *>bits, sizeof(word))
        word &= <uint64_t>-1 << (seq & 63)
        bits = (<const char *>&word)[:sizeof(word)] + bits[sizeof(word):]
    while bits and bits.endswith(bytes(sizeof(word))):
        bits = bits[:len(bits) - <Py_ssize_t>sizeof(word)]
    return bits
