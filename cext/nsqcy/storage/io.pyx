"""The I/O threads: every write, sync, read, rename and unlink of a process, off the hub.

Owns the open files and the only file system calls (iocalls.h). The threads are C (cext/src).
Independent of topics and logs; records are only sealed and verified. Tests inject
faults through a separate class, io_faults.
"""

# The I/O threads: C threads that perform every file operation of a process. Writes are performed in
# order; operations that may take a long time are passed to a different lane (see iothread.h) and do
# not delay later operations.
#
#   hub                                      threads
#   write, sync, unlink ...  -> submitted
#   kick()                   -> queued   ->  run through the call table
#   poll()  done(arg, error) <- finished <-  eventfd


cdef extern from "fcntl.h" nogil:
    int AT_FDCWD

cdef enum:
    OPEN_LIMIT = 512


cdef tuple LANE_NAMES = ("writes", "awaited", "background")
cdef dict VERBS = {
    IO_WRITE: "write", IO_WRITE_RECORDS: "write", IO_READ: "read", IO_READ_RECORDS: "read",
    IO_PICK: "read", IO_SYNC: "sync", IO_FSYNC: "sync", IO_TRUNCATE: "truncate",
    IO_CLOSE: "close", IO_RENAME: "rename", IO_UNLINK_FILE: "unlink", IO_MKDIR: "mkdir",
    IO_UNLINK: "unlink", IO_RMDIR: "rmdir", IO_SYNC_DIR: "sync", IO_FREE: "close",
}


cdef int lane_named(str name) except -1:
    cdef dict lanes = {"writes": LANE_WRITES, "awaited": LANE_AWAITED,
                       "background": LANE_BACKGROUND}
    return lanes[name]


cdef inline void submit_part(IoEngine *engine, IoOp *op, const uint8_t *ptr, size_t n,
                             uint64_t offset) noexcept:
    """Submit an operation on a part of a file: the n bytes at `offset`, in the memory at `ptr`."""
    op.ptr = <uint8_t *>ptr
    op.n = n
    op.offset = offset
    engine_submit(engine, op)


cdef class FileCalls:
    """The calls with which a log changes its files: see core.pxd."""

    cdef File *file(self, const char *path, int flags) except NULL:
        raise NotImplementedError

    cdef int drop(self, File *file) except -1:
        raise NotImplementedError

    cdef int write(self, IoLane lane, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                   io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int write_records(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int read(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                  io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int read_records(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                          uint64_t first_seq, uint32_t count, bint dense,
                          io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int pick(self, File *file, IoPick *picks, uint32_t count, IoPicked *into,
                  io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int on_file(self, IoLane lane, IoKind kind, File *file, size_t n,
                     io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int rename(self, IoLane lane, File *file, const char *to,
                    io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int link(self, IoLane lane, File *file, const char *to,
                  io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int on_path(self, IoLane lane, IoKind kind, const char *path,
                     io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef int mark(self, IoLane lane, io_done done, void *arg, IoResult *result) except -1:
        raise NotImplementedError

    cdef Hold begin_hold(self, bytes directory):
        raise NotImplementedError

    cdef int end_hold(self, Hold hold) except -1:
        raise NotImplementedError

    cdef Hold find_hold(self, bytes directory):
        raise NotImplementedError


cdef class IoThread(FileCalls):
    """The I/O threads and their queues. Call `poll` when `fileno` is readable, and `kick` once per
    turn."""

    def __cinit__(self, *, int open_limit=OPEN_LIMIT, first_reserved=None, bint stepped=False,
                  bint read_only=False):
        """stepped: no threads; step_now() runs operations, and so does a waiting caller.
        first_reserved: the lowest descriptor of this process's reserve, if not the usual one.
        read_only: every call that would change data on disk fails."""
        cdef int error
        memset(&self.engine, 0, sizeof(IoEngine))
        self._holds = {}
        self.read_only = read_only
        self.calls = &io_calls_read_only if read_only else &io_calls_real
        if first_reserved is None:
            first_reserved = descriptors.first_reserved()
        error = engine_start(&self.engine, self.calls, open_limit, min(first_reserved, INT_MAX),
                             stepped)
        if error:
            raise OSError(error, os.strerror(error))

    def __dealloc__(self):
        self._stop()

    cdef void _stop(self) noexcept:
        """End the threads of an object that was not closed: submitted operations still run, but
        their completions are dropped."""
        if self.engine.started:
            engine_kick(&self.engine)
            engine_stop(&self.engine)

    # ---- submitting ----

    cdef File *file(self, const char *path, int flags) except NULL:
        cdef File *file = file_new(&self.engine, AT_FDCWD, path, flags)
        if file is NULL:
            raise MemoryError
        return file

    cdef int drop(self, File *file) except -1:
        if file_drop(&self.engine, file) < 0:
            raise MemoryError
        return 0

    cdef IoOp *_new(self, IoLane lane, IoKind kind, File *file, io_done done, void *arg,
                    IoResult *result) except NULL:
        cdef IoOp *op
        if not self.engine.started:
            raise ValueError("the I/O threads are closed")
        op = op_new(&self.engine, kind)
        if op is NULL:
            raise MemoryError
        op.lane = lane
        op.file = file
        op.done = done
        op.arg = arg
        op.result = result
        return op

    cdef int write(self, IoLane lane, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                   io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(lane, IO_WRITE, file, done, arg, result)
        submit_part(&self.engine, op, ptr, n, offset)
        return 0

    cdef int write_records(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(LANE_WRITES, IO_WRITE_RECORDS, file, done, arg, result)
        submit_part(&self.engine, op, ptr, n, offset)
        return 0

    cdef int write_quietly(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1:
        """Write records, without an event when the write ends: see poll_early and listen."""
        cdef IoOp *op = self._new(LANE_WRITES, IO_WRITE_RECORDS, file, done, arg, result)
        op.quiet = 1
        submit_part(&self.engine, op, ptr, n, offset)
        return 0

    cdef int read(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                  io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(LANE_WRITES, IO_READ, file, done, arg, result)
        submit_part(&self.engine, op, ptr, n, offset)
        return 0

    cdef int read_records(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                          uint64_t first_seq, uint32_t count, bint dense,
                          io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(LANE_WRITES, IO_READ_RECORDS, file, done, arg, result)
        op.ptr = ptr
        op.n = n
        op.offset = offset
        op.first_seq = first_seq
        op.count = count
        op.dense = dense
        engine_submit(&self.engine, op)
        return 0

    cdef int pick(self, File *file, IoPick *picks, uint32_t count, IoPicked *into,
                  io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(LANE_WRITES, IO_PICK, file, done, arg, result)
        op.ptr = <uint8_t *>picks
        op.count = count
        op.picked = into
        engine_submit(&self.engine, op)
        return 0

    cdef int on_file(self, IoLane lane, IoKind kind, File *file, size_t n,
                     io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(lane, kind, file, done, arg, result)
        op.n = n
        engine_submit(&self.engine, op)
        return 0

    cdef int rename(self, IoLane lane, File *file, const char *to,
                    io_done done, void *arg, IoResult *result) except -1:
        return self._rename(lane, IO_RENAME, file, to, done, arg, result)

    cdef int link(self, IoLane lane, File *file, const char *to,
                  io_done done, void *arg, IoResult *result) except -1:
        return self._rename(lane, IO_LINK, file, to, done, arg, result)

    cdef int _rename(self, IoLane lane, IoKind kind, File *file, const char *to, io_done done,
                     void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(lane, kind, file, done, arg, result)
        op.path = strdup(to)
        if op.path is NULL:
            op_free(&self.engine, op)
            raise MemoryError
        engine_submit(&self.engine, op)
        return 0

    cdef int on_path(self, IoLane lane, IoKind kind, const char *path,
                     io_done done, void *arg, IoResult *result) except -1:
        cdef IoOp *op = self._new(lane, kind, NULL, done, arg, result)
        op.path = strdup(path)
        if op.path is NULL:
            op_free(&self.engine, op)
            raise MemoryError
        engine_submit(&self.engine, op)
        return 0

    cdef int mark(self, IoLane lane, io_done done, void *arg, IoResult *result) except -1:
        engine_submit(&self.engine, self._new(lane, IO_MARK, NULL, done, arg, result))
        return 0

    cdef Hold begin_hold(self, bytes directory):
        cdef Hold hold = Hold.__new__(Hold)
        hold.directory = directory
        self._holds[directory] = hold
        return hold

    cdef int end_hold(self, Hold hold) except -1:
        engine_release(&self.engine, &hold.operations)
        if self._holds.get(hold.directory) is hold:
            del self._holds[hold.directory]
        return 0

    cdef Hold find_hold(self, bytes directory):
        return self._holds.get(directory)

    # ---- completing ----

    cdef int kick(self) except -1:
        engine_kick(&self.engine)
        return 0

    cdef int poll(self) except -1:
        """Run the available completions. If a completion raises, the rest run at the next poll."""
        if not self.engine.started:
            return 0
        engine_collect(&self.engine)
        return self._run_ready()

    cdef int poll_early(self) except -1:
        """Run the available completions, although there was no event."""
        if not self.engine.started:
            return 0
        engine_collect_early(&self.engine)
        return self._run_ready()

    cdef int listen(self) except -1:
        """Cause an event also when a quiet write ends, until the next poll."""
        if self.engine.started:
            engine_listen(&self.engine)
        return 0

    cdef int _run_ready(self) except -1:
        cdef IoOp *op = engine_next_ready(&self.engine)
        while op is not NULL:
            self._complete(op)
            op = engine_next_ready(&self.engine)
        engine_kick(&self.engine)
        return 0

    cdef int _complete(self, IoOp *op) except -1:
        cdef File *file = op.file
        cdef io_done done = op.done
        cdef void *arg = op.arg
        cdef int error = op.error
        if op.took:
            histogram_add(&self.syncs[op.lane], FIRST_OF_SYNCS, op.took, 1)
        if op.kind == IO_FREE:
            file_delete(&self.engine, file)
            file = NULL
        op_free(&self.engine, op)
        try:
            if done is not NULL:
                done(arg, error)
        finally:
            if file is not NULL:
                self.drop(file)
        return 0

    cdef int drain(self) except -1:
        engine_kick(&self.engine)
        while self.engine.outstanding:
            if self.engine.ready.head is NULL:
                with nogil:
                    engine_wait(&self.engine)
            self.poll()
        return 0

    cdef void share_syncs(self, uint32_t count) noexcept:
        engine_share_syncs(&self.engine, count)

    # ---- Python interface ----

    def open_file_system(self, data_path):
        """Prepare for shared syncs of the file system that holds this directory; return whether
        this was possible. Call this before the first write."""
        cdef bytes path = os.fsencode(data_path) or b"."
        return engine_open_file_system(&self.engine, path) == 0

    def fileno(self):
        """The eventfd, which is readable when completions are waiting."""
        return self.engine.event

    def sync_times(self):
        """Return the durations of syncs by lane: counts by length, and the sum in seconds."""
        return {
            "awaited": histogram_facts(&self.syncs[<int>LANE_AWAITED]),
            "background": histogram_facts(&self.syncs[<int>LANE_BACKGROUND]),
        }

    def under_way(self):
        """Return the operations that the threads are running: (lane, number, verb, path). The same
        operation has the same number in its lane. Call this on the hub, or while the hub is
        waiting."""
        cdef IoOp *op
        cdef uint64_t begun = 0
        cdef const char *path
        cdef int lane
        found = []
        for lane in range(LANES):
            op = lane_running(&self.engine.lanes[lane], &begun)
            if op is not NULL and op.kind != IO_MARK:
                path = op_path(op)
                found.append((LANE_NAMES[lane], begun, VERBS[op.kind],
                              "" if path is NULL else os.fsdecode(path)))
        return found

    def kick_now(self):
        """Submit the queued operations."""
        self.kick()

    def poll_now(self):
        """Run the available completions."""
        self.poll()

    def drain_now(self):
        """Run completions until no operation is outstanding; block in between."""
        self.drain()

    def close(self):
        """Drain and join the threads. Further calls do nothing."""
        if self.engine.started:
            self.drain()
            engine_stop(&self.engine)

    @property
    def outstanding(self):
        """Number of submitted operations that have not completed."""
        return self.engine.outstanding

    @property
    def open_files(self):
        """Number of open files. The number is exact only while no operation is outstanding."""
        return self.engine.open_files

    @property
    def wakeups(self):
        """Number of kicks that had to wake the writing thread."""
        return self.engine.wakeups

    def live(self):
        """Return the number of live objects by kind; all zeros once everything is freed."""
        return {"ops": self.engine.live_ops, "files": self.engine.live_files}

    def open(self, path, *, bint create=False, bint replace=False, bint parent=False):
        """Return a FileHandle; the file is opened on first use."""
        cdef FileHandle handle = FileHandle.__new__(FileHandle)
        cdef int flags = 0
        if create:
            flags |= FILE_CREATE
        if replace:
            flags |= FILE_REPLACE
        if parent:
            flags |= FILE_PARENT
        handle.io = self
        handle.file = self.file(os.fsencode(path), flags)
        return handle

    def on_path_now(self, str what, path, done=None, str lane="writes"):
        """what: mkdir, unlink, rmdir, sync or mark."""
        cdef _Completion call = _Completion(done)
        cdef dict kinds = {"mkdir": IO_MKDIR, "unlink": IO_UNLINK, "rmdir": IO_RMDIR,
                           "sync": IO_SYNC_DIR, "mark": IO_MARK}
        self.on_path(<IoLane>lane_named(lane), kinds[what], os.fsencode(path), call_python,
                     <void *>call, &call.result)
        Py_INCREF(call)

    def step_now(self, lane=None):
        """Run the next operation that was kicked, or the next one of a lane; only if there are no
        threads. Return whether an operation could run."""
        if not self.engine.stepped:
            raise ValueError("created without stepped=True")
        if lane is None:
            return engine_step(&self.engine) != 0
        return lane_step(&self.engine.lanes[lane_named(lane)]) != 0


# A Python callable waiting for an operation, which holds one reference to the callable.
cdef class _Completion:
    cdef object done
    cdef object buffer
    cdef IoResult result

    def __cinit__(self, done, buffer=None):
        self.done = done
        self.buffer = buffer

    def __dealloc__(self):
        damages_free(&self.result.damages)


cdef int call_python(void *arg, int error) except -1:
    cdef _Completion call = <_Completion>arg
    Py_DECREF(call)
    if call.done is not None:
        call.done(error)
    return 0


# A file controlled from Python, with which tests and tools drive the threads.
@cython.no_gc_clear      # __dealloc__ needs the thread
cdef class FileHandle:
    """A file on the I/O threads. poll calls `done(error)` with 0 or an errno."""

    cdef IoThread io
    cdef File *file

    def __init__(self):
        raise TypeError("use IoThread.open")

    def __dealloc__(self):
        if self.file is not NULL:
            file_drop(&self.io.engine, self.file)

    def write(self, bytes data, uint64_t offset, done=None, str lane="writes"):
        """Write all of `data`."""
        cdef _Completion call = _Completion(done, data)
        self.io.write(<IoLane>lane_named(lane), self.file, data, len(data), offset, call_python,
                      <void *>call, &call.result)
        Py_INCREF(call)

    def write_records(self, data, uint64_t offset, done=None):
        """Fill in the checksums of a run of records, in a writable buffer, and write the run."""
        cdef _Completion call = _Completion(done, PyMemoryView_FromObject(data))
        cdef Py_buffer *view = PyMemoryView_GET_BUFFER(call.buffer)
        if view.readonly:
            raise TypeError("the buffer is not writable")
        self.io.write_records(self.file, <uint8_t *>view.buf, view.len, offset, call_python,
                              <void *>call, &call.result)
        Py_INCREF(call)

    def read(self, bytearray into, uint64_t offset, done=None):
        """Fill `into`; the error is ENODATA if the file is shorter."""
        cdef _Completion call = _Completion(done, memoryview(into))
        self.io.read(self.file, <uint8_t *>into, len(into), offset, call_python, <void *>call,
                     &call.result)
        Py_INCREF(call)

    def do(self, str what, size_t n=0, done=None, str lane="writes"):
        """what: sync, fsync, close, unlink, or truncate to n bytes."""
        cdef _Completion call = _Completion(done)
        cdef dict kinds = {"sync": IO_SYNC, "fsync": IO_FSYNC, "close": IO_CLOSE,
                           "unlink": IO_UNLINK_FILE, "truncate": IO_TRUNCATE}
        self.io.on_file(<IoLane>lane_named(lane), kinds[what], self.file, n, call_python,
                        <void *>call, &call.result)
        Py_INCREF(call)

    def rename(self, to, done=None, str lane="writes"):
        """Rename, unless the file has failed."""
        cdef _Completion call = _Completion(done)
        self.io.rename(<IoLane>lane_named(lane), self.file, os.fsencode(to), call_python,
                       <void *>call, &call.result)
        Py_INCREF(call)
