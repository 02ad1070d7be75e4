"""File operations of a group of logs that are also performed on other machines.

Passes each operation to the I/O threads, and each change to a file also to a mirror, in the same
order. A change is done once it has been made here and the mirror has reported the change's position
as committed. The logs need no special handling: a record is neither visible nor acknowledged until
its write is done.
"""

# The completion of an operation, until it may be reported.
cdef struct Relay:
    void *mirrored
    io_done done
    void *arg
    int error
    uint64_t position
    bint may_fail
    bint is_quiet
    PyObject *run            # the RunBytes of a run, or NULL
    Relay *next


@cython.final
cdef class RunBytes:
    """The bytes of a run that is being written: a read-only buffer.

    They are the run's own memory until the write is reported as done, and a copy of it afterwards,
    if anything still uses them. Do not keep a view of them. Their checksums may change at any time.
    """

    cdef const uint8_t *bytes
    cdef uint8_t *copied
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.copied)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.bytes, self.size, 1, flags)

    cdef int detach(self) except -1:
        """Stop using the run's memory."""
        if self.copied is NULL:
            self.copied = <uint8_t *>malloc(self.size)
            if self.copied is NULL:
                raise MemoryError
            memcpy(self.copied, self.bytes, self.size)
            self.bytes = self.copied
        return 0


cdef int release_run(Relay *relay) except -1:
    """Let a run's memory be reused."""
    cdef PyObject *run = relay.run
    if run is not NULL:
        if run.ob_refcnt > 1:
            (<RunBytes>run).detach()
        relay.run = NULL
        Py_DECREF(<object>run)
    return 0


cdef int relay_made(void *arg, int error) except -1:
    cdef Relay *relay = <Relay *>arg
    cdef MirroredIo mirrored = <MirroredIo>relay.mirrored
    Py_DECREF(mirrored)
    return mirrored._made(relay, error)


@cython.no_gc_clear      # files are dropped when logs are freed
cdef class MirroredIo(FileCalls):
    """File operations below a directory.

    The mirror has the methods write(path, offset, data, are_records), truncate(path, size),
    rename(path, to) and delete(path). Each returns the position that is committed together with the
    change. shrinks(path, size) is called before a change that may leave a file with a smaller size,
    or None: absent. Paths are relative to the directory. If data consists of records, their
    checksums have not been filled in yet. failed(error) is called with the errno of the first
    change that could not be made here. After that, no operation is reported as done: other machines
    may have data that is missing here.
    """

    cdef readonly IoThread io
    cdef object _mirror
    cdef bytes _root
    cdef dict _paths               # path below the root, by the File's address
    cdef readonly uint64_t position
    cdef uint64_t _committed
    cdef readonly bint waits
    cdef readonly bint stopped
    cdef readonly int error
    cdef readonly uint64_t pending
    cdef Relay *_first             # performed here, but not yet reported
    cdef Relay *_last
    cdef bint _is_reporting
    cdef bint _is_changing         # whether the mirror is being called
    cdef uint64_t _quiet           # position of the last quiet write ...
    cdef uint64_t _quiet_made      # ... and of the last one that was performed

    def __cinit__(self, IoThread io not None, root, mirror):
        self.io = io
        self.calls = io.calls
        self.mirrors = True
        self._root = os.fsencode(root) + b"/"
        self._mirror = mirror
        self._paths = {}
        self.waits = True

    def __dealloc__(self):
        cdef Relay *relay = self._first
        cdef Relay *following
        while relay is not NULL:
            following = relay.next
            release_run(relay)
            free(relay)
            relay = following

    # -- for the group

    def committed(self, uint64_t position):
        """Report the changes made here, up to a position."""
        if position > self._committed:
            self._committed = position
            if not self._is_changing:
                self.io.poll_early()
            self._report()
            self._listen()

    def wait(self, bint waits):
        """Choose whether changes are done only once they are committed, or as soon as they have
        been made here. When a process exits, changes need not be committed, because it acknowledges
        no more messages."""
        self.waits = waits
        self._report()
        self._listen()

    def stop(self):
        """Make no more changes, because another process has taken over the files. Later changes
        fail here and are reported immediately, so that the logs can be closed."""
        self.stopped = True
        self.waits = False
        self._report()
        self._listen()

    cdef int _listen(self) except -1:
        """Request an event for the end of quiet writes here, if nothing else delays reporting them:
        usually, the mirror commits later."""
        if self._quiet_made < self._quiet and (
                not self.waits or self._quiet_made < self._committed):
            self.io.listen()
        return 0

    # -- read-only operations

    cdef int drop(self, File *file) except -1:
        return self.io.drop(file)

    cdef int read(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                  io_done done, void *arg, IoResult *result) except -1:
        return self.io.read(file, ptr, n, offset, done, arg, result)

    cdef int read_records(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                          uint64_t first_seq, uint32_t count, bint dense,
                          io_done done, void *arg, IoResult *result) except -1:
        return self.io.read_records(file, ptr, n, offset, first_seq, count, dense, done, arg,
                                    result)

    cdef int pick(self, File *file, IoPick *picks, uint32_t count, IoPicked *into,
                  io_done done, void *arg, IoResult *result) except -1:
        return self.io.pick(file, picks, count, into, done, arg, result)

    cdef int link(self, IoLane lane, File *file, const char *to,
                  io_done done, void *arg, IoResult *result) except -1:
        # Do not mirror the second name: it is for data that is damaged only here.
        return self.io.link(lane, file, to, done, arg, result)

    cdef int mark(self, IoLane lane, io_done done, void *arg, IoResult *result) except -1:
        return self.io.mark(lane, done, arg, result)

    cdef Hold begin_hold(self, bytes directory):
        return self.io.begin_hold(directory)

    cdef int end_hold(self, Hold hold) except -1:
        return self.io.end_hold(hold)

    cdef Hold find_hold(self, bytes directory):
        return self.io.find_hold(directory)

    # -- changes

    cdef File *file(self, const char *path, int flags) except NULL:
        cdef str below = self._below(path)
        cdef File *file = self.io.file(path, flags)
        self._paths[<uintptr_t>file] = below
        if flags & FILE_REPLACE and not self.stopped:
            self._mirror.shrinks(below, 0)
            self._pass_on("truncate", (below, 0))
        return file

    cdef int write(self, IoLane lane, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                   io_done done, void *arg, IoResult *result) except -1:
        cdef bytes data = PyBytes_FromStringAndSize(<const char *>ptr, n)
        cdef Relay *relay = self._relay(done, arg)
        if self.stopped:
            return self._refuse(relay)
        self.io.write(lane, file, ptr, n, offset, relay_made, relay, result)
        self._pass_on("write", (self._paths[<uintptr_t>file], offset, data, False))
        relay.position = self.position
        return 0

    cdef int write_records(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1:
        cdef RunBytes run = RunBytes.__new__(RunBytes)
        cdef Relay *relay = self._relay(done, arg)
        if self.stopped:
            return self._refuse(relay)
        run.bytes = ptr
        run.size = n
        Py_INCREF(run)
        relay.run = <PyObject *>run
        if self.waits:
            relay.is_quiet = True
            self.io.write_quietly(file, ptr, n, offset, relay_made, relay, result)
        else:
            self.io.write_records(file, ptr, n, offset, relay_made, relay, result)
        self._pass_on("write", (self._paths[<uintptr_t>file], offset, run, True))
        relay.position = self.position
        if relay.is_quiet:
            self._quiet = self.position
            self._listen()
        return 0

    cdef int on_file(self, IoLane lane, IoKind kind, File *file, size_t n,
                     io_done done, void *arg, IoResult *result) except -1:
        cdef Relay *relay
        if kind == IO_CLOSE:
            return self.io.on_file(lane, kind, file, n, done, arg, result)
        relay = self._relay(done, arg)
        if self.stopped:
            return self._refuse(relay)
        relay.may_fail = kind == IO_UNLINK_FILE
        if kind == IO_TRUNCATE:
            self._mirror.shrinks(self._paths[<uintptr_t>file], n)
        elif kind == IO_UNLINK_FILE:
            self._mirror.shrinks(self._paths[<uintptr_t>file], None)
        self.io.on_file(lane, kind, file, n, relay_made, relay, result)
        if kind == IO_TRUNCATE:
            self._pass_on("truncate", (self._paths[<uintptr_t>file], n))
        elif kind == IO_UNLINK_FILE:
            self._pass_on("delete", (self._paths[<uintptr_t>file],))
        relay.position = self.position
        return 0

    cdef int rename(self, IoLane lane, File *file, const char *to,
                    io_done done, void *arg, IoResult *result) except -1:
        cdef str target = self._below(to)
        cdef Relay *relay = self._relay(done, arg)
        if self.stopped:
            return self._refuse(relay)
        self._mirror.shrinks(target, 0)
        self.io.rename(lane, file, to, relay_made, relay, result)
        self._pass_on("rename", (self._paths[<uintptr_t>file], target))
        self._paths[<uintptr_t>file] = target
        relay.position = self.position
        return 0

    cdef int on_path(self, IoLane lane, IoKind kind, const char *path,
                     io_done done, void *arg, IoResult *result) except -1:
        cdef Relay *relay = self._relay(done, arg)
        if self.stopped:
            return self._refuse(relay)
        relay.may_fail = True       # the path may not exist
        if kind == IO_UNLINK:
            self._mirror.shrinks(self._below(path), None)
        self.io.on_path(lane, kind, path, relay_made, relay, result)
        if kind == IO_UNLINK or kind == IO_RMDIR:
            self._pass_on("delete", (self._below(path),))
        relay.position = self.position
        return 0

    cdef int _pass_on(self, str method, tuple arguments) except -1:
        """Pass a change to the mirror, which may report it as committed at once. No completion may
        run then, because the caller is in the middle of a change."""
        self._is_changing = True
        try:
            self.position = getattr(self._mirror, method)(*arguments)
        finally:
            self._is_changing = False
        return 0

    cdef str _below(self, const char *path):
        cdef bytes whole = path
        if not whole.startswith(self._root):
            raise ValueError(f"{os.fsdecode(whole)} is not below {os.fsdecode(self._root)}")
        return os.fsdecode(whole[len(self._root):])

    # -- completions, in the order in which operations end here

    cdef int _refuse(self, Relay *relay) except -1:
        """Make an operation fail later, as if the I/O threads had attempted it."""
        relay.error = ESTALE
        relay.may_fail = True
        return self.io.on_path(LANE_WRITES, IO_SYNC_DIR, self._root, relay_made, relay, NULL)

    cdef Relay *_relay(self, io_done done, void *arg) except NULL:
        cdef Relay *relay = <Relay *>malloc(sizeof(Relay))
        if relay is NULL:
            raise MemoryError
        relay.mirrored = <void *>self
        relay.done = done
        relay.arg = arg
        relay.error = 0
        relay.position = 0
        relay.may_fail = False
        relay.is_quiet = False
        relay.run = NULL
        relay.next = NULL
        Py_INCREF(self)
        self.pending += 1
        return relay

    cdef int _made(self, Relay *relay, int error) except -1:
        relay.error = relay.error or error
        if self._last is NULL:
            self._first = relay
        else:
            self._last.next = relay
        self._last = relay
        if relay.is_quiet:
            self._quiet_made = relay.position
        if error and not relay.may_fail and not self.error and self.waits:
            self.error = error
            self._mirror.failed(error)
        self._report()
        return self._listen()

    cdef int _report(self) except -1:
        """Report the completed operations. If a callback raises, the rest are reported later."""
        cdef Relay *relay
        cdef io_done done
        cdef void *arg
        cdef int error
        if self._is_reporting:
            return 0
        self._is_reporting = True
        try:
            while self._first is not NULL:
                relay = self._first
                if self.waits and (self.error or relay.position > self._committed):
                    break
                release_run(relay)
                self._first = relay.next
                if self._first is NULL:
                    self._last = NULL
                done, arg, error = relay.done, relay.arg, relay.error
                free(relay)
                self.pending -= 1
                if done is not NULL:
                    done(arg, error)
        finally:
            self._is_reporting = False
        return 0
