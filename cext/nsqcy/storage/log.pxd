# One topic's log: segments of runs, and a journal.
#
#   <data-path>/<topic>.topic/
#       00000000000000000001.seg    header, records ..., footer
#       00000000000000004711.seg    header, records ...          (being written, or crashed)
#       journal                     header, snapshot, delta, delta ...
#
#   LogTasks <- SegmentFiles <- JournalFile <- LogWriter <- LogReads <- Log
from nsqcy.storage.io cimport IoKind
from nsqcy.storage.log_reads cimport LogReads
from nsqcy.storage.log_tasks cimport Task, log_done


cdef class Log(LogReads):
    cdef log_done _end_done
    cdef void *_end_arg
    cdef int _end_error
    cdef bint _ending

    cdef int close(self, log_done done, void *arg) except -1
    cdef int delete(self, log_done done, void *arg) except -1
    cdef int _path_task(self, IoKind kind, bytes path) except -1
    cdef int _end_check(self) except -1
