"""Reads of a topic's log: fetch ranges as blocks of columns, find records by time, wait for more.

Owns the layout of the blocks that answer LOG_FETCH (docs/PROTOCOL.md). The caller passes the part
of a window that may be read. This module is independent of topics and of the names of logs. Rules:

1. A read pins the blocks that it needs; retention drops them afterwards.
2. The I/O threads read blocks that are only on disk into the read's own memory, one at a time.
Therefore, other writes and reads can run in between, and blocks that consumers need stay in memory.
3. A step does a bounded amount of work; the shard then runs the next step.
"""

# Reads of a topic's log that take more than one turn: fetch a range as a block of columns, find a
# position by time, wait for new records.
#
#   COLLECT ──► MEASURE ──► FILL ──► CHECK ──► ENDED
#
#   COLLECT   pin the blocks of the range; read blocks that are only on disk, one at a time, into
#             memory of this read, so that they never displace blocks that consumers need
#   MEASURE   count the records, until the response reaches its maximum size
#   FILL      build the columns
#   CHECK     compute their checksum
#
# Each step does a bounded amount of work.


cdef enum Column:
    TIMESTAMPS = 1
    IDS = 2
    DEFERS = 4
    HEADERS = 8
    BODIES = 16


# The values of one row in the response.
cdef struct Row:
    int64_t timestamp
    uint64_t id
    int64_t defer
    const uint8_t *headers
    const uint8_t *body
    uint32_t headers_length
    uint32_t body_length


cdef extern from "segment.h" nogil:
    uint32_t crc32c_of "crc32c"(uint32_t crc, const void *data, size_t n)

cdef enum:
    BLOCK_HEADER = 64
    CHECKED_FROM = 16               # the checksum covers everything from this offset on
    BLOCK_DAMAGED = 1               # flag: some records are lost
    BLOCK_COST = 8                  # cost of looking up a block, in records

cdef uint64_t BLOCK_MAGIC = 0x004B4C4259435153      # "SQCYBLK\0"

# The columns in order, with the bytes per row.
cdef uint32_t[5] COLUMNS = [TIMESTAMPS, IDS, DEFERS, HEADERS, BODIES]
cdef uint32_t[5] WIDTHS = [8, 8, 8, 4, 4]

COLUMN_NAMES = {
    b"timestamp": TIMESTAMPS, b"id": IDS, b"defer": DEFERS, b"headers": HEADERS, b"body": BODIES}


# The header of a block.
cdef packed struct BlockHeader:
    uint64_t magic
    uint32_t version
    uint32_t crc
    uint8_t log_id[16]
    uint64_t base_seq
    uint32_t count
    uint32_t flags
    uint32_t columns
    uint32_t padding
    uint64_t bytes


cdef inline uint64_t rounded(uint64_t n) noexcept:
    return (n + 7) & ~<uint64_t>7


cdef int piece_read(void *arg, int error) except -1:
    cdef LogRead read = <LogRead>arg
    Py_DECREF(read)
    return read.on_piece_read(error)


cdef class OpenReads:
    def __cinit__(self, TopicHost host not None):
        self.host = host
        self.open = []

    cdef int begin(self, LogRead read) except -1:
        read.reads = self
        self.open.append(read)
        self.polls += isinstance(read, Poll)
        # Take the first step now, before the first records can be dropped.
        read.step(1)
        if read.stage != ENDED and not read.reading:
            self.advanced(read)
        return 0

    cdef int advanced(self, LogRead read) except -1:
        """Handle a read that can continue or has ended."""
        if read.stage == WAITING:
            return 0
        if read.stage != ENDED:
            self.host.reads.append(read)
            return 0
        self.open.remove(read)
        self.host.reserved -= read.held
        self.polls -= isinstance(read, Poll)
        return 0


@cython.no_gc_clear      # __dealloc__ needs the window
cdef class LogRead:
    """A read in progress."""

    def __dealloc__(self):
        self.release()
        free(self.pieces)

    cdef int step(self, int budget) except? -1:
        """Do work worth about `budget` records; return the unused budget.

        A read that has not ended can continue immediately or, while `reading` is set, after
        `on_piece_read`.
        """
        raise NotImplementedError

    cdef int take(self, Block *block) except -1:
        """Add a block and obtain its records."""
        cdef Piece *piece
        cdef Piece *grown
        if self.count == self.room:
            grown = <Piece *>realloc(self.pieces, (2 * self.room + 4) * sizeof(Piece))
            if grown == NULL:
                raise MemoryError()
            self.pieces = grown
            self.room = 2 * self.room + 4
        piece = &self.pieces[self.count]
        memset(piece, 0, sizeof(Piece))
        piece.block = block
        self.window.pin(block)
        self.count += 1
        if block.data != NULL and not block.flags & LOADING:
            piece.data = block.data
            return 0
        piece.owned = <uint8_t *>malloc(block.size)
        if piece.owned == NULL:
            raise MemoryError()
        self.window.log.read(&block.extent, piece.owned, piece_read, <void *>self)
        Py_INCREF(self)
        self.reading = True
        return 0

    cdef int on_piece_read(self, int error) except -1:
        cdef Piece *piece = &self.pieces[self.count - 1]
        self.reading = False
        if self.stage == ENDED:
            self.release()
            return 0
        if error:
            self.failed = True
            self.window.read_failed()
        else:
            piece.data = piece.owned
        return self.reads.advanced(self)

    cdef int answer(self, bytes answer, bytes error) except -1:
        """End the read and send its result to the waiter."""
        cdef Waiter waiter = self.waiter
        self.waiter = None
        self.stage = ENDED
        self.release()
        self.reads.advanced(self)
        if waiter is not None:
            waiter.log_answered(self.ticket, answer, error)
        return 0

    cdef int abandon(self, bytes error) except -1:
        """End the read early; the waiter is notified only of an error."""
        if self.stage == ENDED:
            return 0
        if error is None:
            self.waiter = None
        return self.answer(None, error)

    cdef void release(self) noexcept:
        cdef uint32_t i
        if self.reading:
            return
        for i in range(self.count):
            self.window.unpin(self.pieces[i].block)
            free(self.pieces[i].owned)
        self.count = 0


@cython.no_gc_clear
cdef class Fetch(LogRead):
    """Fetch records [first, end) of a window, as many as fit, as a block of columns."""

    cdef bytes log_id
    cdef uint64_t first             # first record of the response
    cdef uint32_t columns
    cdef uint64_t maximum           # maximum bytes of a response with more than one record
    cdef uint64_t collected         # bytes of records
    cdef uint32_t piece             # current piece of the range
    cdef uint32_t offset
    cdef uint32_t rows
    cdef uint64_t header_bytes
    cdef uint64_t body_bytes
    cdef bytes block                # the answer
    cdef size_t starts[5]           # offsets of the response's columns
    cdef uint32_t row               # rows filled
    cdef uint64_t headers_filled
    cdef uint64_t bodies_filled
    cdef uint32_t flags
    cdef uint32_t crc
    cdef size_t checked             # bytes

    def __cinit__(self, RecordWindow window not None, Waiter waiter not None, uint64_t ticket,
                  bytes log_id not None, uint64_t first, uint64_t end, uint64_t maximum,
                  uint32_t columns):
        self.window = window
        self.waiter = waiter
        self.ticket = ticket
        self.log_id = log_id
        self.first = self.next_seq = first
        self.end = end
        self.maximum = self.held = maximum
        self.columns = columns

    cdef int step(self, int budget) except? -1:
        while budget > 0 and self.stage != ENDED and not self.reading:
            if self.failed:
                self.answer(None, b"E_LOG_FAILED " + self.window.log.read_error_text.encode(
                    "utf-8", "surrogateescape"))
            elif self.stage == COLLECT:
                budget = self.collect(budget)
            elif self.stage == CHECK:
                budget = self.check(budget)
            else:
                budget = self.walk(budget)
        return budget

    cdef int collect(self, int budget) except? -1:
        cdef Block *block
        while budget > 0 and self.next_seq < self.end and self.collected < self.maximum:
            block = self.window.block_of(self.next_seq)
            if block == NULL or block.first_seq > self.next_seq:
                # Dropped meanwhile.
                self.end = self.next_seq
                break
            # The size of the records before the range is not yet known.
            if self.count or block.first_seq == self.next_seq:
                self.collected += block.size
            self.next_seq = block.last_seq + 1
            budget -= BLOCK_COST
            self.take(block)
            if self.reading:
                return budget
        if budget > 0 or self.next_seq >= self.end or self.collected >= self.maximum:
            self.end = min(self.end, self.next_seq)
            self.next_seq = self.first
            self.stage = MEASURE
        return budget

    cdef int walk(self, int budget) except? -1:
        """Visit more records, counting them or adding rows."""
        cdef const Piece *piece
        cdef const Record *record
        cdef uint16_t headers
        cdef Row row
        while self.next_seq < self.end and self.piece < self.count:
            piece = &self.pieces[self.piece]
            if self.next_seq > piece.block.last_seq:
                self.piece += 1
                self.offset = 0
                continue
            if budget <= 0:
                return budget
            memset(&row, 0, sizeof(Row))
            budget -= 1
            if self.offset >= piece.block.size:
                break
            record = <const Record *>(piece.data + self.offset)
            if record.seq > self.next_seq:
                break
            self.offset += record.length
            if record.seq < self.next_seq:
                continue
            if not record.attributes & RECORD_DAMAGED:
                row.timestamp = record.timestamp
                row.id = record.id
                row.defer = record_delay(record)
                row.body = record_body(record)
                row.body_length = record.body_length
                row.headers = record_headers(record, &headers)
                row.headers_length = headers
            if self.stage == FILL:
                self.add_row(&row)
                budget -= row.body_length // BYTES_A_STEP
            elif not self.count_row(&row):
                break
            self.next_seq += 1
        if self.stage == FILL:
            self.end_columns()
        elif self.rows == 0:
            self.answer(None, b"E_LOG_FAILED record %d is not where it should be" % self.next_seq)
        else:
            self.allot()
        return budget

    cdef bint count_row(self, const Row *row) noexcept:
        """Count a row; return whether it fits."""
        cdef uint64_t headers = self.header_bytes
        cdef uint64_t bodies = self.body_bytes
        if self.columns & HEADERS:
            headers += row.headers_length
        if self.columns & BODIES:
            bodies += row.body_length
        if self.rows and self.size(self.rows + 1, headers, bodies) > self.maximum:
            return False
        self.rows += 1
        self.header_bytes = headers
        self.body_bytes = bodies
        return True

    cdef uint64_t size(self, uint64_t rows, uint64_t headers, uint64_t bodies) noexcept:
        """Return the size of a response block in bytes; store the offsets of its columns."""
        cdef uint64_t at = BLOCK_HEADER
        cdef int i
        for i in range(5):
            self.starts[i] = at
            if self.columns & COLUMNS[i]:
                at += WIDTHS[i] * rows
                if COLUMNS[i] == HEADERS:
                    at += 4 + headers
                elif COLUMNS[i] == BODIES:
                    at += 4 + bodies
                at = rounded(at)
        return at

    cdef int allot(self) except -1:
        """Allocate the response, now that its size is known."""
        cdef uint64_t size = self.size(self.rows, self.header_bytes, self.body_bytes)
        cdef BlockHeader *header
        self.block = PyBytes_FromStringAndSize(NULL, size)
        header = <BlockHeader *>PyBytes_AS_STRING(self.block)
        memset(header, 0, BLOCK_HEADER)
        header.magic = BLOCK_MAGIC
        header.version = FORMAT_LOG_BLOCK
        memcpy(header.log_id, PyBytes_AS_STRING(self.log_id), 16)
        header.base_seq = self.first
        header.count = self.rows
        header.columns = self.columns
        header.bytes = size
        self.end = self.first + self.rows
        self.next_seq = self.first
        self.piece = self.offset = 0
        self.stage = FILL
        return 0

    cdef int add_row(self, const Row *row) noexcept:
        """Add a row. A damaged record has no data to copy, and a record without headers has no
        headers to copy."""
        cdef uint8_t *block = <uint8_t *>PyBytes_AS_STRING(self.block)
        cdef uint32_t i = self.row
        cdef uint8_t *values
        if self.columns & TIMESTAMPS:
            (<int64_t *>(block + self.starts[0]))[i] = row.timestamp
        if self.columns & IDS:
            (<uint64_t *>(block + self.starts[1]))[i] = row.id
        if self.columns & DEFERS:
            (<int64_t *>(block + self.starts[2]))[i] = row.defer
        if self.columns & HEADERS:
            (<uint32_t *>(block + self.starts[3]))[i] = <uint32_t>self.headers_filled
            values = block + self.starts[3] + 4 * (<size_t>self.rows + 1)
            if row.headers_length:
                memcpy(values + self.headers_filled, row.headers, row.headers_length)
            self.headers_filled += row.headers_length
        if self.columns & BODIES:
            (<uint32_t *>(block + self.starts[4]))[i] = <uint32_t>self.bodies_filled
            values = block + self.starts[4] + 4 * (<size_t>self.rows + 1)
            if row.body_length:
                memcpy(values + self.bodies_filled, row.body, row.body_length)
            self.bodies_filled += row.body_length
        if row.id == 0:
            self.flags |= BLOCK_DAMAGED
        self.row += 1
        return 0

    cdef int end_columns(self) noexcept:
        """Write the last offsets, and zeros up to the next column."""
        cdef uint8_t *block = <uint8_t *>PyBytes_AS_STRING(self.block)
        cdef BlockHeader *header = <BlockHeader *>block
        cdef size_t end
        if self.columns & HEADERS:
            (<uint32_t *>(block + self.starts[3]))[self.rows] = <uint32_t>self.headers_filled
            end = self.starts[3] + 4 * (<size_t>self.rows + 1) + self.headers_filled
            memset(block + end, 0, rounded(end) - end)
        if self.columns & BODIES:
            (<uint32_t *>(block + self.starts[4]))[self.rows] = <uint32_t>self.bodies_filled
            end = self.starts[4] + 4 * (<size_t>self.rows + 1) + self.bodies_filled
            memset(block + end, 0, rounded(end) - end)
        header.flags = self.flags
        self.checked = CHECKED_FROM
        self.stage = CHECK
        return 0

    cdef int check(self, int budget) except? -1:
        cdef const uint8_t *block = <const uint8_t *>PyBytes_AS_STRING(self.block)
        cdef size_t n = min(<size_t>len(self.block) - self.checked,
                            <size_t>budget * BYTES_A_STEP)
        cdef bytes answer
        self.crc = crc32c_of(self.crc, block + self.checked, n)
        self.checked += n
        if self.checked == <size_t>len(self.block):
            (<BlockHeader *>block).crc = self.crc
            answer = self.block
            self.block = None
            self.answer(answer, None)
        return budget - 1 - <int>(n // BYTES_A_STEP)


@cython.no_gc_clear
cdef class Seek(LogRead):
    """Find the first record in [first, end) published at or after a time; `end` if there is
    none."""

    cdef int64_t time
    cdef uint32_t offset

    def __cinit__(self, RecordWindow window not None, Waiter waiter not None, uint64_t ticket,
                  uint64_t first, uint64_t end, int64_t time):
        self.window = window
        self.waiter = waiter
        self.ticket = ticket
        self.next_seq = first
        self.end = end
        self.time = time

    cdef int step(self, int budget) except? -1:
        while budget > 0 and self.stage != ENDED and not self.reading:
            if self.failed:
                self.answer(None, b"E_LOG_FAILED " + self.window.log.read_error_text.encode(
                    "utf-8", "surrogateescape"))
            elif self.count == 0:
                budget = self.look_for_block(budget)
            else:
                budget = self.look_for_record(budget)
        return budget

    cdef int look_for_block(self, int budget) except? -1:
        """Find the block by the blocks' maximum times."""
        cdef Block *block = self.window.block_of(self.next_seq)
        budget -= BLOCK_COST
        while block != NULL and self.next_seq < self.end:
            if block.last_time == 0 or block.last_time >= self.time:
                self.offset = 0
                self.take(block)
                return budget
            if budget <= 0:
                return budget
            budget -= 1
            self.next_seq = block.last_seq + 1
            block = block.next
        self.found(self.end)
        return budget

    cdef int look_for_record(self, int budget) except? -1:
        cdef const Piece *piece = &self.pieces[0]
        cdef const Record *record
        cdef uint64_t last = piece.block.last_seq
        while self.offset < piece.block.size:
            if budget <= 0:
                return budget
            budget -= 1
            record = <const Record *>(piece.data + self.offset)
            if record.seq >= self.end:
                break
            if record.seq >= self.next_seq and record.timestamp >= self.time \
                    and not record.attributes & RECORD_DAMAGED:
                self.found(record.seq)
                return budget
            self.offset += record.length
        self.release()
        self.next_seq = max(self.next_seq, last + 1)
        return budget

    cdef int found(self, uint64_t seq) except -1:
        return self.answer(b'{"seq":%d}' % min(seq, self.end), None)


@cython.no_gc_clear
cdef class Poll(LogRead):
    """Wait for the log to extend beyond a position."""

    cdef readonly uint64_t after

    def __cinit__(self, RecordWindow window not None, Waiter waiter not None, uint64_t ticket,
                  uint64_t after):
        self.window = window
        self.waiter = waiter
        self.ticket = ticket
        self.after = after
        self.stage = WAITING

    cdef int step(self, int budget) except? -1:
        return budget
