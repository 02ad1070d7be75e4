# The segments of a log: their files, their contents, and their syncs.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport IoLane
from nsqcy.storage.log_tasks cimport LogTasks, Task, log_done
from nsqcy.storage.segment cimport Extent, Segment


cdef int64_t segments_alive() noexcept
cdef int64_t pieces_alive() noexcept


cdef class SegmentFiles(LogTasks):
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
