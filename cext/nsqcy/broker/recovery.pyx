"""Recovery: rebuilds a topic from its files when a worker starts.

Controls the order of the steps: turn runs of records into blocks that are not in memory, read the
channels' positions from the last checkpoint, and read later events from the records. Uses every
part of a topic; the topic does not import this module.
"""

# Location of a recovered block.
ctypedef struct Place:
    uint64_t segment
    uint64_t offset
    Block *block
    bint has_delayed
    bint has_produced
    bint has_once


cdef uint64_t NO_SEQ = <uint64_t>-1


cdef int compare_first_seqs(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<Block *const *>a)[0].first_seq
    cdef uint64_t other = (<Block *const *>b)[0].first_seq
    return (one > other) - (one < other)


cdef int compare_places(const void *a, const void *b) noexcept nogil:
    cdef const Place *one = <const Place *>a
    cdef const Place *other = <const Place *>b
    if one.segment != other.segment:
        return -1 if one.segment < other.segment else 1
    if one.offset != other.offset:
        return -1 if one.offset < other.offset else 1
    return 0


cdef int compare_place_seqs(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const Place *>a).block.first_seq
    cdef uint64_t other = (<const Place *>b).block.first_seq
    return (one > other) - (one < other)


cdef object name_of(const Produced *produced):
    return ChunkName(produced.producer, produced.epoch, produced.part, produced.chunk)


cdef bint is_next(const Produced *stretch, uint32_t end, const Produced *produced) noexcept:
    """Return whether a message directly follows messages [stretch.index, end) of a chunk."""
    return (produced.index == end and produced.chunk == stretch.chunk
            and produced.part == stretch.part and produced.epoch == stretch.epoch
            and produced.producer == stretch.producer and produced.count == stretch.count)


cdef int note_error(void *arg, int error) except -1:
    (<int *>arg)[0] = error
    return 0


cdef int restore(Topic topic, channels, LeftTopic left=None, marks=None,
                 bint taken_over=False, in_flight=None) except -1:
    """Restore a topic from its files, and from the memory of a process that has died (`left`).
    `channels`: {name: paused}, from the metadata; None: there is no metadata, and the journal
    contains the pauses. `marks`: see MemoryRecovery. `taken_over`: see Shard.inherit. `in_flight`:
    see Shard.open_topic.

    Raises Unreadable if a file cannot be read now. In that case, the topic is closed and nothing on
    disk and in `left` has changed: restore another topic from the same files and memory later.
    """
    cdef Recovery recovery = Recovery(topic) if left is None else \
        MemoryRecovery(topic, left, marks, taken_over)
    recovery.in_flight = in_flight or {}
    try:
        return recovery.restore(channels)
    except Unreadable:
        if marks is not None:
            marks.end()
        topic.lose()
        recovery.release_unneeded()
        raise


cdef class Recovery:
    """State that exists only during the restore of a topic."""
    cdef Topic topic
    cdef Place *places                  # blocks, ordered by location; see order_places()
    cdef size_t place_count
    cdef Block **blocks                 # the same blocks, ordered by seq
    cdef size_t block_count
    cdef dict in_flight                 # see Shard.open_topic

    def __init__(self, Topic topic not None):
        self.topic = topic

    def __dealloc__(self):
        free(self.places)
        free(self.blocks)

    cdef int restore(self, channels) except -1:
        """Restore the entire topic, step by step."""
        cdef Topic topic = self.topic
        cdef Recovered found = Recovered(None) if topic.log is None else recover_log(topic.log)
        cdef Channel channel
        names = dict(channels or {})
        state = self.restore_state(found, names)
        if channels is None and state is not None:
            topic.paused = state.paused
        cursors = {saved.name: saved for saved in state.channels} if state is not None else {}
        ahead = {}
        # A channel is created at the fan-out position, which may have moved since the snapshot.
        fanout = max(state.fanout_seq, *(saved.cursor for saved in state.channels), 1) \
            if state is not None else 1
        # A channel without a saved position gets all messages: duplicates are better than loss.
        minimum = 1 if topic.retains else min([fanout] + [
            cursors[name].cursor if name in cursors else (fanout if state is not None else 1)
            for name in names])
        unjournaled = 1 if state is None else state.produced_seq or state.next_seq
        held = topic.named.held(0) if topic.named else NO_SEQ
        ids_seq = self.restore_ids(state, found)
        self.restore_blocks(found, min(
            minimum, self.first_with(found, RUN_HAS_PRODUCED, unjournaled), held,
            self.first_with(found, RUN_HAS_ONCE, ids_seq)))
        topic.update_retains()
        if topic.oldest != NULL and (topic.retains or state is None):
            minimum = topic.oldest.first_seq     # the readers of earlier records are unknown
        self.find_missing(minimum, () if state is None else state.missing)
        whole = self.is_whole(found, state)
        self.name_logs(found, state, whole)
        if topic.log is not None:
            topic.named.end_at(topic.log.log_id, topic.next_seq)
        topic.started = False
        topic.cursor_to_end(&topic.visible)
        if topic.retains:
            topic.keep_all()
        topic.place_cursor(&topic.fanout, fanout)
        if state is not None:
            for start, end in state.holes:
                topic.add_hole(start, end)
            self.restore_delayed(state.delayed)
        for name, paused in names.items():
            channel = topic.channel(name)
            if channels is not None and name not in channels and topic.moved_from is None:
                topic.host.event("channel_created", topic.name, name)   # not in the metadata yet
            channel.paused = paused
            saved = cursors.get(name)
            if saved is not None:
                ahead[name] = self.restore_channel(channel, saved)
        self.order_places()
        self.restore_new_delays(state.fanout_seq if state is not None else 1,
                                self.were_fanned_out(state, names))
        self.restore_produced(state, unjournaled)
        self.restore_new_ids(ids_seq)
        if state is None:
            self.restore_survivors()
        self.release_unneeded()
        topic.settle_all()
        topic.started = True
        # Readers may have seen records that are not synced.
        topic.journal_due = topic.promised == FSYNC
        topic.minimum = topic.min_seq()
        for channel in topic.channels.values():
            channel.carry(ahead.get(channel.name, 0))
        topic.journal_due = True     # later publishes are not covered by the journal on disk
        topic.touch_dirty()
        topic.fan_out()
        if self.is_as_saved(state, names, whole):
            topic.expect_no_change()
        self.state_all()
        return 0

    cdef int state_all(self) except -1:
        """Let the next process find what was restored."""
        cdef Topic topic = self.topic
        cdef Channel channel
        if topic.owner == NULL:
            return 0
        topic.state_log()
        topic.state_visible()
        topic.note_due = True
        topic.save_position()
        for channel in topic.channels.values():
            channel.note_due = True
            topic.save_channel(channel)
        return 0

    cdef bint is_as_saved(self, state, dict names, bint whole) except -1:
        """Return whether the journal on disk describes the restored topic, and may be kept.

        Readers of a log would notice a crash between a publish and the journal that it causes, so
        topics with retention always get a new journal. So do topics with copies: their other
        machines receive the journal that this process writes.
        """
        cdef Topic topic = self.topic
        if not whole or not state.clean or topic.log.io is not topic.host.io \
                or topic.retains or topic.named or topic.producers is not None \
                or topic.delayed_count or topic.once is not None or topic.log.ids_files:
            return False
        return (topic.log.log_id == state.log_id and topic.promised == state.durability
                and topic.missing == state.missing and topic.paused == state.paused
                and topic.fanout.seq == state.fanout_seq and topic.visible.seq == state.next_seq
                and names == {saved.name: saved.paused for saved in state.channels})

    cdef object restore_state(self, Recovered found, dict names):
        """Return the last checkpoint, or None; add the checkpoint's channels to `names`."""
        cdef Topic topic = self.topic
        state = journal.replay(found.journal)
        if state is not None and state.policies and topic.moved_from is None:
            topic.recall_policies(state.policies)
        topic.was_restored = True
        topic.host.ids.lift(found.max_id)
        for path, offset, text in found.damages:
            topic.host.report_damage(path, offset, text)
        topic.next_seq = found.next_seq
        if state is not None:
            topic.next_seq = max(topic.next_seq, state.next_seq)
            for saved in state.channels:
                names.setdefault(saved.name, saved.paused)
            topic.named = NamedCursors(state.cursors)
            if state.secret:
                memcpy(topic.secret, <const char *><bytes>state.secret, sizeof(topic.secret))
                topic.has_secret = True
        return state

    cdef bint is_whole(self, found, state) except -1:
        """Return whether all visible records still exist."""
        cdef Topic topic = self.topic
        if state is None or found.damages:
            return False
        if not state.clean and not found.open_end:
            # The last segment written is missing.
            return False
        return (state.clean or state.durability == FSYNC
                or state.durability == OS and state.boot == topic.host.boot)

    # -- which logs --

    cdef int name_logs(self, Recovered found, state, bint whole) except -1:
        """Determine the logs of the recovered records, and whether the last log continues.

        The last log ends if records that readers may have seen are lost, because their sequence
        numbers would be reused.
        """
        cdef Topic topic = self.topic
        cdef bytes log_id = topic.log.log_id
        topic.stable = topic.log_first = topic.next_seq
        topic.past = ()
        # With durability fsync, readers only see synced records.
        if topic.promised != FSYNC or topic.oldest == NULL or self.sync_found():
            topic.past = journal.name_logs(self.stretches(), () if state is None else state.past)
        named = [one.log_id for one in topic.past]
        if found.log_id is None:
            pass                 # an empty log, which has a new id
        elif not whole or log_id in named and (
                topic.past[len(named) - 1].log_id != log_id
                or topic.past[len(named) - 1].end != topic.next_seq):
            topic.log.log_id = os.urandom(16)
        elif log_id in named:
            topic.log_first = topic.past[len(named) - 1].first_seq
            topic.past = topic.past[:len(named) - 1]
        return 0

    cdef list stretches(self):
        """Return the records in the window, as (first, end, log_id of their segments), excluding
        gaps."""
        cdef Topic topic = self.topic
        cdef Block *block = topic.oldest
        cdef Segment *segment = NULL
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        found = []
        while block != NULL:
            if segment == NULL or block.first_seq != end \
                    or memcmp(segment.log_id, block.extent.segment.log_id, 16) != 0:
                if segment != NULL:
                    found.append((first, end, <bytes>segment.log_id[:16]))
                first = block.first_seq
                segment = block.extent.segment
            end = block.last_seq + 1
            block = block.next
        if segment != NULL:
            found.append((first, end, <bytes>segment.log_id[:16]))
        return found

    cdef bint sync_found(self) except -1:
        """Sync records written by a killed process, so that they survive a power loss. Return
        whether the sync succeeded."""
        cdef Topic topic = self.topic
        cdef int error = 0
        topic.log.sync_found(note_error, &error)
        topic.host.io.drain()
        return error == 0

    # -- blocks --

    cdef int restore_blocks(self, Recovered found, uint64_t minimum) except -1:
        """Turn runs on disk into blocks that are not in memory: blocks in the window, or stragglers
        before it."""
        cdef size_t i
        self.make_room(found.run_count)
        for i in range(found.run_count):
            self.add_run(&found.run_array[i])
        self.link_blocks(minimum)
        return 0

    cdef int add_run(self, const RecoveredRun *run) except -1:
        """Add a block that is on disk."""
        cdef Block *block = self.topic.pool.new_block(0)
        block.size = block.written = block.stored = run.extent.bytes
        block.count = max(1, run.count)
        block.first_seq = run.first_seq
        block.last_seq = run.last_seq
        block.first_time = run.first_time
        block.last_time = max(<int64_t>1, run.last_time)
        block.extent = run.extent
        block.flags = SEALED
        if run.flags & RUN_SURVIVORS:
            block.flags |= SURVIVORS
        self.add_block(block, run.extent.segment.number, run.extent.offset, run.flags)
        return 0

    cdef int make_room(self, size_t count) except -1:
        """Make room for this many blocks."""
        self.places = <Place *>malloc((count + 1) * sizeof(Place))
        self.blocks = <Block **>malloc((count + 1) * sizeof(Block *))
        if self.places == NULL or self.blocks == NULL:
            raise MemoryError()
        self.place_count = self.block_count = 0
        return 0

    cdef void add_block(self, Block *block, uint64_t segment, uint64_t offset,
                        uint32_t flags) noexcept:
        cdef Place *place = &self.places[self.place_count]
        place.segment = segment
        place.offset = offset
        place.block = block
        place.has_delayed = (flags & RUN_HAS_DELAYED) != 0
        place.has_produced = (flags & RUN_HAS_PRODUCED) != 0
        place.has_once = (flags & RUN_HAS_ONCE) != 0
        self.place_count += 1
        self.blocks[self.block_count] = block
        self.block_count += 1

    cdef void link_blocks(self, uint64_t minimum) noexcept:
        """Put all blocks into the window or before it."""
        cdef Topic topic = self.topic
        cdef Block *block
        cdef size_t i
        if self.block_count:
            qsort(self.blocks, self.block_count, sizeof(Block *), compare_first_seqs)
            qsort(self.places, self.place_count, sizeof(Place), compare_places)
        for i in range(self.block_count):
            block = self.blocks[i]
            if block.flags & SURVIVORS or block.last_seq < minimum:
                topic.add_straggler(block)
            else:
                topic.push_block(block)
            topic.own(block)

    cdef Block *block_at(self, uint64_t segment, uint64_t offset, uint32_t *within) noexcept:
        """Return the block that contains a location on disk; NULL if there is none."""
        cdef size_t low = 0
        cdef size_t high = self.place_count
        cdef size_t middle
        cdef Place *place
        while low < high:
            middle = (low + high) // 2
            place = &self.places[middle]
            if place.segment < segment or (place.segment == segment and place.offset <= offset):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return NULL
        place = &self.places[low - 1]
        if place.segment != segment or offset - place.offset + sizeof(Record) > place.block.size \
                or (offset - place.offset) % 8:
            return NULL
        within[0] = <uint32_t>(offset - place.offset)
        return place.block

    cdef void order_places(self) noexcept:
        """Order the places by seq. From now on, records are read, and no location is looked up.

        Delays and ids are kept in the order of their records. Locations may be in another order:
        those of adopted blocks are.
        """
        if self.place_count:
            qsort(self.places, self.place_count, sizeof(Place), compare_place_seqs)

    cdef Block *restored_block(self, const PackedEntry *packed, uint32_t *within) noexcept:
        """Return the block of a packed entry; NULL if its record no longer exists."""
        cdef Topic topic = self.topic
        # Never reuse that number for a new file: a journal may be older than the files listed in
        # it.
        topic.log.last_number = max(topic.log.last_number, packed.segment)
        return self.block_at(packed.segment, packed.offset, within)

    cdef int find_missing(self, uint64_t seq, told) except -1:
        """Record and report the records from `seq` on that are missing from all files.

        Ranges in `told` are not reported again: they were reported at an earlier startup.
        """
        cdef Topic topic = self.topic
        cdef Block *block = topic.oldest
        cdef uint64_t found
        missing = []
        while block != NULL or seq < topic.next_seq:
            found = topic.next_seq if block == NULL else block.first_seq
            if found > seq:
                missing.append((seq, found))
            if block == NULL:
                break
            seq = max(seq, block.last_seq + 1)
            block = block.next
        topic.missing = tuple(missing)
        unjournaled = journal.without(missing, told)
        if unjournaled:
            count = sum([end - first for first, end in unjournaled])
            first, end = unjournaled[0][0], unjournaled[len(unjournaled) - 1][1]
            topic.host.report_missing(topic.name, f"{count} records from {first} to {end - 1}")
        return 0

    cdef int release_unneeded(self) except -1:
        """Release blocks before the window that no entry refers to."""
        cdef Topic topic = self.topic
        cdef Block *block = topic.stragglers
        cdef Block *following
        while block != NULL:
            following = block.next
            if block.refs == 0 and block.pins == 0:
                topic.forget_straggler(block)
            block = following
        return 0

    cdef int load_now(self, Block *block) except -1:
        """Load a block, and wait for the disk. Raises Unreadable."""
        cdef Topic topic = self.topic
        if block.data == NULL:
            topic.load(block)
            self.finish_loads()
        return 0

    cdef int finish_loads(self) except -1:
        cdef Topic topic = self.topic
        topic.host.io.drain()
        bad = topic.log.unreadable
        if bad is not None:
            raise Unreadable(bad.error, bad.path, bad.offset, bad.bytes)
        return 0

    # -- channels --

    cdef int64_t restore_channel(self, Channel channel, saved) except? -1:
        """Restore a channel's position and entries; return restore_finished()'s result."""
        cdef Topic topic = self.topic
        topic.place_cursor(&channel.cursor.at, saved.cursor)
        channel.cursor.skipped = saved.skipped
        channel.cursor.replay_end = saved.replay_end
        if saved.transfers:
            (<DeadLetterTransfer>channel.make_transfer()).restore_runs(saved.transfers)
        if saved.taken:
            channel.restore_taken(saved.cursor, saved.taken)
        channel.restore_chosen(saved.paused_keys, saved.emptied_keys)
        self.restore_entries(channel, saved)
        return self.restore_finished(channel, saved.finished)

    cdef int restore_entries(self, Channel channel, saved) except -1:
        cdef Topic topic = self.topic
        cdef bytes entries = saved.entries
        cdef bytes ids = saved.ids
        cdef const PackedEntry *packed = <const PackedEntry *><const char *>entries
        cdef const uint64_t *id = <const uint64_t *><const char *>ids
        cdef size_t known = len(ids) // sizeof(uint64_t)
        cdef Block *block
        cdef uint32_t within = 0
        cdef size_t i
        cdef size_t missing = 0
        cdef dict deadlines = self.in_flight.get(channel.name)
        cdef list delivered = []
        for i in range(len(entries) // sizeof(PackedEntry)):
            block = self.restored_block(&packed[i], &within)
            if block == NULL:
                missing += 1
            elif deadlines is not None and i < known and id[i] in deadlines \
                    and packed[i].state != DEFERRED and packed[i].state != TRANSFERRING:
                delivered.append((deadlines[id[i]], i))
            else:
                self.restore_entry(channel, &packed[i], id[i] if i < known else 0, block, within)
        if delivered:
            self.restore_delivered(channel, packed, id, sorted(delivered))
        if saved.cancelled:
            channel.cancelled = set(saved.cancelled)
        if missing:
            topic.host.report_missing(
                topic.name, f"{missing} messages that channel {channel.name} had handed out")
        return 0

    cdef int restore_delivered(self, Channel channel, const PackedEntry *packed, const uint64_t *id,
                               list delivered) except -1:
        """Restore messages that the consumers of the previous process still have: (deadline,
        number of the packed entry), in order of deadline."""
        cdef Topic topic = self.topic
        cdef InFlightList *in_flight_list = channel.new_in_flight_list(NULL)
        cdef Record *record
        cdef Entry *entry
        cdef Block *block
        cdef uint32_t within = 0
        cdef int64_t deadline
        cdef size_t i
        for deadline, i in delivered:
            block = self.restored_block(&packed[i], &within)
            topic.ref(block)
            try:
                self.load_now(block)
            except Unreadable:
                topic.unref(block)
                raise
            record = <Record *>(block.data + within)
            if is_spoiled(record, packed[i].seq):
                topic.unref(block)
                continue
            entry = topic.pool.new_entry()
            entry.seq = packed[i].seq
            entry.id = id[i]
            entry.timestamp = record.timestamp
            entry.block = block
            entry.offset = within
            entry.attempts = packed[i].attempts
            entry.round = channel.round
            channel.restore_in_flight(
                in_flight_list, entry,
                min(deadline, topic.scheduler.now + topic.scheduler.max_msg_timeout),
                <uint32_t>(topic.scheduler.now // 1000000))
        return 0

    cdef int restore_entry(self, Channel channel, const PackedEntry *packed, uint64_t id,
                           Block *block, uint32_t within) except -1:
        cdef Topic topic = self.topic
        cdef Deferred message
        cdef Entry *entry
        if packed.state == TRANSFERRING:
            return self.restore_transfer(channel, packed, block, within)
        message.node.index = NO_FLOW
        message.node.tag = size_tag(packed.size)
        message.seq = packed.seq
        message.id = id
        message.block = block
        message.offset = within
        message.attempts = packed.attempts
        message.round = channel.round
        topic.ref(block)
        if packed.state == DEFERRED:
            channel.defer(&message, topic.scheduler.now + packed.due - topic.scheduler.wall)
        else:
            entry = topic.pool.new_entry()
            (<Deferred *>entry)[0] = message
            channel.restore_queued(entry, <uint64_t>packed.due)
        return 0

    cdef int restore_transfer(self, Channel channel, const PackedEntry *packed, Block *block,
                              uint32_t within) except -1:
        """Continue the dead-letter transfer of a message."""
        cdef Topic topic = self.topic
        cdef Entry *entry
        cdef Record *record
        topic.ref(block)         # keeps the record in memory after it is read
        try:
            self.load_now(block)
        except Unreadable:
            topic.unref(block)
            raise
        record = <Record *>(block.data + within)
        if is_spoiled(record, packed.seq):
            topic.unref(block)
            return 0
        if packed.seq >= topic.fanout.seq and not record.attributes & RECORD_DELAYED:
            # The ranges counted the message as transferred, but it will be delivered once more.
            channel.dead_lettered_count -= 1
            channel.cursor.carried -= 1
        entry = topic.pool.new_entry()
        entry.seq = packed.seq
        entry.id = record.id
        entry.timestamp = record.timestamp
        entry.block = block
        entry.offset = within
        entry.attempts = packed.attempts
        entry.round = channel.round
        entry.node.index = UNRESOLVED
        channel.own(entry)
        return channel.make_transfer().restore_transfer(
            entry, <TransferReason>packed.reason, <uint64_t>packed.due)

    cdef int64_t restore_finished(self, Channel channel, finished) except -1:
        """Mark the records that a channel's cursor skips.

        These are the ranges `finished`, and records that were requeued and then cancelled. Return
        the number of these records that are fanned out again; the cursor skips them then.
        """
        cdef Topic topic = self.topic
        cdef uint64_t fanout = topic.fanout.seq
        cdef int64_t moved = 0
        cdef int64_t cancelled = 0
        ranges = list(finished)
        for start, end in finished:
            moved += max(end, fanout) - max(start, fanout)
        for seq in sorted(channel.cancelled or ()):
            if seq >= channel.cursor.at.seq and not self.was_delayed(seq):
                channel.cancelled.remove(seq)
                cancelled += seq >= fanout
                channel.cursor.skipped += 1
                ranges.append((seq, seq + 1))
        for start, end in sorted(ranges):
            cursor_add_finished(&channel.cursor, start, end)
        channel.dead_lettered_count += moved
        channel.cancelled_count += cancelled
        return moved + cancelled

    cdef bint was_delayed(self, uint64_t seq) except -1:
        """Return whether a record has a delay; the cursor skips such records."""
        cdef Topic topic = self.topic
        cdef Block *block = topic.block_of(seq)
        cdef const Record *record
        cdef uint32_t at
        if block == NULL:
            return True
        self.load_now(block)
        at = offset_of(block, seq)
        if at == block.size:
            return True
        record = <const Record *>(block.data + at)
        return record.seq > seq or record.attributes & RECORD_DELAYED != 0

    cdef int restore_delayed(self, bytes entries) except -1:
        cdef Topic topic = self.topic
        cdef const PackedEntry *packed = <const PackedEntry *><const char *>entries
        cdef Block *block
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t within = 0
        cdef size_t i
        for i in range(len(entries) // sizeof(PackedEntry)):
            block = self.restored_block(&packed[i], &within)
            if block == NULL:
                continue
            if packed[i].reason:
                self.load_now(block)
            entry = topic.pool.new_entry()
            entry.node.tag = size_tag(packed[i].size)
            entry.seq = packed[i].seq
            entry.id = 0
            entry.block = block
            entry.offset = within
            entry.due = packed[i].due
            entry.timestamp = 0
            topic.ref(block)
            if packed[i].reason:
                record = <Record *>(block.data + within)
                if not is_spoiled(record, entry.seq):
                    entry.timestamp = <int64_t>record_address(record)
            topic.add_delayed(entry)
            block.refs -= 1
        return 0

    cdef bint were_fanned_out(self, state, dict names) except -1:
        """Return whether the records after the journal had probably been fanned out."""
        return bool(names) and not (state is not None and state.paused)

    cdef int restore_new_delays(self, uint64_t seq, bint fanned_out) except -1:
        """Restore delayed records from `seq` on that are not in the journal.

        The journal lists the delayed records that were on disk when it was written. If a channel
        existed, the delay began at the publish; otherwise, it begins now.
        """
        cdef Topic topic = self.topic
        cdef size_t i
        cdef Block *block
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t at
        if topic.delayed_last != NULL:
            seq = max(seq, topic.delayed_last.seq + 1)
        for i in range(self.place_count):
            block = self.places[i].block
            if not self.places[i].has_delayed or block.last_seq < seq \
                    or not block.flags & IN_WINDOW:
                continue
            at = 0
            while at < block.size:
                self.load_now(block)
                record = <Record *>(block.data + at)
                if record.attributes & RECORD_DELAYED and record.seq >= seq:
                    entry = topic.pool.new_entry()
                    entry.seq = record.seq
                    entry.id = record.id
                    entry.block = block
                    entry.offset = at
                    entry.node.tag = size_tag(record.body_length)
                    entry.due = record_delay(record)
                    entry.timestamp = <int64_t>record_address(record)
                    if fanned_out:
                        entry.due = min(entry.due, max(
                            <int64_t>0, record.timestamp + entry.due - topic.scheduler.wall))
                    topic.add_delayed(entry)
                at += record.length
        return 0

    # -- chunks --

    cdef uint64_t first_with(self, Recovered found, uint32_t flag, uint64_t seq) noexcept:
        """Return the first record in the runs with a flag that end at record `seq` or later."""
        cdef RecoveredRun *run
        cdef uint64_t first = NO_SEQ
        cdef size_t i
        for i in range(found.run_count):
            run = &found.run_array[i]
            if run.flags & flag and not run.flags & RUN_SURVIVORS \
                    and run.last_seq >= seq:
                first = min(first, run.first_seq)
        return first

    cdef uint64_t records_with(self, Recovered found, uint32_t flag, uint64_t seq) noexcept:
        """Return the number of records from `seq` on in runs with a flag."""
        cdef RecoveredRun *run
        cdef uint64_t count = 0
        cdef size_t i
        for i in range(found.run_count):
            run = &found.run_array[i]
            if run.flags & flag and not run.flags & RUN_SURVIVORS and run.last_seq >= seq:
                count += run.last_seq + 1 - max(run.first_seq, seq)
        return count

    cdef int restore_produced(self, state, uint64_t seq) except -1:
        """Restore chunks from the journal and from records from `seq` on.

        These records are kept until a journal covers their chunks.
        """
        cdef Topic topic = self.topic
        cdef Block *block
        cdef size_t i
        if state is not None and state.epochs:
            topic.producers = Producers()
            topic.producers.restore(state.epochs)
        for i in range(self.place_count):
            block = self.places[i].block
            if not self.places[i].has_produced or block.flags & SURVIVORS or block.last_seq < seq:
                continue
            if topic.producers is None:
                topic.producers = Producers()
            if not topic.has_unjournaled:
                topic.has_unjournaled = True
                topic.watch(&topic.unjournaled)
                topic.place_cursor(&topic.unjournaled, seq)
            self.find_produced(block, seq)
        if topic.has_unjournaled:
            topic.producers.found_all(topic.scheduler.wall)
        if topic.has_unjournaled and topic.promised != FSYNC:
            # If a chunk is resent, it is acknowledged immediately, although its producer may
            # require a sync.
            self.sync_found()
        return 0

    cdef int find_produced(self, Block *block, uint64_t seq) except -1:
        """Register the chunks in a block with their producers, from record `seq` on."""
        cdef Topic topic = self.topic
        cdef Record *record
        cdef Produced produced
        cdef Produced stretch       # messages of one chunk, up to `end`
        cdef uint32_t end = 0
        cdef uint32_t at = 0
        while at < block.size:
            self.load_now(block)
            record = <Record *>(block.data + at)
            at += record.length
            if record.seq < seq or not record_produced(record, &produced):
                continue
            if end and is_next(&stretch, end, &produced):
                end += 1
                continue
            if end:
                topic.producers.found(name_of(&stretch), stretch.index, end, stretch.count)
            stretch = produced
            end = produced.index + 1
        if end:
            topic.producers.found(name_of(&stretch), stretch.index, end, stretch.count)
        return 0

    # -- deduplication ids --

    cdef uint64_t restore_ids(self, state, Recovered found) except? 0:
        """Restore the ids from the files that the journal lists. Return the first record whose id
        may be missing from them."""
        cdef Topic topic = self.topic
        cdef bint whole = True
        if topic.once is None or topic.moved_from is not None:
            return NO_SEQ
        if state is None or not state.secret or topic.log is None:
            return 1
        topic.once.expect(min(topic.once.maximum, sum([
            size for _, size in state.ids_files]) // sizeof(KnownId)
            + self.records_with(found, RUN_HAS_ONCE, state.ids_seq)))
        for number, size in state.ids_files:
            content = recover_ids(topic.log, number, size, False)
            found_number = None if content is None else ids_number(content)
            if found_number is not None:
                formats.IDS.check(found_number, os.fsdecode(topic.log._ids_path(number)))
            if content is not None and topic.once.restore_file(
                    number, content, topic.scheduler.wall):
                continue
            if content is not None and content != recover_ids(topic.log, number, size, True):
                raise Unreadable(EIO, os.fsdecode(topic.log._ids_path(number)))
            whole = False
            topic.host.report_lost_ids(topic.name, os.fsdecode(topic.log._ids_path(number)))
        topic.once.found_files(topic.log.ids_files, whole, state.ids_seq)
        return state.ids_seq if whole else 1

    cdef int restore_new_ids(self, uint64_t seq) except -1:
        """Restore the ids of records from `seq` on. The records are kept until a journal covers
        their ids."""
        cdef Topic topic = self.topic
        cdef Block *block
        cdef size_t i
        if seq == NO_SEQ:
            return 0
        for i in range(self.place_count):
            block = self.places[i].block
            if not self.places[i].has_once or block.flags & SURVIVORS or block.last_seq < seq:
                continue
            if topic.log is None:
                pass            # there is no journal to wait for
            elif not topic.has_unjournaled:
                topic.has_unjournaled = True
                topic.watch(&topic.unjournaled)
                topic.place_cursor(&topic.unjournaled, seq)
            elif seq < topic.unjournaled.seq:
                topic.place_cursor(&topic.unjournaled, seq)
            self.find_ids(block, seq)
        return 0

    cdef int find_ids(self, Block *block, uint64_t seq) except -1:
        """Remember the ids of the records in a block, from record `seq` on."""
        cdef Topic topic = self.topic
        cdef Record *record
        cdef uint32_t at = 0
        cdef uint16_t length
        cdef const uint8_t *id
        cdef FoundId found[FOUND_IDS]
        cdef int count = 0
        while at < block.size:
            self.load_now(block)
            record = <Record *>(block.data + at)
            at += record.length
            if record.seq < seq or not record.attributes & RECORD_ONCE \
                    or record.attributes & RECORD_DAMAGED:
                continue
            id = record_dedup_id(record, &length)
            if length and topic.once.counts(record.timestamp, topic.scheduler.wall):
                found[count].hash = key_hash(topic.key_secret(), id, length)
                found[count].time = record.timestamp
                found[count].seq = record.seq
                count += 1
                if count == FOUND_IDS:
                    topic.once.add_found(found, count, topic.scheduler.wall)
                    count = 0
        return topic.once.add_found(found, count, topic.scheduler.wall)

    # -- copies of old records --

    cdef int restore_survivors(self) except -1:
        """Restore copies of old records if there is no journal.

        Their readers are unknown, so every channel receives them; if there are no channels, they
        stay unchanged.
        """
        cdef Topic topic = self.topic
        cdef Block *block = topic.stragglers
        cdef Channel channel
        while block != NULL:
            if block.flags & SURVIVORS:
                topic.pin(block)
                topic.load(block)
            block = block.next
        try:
            self.finish_loads()
        except Unreadable:
            block = topic.stragglers
            while block != NULL:
                block.pins -= block.flags & SURVIVORS != 0
                block = block.next
            raise
        block = topic.stragglers
        while block != NULL:
            if block.flags & SURVIVORS and topic.channels:
                for channel in topic.channels.values():
                    self.queue_survivors(channel, block)
                block.pins -= 1
            elif block.flags & SURVIVORS:
                block.flags |= KEPT
            block = block.next
        return 0

    cdef int queue_survivors(self, Channel channel, Block *block) except -1:
        cdef Topic topic = self.topic
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t at = 0
        while at < block.size:
            record = <Record *>(block.data + at)
            if record.attributes & RECORD_DELAYED and not record.attributes & RECORD_DAMAGED:
                self.defer_survivor(channel, block, at)
            elif not record.attributes & RECORD_DAMAGED:
                entry = topic.pool.new_entry()
                entry.seq = record.seq
                entry.id = record.id
                entry.block = block
                entry.offset = at
                entry.attempts = 0
                entry.round = channel.round
                entry.node.index = NO_FLOW
                topic.ref(block)
                channel.own(entry)
                channel.queue_entry(entry, size_tag(record.body_length))
            at += record.length
        return 0

    cdef int defer_survivor(self, Channel channel, Block *block, uint32_t at) except -1:
        """Restore a delayed record whose reader is unknown: its delay began at the publish."""
        cdef Topic topic = self.topic
        cdef Record *record = <Record *>(block.data + at)
        cdef Deferred message
        message.node.tag = size_tag(record.body_length)
        message.seq = record.seq
        message.id = record.id
        message.block = block
        message.offset = at
        message.attempts = 0
        message.round = channel.round
        topic.ref(block)
        channel.defer(&message, topic.scheduler.due_after(
            record.timestamp + <int64_t>record_delay(record) - topic.scheduler.wall))
        return 0
