# The journal of a log: a snapshot and the deltas after it, in one file.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport File
from nsqcy.storage.log_tasks cimport Task, TaskKind, log_done
from nsqcy.storage.segment_files cimport SegmentFiles


cdef class JournalFile(SegmentFiles):
    cdef readonly bint closed
    cdef readonly uint64_t journal_bytes
    cdef bint journal_lost            # a write failed: no run counts until the next snapshot
    cdef File *_journal
    cdef bint _journal_dirty
    cdef File *_snapshot              # the next journal file
    cdef uint64_t _snapshot_bytes
    cdef uint32_t _snapshot_crc
    cdef uint64_t _journal_writes     # number of later writes, and number of those that have ended
    cdef uint64_t _journal_done
    cdef uint64_t _required               # the write that later runs must wait for
    cdef uint64_t _required_done          # the latest write that has not failed

    # Return whether a journal write is in progress.
    cdef bint is_telling(self) noexcept
    # leads: operations appended from now on are not done until the journal is in place.
    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1
    # Replace the journal in pieces: begin, any number of pieces, then end or abandon. Deltas
    # appended in the meantime go to the existing journal; the end receives the deltas that must be
    # kept.
    cdef int begin_snapshot(self) except -1
    cdef int add_to_snapshot(self, bytes piece) except -1
    cdef int end_snapshot(self, deltas, bint leads, log_done done, void *arg) except -1
    cdef int give_up_snapshot(self) except -1
    # Return 1 if appended; 0 if the journal has failed: write a snapshot first. done is called once
    # the delta has been written.
    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1
    cdef Task *_journal_task(self, TaskKind kind, Task *whole) except NULL
    cdef int _journal_written(self, int error) except -1
    cdef int _journal_failed(self, Task *task, int error) except -1
    cdef int _lose_journal(self, File *file) except -1
    cdef int _release_written(self) except -1
