# One topic's log: segments of runs, and a journal.
#
#   <data-path>/<topic>.topic/
#       00000000000000000001.seg    header, records ..., footer
#       00000000000000004711.seg    header, records ...          (being written, or crashed)
#       journal                     header, snapshot, delta, delta ...
#
#   LogTasks <- SegmentFiles <- JournalFile <- LogWriter <- Log
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport Damages, IoKind, IoPick, IoPicked
from nsqcy.storage.log_tasks cimport Task, log_done
from nsqcy.storage.log_writer cimport LogWriter
from nsqcy.storage.segment cimport Extent


cdef class Log(LogWriter):
    cdef public object on_damage
    cdef log_done _end_done
    cdef void *_end_arg
    cdef int _end_error
    cdef bint _ending

    # Read the entire chain; see docs/DISKFORMAT.md for the form of damaged records.
    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1
    # Read records one by one, in the given order: records in the same segment should be adjacent.
    # Failures and damage are not reported.
    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1
    cdef int close(self, log_done done, void *arg) except -1
    cdef int delete(self, log_done done, void *arg) except -1
    cdef int _read_done(self, Task *task, int error) except -1
    cdef int _report(self, str path, const Damages *damages) except -1
    cdef int _path_task(self, IoKind kind, bytes path) except -1
    cdef int _end_check(self) except -1
