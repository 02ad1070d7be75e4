# One topic's log: segments of runs, and a journal.
#
#   <data-path>/<topic>.topic/
#       00000000000000000001.seg    header, records ..., footer
#       00000000000000004711.seg    header, records ...          (being written, or crashed)
#       journal                     header, snapshot, delta, delta ...
#
#   SegmentFiles <- LogWriter <- Log
from libc.stdint cimport uint8_t, uint32_t

from nsqcy.storage.io cimport Damages, File, IoKind, IoPick, IoPicked
from nsqcy.storage.log_writer cimport LogWriter
from nsqcy.storage.segment cimport Extent, Segment
from nsqcy.storage.segment_files cimport Task, log_done


cdef class Log(LogWriter):
    # Called as on_damage(path, offset, text) for each damaged place, once.
    cdef public object on_damage
    # Called without arguments when the range in `unreadable` has been read.
    cdef public object on_readable
    # The first range that could not be read (UnreadableRange), until it can be read; or None.
    cdef readonly object unreadable
    cdef readonly str read_error_text    # of the latest read that failed
    cdef bytes _aside                 # directory for damaged files; None: they are not kept
    cdef set _damaged                 # places reported: (segment number, offset)
    cdef uint32_t _failed_reads       # consecutive
    cdef bint _is_probing

    # Read the entire chain; see docs/DISKFORMAT.md for the form of damaged records.
    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1
    # Read records one by one, in the given order: records in the same segment should be adjacent.
    # Failures and damage are not reported.
    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1
    # Read the range in `unreadable` again, for on_readable.
    cdef int probe(self) except -1
    cdef int set_aside(self, Segment *segment) except -1
    cdef int set_journal_aside(self, bytes data) except -1
    cdef int _link_aside(self, File *file, Segment *segment, str name) except -1
    cdef int _submit_read(self, Task *task) except -1
    cdef bint _asks_repairer(self, Task *task, int error) except -1
    cdef int _read_done(self, Task *task, int error) except -1
    cdef int _read_failed(self, Task *task, int error) except -1
    cdef int _read_worked(self, const Task *task) except -1
    cdef int _became_readable(self) except -1
    cdef int _report(self, str path, Segment *segment, const Damages *damages) except -1
    cdef bint _is_known(self, const Segment *segment, const Damages *damages) except -1
    cdef int _aside_done(self, int error) except -1
    cdef Segment *_find_segment(self, number) except? NULL

    cdef int close(self, log_done done, void *arg) except -1
    cdef int delete(self, log_done done, void *arg) except -1
    cdef int _path_task(self, IoKind kind, bytes path) except -1
