"""A log driven from Python, and the pure functions over its bytes, for tests and tools.

A worker calls log.pyx from C; this module does the same with callables and bytearrays.
"""


def verify_run(bytearray run, uint64_t first_seq, uint32_t count, bint dense=True):
    """Check bytes from disk in place; return the damages as [(offset, bytes, kind)]."""
    cdef Damages damages
    if len(run) & 7 or 0 < len(run) < 48:
        raise ValueError("a run is a multiple of 8 bytes and has a record")
    memset(&damages, 0, sizeof(Damages))
    run_verify(<uint8_t *>run, len(run), first_seq, count, dense, 0, &damages)
    found = [(damages.at[i].offset, damages.at[i].bytes, damages.at[i].kind)
             for i in range(damages.kept)]
    damages_free(&damages)
    return found


class Survey(NamedTuple):
    """Return the contents of a run: the number of valid records, their common properties, and the
    damaged records as (offset, bytes, seq)."""

    records: int
    first_time: int
    last_time: int
    max_id: int
    flags: int
    damaged: list


def survey_run(run not None):
    """Return the Survey of a run that was read and verified; the Survey can be walked."""
    cdef Py_buffer view
    PyObject_GetBuffer(run, &view, PyBUF_SIMPLE)
    try:
        return _survey(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object _survey(const uint8_t *run, uint64_t n):
    cdef uint64_t at = 0
    cdef uint64_t records = 0
    cdef uint64_t max_id = 0
    cdef int64_t first_time = 0
    cdef int64_t last_time = 0
    cdef int flags = 0
    cdef const Record *record
    damaged = []
    while at < n:
        record = record_at(run, at)
        if n - at < MIN_RECORD or not MIN_RECORD <= record.length <= n - at:
            raise ValueError("a run that was not verified")
        if record.attributes & RECORD_DAMAGED:
            damaged.append((at, record.length, record.seq))
        else:
            if records == 0:
                first_time = record.timestamp
            last_time = record.timestamp
            max_id = max(max_id, record.id)
            flags |= run_flags_of(record)
            if record.attributes & RECORD_COPY:
                flags |= RUN_SURVIVORS
            records += 1
        at += record.length
    return Survey(records, first_time, last_time, max_id, flags, damaged)


def scan_segment(bytes data):
    """Scan a segment without a footer, as recovery does; return (runs, damages) as tuples."""
    cdef Scan scan
    cdef Damages damages
    memset(&damages, 0, sizeof(Damages))
    segment_scan(<const uint8_t *>PyBytes_AS_STRING(data), len(data), &scan, &damages)
    runs = [(scan.runs[i].first_seq, scan.runs[i].last_seq, scan.runs[i].count,
             scan.runs[i].flags, scan.runs[i].offset, scan.runs[i].bytes)
            for i in range(scan.count)]
    found = [(damages.at[i].offset, damages.at[i].bytes, damages.at[i].kind)
             for i in range(damages.kept)]
    free(scan.runs)
    damages_free(&damages)
    return runs, found


@cython.no_gc_clear
cdef class RunHandle:
    """The location of a run."""

    cdef readonly Log log
    cdef Extent extent

    def __cinit__(self, Log log not None):
        self.log = log

    def __dealloc__(self):
        if self.log is not None:
            self.log.forget(&self.extent)

    @property
    def pieces(self):
        """Return [(segment number, offset, bytes, first_seq, last_seq, count)]."""
        cdef Extent *piece = &self.extent
        found = []
        while piece is not NULL and piece.bytes:
            found.append((piece.segment.number, piece.offset, piece.bytes, piece.first_seq,
                          piece.last_seq, piece.count))
            piece = piece.next
        return found

    @property
    def bytes(self):
        """Return the total size of all pieces in bytes."""
        return sum(piece[2] for piece in self.pieces)


# A Python callable waiting for a log_done, with the objects that must stay alive until then.
cdef class _Waiting:
    cdef object done
    cdef object kept
    cdef bint wants_data


cdef void *waiting(done, kept, bint wants_data) except NULL:
    cdef _Waiting call = _Waiting.__new__(_Waiting)
    call.done = done
    call.kept = kept
    call.wants_data = wants_data
    Py_INCREF(call)
    return <void *>call


cdef int waiting_done(void *arg, int error) except -1:
    cdef _Waiting call = <_Waiting>arg
    Py_DECREF(call)
    if call.done is None:
        return 0
    if call.wants_data:
        call.done(error, call.kept)
    else:
        call.done(error)
    return 0


cdef class LogProbe:
    """Driver of a Log from Python: `done(error)` receives 0 or an errno, from
    IoThread.poll_now()."""

    cdef readonly Log log

    def __cinit__(self, Log log not None):
        self.log = log

    def append(self, bytearray run, uint64_t first_seq, uint64_t last_seq, uint32_t count,
               int flags=0, RunHandle into=None, done=None, bint durable=False,
               bint goes_on=False):
        """Append a run; return its location as a RunHandle."""
        cdef RunHandle handle = RunHandle.__new__(RunHandle, self.log) if into is None else into
        cdef void *arg = waiting(done, run, False)
        try:
            self.log.append(<const uint8_t *>run, len(run), first_seq, last_seq, count, flags,
                            durable, goes_on, &handle.extent, waiting_done, arg)
        except BaseException:
            Py_DECREF(<_Waiting>arg)
            raise
        return handle

    def retract(self, RunHandle handle, size_t n, uint64_t first_seq, uint32_t count):
        """Remove a failed run."""
        self.log.retract(&handle.extent, n, first_seq, count)

    def read(self, RunHandle handle, done):
        """Read a run; done(error, bytearray) is called."""
        cdef bytearray into = bytearray(handle.bytes)
        self.log.read(&handle.extent, <uint8_t *>into, waiting_done, waiting(done, into, True))

    def release(self, RunHandle handle):
        """Release it."""
        self.log.release(&handle.extent)

    def sync(self, done=None):
        """Sync all appended data."""
        self.log.sync(waiting_done, waiting(done, None, False))

    def commit(self):
        """Sync the durable runs."""
        self.log.commit()

    def tick(self, int64_t now):
        """Return the time when the next sync is due."""
        return self.log.tick(now)

    def write_snapshot(self, bytes snapshot, done=None, bint leads=False):
        """Replace the journal."""
        self.log.write_snapshot(snapshot, leads, waiting_done, waiting(done, None, False))

    def append_delta(self, bytes delta):
        """Append a delta; return False if the journal has failed."""
        return self.log.append_delta(delta, NULL, NULL) == 1

    def close(self, done=None):
        """Footer, sync."""
        self.log.close(waiting_done, waiting(done, None, False))

    def delete(self, done=None):
        """Remove the log's files."""
        self.log.delete(True, waiting_done, waiting(done, None, False))

    @property
    def segments(self):
        """Return [(number, live bytes)] in order of creation."""
        cdef Segment *segment = self.log._first
        found = []
        while segment is not NULL:
            found.append((segment.number, segment.live))
            segment = segment.next
        return found


def recovered_runs(Recovered found not None):
    """Return [(first_seq, last_seq, count, flags, first_time, last_time, RunHandle)], ordered by
    location."""
    cdef RunHandle handle
    cdef RecoveredRun *run
    cdef size_t i
    runs = []
    for i in range(found.run_count):
        run = &found.run_array[i]
        handle = RunHandle.__new__(RunHandle, found.log)
        handle.extent = run.extent
        runs.append((run.first_seq, run.last_seq, run.count, run.flags, run.first_time,
                     run.last_time, handle))
    runs.sort(key=lambda one: one[6].pieces[0][:2])
    return runs
