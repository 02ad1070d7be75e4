# The I/O threads: C threads that perform every file operation of a process. Writes are performed in
# order; operations that may take a long time are passed to a different lane (see iothread.h) and do
# not delay later ones.
#
#   hub                                      threads
#   write, sync, unlink ...  -> submitted
#   kick()                   -> queued   ->  run through the call table
#   poll()  done(arg, error) <- finished <-  eventfd

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.base.core cimport Histogram


cdef extern from "iocalls.h" nogil:
    const char *io_call_verbs[15]

    struct stat_t "stat":
        pass

    struct IoCalls:
        int (*open)(IoCalls *self, int at, const char *path, int flags, int mode)
        int (*close)(IoCalls *self, int fd)
        ssize_t (*pread)(IoCalls *self, int fd, void *ptr, size_t n, int64_t offset)
        int (*fstat)(IoCalls *self, int fd, void *into)
        int (*forget)(IoCalls *self, int fd, int64_t offset, int64_t n)

    IoCalls io_calls_real
    IoCalls io_calls_read_only


cdef extern from "segment.h" nogil:
    struct Damage:
        uint64_t offset
        uint64_t bytes
        uint32_t kind

    struct Damages:
        Damage *at
        uint32_t kept
        uint32_t found

    struct RunFacts:
        uint64_t max_id
        int64_t first_time
        int64_t last_time
        uint32_t count
        uint32_t flags

    void damages_free(Damages *d)
    int damages_equal(const Damages *a, const Damages *b)


# A completion callback: called on the hub, with 0 or the errno.
ctypedef int (*io_done)(void *arg, int error) except -1


cdef extern from "iothread.h" nogil:
    enum:
        FILE_CREATE
        FILE_REPLACE
        FILE_PARENT

    enum IoKind:
        IO_WRITE
        IO_WRITE_RECORDS
        IO_READ
        IO_READ_RECORDS
        IO_PICK
        IO_SYNC
        IO_FSYNC
        IO_TRUNCATE
        IO_CLOSE
        IO_RENAME
        IO_LINK
        IO_UNLINK_FILE
        IO_MKDIR
        IO_UNLINK
        IO_RMDIR
        IO_SYNC_DIR
        IO_FREE
        IO_WAIT

    enum IoLane:
        LANE_WRITES
        LANE_AWAITED
        LANE_BACKGROUND
        LANES

    struct File:
        int refs
        int failed

    struct IoResult:
        RunFacts facts
        Damages damages
        int call

    struct IoPick:
        void *block
        void *segment
        uint64_t seq
        uint64_t offset
        uint32_t maximum
        uint32_t guess
        uint32_t at

    const uint32_t NOT_PICKED
    const uint32_t NOT_SOUND

    struct IoPicked:
        uint8_t *memory
        uint32_t size
        uint32_t used

    struct IoList:
        IoOp *head

    struct IoOp:
        io_done done
        void *arg
        File *file
        char *path
        IoResult *result
        uint8_t *ptr
        IoPicked *picked
        uint64_t n
        uint64_t offset
        uint64_t first_seq
        uint32_t count
        int dense
        int kind
        int lane
        int error
        int64_t took

    struct Lane:
        pass

    IoOp *lane_running(Lane *lane, uint64_t *begun)
    const char *op_path(const IoOp *op)

    struct IoEngine:
        Lane lanes[3]
        IoCalls *calls
        IoList ready
        IoList submitted
        int event
        int started
        int stepped
        int open_files
        uint64_t wakeups
        uint64_t outstanding
        int64_t live_ops
        int64_t live_files

    int engine_start(IoEngine *engine, IoCalls *calls, int open_limit, int first_reserved,
                     int stepped)
    IoOp *op_new(IoEngine *engine, int kind)
    void op_free(IoEngine *engine, IoOp *op)
    void engine_submit(IoEngine *engine, IoOp *op)
    void engine_kick(IoEngine *engine)
    void engine_collect(IoEngine *engine)
    void engine_wait(IoEngine *engine)
    int lane_step(Lane *lane)
    int engine_step(IoEngine *engine)
    IoOp *engine_next_ready(IoEngine *engine)
    void engine_stop(IoEngine *engine)
    File *file_new(IoEngine *engine, int at, const char *path, int flags)
    void file_delete(IoEngine *engine, File *file)
    int file_drop(IoEngine *engine, File *file)


# The calls with which a log changes its files. Only the hub's thread makes them; none of them
# blocks.
# ptr (and result) must stay valid until done; done and result may be NULL.
cdef class FileCalls:
    cdef IoCalls *calls            # for the few calls made on the hub before serving
    # Called as repairer(path, offset, length, error, answer) before a range of a file is given up:
    # error is 0 if its checksum failed twice, or the errno that it could not be read with. It must
    # call answer() once: True: read the range again; False: it cannot be repaired; None: not now,
    # let the reader try again later. No repairer: None.
    cdef public object repairer

    cdef File *file(self, const char *path, int flags) except NULL
    cdef int drop(self, File *file) except -1
    cdef int write(self, IoLane lane, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                   io_done done, void *arg, IoResult *result) except -1
    cdef int write_records(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1
    cdef int read(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                  io_done done, void *arg, IoResult *result) except -1
    cdef int read_records(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                          uint64_t first_seq, uint32_t count, bint dense,
                          io_done done, void *arg, IoResult *result) except -1
    # Records in one file, read one by one.
    cdef int pick(self, File *file, IoPick *picks, uint32_t count, IoPicked *into,
                  io_done done, void *arg, IoResult *result) except -1
    # kind: IO_SYNC IO_FSYNC IO_CLOSE IO_UNLINK_FILE; IO_TRUNCATE to n bytes
    cdef int on_file(self, IoLane lane, IoKind kind, File *file, size_t n,
                     io_done done, void *arg, IoResult *result) except -1
    cdef int rename(self, IoLane lane, File *file, const char *to,
                    io_done done, void *arg, IoResult *result) except -1
    # Give the file a second name, in a directory that need not exist. An existing name stays.
    cdef int link(self, IoLane lane, File *file, const char *to,
                  io_done done, void *arg, IoResult *result) except -1
    # kind: IO_MKDIR IO_UNLINK IO_RMDIR IO_SYNC_DIR
    cdef int on_path(self, IoLane lane, IoKind kind, const char *path,
                     io_done done, void *arg, IoResult *result) except -1
    # Later operations begin only after all those submitted to that lane so far have finished.
    cdef int wait_for(self, IoLane lane) except -1


# The threads that run the operations. Only drain() and close() block.
cdef class IoThread(FileCalls):
    cdef readonly bint read_only
    cdef IoEngine engine
    cdef Histogram syncs[<int>LANES]     # durations of syncs, by lane

    cdef int kick(self) except -1
    cdef int poll(self) except -1
    cdef int drain(self) except -1

    cdef IoOp *_new(self, IoLane lane, IoKind kind, File *file, io_done done, void *arg,
                    IoResult *result) except NULL
    cdef int _rename(self, IoLane lane, IoKind kind, File *file, const char *to, io_done done,
                     void *arg, IoResult *result) except -1
    cdef int _complete(self, IoOp *op) except -1
    cdef void _stop(self) noexcept


# A file controlled from Python: tests and tools use it to drive the threads.
cdef class FileHandle:
    cdef IoThread io
    cdef File *file
