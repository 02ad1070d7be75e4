"""Limits of a topic: message size, number of messages and bytes, and message age.

Owns the decision to refuse or drop a message because of a limit, and the counters of dropped
messages.
"""

cimport cython

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.base.headers cimport HEADERS_SIZE
from nsqcy.channels.channel cimport Channel
from nsqcy.channels.on_full cimport DROP_NEWEST, DROP_OLDEST, REJECT, on_full_of
from nsqcy.storage.block cimport LOADING, Block
from nsqcy.storage.record_window cimport Cursor
from nsqcy.storage.record cimport Record


cdef enum:
    TICK_EXPIRES = 4096             # maximum messages in a topic's own backlog that expire per tick

cdef int32_t NO_LIMIT = 0x7fffffff  # the largest message size on the wire, in bytes
cdef int64_t ANY_DELAY = 0x7fffffffffffffff
cdef int64_t MILLISECOND = 1000000


@cython.no_gc_clear      # as RecordWindow requires
cdef class Limits(FanOut):
    def __cinit__(self):
        self.may_drop = self.ephemeral
        self.mem_queue_size = self.scheduler.mem_queue_size
        self.max_msg_size = NO_LIMIT
        self.max_defer_timeout = ANY_DELAY

    cdef int set_limits(self, policy) except -1:
        self.mem_queue_size = self.scheduler.mem_queue_size
        if policy.mem_queue_size is not None:
            self.mem_queue_size = policy.mem_queue_size
        self.min_msg_size = min(policy.min_msg_size, NO_LIMIT)
        self.max_msg_size = NO_LIMIT if policy.max_msg_size is None else policy.max_msg_size
        self.max_defer_timeout = (
            ANY_DELAY if policy.max_defer_timeout is None else policy.max_defer_timeout)
        self.limited = (self.min_msg_size > 1 or self.max_msg_size != NO_LIMIT
                        or self.max_defer_timeout != ANY_DELAY)
        self.ttl = policy.ttl
        self.max_bytes = policy.max_bytes
        self.max_depth = policy.max_depth
        self.on_full = on_full_of(policy.on_full)
        return 0

    # -- message sizes and delays --

    cdef bint fits(self, int64_t size) noexcept:
        """Return whether a `limited` topic accepts a message of this size."""
        return self.min_msg_size <= size <= self.max_msg_size

    cdef int32_t invalid_length(self, const uint8_t *batch, uint32_t count,
                                bint headers) noexcept:
        """Return the size of the first message in an MPUB that the topic does not accept, or 0.

        headers: whether headers precede the bodies
        """
        cdef uint32_t length
        cdef int64_t body
        cdef uint32_t _i
        for _i in range(count):
            body = length = load_be32(batch)
            if headers:
                body -= HEADERS_SIZE + load_be16(batch + 4)
            if not self.fits(body):
                return <int32_t>body
            batch += 4 + length
        return 0

    cdef bytes delay_error(self, int64_t delay):
        """Return the error for a DPUB whose delay, in ns, is not accepted."""
        return b"E_INVALID DPUB timeout %d out of range 0-%d" % (
            delay // MILLISECOND, self.max_defer_timeout // MILLISECOND)

    cdef bytes size_error(self, const char *command, int64_t size):
        """Return the error for a message whose size is not accepted."""
        if size > self.max_msg_size:
            return b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, size, self.max_msg_size)
        return b"E_BAD_MESSAGE %s message too small %d < %d" % (
            <bytes>command, size, self.min_msg_size)

    # -- depth and bytes --

    cdef bint drops(self, uint32_t body_bytes) noexcept:
        """Return whether the full topic drops the next message; if so, count it."""
        if self.bounded and self.on_full == DROP_NEWEST and (
                self.exceeds_depth(1) or self.exceeds_bytes(1, body_bytes)):
            self.full_count += 1
            return True
        if self.ephemeral and not self.flowing() \
                and self.next_seq - self.fanout.seq >= self.mem_queue_size:
            self.dropped_count += 1
            return True
        return False

    cdef str fullness(self, uint64_t count, uint64_t body_bytes):
        """Return why the topic or a channel is too full for a publish, or None if there is room."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.on_full == REJECT:
            if self.exceeds_depth(count):
                return f"topic {self.name} is full (max-depth {self.max_depth})"
            if self.exceeds_bytes(count, body_bytes):
                return f"topic {self.name} is full (max-bytes {self.max_bytes})"
        if not self.flowing():
            return None
        for channel in self.channels.values():
            if channel.max_depth and channel.on_full == REJECT \
                    and channel.depth() + coming > channel.max_depth:
                return f"channel {self.name}/{channel.name} is full (max-depth {channel.max_depth})"
        return None

    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept:
        """Return whether a publish of this size would exceed max_bytes."""
        if self.max_bytes == 0:
            return False
        return (self.bytes_from(self.last_reader()) + count * sizeof(Record) + body_bytes
                > self.max_bytes)

    cdef bint exceeds_depth(self, uint64_t count) noexcept:
        """Return whether `count` more messages would exceed max_depth in the topic or in a
        channel."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.max_depth == 0:
            return False
        if not self.flowing():
            return coming > self.max_depth
        for channel in self.channels.values():
            if channel.depth() + coming > self.max_depth:
                return True
        return False

    cdef int set_bounds(self) except -1:
        """Apply the limits after they have changed, or after a channel was added."""
        cdef Channel channel
        cdef uint64_t messages
        self.bounded = self.max_depth != 0 or self.max_bytes != 0
        for channel in self.channels.values():
            channel.set_ttl(self.ttl)
            messages = channel.max_depth
            if messages and channel.on_full == REJECT:
                self.bounded = True
                messages = 0
            if self.on_full != DROP_OLDEST:
                channel.keep_at_most(messages, 0)
                continue
            if self.max_depth and (messages == 0 or messages > self.max_depth):
                messages = self.max_depth
            channel.keep_at_most(messages, self.max_bytes)
        self.may_drop = self.ephemeral or self.bounded and self.on_full == DROP_NEWEST
        if self.bounded:
            self.touch_dirty()
        return 0

    cdef int keep_bounds(self) except -1:
        """Drop the oldest messages that have not been fanned out, down to the limits."""
        cdef uint64_t depth = self.depth()
        cdef Cursor *front = &self.fanout
        if self.max_depth and depth > self.max_depth:
            self.full_count += depth - self.max_depth
            self.drop_front(self.visible.seq - self.max_depth)
        while self.max_bytes and front.seq < self.visible.seq \
                and self.bytes_from(front) > self.max_bytes:
            depth = self.depth()
            self.drop_front(min(self.visible.seq, front.block.last_seq + 1))
            self.full_count += depth - self.depth()
        return 0

    # -- expiry --

    cdef int drop_expired(self) except -1:
        """Drop expired messages, once a second. Channels drop theirs when they dispatch."""
        cdef Channel channel
        cdef uint64_t seq
        cdef int budget = TICK_EXPIRES
        for channel in self.channels.values():
            channel.touch_dirty()
        while self.ttl and budget > 0 and self.fanout.seq < self.visible.seq:
            seq = self.first_fresh(&budget)
            if seq == self.fanout.seq:
                break
            self.expired_count += seq - self.fanout.seq
            self.drop_front(seq)
        return 0

    cdef uint64_t first_fresh(self, int *budget) noexcept:
        """Return the first record in the topic's own backlog that has not expired.

        Searches only the block of the first record.
        """
        cdef int64_t born = self.scheduler.wall - self.ttl
        cdef uint64_t seq = self.fanout.seq
        cdef uint32_t at
        cdef Block *block
        cdef Record *record
        if not self.settle(&self.fanout):
            return seq
        block = self.fanout.block
        if block.data == NULL or block.flags & LOADING:
            budget[0] -= 1
            if block.last_time == 0 or block.last_time > born:
                return seq
            return min(block.last_seq + 1, self.visible.seq)
        at = self.fanout.offset
        while at < block.size and seq < self.visible.seq and budget[0] > 0:
            record = <Record *>(block.data + at)
            if record.seq >= seq:
                if record.timestamp > born:
                    break
                seq = record.seq + 1
                budget[0] -= 1
            at += record.length
        return seq
