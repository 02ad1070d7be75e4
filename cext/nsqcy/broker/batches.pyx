"""Batches: large publishes, which a topic appends over several turns.

Owns the queue of a topic's batches, and what happens between the first and the last slice of one:
nothing that was appended since its beginning is visible or written, so a batch is accepted or
rejected as a whole. Other publishes to the topic are appended in between and wait for the batch.
Also owns producers' chunks: a chunk is published once, even if it is resent after a failure. Knows
nothing about where the messages came from; the creator of a batch has checked them.
"""

cimport cython

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.broker.durability cimport MEMORY
from nsqcy.storage.record cimport Produced

from nsqcy.broker import dead_letter_headers as dead_letters
from nsqcy.broker.producers import ChunkError, Producers, messages_in, producer_id
from nsqcy.broker.topic_host import DRAINING as _DRAINING


cdef class Batch:
    cdef int begin(self, Publishing topic) except -1:
        """Prepare the topic for the first message. Raises ChunkError if it does not accept the
        batch."""
        if self.minimum != MEMORY and self.left:
            topic.demand(self.minimum)
        return 0

    cdef uint64_t append(self, Publishing topic, uint32_t count) except? 0:
        """Append the next `count` messages; return the bytes of their bodies."""
        raise NotImplementedError

    cdef int complete(self, Publishing topic) except -1:
        """Handle the end: all messages are appended."""
        return 0

    cdef int abandon(self, Publishing topic) except -1:
        """Handle the end of a batch that began, but whose appended messages are gone."""
        return 0

    cdef int release(self) except -1:
        """Handle the end of the topic's use of the source."""
        return 0


cdef class SizedBatch(Batch):
    cdef uint64_t append(self, Publishing topic, uint32_t count) except? 0:
        cdef uint64_t bodies = 0
        cdef uint32_t length
        cdef uint32_t _i
        cdef size_t used
        if not self.headers:
            used = topic.new_batch(self.at, count)
            self.at += used
            return used - 4 * <uint64_t>count
        for _i in range(count):
            length = load_be32(self.at)
            bodies += topic.add_headered(self.at + 4, length, 0)
            self.at += 4 + length
        return bodies


cdef class ChunkBatch(Batch):
    cdef int begin(self, Publishing topic) except -1:
        (<Batches>topic).open_chunk(self)
        return 0

    cdef uint64_t append(self, Publishing topic, uint32_t count) except? 0:
        cdef uint64_t first_seq = topic.next_seq
        cdef uint64_t bodies = 0
        cdef Produced produced
        produced.producer, produced.epoch, produced.part, produced.chunk = self.name
        produced.count = self.count
        produced.reserved = 0
        taken = []
        topic.address = self.address
        try:
            while count:
                count -= self.append_range(topic, &produced, count, taken, &bodies)
        finally:
            topic.address = None
        self.pieces.append((first_seq, tuple(taken)))
        return bodies

    cdef uint32_t append_range(self, Publishing topic, Produced *produced, uint32_t count,
                               list taken, uint64_t *bodies) except? 0:
        """Append up to `count` messages of the first wanted range; return their number."""
        cdef uint32_t begun
        cdef uint32_t end
        cdef uint32_t number
        begun, end = self.wanted[0]
        if end - begun > count:
            end = begun + count
            self.wanted[0] = (end, self.wanted[0][1])
        else:
            del self.wanted[0]
        number = end - begun
        while self.index < begun:
            self.at += 4 + load_be32(self.at)
            self.index += 1
        while self.index < end:
            produced.index = self.index
            if not topic.add_produced(produced, self.at, self.headers, bodies):
                # A full topic dropped it; it counts as published.
                if begun < self.index:
                    taken.append((begun, self.index))
                begun = self.index + 1
            self.at += 4 + load_be32(self.at)
            self.index += 1
        if begun < end:
            taken.append((begun, end))
        return number

    cdef int complete(self, Publishing topic) except -1:
        if self.pieces:
            topic.producers.published(self.name, tuple(self.pieces))
        return 0

    cdef int abandon(self, Publishing topic) except -1:
        topic.producers.abandoned(self.name)
        return 0


@cython.no_gc_clear      # as RecordWindow requires
cdef class Batches(Publishing):
    def __cinit__(self):
        self.batches = []

    # -- the queue --

    cdef int add_batch(self, Batch batch) except -1:
        """Append a batch over the next turns, after earlier ones; its waiter receives the
        outcome."""
        self.batches.append(batch)
        self.coming += batch.left
        self.coming_bytes += batch.left_bytes
        if len(self.batches) == 1:
            self.host.gathering.append(self)
        return 0

    cdef int append_batches(self, int budget) except -1:
        """Append a slice of the first batch."""
        cdef Batch batch = self.batches[0]
        cdef uint32_t expected = batch.left
        cdef uint32_t count
        cdef uint64_t bodies = 0
        if not self.gathering:
            self.seal()         # its records have blocks of their own, which are written together
            self.gathered_from = self.next_seq
            try:
                batch.begin(self)
            except ChunkError as error:
                return self.end_batch(str(error))
            self.gathering = True
            self.coming += batch.left - expected
        count = min(batch.left, <uint32_t>budget)
        if count:
            bodies = batch.append(self, count)
        batch.left -= count
        self.coming -= count
        self.message_count += count
        self.message_bytes += bodies
        self.pending_messages += count
        if batch.left == 0:
            self.complete_batch(batch)
        return 0

    cdef int complete_batch(self, Batch batch) except -1:
        """Make the batch, and what was appended beside it, visible now or when the log has it."""
        cdef bint waits
        batch.complete(self)
        self.gathering = False
        waits = self.published(0, 0)
        if self.visible.seq == self.next_seq:
            self.pending_messages = 0
        if not waits:
            self.acks.answer(self.next_seq - 1, None)
        elif batch.waiter is not None:
            self.acknowledge_later(batch.waiter, batch.ticket)
            batch.waiter = None
        return self.end_batch(None)

    cdef int end_batch(self, str error) except -1:
        """Remove the first batch, and answer its waiter unless the log does so later."""
        cdef Batch batch = self.batches.pop(0)
        self.gathering = False
        self.coming -= batch.left
        self.coming_bytes -= batch.left_bytes
        batch.release()
        self.answer_batch(batch, error)
        return 0

    cdef int fail_batches(self, str error) except -1:
        """Reject all batches, because the topic is gone."""
        while self.batches:
            self.end_batch(error)
        return self.leave_queue()

    cdef int leave_queue(self) except -1:
        """Leave the scheduler's queue if no batch is left."""
        if not self.batches and self in self.host.gathering:
            self.host.gathering.remove(self)
        return 0

    cdef int leave_batches(self, str error) except -1:
        """Answer the waiters of all batches now; the batches may be accepted or not."""
        cdef Batch batch
        for batch in self.batches:
            self.answer_batch(batch, error)
        return 0

    cdef int answer_batch(self, Batch batch, str error) except -1:
        """Answer the waiter of a batch once, and release it: it may refer to the batch."""
        cdef Waiter waiter = batch.waiter
        batch.waiter = None
        if waiter is not None:
            waiter.publish_done(batch.ticket, error)
        return 0

    cdef int unpublish(self) except -1:
        Publishing.unpublish(self)
        return self.break_batch(self.error)

    cdef int break_batch(self, str error) except -1:
        """Reject the batch whose first slices have been appended, if there is one."""
        if self.gathering:
            (<Batch>self.batches[0]).abandon(self)
            self.end_batch(error)
        return self.leave_queue()

    # -- producers' chunks --

    cdef int add_chunk(self, ChunkBatch chunk, uint32_t *added, uint64_t *bodies) except -1:
        """Append the missing messages of a chunk at once.

        Outputs the number of appended messages and the bytes of their bodies. The caller passes
        them to published(), even if there are none: an earlier attempt may be pending, and its
        outcome is decisive. If the chunk cannot be accepted, appends nothing and raises ChunkError.
        """
        self.open_chunk(chunk)
        added[0] = chunk.left
        bodies[0] = 0
        if chunk.left:
            bodies[0] = chunk.append(self, chunk.left)
        return chunk.complete(self)

    def epochs(self, bytes producer not None):
        """Return the remembered epochs of a producer."""
        if self.producers is None:
            return []
        return self.producers.epochs(producer_id(producer), self.scheduler.wall)

    cdef int open_chunk(self, ChunkBatch chunk) except -1:
        """Find the missing messages of a chunk, and prepare the topic for them.

        `moved` messages come from another topic, which is allowed while draining.
        """
        if self.producers is None:
            self.producers = Producers()
        wanted = self.producers.wanted(
            chunk.name, chunk.count, self.visible.seq, self.scheduler.wall)
        chunk.wanted = list(wanted or ())
        chunk.pieces = []
        chunk.left = messages_in(chunk.wanted)
        if not chunk.left:
            return 0
        refusal = (self.obstacle(chunk.minimum, chunk.count, chunk.size)
                   if chunk.moved and self.host.shut is _DRAINING
                   else self.refusal(chunk.minimum, chunk.count, chunk.size))
        if refusal is not None:
            raise ChunkError(refusal)
        if chunk.moved:
            address, _ = dead_letters.split_address(chunk.at[6:6 + load_be16(chunk.at + 4)])
            if address is not None and address not in self.channels:
                raise ChunkError(dead_letters.NO_CHANNEL)
            chunk.address = None if address is None else address.encode()
        if chunk.minimum != MEMORY:
            self.demand(chunk.minimum)
        self.keep_untold()
        self.producers.attempted(chunk.name)
        return 0
