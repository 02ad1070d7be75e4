# The writer of a log: appending runs, and group commit.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.journal_file cimport JournalFile
from nsqcy.storage.log_tasks cimport Task, log_done
from nsqcy.storage.segment cimport Extent


cdef class LogWriter(JournalFile):
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
    cdef bint _is_journaled(self, const Task *task) noexcept
    cdef int _wait(self, Task *task, int error) except -1
    cdef bint _first_is_settled(self) noexcept
    cdef int _commit_done(self, int error) except -1
    cdef int _run_done(self, Task *task, int error) except -1
