# The segments of a log: their files, their contents, and their syncs; and the log's tasks: the
# purpose of its operations, from their submission to their end.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport File, FileCalls, IoLane, IoResult
from nsqcy.storage.segment cimport Extent, Segment


ctypedef int (*log_done)(void *arg, int error) except -1

cdef struct Task

# Handles the end of a task's operation; returns the error to report.
ctypedef int (*task_end)(Task *task, int error) except -1


cdef struct Task:
    Task *next
    void *log
    Segment *segment
    File *file           # of a journal write: the journal
    Task *whole          # of several operations with one result: the task that reports it
    task_end ended       # may be NULL in such a `whole`
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
cdef int unlink_ended(Task *task, int error) except -1
cdef int directory_ended(Task *task, int error) except -1

cdef int64_t tasks_alive() noexcept
cdef int64_t segments_alive() noexcept
cdef int64_t pieces_alive() noexcept


cdef class SegmentFiles:
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
    cdef bint _ending                 # _end_done(_end_arg, _end_error) follows the last task
    cdef int _end_error
    cdef log_done _end_done
    cdef void *_end_arg
    cdef public bytes log_id
    cdef readonly uint64_t disk_bytes
    cdef Segment *_first
    cdef Segment *_last
    cdef Segment *_current
    cdef uint64_t last_number         # largest segment number, here or in a journal
    cdef bint _frozen                 # close() was called: files are kept even if runs are released
    cdef uint64_t _unsynced           # records written since the last sync
    cdef int _sync_error              # error of a failed sync, until a sync() has reported it
    cdef uint64_t _sync_error_number  # and its segment
    cdef bint _directory_there
    cdef bint _directory_known        # its name is durable: its parent needs no sync
    cdef bint _directory_dirty
    cdef uint32_t _journal_pending    # journal writes in progress that may stop naming a segment

    cdef Task *_task(self, task_end ended, Segment *segment, Task *whole) except NULL
    cdef Task *_follower(self, task_end ended, Segment *segment, Task *whole) except NULL
    cdef int _task_end(self, Task *task) except -1
    cdef int _finish(self, Task *task, int error) except -1
    cdef int _part_end(self, Task *whole, int error) except -1
    cdef int _end_check(self) except -1
    cdef int _note_error(self, str path, int call, int error) except -1
    cdef int _write_failed(self, str path, int call, int error) except -1
    cdef int _write_succeeded(self) except -1
    cdef int _change_failed(self, Task *task, int error) except -1
    cdef Segment *_segment_new(self, uint64_t number, int flags) except NULL
    cdef int _segment_free(self, Segment *segment) except -1
    cdef int _segment_open(self, uint64_t first_seq) except -1
    cdef int _segment_retire(self, Segment *segment) except -1
    cdef int _segment_fail(self, Segment *segment) except -1
    cdef int _settle(self, Segment *segment) except -1
    cdef int _cut(self, Segment *segment) except -1
    cdef int _write_footer(self, Segment *segment) except -1
    cdef int _doom(self, Segment *segment) except -1
    cdef int _unlink_doomed(self) except -1
    cdef int _unlink(self, Segment *segment, Task *task, IoLane lane) except -1
    cdef int _place(self, Segment *segment, Task *task, Extent *into) except -1
    cdef int _index(self, Task *task) except -1
    # Remove a failed run of n bytes that begins with first_seq from an extent.
    cdef int retract(self, Extent *into, size_t n, uint64_t first_seq, uint32_t count) except -1
    # Release runs that are no longer needed.
    cdef int release(self, Extent *extent) except -1
    # Free an extent's further pieces and zero it; the runs are not released.
    cdef int forget(self, Extent *extent) except -1
    cdef int _sync_files(self, Task *whole) except -1
    # Sync the recovered files, because a killed process need not have synced them.
    cdef int sync_found(self, log_done done, void *arg) except -1
    cdef int _sync_file(self, Segment *segment, Task *whole) except -1
    cdef int _sync_done(self, Task *task, int error) except -1
    cdef int _sync_directory(self, Task *whole) except -1
    cdef void _names_synced(self, uint32_t which) noexcept
