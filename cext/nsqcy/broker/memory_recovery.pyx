"""Memory recovery: rebuilds a topic from its files and from the memory of a process that has died.

The memory states where the topic and its channels were, and which messages were delivered, queued
or deferred. Blocks whose records are not all on disk are adopted: their bytes stay where they are.
The files provide everything else: the other blocks, and what only a journal contains. Decides which
of the two is right; recovery.pyx owns the order of the steps, left_memory the rules of reading.
"""

# Messages in flight are restored last, in order of deadline: this is added to their places.
cdef uint64_t IN_FLIGHT_PLACE = <uint64_t>1 << 63

# A message of a channel as a journal would contain it, and where its record was.
cdef struct LeftMessage:
    PackedEntry packed
    uint64_t id
    uint64_t place          # in the queue
    Block *left             # the block in the left memory; NULL: not known
    uint32_t offset
    uint64_t gate           # in a queue without keys: the record that follows
    int64_t timestamp       # in flight: of the record
    uint32_t delivered      # in flight: time of delivery, as in an entry


cdef int compare_places_in_queue(const void *a, const void *b) noexcept nogil:
    cdef const LeftMessage *one = <const LeftMessage *>a
    cdef const LeftMessage *other = <const LeftMessage *>b
    if one.place != other.place:
        return -1 if one.place < other.place else 1
    return (one.packed.seq > other.packed.seq) - (one.packed.seq < other.packed.seq)


cdef int compare_messages(const void *a, const void *b) noexcept nogil:
    """Order messages by seq. A message that was changing its form may be there twice."""
    cdef const LeftMessage *one = <const LeftMessage *>a
    cdef const LeftMessage *other = <const LeftMessage *>b
    if one.packed.seq != other.packed.seq:
        return -1 if one.packed.seq < other.packed.seq else 1
    return (one.packed.state == DEFERRED) - (other.packed.state == DEFERRED)


cdef class MemoryRecovery(Recovery):
    """The restore of a topic that a dead process has left.

    marks: None, or an object that records what is being read, so that the next process can leave it
    out if this one dies: begin(key, number) with the number of a block, from 1 on, or 0 for the
    rest of the topic; end(); and leaves_out(key, number).
    """
    cdef LeftTopic left
    cdef object marks
    cdef size_t run_count               # of `blocks`, which are sorted: those from the files
    cdef uint64_t memory_seq            # no record before it is only in memory
    cdef uint64_t fanout_seq
    cdef uint64_t damaged               # parts that were not sound
    cdef uint64_t max_id
    cdef bint holds                     # the blocks have one reference more
    cdef bint taken_over                # consumers will claim what is in flight

    def __init__(self, Topic topic not None, LeftTopic left not None, marks=None,
                 bint taken_over=False):
        Recovery.__init__(self, topic)
        self.left = left
        self.marks = marks
        self.taken_over = taken_over
        self.memory_seq = NO_SEQ

    cdef int restore(self, channels) except -1:
        self.mark(0)
        Recovery.restore(self, channels)
        self.left.memory.damaged += self.damaged
        self.left.let_go()
        if self.marks is not None:
            self.marks.end()
        return 0

    cdef int mark(self, uint64_t number) except -1:
        if self.marks is not None:
            self.marks.begin(self.left.key, number)
        return 0

    # -- state --

    cdef object restore_state(self, Recovered found, dict names):
        """Return the last checkpoint, with what the memory states; add the channels to `names`."""
        cdef Topic topic = self.topic
        cdef LeftTopic left = self.left
        cdef LeftChannel channel
        state = Recovery.restore_state(self, found, {})
        note = self.state_in(left.note)
        topic.next_seq = max(found.next_seq, left.visible)
        self.fanout_seq = left.seq
        saved = []
        for channel in left.channels.values():
            each = self.channel_state(channel)
            saved.append(each)
            names.setdefault(each.name, each.paused)
            self.fanout_seq = max(self.fanout_seq, <uint64_t>each.cursor)
        self.fanout_seq = min(self.fanout_seq, topic.next_seq)
        if state is None and note is None:
            # Most topics of a worker that is replaced: their clients wait.
            return journal.TopicState(
                log_id=left.log_id, next_seq=topic.next_seq, fanout_seq=self.fanout_seq,
                channels=tuple(saved), produced_seq=1)
        if state is None:
            state = note
            produced = note.produced_seq
        else:
            produced = state.produced_seq or state.next_seq
        state = replace(
            state, log_id=left.log_id, next_seq=topic.next_seq, fanout_seq=self.fanout_seq,
            paused=note is not None and note.paused, holes=() if note is None else note.holes,
            channels=tuple(saved), delayed=b"", clean=False, produced_seq=produced or 1)
        if note is not None:
            state = replace(state, cursors=note.cursors, secret=note.secret or state.secret)
        topic.named = NamedCursors(state.cursors)
        if state.secret:
            memcpy(topic.secret, <const char *><bytes>state.secret, sizeof(topic.secret))
            topic.has_secret = True
        return state

    cdef object state_in(self, bytes note):
        """Return a note's TopicState; None if there is no note."""
        if note is None:
            return None
        try:
            return journal.replay([note])
        except journal.JournalError:
            self.damaged += 1
            return None

    cdef object channel_state(self, LeftChannel left):
        cdef uint64_t cursor = min(left.seq, <uint64_t>self.topic.next_seq)
        state = self.state_in(left.note)
        saved = None
        for each in () if state is None else state.channels:
            if each.name == left.name:
                saved = each
        if saved is None:
            return journal.ChannelState(
                name=left.name, cursor=cursor, skipped=left.skipped, replay_end=left.replay_end,
                taken=left.bits)
        return replace(
            saved, cursor=cursor, skipped=left.skipped, replay_end=left.replay_end,
            taken=left.bits, entries=b"", ids=b"", cancelled=frozenset(),
            finished=tuple([each for each in saved.finished if each[1] > cursor]))

    cdef bint is_whole(self, found, state) except -1:
        return self.damaged == 0 and not found.damages

    cdef bint is_as_saved(self, state, dict names, bint whole) except -1:
        return False

    cdef bint were_fanned_out(self, state, dict names) except -1:
        return False

    cdef int name_logs(self, Recovered found, state, bint whole) except -1:
        """Continue the log, unless records that its readers may have seen are lost."""
        cdef Topic topic = self.topic
        cdef uint64_t first = min(self.left.log_first, topic.next_seq)
        if topic.log is None:
            return 0
        topic.stable = min(self.memory_seq, topic.next_seq)
        topic.past = tuple([one for one in state.past if one.end <= first])
        topic.log.log_id = self.left.log_id
        topic.log_first = first
        # With durability fsync, readers only see synced records.
        if not whole or topic.promised == FSYNC and topic.oldest != NULL and not self.sync_found():
            if first < topic.next_seq:
                topic.past += (journal.Incarnation(self.left.log_id, first, topic.next_seq),)
            topic.log.log_id = os.urandom(16)
            topic.log_first = topic.next_seq
        return 0

    # -- blocks --

    cdef int restore_blocks(self, Recovered found, uint64_t minimum) except -1:
        """Adopt the blocks whose records are not all on disk; the files contain the others."""
        cdef Topic topic = self.topic
        cdef size_t i
        self.make_room(found.run_count + self.left.block_count)
        for i in range(found.run_count):
            self.add_run(&found.run_array[i])
        self.run_count = self.block_count
        if self.run_count:
            qsort(self.blocks, self.run_count, sizeof(Block *), compare_first_seqs)
            qsort(self.places, self.place_count, sizeof(Place), compare_places)
        for i in range(self.left.block_count):
            # For the reader's own use: the block that adopts this one.
            self.left.blocks[i].relocations = NULL
            if self.marks is not None and self.marks.leaves_out(self.left.key, i + 1):
                self.damaged += 1
                continue
            self.mark(i + 1)
            self.restore_block(i)
        if self.left.block_count:
            self.mark(0)
        topic.host.ids.lift(self.max_id)
        self.set_overlaps_aside()
        self.link_blocks(minimum)
        for i in range(self.block_count):
            topic.ref(self.blocks[i])       # until the messages that refer to it are restored
        self.holds = True
        return 0

    cdef int release_unneeded(self) except -1:
        cdef size_t i
        if self.holds:
            self.holds = False
            for i in range(self.block_count):
                self.blocks[i].refs -= 1
        return Recovery.release_unneeded(self)

    cdef void set_overlaps_aside(self) noexcept:
        """Keep damaged blocks out of the window, whose sequence numbers ascend: no record is in two
        blocks, except for copies."""
        cdef uint64_t end = 0
        cdef size_t i
        cdef Block *block
        if self.block_count:
            qsort(self.blocks, self.block_count, sizeof(Block *), compare_first_seqs)
        for i in range(self.block_count):
            block = self.blocks[i]
            if block.flags & SURVIVORS:
                continue
            if block.first_seq < end:
                block.flags |= SURVIVORS
                self.damaged += 1
            else:
                end = block.last_seq + 1

    cdef int restore_block(self, size_t number) except -1:
        """Adopt a block if the files do not contain it."""
        cdef Block *left = self.left.blocks[number]
        cdef Block *block
        cdef uint64_t covered
        cdef uint32_t within
        cdef uint32_t flags = 0
        if left.data == NULL or left.flags & LOADING or left.size == 0:
            return 0
        if left.flags & SURVIVORS:
            if left.stored == left.size and self.block_at(
                    left.extent.number, left.extent.offset, &within) != NULL:
                return 0
            covered = 0
        else:
            covered = self.covered_from(left.first_seq)
            if covered > min(left.last_seq, self.left.visible - 1):
                return 0
        block = self.adopt(number, &flags)
        if block == NULL:
            return 0
        if covered > block.first_seq:
            # Only the last records are not on disk.
            block = self.split(block, covered)
        else:
            left.relocations = block
        if block == NULL:
            return 0
        if not block.flags & SURVIVORS:
            self.memory_seq = min(self.memory_seq, block.first_seq)
        self.add_block(block, NO_SEQ, self.block_count, flags)
        return 0

    cdef uint64_t covered_from(self, uint64_t seq) noexcept:
        """Return the first record from `seq` on that the files do not contain."""
        cdef size_t i = self.last_begun_by(seq, self.run_count)
        while i < self.run_count:
            if not self.blocks[i].flags & SURVIVORS:
                if self.blocks[i].first_seq > seq:
                    break
                seq = max(seq, self.blocks[i].last_seq + 1)
            i += 1
        return seq

    cdef size_t last_begun_by(self, uint64_t seq, size_t count) noexcept:
        """Return the index of the last of the first `count` blocks, other than copies, that begins
        at record `seq` or earlier; `count` if there is none."""
        cdef size_t low = 0
        cdef size_t high = count
        cdef size_t middle
        while low < high:
            middle = (low + high) // 2
            if self.blocks[middle].first_seq <= seq:
                low = middle + 1
            else:
                high = middle
        while low:
            low -= 1
            if not self.blocks[low].flags & SURVIVORS:
                return low
        return count

    cdef Block *adopt(self, size_t number, uint32_t *flags) except? NULL:
        """Return a block with the sound and visible records of a left block; NULL if there are
        none."""
        cdef BlockPool pool = self.topic.pool
        cdef Block *left = self.left.blocks[number]
        cdef Block *block = pool.new_block(0)
        cdef const Record *record
        cdef uint32_t size = left.size
        cdef uint32_t at = 0
        cdef uint64_t seq = left.first_seq
        if not self.left.adopt(number, block, pool):
            pool.free_block(block)
            self.damaged += 1
            return NULL
        block.flags = SEALED | left.flags & SURVIVORS
        size = min(size, block.capacity)
        while at < size:
            record = <const Record *>(block.data + at)
            if size - at < MIN_RECORD or not is_sound(record, size - at) or record.seq < seq:
                # The last record may be incomplete, but then it is not visible.
                self.damaged += seq < self.left.visible
                break
            if record.seq >= self.left.visible:
                break
            if block.count == 0:
                block.first_seq = record.seq
                block.first_time = record.timestamp
            block.count += 1
            block.last_seq = record.seq
            block.last_time = max(block.last_time, max(<int64_t>1, record.timestamp))
            self.max_id = max(self.max_id, record.id)
            if record.attributes & RECORD_DELAYED:
                flags[0] |= RUN_HAS_DELAYED
            if record.attributes & RECORD_PRODUCED:
                flags[0] |= RUN_HAS_PRODUCED
            if record.attributes & RECORD_ONCE:
                flags[0] |= RUN_HAS_ONCE
            if record.attributes & RECORD_EXPIRES:
                self.topic.perishable = True
            seq = record.seq + 1
            at += record.length
        block.size = at
        if block.count == 0:
            pool.free_block(block)
            return NULL
        return block

    cdef Block *split(self, Block *block, uint64_t seq) except? NULL:
        """Return a block with the records of an adopted block from `seq` on; NULL if there are
        none. The adopted block is released."""
        cdef BlockPool pool = self.topic.pool
        cdef uint32_t at = offset_of(block, seq)
        cdef Block *rest = NULL
        cdef uint32_t passed = 0
        cdef uint32_t count = block.count
        if at < block.size:
            rest = pool.new_block(block.size - at)
            memcpy(rest.data, block.data + at, block.size - at)
            rest.size = block.size - at
            while passed < at:
                passed += (<const Record *>(block.data + passed)).length
                count -= 1
            rest.count = count
            rest.flags = SEALED
            rest.first_seq = (<const Record *>rest.data).seq
            rest.last_seq = block.last_seq
            rest.first_time = (<const Record *>rest.data).timestamp
            rest.last_time = block.last_time
        pool.free_block(block)
        return rest

    # -- ids --

    cdef uint64_t restore_ids(self, state, Recovered found) except? 0:
        """Also restore the ids of records that no longer exist, which may be in no file."""
        cdef uint64_t seq = Recovery.restore_ids(self, state, found)
        if seq != NO_SEQ and self.topic.has_secret:
            self.topic.once.add_left(self.left, self.topic.scheduler.wall)
        return seq

    # -- messages of channels --

    cdef int restore_entries(self, Channel channel, saved) except -1:
        cdef LeftChannel left = self.left.channels.get(channel.name)
        cdef LeftMessage *messages
        cdef size_t count
        if left is None or left.entry_count + left.deferred_count == 0:
            return 0
        messages = <LeftMessage *>malloc(
            (left.entry_count + left.deferred_count) * sizeof(LeftMessage))
        if messages == NULL:
            raise MemoryError()
        try:
            count = self.collect(channel, left, bool(saved.transfers), messages)
            self.restore_messages(channel, saved, messages, count)
        finally:
            free(messages)
        return 0

    cdef size_t collect(self, Channel channel, LeftChannel left, bint transfers,
                        LeftMessage *messages) except? 0:
        """Store the messages of a channel in the order of a journal; return their number."""
        cdef int64_t ahead = self.topic.scheduler.wall - self.topic.scheduler.now
        cdef size_t count = 0
        cdef size_t kept = 0
        cdef size_t i
        cdef const Entry *entry
        cdef LeftMessage *message
        for i in range(left.entry_count):
            entry = left.entries[i]
            message = &messages[count]
            if not self.begin_message(message, <const Deferred *>entry):
                continue
            count += 1
            if entry.state == TRANSFERRING and transfers and entry.due > <int64_t>NEVER:
                message.packed.state = TRANSFERRING
                message.packed.reason = <uint8_t>min(entry.node.tag, <uint32_t>REJECTED)
                message.packed.due = <int64_t>transfer_number(entry)
            elif entry.state == QUEUED:
                message.packed.size = entry.node.tag >> 1
                message.place = <uint64_t>entry.due + 1
                message.gate = <uint64_t>entry.in_flight_list
                if message.gate > self.fanout_seq:      # a place: the channel had an index
                    message.gate >>= 20
                if channel.keyed:
                    message.place = <uint64_t>entry.in_flight_list
                    message.packed.due = <int64_t>message.place
            elif entry.state == IN_FLIGHT and self.taken_over and entry.id:
                message.packed.state = IN_FLIGHT
                message.packed.due = min(
                    entry.due, self.topic.scheduler.now + self.topic.scheduler.max_msg_timeout)
                message.place = IN_FLIGHT_PLACE + <uint64_t>max(<int64_t>0, message.packed.due)
                message.timestamp = entry.timestamp
                message.delivered = entry.node.tag
        for i in range(left.deferred_count):
            message = &messages[count]
            if not self.begin_message(message, left.deferred[i]):
                continue
            count += 1
            message.packed.state = DEFERRED
            message.packed.size = left.deferred[i].node.tag >> 1
            message.packed.due = left.deferred[i].due + ahead
        if count == 0:
            return 0
        qsort(messages, count, sizeof(LeftMessage), compare_messages)
        for i in range(count):
            if i == 0 or messages[i].packed.seq != messages[kept - 1].packed.seq:
                messages[kept] = messages[i]
                kept += 1
        qsort(messages, kept, sizeof(LeftMessage), compare_places_in_queue)
        return kept

    cdef bint begin_message(self, LeftMessage *message, const Deferred *from_) except -1:
        """Store what all forms of a message have in common. Return False if the message will be
        fanned out again, or is not sound."""
        memset(message, 0, sizeof(LeftMessage))
        if from_.seq == 0 or from_.seq >= self.fanout_seq:
            return False
        message.packed.seq = from_.seq
        message.packed.attempts = from_.attempts
        message.packed.state = QUEUED
        message.id = from_.id
        message.left = self.left.memory.block(from_.block)
        if message.left != NULL and message.left.owner != self.left.number:
            message.left = NULL     # a damaged block, which restore_block() has not seen
        message.offset = from_.offset
        return True

    cdef int restore_messages(self, Channel channel, saved, LeftMessage *messages,
                              size_t count) except -1:
        cdef Topic topic = self.topic
        cdef bytes taken = saved.taken
        cdef uint64_t cursor = saved.cursor
        cdef uint64_t bits_first = cursor & ~<uint64_t>63
        cdef uint64_t bits_count = len(taken) * 8
        cdef const uint64_t *bits = <const uint64_t *><const char *>taken
        cdef uint64_t bit
        cdef LeftMessage *message
        cdef const Record *record
        cdef Block *block
        cdef InFlightList *in_flight = NULL
        cdef uint32_t within = 0
        cdef size_t missing = 0
        cdef size_t i
        for i in range(count):
            message = &messages[i]
            block = self.find_record(message, &within)
            if block == NULL:
                missing += 1
                continue
            if message.packed.seq >= cursor:
                bit = message.packed.seq - bits_first
                if bit >= bits_count or not (bits[bit >> 6] >> (bit & 63)) & 1:
                    self.load_now(block)
                    record = <const Record *>(block.data + within)
                    if not record.attributes & RECORD_DELAYED:
                        continue    # the last turn took it from the log: it is there again
            record = <const Record *>(block.data + within)
            if message.id and block.data != NULL and message.id != record.id \
                    and not is_spoiled(record, message.packed.seq):
                message.id = record.id
                self.damaged += 1
            if message.packed.state == IN_FLIGHT:
                if in_flight == NULL:
                    in_flight = channel.new_in_flight_list(NULL)
                self.restore_in_flight(channel, in_flight, message, block, within)
                continue
            self.restore_entry(channel, &message.packed, message.id, block, within)
            if self.taken_over and message.packed.state == QUEUED and channel.keys is None:
                channel.queue_last.in_flight_list = <void *>message.gate
        if missing:
            self.damaged += missing
            topic.host.report_missing(
                topic.name, f"{missing} messages that channel {channel.name} had handed out")
        return 0

    cdef int restore_in_flight(self, Channel channel, InFlightList *in_flight_list,
                               const LeftMessage *message, Block *block,
                               uint32_t within) except -1:
        cdef Topic topic = self.topic
        cdef Entry *entry = topic.pool.new_entry()
        entry.seq = message.packed.seq
        entry.id = message.id
        entry.timestamp = message.timestamp
        entry.block = block
        entry.offset = within
        entry.attempts = message.packed.attempts
        entry.round = channel.round
        topic.ref(block)
        return channel.restore_in_flight(
            in_flight_list, entry, message.packed.due, message.delivered)

    # -- records --

    cdef Block *find_record(self, const LeftMessage *message, uint32_t *within) except? NULL:
        """Return the block of a message's record; NULL if the record is lost."""
        cdef uint64_t seq = message.packed.seq
        cdef Block *left = message.left
        cdef Block *block
        cdef bint settled = left != NULL and left.stored == left.size \
            and message.offset < left.extent.bytes
        if left != NULL and left.relocations != NULL:
            block = <Block *>left.relocations
            if self.has_record(block, message.offset, seq):
                within[0] = message.offset
                return block
            if self.look_in(block, seq, within):
                return block
        if settled:
            block = self.block_at(left.extent.number, left.extent.offset + message.offset, within)
            if block != NULL and block.first_seq <= seq <= block.last_seq:
                return block
        block = self.block_with(seq)
        if block != NULL and self.look_in(block, seq, within):
            return block
        return self.copy_of(seq, within)

    cdef bint has_record(self, const Block *block, uint32_t offset, uint64_t seq) noexcept:
        return (block.data != NULL and offset % 8 == 0
                and <uint64_t>offset + MIN_RECORD <= block.size
                and (<const Record *>(block.data + offset)).seq == seq
                and block.first_seq <= seq <= block.last_seq)

    cdef bint look_in(self, Block *block, uint64_t seq, uint32_t *within) except -1:
        """Search a block for a record."""
        self.load_now(block)
        within[0] = offset_of(block, seq)
        return within[0] < block.size and (<const Record *>(block.data + within[0])).seq == seq

    cdef Block *block_with(self, uint64_t seq) noexcept:
        """Return the block that contains a record, other than as a copy; NULL if there is none."""
        cdef size_t i = self.last_begun_by(seq, self.block_count)
        return self.blocks[i] if i < self.block_count and self.blocks[i].last_seq >= seq else NULL

    cdef Block *copy_of(self, uint64_t seq, uint32_t *within) except? NULL:
        """Return a block with a copy of a record; NULL if there is none."""
        cdef size_t i
        for i in range(self.block_count):
            if self.blocks[i].first_seq > seq:
                break
            if self.blocks[i].flags & SURVIVORS and self.blocks[i].last_seq >= seq \
                    and self.look_in(self.blocks[i], seq, within):
                return self.blocks[i]
        return NULL


cdef bint is_sound(const Record *record, uint32_t room) noexcept:
    """Return whether the lengths of a record are possible."""
    return (record.length >= MIN_RECORD and record.length % 8 == 0 and record.length <= room
            and record_size(record.body_length, record.ext_length) <= record.length)
