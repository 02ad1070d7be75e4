# Tasks: the purpose of a log's operations, from their submission to their end.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport File, FileCalls, IoLane, IoResult
from nsqcy.storage.segment cimport Segment


ctypedef int (*log_done)(void *arg, int error) except -1


cdef enum TaskKind:
    TASK_RUN
    TASK_SEGMENT         # header or footer
    TASK_SYNC
    TASK_CUT
    TASK_UNLINK
    TASK_READ
    TASK_PICK            # a reader that does not get its record loads the run, and gets the error
    TASK_ASIDE           # a second name for a damaged segment
    TASK_JOURNAL
    TASK_DELTA
    TASK_DIRECTORY
    TASK_WHOLE           # several operations with one result


cdef struct Task:
    Task *next
    void *log
    Segment *segment
    File *file           # of a journal write: number of the journal
    Task *whole
    TaskKind kind
    int error
    int refused          # of a written run: why it does not count as written
    uint32_t parts
    uint32_t count
    uint32_t flags
    uint64_t offset
    uint64_t bytes
    uint64_t first_seq
    uint64_t last_seq
    bint follows         # its operation must follow others of the log in their lane
    bint tells           # of a delta that follows: runs are waiting for it
    bint durable         # of a run: done when a sync covers it
    bint goes_on         # of a run: done, or rejected, together with the next run
    bint asked           # of a read: the repairer has answered
    bint failed          # of a read: it has been counted as failed
    uint64_t commit      # of a durable run: the number of the commit that covers it
    uint64_t journal_writes        # of a run: number of journal writes that must be done before it
    uint8_t *into        # of a read
    uint8_t *owned       # freed with the task
    log_done done
    void *arg
    IoResult result


cdef int task_finished(void *arg, int error) except -1
cdef int64_t tasks_alive() noexcept


cdef class LogTasks:
    cdef readonly FileCalls io
    cdef readonly str topic
    cdef readonly str directory
    cdef readonly str last_error_text
    # Called as on_failure(topic, verb, path, errno) for each failed write. If it returns true,
    # on_recovery(topic) is called once writes succeed again.
    cdef public object on_failure
    cdef public object on_recovery
    cdef bint _recovery_due
    cdef bytes _data_path
    cdef bytes _directory
    cdef uint64_t _tasks
    cdef uint64_t _following          # number of consecutive tasks, and their lane
    cdef IoLane _lane
    cdef bint _awaited                # the latest run is durable: publishers are waiting for syncs
    cdef bint _error_is_sync

    cdef Task *_task(self, TaskKind kind, Segment *segment, Task *whole) except NULL
    cdef Task *_follower(self, TaskKind kind, Segment *segment, Task *whole) except NULL
    cdef int _task_end(self, Task *task) except -1
    cdef int _note_error(self, str path, int call, int error) except -1
    cdef int _write_failed(self, str path, int call, int error) except -1
    cdef int _write_succeeded(self) except -1
    # Ends of tasks: see Log.
    cdef int _ended(self, Task *task, int error) except -1
    cdef int _finish(self, Task *task, int error) except -1
    cdef int _part_end(self, Task *whole, int error) except -1
