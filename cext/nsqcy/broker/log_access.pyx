"""Access to a topic's log: which records readers may see, and the reads in progress.

Owns the position where readers stop, and the names of earlier processes' logs. The reads themselves
are in nsqcy.broker.log_reader.
"""

import json

cimport cython

from nsqcy.broker.log_reader cimport ENDED, WAITING, Fetch, Poll, Seek
from nsqcy.broker.peek cimport Peek
from nsqcy.storage.block cimport LOADING, Block, offset_of
from nsqcy.storage.record cimport Record


@cython.no_gc_clear      # as RecordWindow requires
cdef class LogAccess(Retention):
    def __cinit__(self):
        self.log_first = 1
        self.past = self.missing = ()

    cdef int log_grew(self) except -1:
        if self.polls:
            self.answer_polls()
        return 0

    # -- available logs --

    cdef uint64_t stable_seq(self) except? 0:
        """Return the position where readers of the log stop.

        Records before it are on disk, with the durability that the topic promises.
        """
        cdef uint64_t first = self.first_kept()
        if self.stable < first:
            # The records before `first` were dropped before they were written.
            self.stable = first
            self.pass_written(self.block_of(first))
        return min(self.stable, self.visible.seq)

    cdef list logs(self):
        """Return the logs with available records, as (log_id, first, end), oldest first.

        These are logs of earlier processes and the current one, up to the stable position.
        """
        cdef uint64_t first = self.first_kept()
        cdef uint64_t stable = self.stable_seq()
        found = [(one.log_id, max(one.first_seq, first), one.end)
                 for one in self.past if one.end > first]
        found.append((self.log.log_id, min(max(self.log_first, first), stable), stable))
        return found

    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end):
        """Store the available range of a log in `first` and `end`, or return an error."""
        names = []
        for known, begin, stop in self.logs():
            if known.hex().encode() == log_id:
                first[0] = begin
                end[0] = stop
                return None
            names.append(known.hex())
        return f"E_LOG_ID {' '.join(names)}".encode()

    def log_meta(self):
        """Return the log's metadata for readers, as JSON."""
        logs = self.logs()
        log_id, first, end = logs[len(logs) - 1]
        return json.dumps({
            "topic": self.name,
            "log_id": log_id.hex(),
            "first_seq": first,
            "next_seq": end,
            "first_time": self.time_of(first) if first < end else 0,
            "last_time": self.time_of(end - 1) if first < end else 0,
            "bytes": self.log_bytes,
            "durability": self.durability,
            "retention": {"time": self.retention_time, "bytes": self.retention_bytes}
            if self.retention_time or self.retention_bytes else None,
            "incarnations": [
                {"log_id": one[0].hex(), "first_seq": one[1], "next_seq": one[2]} for one in logs],
            "cursors": self.cursor_facts(),
        }, separators=(",", ":")).encode()

    @property
    def log_bytes(self):
        """Return the size of the records on disk, in bytes."""
        return 0 if self.log is None else self.log.disk_bytes

    cdef int64_t time_of(self, uint64_t seq) except? 0:
        """Return when a record was published. If its block is not in memory, this is the time of
        the block's first or last record."""
        cdef Block *block = self.block_of(seq)
        cdef uint32_t at
        if block == NULL:
            return 0
        if block.data == NULL or block.flags & LOADING:
            return block.first_time if seq == block.first_seq else block.last_time
        at = offset_of(block, seq)
        return 0 if at == block.size else (<Record *>(block.data + at)).timestamp

    def seq_at(self, int64_t time):
        """Return the first record published at `time` (wall clock, ns) or later.

        Return None if a block must be read first; then call this again.
        """
        cdef Block *block = self.oldest
        cdef Record *record
        cdef uint32_t at
        while block != NULL and block.last_time and block.last_time < time:
            block = block.next
        while block != NULL:
            if block.data == NULL or block.flags & LOADING:
                self.load(block)
                self.host.io.kick()
                return None
            at = 0
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.timestamp >= time:
                    return min(record.seq, self.fanout.seq)
                at += record.length
            block = block.next
        return self.fanout.seq

    # -- reads --

    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after):
        """Send log_meta() to the waiter as soon as the log extends beyond `after`."""
        self.polls += 1
        self.touch_dirty()
        return self.begin_read(Poll(self, waiter, ticket, after))

    cdef int answer_polls(self) except -1:
        cdef uint64_t stable = self.stable_seq()
        cdef LogRead read
        cdef bytes answer = None
        for read in list(self.reads):
            if isinstance(read, Poll) and (<Poll>read).after < stable:
                answer = answer or self.log_meta()
                read.answer(answer, None)
        return 0

    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time):
        """Send the waiter the position of the first record in a log that was published at `time` or
        later. Return the read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        return error or self.begin_read(Seek(self, waiter, ticket, first, end, time))

    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t maximum, uint32_t columns):
        """Send records from a log to the waiter, as a block. Return the read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef uint64_t room
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        if error is not None:
            return error
        if start < first:
            return b"E_LOG_GONE %d" % first
        if start >= end or stop <= start:
            return b"E_LOG_RANGE %d" % end
        room = self.host.answer_room(maximum)
        self.host.reserved += room
        return self.begin_read(Fetch(
            self, waiter, ticket, bytes.fromhex(log_id.decode()), start, min(stop, end), room,
            columns))

    def peek(self, str channel not None, str state not None, int limit, after,
             uint32_t max_body, done):
        """View messages in a channel, or in the topic itself if `channel` is "".

        Calls done(None) on success or done(reason) on failure: see nsqcy.broker.peek.
        """
        return self.begin_read(Peek(
            self, self.channels[channel] if channel else None, state, limit, after, max_body,
            done))

    cdef LogRead begin_read(self, LogRead read):
        if self.reads is None:
            self.reads = []
        self.reads.append(read)
        # Take the first step now, so that the first records cannot be dropped beforehand.
        read.step(1)
        if read.stage != ENDED and not read.reading:
            self.on_read(read)
        return read

    cdef int on_read(self, read) except -1:
        cdef LogRead one = read
        if one.stage == WAITING:
            return 0
        if one.stage != ENDED:
            self.host.reads.append(one)
            return 0
        self.reads.remove(one)
        self.host.reserved -= one.held
        self.polls -= isinstance(one, Poll)
        return 0
