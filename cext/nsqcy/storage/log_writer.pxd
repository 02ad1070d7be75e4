# The writer of a log: appending runs, group commit, and the journal: a snapshot and the deltas
# after it, in one file.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport File
from nsqcy.storage.segment cimport Extent
from nsqcy.storage.segment_files cimport SegmentFiles, Task, log_done


cdef class LogWriter(SegmentFiles):
    cdef public uint64_t max_bytes_per_file
    cdef public uint64_t sync_every
    cdef public int64_t sync_timeout
    cdef int64_t _synced_at
    cdef Task *_written_first         # written runs, in order, that wait
    cdef Task *_written_last          # for a sync, or for an earlier journal write
    cdef uint64_t _durable            # durable runs without a requested sync
    cdef bint _goes_on                # the latest run is durable
    cdef uint64_t _commits            # number of syncs begun, and number of those that have ended
    cdef uint64_t _commits_done
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

    # Append a run. It must stay valid and unchanged (except for its crc fields) until done. The
    # location of a failed run is still in `into`: retract() it. A durable run is done when a sync
    # covers it; see commit(). A continued run is part of the next run, which must be appended right
    # after it: both are in one segment, and fail together. No run is done before the deltas and
    # leading snapshots that were requested before it.
    cdef int append(self, const uint8_t *run, size_t n, uint64_t first_seq, uint64_t last_seq,
                    uint32_t count, int flags, bint durable, bint goes_on, Extent *into,
                    log_done done, void *arg) except -1
    # Sync the durable runs that were appended. Only one sync is in progress at a time: syncs
    # requested in the meantime share the next one.
    cdef int commit(self) except -1
    # Return whether a run of n bytes would begin a new segment: it may then be written even if an
    # earlier run fails.
    cdef bint rolls(self, size_t n) noexcept
    # Return the room for records, in bytes, in the segment of the next run.
    cdef uint64_t room(self) noexcept
    cdef int sync(self, log_done done, void *arg) except -1
    # Return the monotonic time of the next sync, or 0 if nothing is waiting for one.
    cdef int64_t tick(self, int64_t now) except -1
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
    cdef int _run_written(self, Task *task, int error) except -1
    cdef int _finish_run(self, Task *task) except -1
    cdef bint _is_journaled(self, const Task *task) noexcept
    cdef int _wait(self, Task *task, int error) except -1
    cdef int _release_written(self) except -1
    cdef bint _first_is_settled(self) noexcept
    cdef int _commit_done(self, int error) except -1
    cdef int _run_done(self, Task *task, int error) except -1
    cdef Task *_journal_task(self, Task *whole) except NULL
    cdef int _journal_written(self, int error) except -1
    cdef int _snapshot_done(self, Task *whole, int error) except -1
    cdef int _journal_failed(self, Task *task, int error) except -1
    cdef int _lose_journal(self, File *file) except -1
