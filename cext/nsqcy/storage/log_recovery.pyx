"""Recovery of a log: reads footers and the journal, and scans segments without a footer.

Runs once, before the log is used, and blocks. Performs the only file operations outside the I/O
threads. Determines what is on disk, but not its meaning: nsqcy/storage/journal.py interprets the
journal's entries. A file that cannot be read now is neither absent nor damaged: the first error
ends the recovery. Damage counts only after a second read.
"""


class Unreadable(OSError):
    """A log cannot be read now. `offset` and `bytes` are the unreadable part of the file, or 0 and
    0."""

    def __init__(self, int error, str path, offset=0, bytes=0):
        super().__init__(error, os.strerror(error), path)
        self.offset = offset
        self.bytes = bytes


cdef extern from "fcntl.h" nogil:
    int O_RDONLY


_SEGMENT = re.compile(r"\d{20}\.seg")
_IDS = re.compile(r"\d{20}\.ids")

end_of = itemgetter(1)

cdef enum:
    FOOTER_READ = 32768          # most footers fit into the first read
    READ_PIECE = 1048576         # maximum bytes of one read


cpdef Recovered recover_log(Log log):
    """Return the state of a log on disk; call it once, before the first append. Reads footers and
    the journal, and scans the segments that have no footer.

    After a crash between writing a copy and its journal entry, a seq may be in more than one run;
    all of them contain the same message. Dense runs are returned without such overlaps.

    Raises Unreadable if some part cannot be read now; in that case, the log is not usable.
    """
    cdef Recovered into = Recovered.__new__(Recovered, log)
    try:
        names = os.listdir(log.directory)
    except FileNotFoundError:
        return into
    except OSError as error:
        raise Unreadable(error.errno, log.directory) from None
    log._directory_there = True
    log.ids_files.update([int(name[:20]) for name in filter(_IDS.fullmatch, names)])
    # Newest segments first: a record that was rewritten after a failure is valid at its last
    # location.
    for name in sorted(filter(_SEGMENT.fullmatch, names), reverse=True):
        recover_segment(log, name, into)
        if int(name[:20]) == log.last_number:
            into.open_end = not into.clean
    into.damages.sort()
    if "journal" in names:
        recover_journal(log, into)
    if into.log_id is not None:
        log.log_id = into.log_id
    return into


cdef int recover_segment(Log log, str name, Recovered into) except -1:
    cdef Segment *segment
    cdef IoCalls *calls = log.io.calls
    cdef struct_stat status
    cdef int fd
    segment = log._segment_new(int(name[:20]), 0)
    segment.state = SEGMENT_CLOSED
    fd = open_now(log, segment.path)
    try:
        if calls.fstat(calls, fd, &status) < 0:
            raise Unreadable(errno, os.fsdecode(segment.path))
        recover_runs(log, fd, status.st_size, segment, into)
    finally:
        calls.close(calls, fd)
    if segment.live == 0 and segment.state == SEGMENT_CLOSED:
        log._segment_free(segment)
    return 0


cdef int recover_runs(Log log, int fd, uint64_t size, Segment *segment,
                      Recovered into) except -1:
    """Doom a segment whose records are all in other segments: it is removed after the next
    snapshot. A segment with damaged parts is kept: in place, or set aside if it also has
    records."""
    cdef Py_ssize_t damages = len(into.damages)
    cdef bytes log_id = recover_header(log, fd, size, segment, into)
    cdef bint closed = recover_footer(log, fd, size, segment, into)
    if not closed:
        into.clean = False
        recover_scan(log, fd, size, segment, into)
    into.segments.append((segment.number, size, log_id,
                          footer_facts(&segment.facts) if closed else None))
    if len(into.damages) > damages:
        if segment.live:
            log.set_aside(segment)
    elif segment.live == 0:
        segment.state = SEGMENT_DOOMED
    return 0


cdef bytes recover_header(Log log, int fd, uint64_t size, Segment *segment, Recovered into):
    """Return the segment's log_id; None if it has none."""
    cdef bytes path = segment.path
    cdef bytes data = read_now(log, fd, path, 0, min(size, <uint64_t>sizeof(SegmentHeader)))
    cdef const SegmentHeader *header = <const SegmentHeader *>PyBytes_AS_STRING(data)
    if len(data) == 0:
        return None           # created just before the machine stopped
    number = segment_number(data)
    if number is None:
        read_again(log, fd, path, 0, data)
        into.damages.append((os.fsdecode(path), 0, "damaged segment header"))
        return None
    formats.SEGMENT.check(number, os.fsdecode(path))
    log_id = <bytes>header.log_id[:16]
    memcpy(segment.log_id, header.log_id, 16)
    if into.log_id is None:
        into.log_id = log_id
    return log_id


cdef bint recover_footer(Log log, int fd, uint64_t size, Segment *segment,
                         Recovered into) except -1:
    cdef uint64_t n = min(size, <uint64_t>FOOTER_READ)
    cdef bytes tail
    cdef uint32_t length
    cdef const SegmentFooter *footer
    cdef const SegmentRun *runs = NULL
    cdef uint64_t i
    if size & 7 or size < sizeof(SegmentTrailer):
        return False
    tail = read_now(log, fd, segment.path, size - n, n)
    length = footer_length(tail)
    if length == 0 or length > size or length & 7:
        return False
    if length > n:
        n = length
        tail = read_now(log, fd, segment.path, size - n, n)
    footer = segment_footer(<const uint8_t *>PyBytes_AS_STRING(tail), n, size, &runs)
    if footer is NULL:
        return False
    into.max_id = max(into.max_id, footer.max_id)
    segment.end = segment.good = segment.synced = footer.data_end
    segment.facts = footer[0]
    for i in range(footer.runs):
        into.add(&runs[i], segment, fd)
    return True


cdef int recover_scan(Log log, int fd, uint64_t size, Segment *segment,
                      Recovered into) except -1:
    cdef bytes data = read_now(log, fd, segment.path, 0, size)
    cdef Scan scan
    cdef Damages damages
    cdef uint64_t i
    path = os.fsdecode(segment.path)
    memset(&damages, 0, sizeof(Damages))
    segment_scan(<const uint8_t *>PyBytes_AS_STRING(data), len(data), &scan, &damages)
    try:
        if scan.failed:
            raise MemoryError
        if damages.found:
            read_again(log, fd, segment.path, 0, data)
            segment.is_aside = is_empty_tail(data, &damages)     # no file needs to be set aside
        for i in range(damages.kept):
            into.damages.append((path, damages.at[i].offset, damage_text(&damages.at[i])))
        into.max_id = max(into.max_id, scan.max_id)
        segment.end = segment.good = scan.end
        for i in range(scan.count):
            into.add(&scan.runs[i], segment, fd)
    finally:
        free(scan.runs)
        damages_free(&damages)
    return 0


cdef bint is_empty_tail(bytes data, const Damages *damages):
    """Return whether the only damage is an unwritten end, as after a power loss."""
    cdef bytes tail = data[damages.at[0].offset:]
    return damages.found == 1 and damages.at[0].kind == DAMAGE_TAIL and not tail.strip(b"\0")


cdef int recover_journal(Log log, Recovered into) except -1:
    cdef bytes path = os.path.join(log._directory, b"journal")
    cdef IoCalls *calls = log.io.calls
    cdef struct_stat status
    cdef int fd
    name = os.fsdecode(path)
    fd = open_now(log, path)
    try:
        if calls.fstat(calls, fd, &status) < 0:
            raise Unreadable(errno, name)
        data = read_now(log, fd, path, 0, status.st_size)
        into.journal, log_id, bad = parse_journal(data, name)
        if bad is not None:
            read_again(log, fd, path, 0, data)
            log.set_journal_aside(data)
    finally:
        calls.close(calls, fd)
    if log_id is not None:
        into.log_id = log_id
    if bad is not None:
        into.damages.append((name, bad, "damaged journal entry: the rest is ignored"))
    return 0


cdef bytes recover_ids(Log log, uint64_t number, uint64_t size, bint again):
    cdef bytes path = log._ids_path(number)
    cdef IoCalls *calls = log.io.calls
    cdef struct_stat status
    cdef int fd
    if number not in log.ids_files:
        return None
    fd = open_now(log, path)
    try:
        if calls.fstat(calls, fd, &status) < 0:
            raise Unreadable(errno, os.fsdecode(path))
        if <uint64_t>status.st_size < size:
            return None
        if again:
            calls.forget(calls, fd, 0, size)
        return read_now(log, fd, path, 0, size)
    finally:
        calls.close(calls, fd)


cdef int open_now(Log log, bytes path) except -1:
    cdef IoCalls *calls = log.io.calls
    cdef int fd = calls.open(calls, AT_FDCWD, path, O_RDONLY, 0)
    if fd < 0:
        raise Unreadable(errno, os.fsdecode(path))
    return fd


cdef bytes read_now(Log log, int fd, bytes path, uint64_t offset, uint64_t n):
    """Read n bytes that exist in the file. Raises Unreadable."""
    cdef IoCalls *calls = log.io.calls
    cdef bytes data = PyBytes_FromStringAndSize(NULL, n)
    cdef uint64_t got = 0
    cdef ssize_t had
    while got < n:
        had = calls.pread(calls, fd, PyBytes_AS_STRING(data) + got,
                          min(n - got, <uint64_t>READ_PIECE), offset + got)
        if had < 0 and errno == EINTR:
            continue
        if had <= 0:
            raise Unreadable(errno if had < 0 else EIO, os.fsdecode(path), offset + got,
                             min(n - got, <uint64_t>READ_PIECE))
        got += had
    return data


cdef int read_again(Log log, int fd, bytes path, uint64_t offset, bytes data) except -1:
    """Read damaged data from the disk again. Raises Unreadable if the data differs."""
    cdef IoCalls *calls = log.io.calls
    calls.forget(calls, fd, offset, len(data))
    if read_now(log, fd, path, offset, len(data)) != data:
        raise Unreadable(EIO, os.fsdecode(path), offset, min(len(data), READ_PIECE))
    return 0


# ---- results of recovery ----

cdef class Recovered:
    """Result of recover_log(). The caller must copy the extents in `run_array`, and release each
    extent once. Without a log, it is empty."""

    def __cinit__(self, Log log):
        self.log = log
        self.journal = []
        self.damages = []
        self.segments = []
        self.overlaps = []
        self._covered = []
        self.next_seq = 1
        self.clean = True

    def __dealloc__(self):
        free(self.run_array)

    cdef int add(self, const SegmentRun *run, Segment *segment, int fd) except -1:
        self.next_seq = max(self.next_seq, run.last_seq + 1)
        if run.flags & RUN_SURVIVORS or run.last_seq - run.first_seq + 1 != run.count:
            return self._add_whole(run, segment)
        wanted = self._uncovered(run.first_seq, run.last_seq)
        if wanted == [(run.first_seq, run.last_seq)]:
            self._add_whole(run, segment)
        else:
            self.overlaps.append((segment.number, run.offset, run.bytes, run.first_seq,
                                  run.last_seq))
            if wanted:
                self._add_rest(run, segment, fd, wanted)
        return self._cover(run.first_seq, run.last_seq)

    cdef list _uncovered(self, uint64_t first, uint64_t last):
        """Return the parts of [first, last] that no earlier dense run contains."""
        cdef Py_ssize_t i = bisect_left(self._covered, first, key=end_of)
        cdef uint64_t at = first
        wanted = []
        while i < len(self._covered) and self._covered[i][0] <= last:
            begin, end = self._covered[i]
            if begin > at:
                wanted.append((at, begin - 1))
            if end >= last:
                return wanted
            at = end + 1
            i += 1
        wanted.append((at, last))
        return wanted

    cdef int _cover(self, uint64_t first, uint64_t last) except -1:
        """Add [first, last], and merge it with adjacent ranges."""
        cdef Py_ssize_t low = bisect_left(self._covered, first - (first > 0), key=end_of)
        cdef Py_ssize_t high = low
        while high < len(self._covered) and self._covered[high][0] <= last + 1:
            first = min(first, <uint64_t>self._covered[high][0])
            last = max(last, <uint64_t>self._covered[high][1])
            high += 1
        self._covered[low:high] = [(first, last)]
        return 0

    cdef int _grow(self) except -1:
        cdef size_t capacity
        cdef RecoveredRun *more
        if self.run_count < self.run_capacity:
            return 0
        capacity = self.run_capacity * 2 if self.run_capacity else 16
        more = <RecoveredRun *>realloc(self.run_array, capacity * sizeof(RecoveredRun))
        if more is NULL:
            raise MemoryError
        self.run_array = more
        self.run_capacity = capacity
        return 0

    cdef int _add_whole(self, const SegmentRun *run, Segment *segment) except -1:
        cdef RecoveredRun *into
        self._grow()
        into = &self.run_array[self.run_count]
        self.run_count += 1
        memset(into, 0, sizeof(RecoveredRun))
        into.first_seq = into.extent.first_seq = run.first_seq
        into.last_seq = into.extent.last_seq = run.last_seq
        into.count = into.extent.count = run.count
        into.flags = run.flags
        into.first_time = run.first_time
        into.last_time = run.last_time
        into.extent.segment = segment
        into.extent.number = segment.number
        into.extent.offset = run.offset
        into.extent.bytes = <uint32_t>run.bytes
        segment.live += run.bytes
        self.log.disk_bytes += run.bytes
        return 0

    cdef int _add_rest(self, const SegmentRun *run, Segment *segment, int fd,
                       list wanted) except -1:
        """Add the wanted seqs of a dense run: walk its records to find their locations."""
        cdef bytearray data = bytearray(
            read_now(self.log, fd, segment.path, run.offset, run.bytes))
        cdef uint8_t *bytes_at = <uint8_t *>data
        cdef const Record *record
        cdef uint64_t at = 0
        cdef SegmentRun piece
        cdef Damages damages
        memset(&damages, 0, sizeof(Damages))
        run_verify(bytes_at, run.bytes, run.first_seq, run.count, True, run.offset, &damages)
        damages_free(&damages)
        for first, last in wanted:
            memset(&piece, 0, sizeof(SegmentRun))
            while at < run.bytes:
                record = record_at(bytes_at, at)
                if record.seq > last:
                    break
                if record.seq >= first:
                    if piece.count == 0:
                        piece.first_seq = record.seq
                        piece.offset = run.offset + at
                        piece.first_time = record.timestamp
                        piece.flags = run.flags
                    piece.last_seq = record.seq
                    piece.last_time = record.timestamp
                    piece.bytes += record.length
                    piece.count += 1
                at += record.length
            if piece.count:
                self._add_whole(&piece, segment)
        return 0
