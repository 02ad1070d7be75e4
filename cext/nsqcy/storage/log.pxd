# One topic's log: segments of runs, and a journal.
#
#   <data-path>/<topic>.topic/
#       00000000000000000001.seg    header, records ..., footer
#       00000000000000004711.seg    header, records ...          (being written, or crashed)
#       journal                     header, snapshot, delta, delta ...
#
# A Segment lives from its creation (or recovery) until its file is unlinked or the Log goes.
# States: OPEN -> CLOSING -> CLOSED -> DOOMED -> GONE; OPEN -> FAILED -> CLOSED (without a footer).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport Damages, File, IoKind, IoLane, IoPick, IoPicked, IoResult, IoThread


cdef extern from "segment.h" nogil:
    enum:
        RUN_SURVIVORS
        RUN_HAS_DELAYED
        RUN_HAS_PRODUCED

    struct SegmentRun:
        uint64_t first_seq
        uint64_t last_seq
        uint64_t offset
        uint64_t bytes
        uint32_t count
        uint32_t flags
        int64_t first_time
        int64_t last_time

    struct SegmentFooter:
        uint64_t records
        uint64_t first_seq
        uint64_t last_seq
        int64_t first_time
        int64_t last_time
        uint64_t max_id
        uint64_t data_end
        uint64_t runs


cdef enum SegmentState:
    SEGMENT_OPEN
    SEGMENT_CLOSING      # no more runs; its footer is written once the last write is done
    SEGMENT_FAILED       # a write or a sync failed; cut once the last write is done
    SEGMENT_CLOSED
    SEGMENT_DOOMED       # needed by nobody; its file goes once no journal write is pending
    SEGMENT_GONE         # the unlink is under way or done


cdef struct Segment:
    Segment *previous
    Segment *next
    File *file
    char *path
    uint64_t number      # of its file name: larger than any before it
    uint64_t end         # places are given out up to here
    uint64_t good        # runs are known to be written up to here
    uint64_t synced      # runs are known to survive a power loss up to here
    uint64_t live        # bytes of extents not released
    uint32_t pending     # ops that refer to it
    uint8_t log_id[16]   # as its header has it; zeros: nobody can tell
    SegmentState state
    int error            # of the first run that failed: those behind it fail as well
    SegmentRun *runs     # the index to be, while open
    uint32_t run_count
    uint32_t run_capacity
    SegmentFooter facts


# Where a run lies. Zeroed, it is empty. Further pieces belong to the log, which release() frees.
cdef struct Extent:
    Segment *segment
    uint64_t offset
    uint64_t first_seq
    uint64_t last_seq
    uint32_t bytes
    uint32_t count
    Extent *next


cdef struct RecoveredRun:
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    uint32_t flags
    int64_t first_time
    int64_t last_time
    Extent extent


ctypedef int (*log_done)(void *arg, int error) except -1


cdef enum TaskKind:
    TASK_RUN
    TASK_SEGMENT         # header or footer
    TASK_SYNC
    TASK_CUT
    TASK_UNLINK
    TASK_READ
    TASK_PICK            # who is left without a record reads its run, and hears what is wrong
    TASK_JOURNAL
    TASK_DELTA
    TASK_DIRECTORY
    TASK_WHOLE           # several ops with one answer


cdef struct Task:
    Task *next
    void *log
    Segment *segment
    File *file           # of a journal write: which journal
    Task *whole
    TaskKind kind
    int error
    int refused          # of a run that was written: why it counts as if it was not
    uint32_t parts
    uint32_t count
    uint32_t flags
    uint64_t offset
    uint64_t bytes
    uint64_t first_seq
    uint64_t last_seq
    bint follows         # its op is behind others of the log in the lane of these
    bint tells           # of a delta that follows: runs wait for it
    bint durable         # of a run: done when a sync covers it
    bint goes_on         # of a run: done with the one behind it, and refused if that is
    uint64_t commit      # of a durable run: the number of the commit that covers it
    uint64_t told        # of a run: so many journal writes have to be done before it is
    uint8_t *owned       # freed with the task
    log_done done
    void *arg
    IoResult result


cdef class Recovered:
    cdef readonly Log log
    cdef readonly list journal
    cdef readonly list damages
    cdef readonly bytes log_id
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t max_id
    cdef readonly bint clean          # every segment had its footer
    cdef readonly list segments       # (number, bytes of the file, log_id or None, footer or None)
    # Dense runs of which a newer segment has a part, as they were found: (segment number, offset,
    # bytes, first_seq, last_seq)
    cdef readonly list overlaps
    cdef readonly bint open_end       # the newest one had none: it was being written
    cdef RecoveredRun *run_array      # extents are the caller's to copy and release
    cdef size_t run_count
    cdef size_t run_capacity
    cdef list _covered                # (first, last) of the dense runs, ascending, disjoint
    cdef int add(self, const SegmentRun *run, Segment *segment, int fd) except -1
    cdef int _add_whole(self, const SegmentRun *run, Segment *segment) except -1
    cdef int _add_rest(self, const SegmentRun *run, Segment *segment, int fd,
                       list wanted) except -1
    cdef int _grow(self) except -1
    cdef list _uncovered(self, uint64_t first, uint64_t last)
    cdef int _cover(self, uint64_t first, uint64_t last) except -1


cdef class Log:
    cdef readonly IoThread io
    cdef readonly str topic
    cdef readonly str directory
    cdef readonly str last_error_text
    cdef public bytes log_id
    cdef public object on_damage
    # Called as on_failure(topic, verb, path, errno) for each write that fails. If it returns true,
    # on_recovery(topic) is called once writes succeed again.
    cdef public object on_failure
    cdef public object on_recovery
    cdef bint _recovery_due
    cdef public uint64_t max_bytes_per_file
    cdef public uint64_t sync_every
    cdef public int64_t sync_timeout
    cdef readonly uint64_t disk_bytes
    cdef readonly uint64_t journal_bytes
    cdef readonly bint closed
    cdef bytes _data_path
    cdef bytes _directory
    cdef Segment *_first
    cdef Segment *_last
    cdef Segment *_current
    cdef uint64_t last_number         # of a segment, here or in a journal
    cdef uint64_t _tasks
    cdef uint64_t _following          # tasks that follow each other, and in which lane
    cdef IoLane _lane
    cdef uint64_t _unsynced           # records written since the last sync
    cdef int64_t _synced_at
    cdef bint _error_is_sync
    cdef Task *_written_first         # runs that are written, in order, but not done: they wait
    cdef Task *_written_last          # for a sync, or for what the journal has to tell before
    cdef uint64_t _durable            # durable runs that no sync was asked for yet
    cdef bint _goes_on                # the latest run does
    cdef bint _awaited                # the latest run is durable: somebody waits for syncs
    cdef uint64_t _commits            # how many were begun, and how many of them have ended
    cdef uint64_t _commits_done
    cdef int _sync_error              # of a failed sync, until a sync() has answered with it
    cdef uint64_t _sync_error_number  # and of which segment
    cdef bint _directory_there
    cdef bint _directory_known        # its name is durable: its parent needs no sync
    cdef bint _directory_dirty
    cdef File *_journal
    cdef bint _journal_dirty
    cdef File *_snapshot              # the journal to be
    cdef uint64_t _snapshot_bytes
    cdef uint32_t _snapshot_crc
    cdef bint journal_lost            # a write of it failed: no run counts until a snapshot is
    cdef uint32_t _journal_pending
    cdef uint64_t _journal_writes     # those that follow, and how many of them have ended
    cdef uint64_t _journal_done
    cdef uint64_t _told               # the one that the runs to come have to wait for
    cdef uint64_t _told_done          # the latest one that has not failed
    cdef bint _frozen                 # close() was called: files stay whatever is released
    cdef log_done _end_done
    cdef void *_end_arg
    cdef int _end_error
    cdef bint _ending

    # The run stays valid and unchanged (but for its crc fields) until done. A failed run's place
    # is still in `into`: retract() it. A durable run is done when a sync covers it: see commit().
    # One that goes on is a part of what the next run, appended right away, has more of: they are in
    # one segment, and fail together.
    # No run is done before the deltas, and the snapshots that lead, that were asked for before it.
    cdef int append(self, const uint8_t *run, size_t n, uint64_t first_seq, uint64_t last_seq,
                    uint32_t count, int flags, bint durable, bint goes_on, Extent *into,
                    log_done done, void *arg) except -1
    # Have the durable runs that were appended synced. One sync is under way at a time: those that
    # come meanwhile share the next.
    cdef int commit(self) except -1
    # Whether a run of n bytes would begin a new segment: it may be written although one that was
    # appended before it fails.
    cdef bint rolls(self, size_t n) noexcept
    # Bytes of records that the segment of the next run has room for.
    cdef uint64_t room(self) noexcept
    # Takes a failed run of n bytes that began with first_seq back out of an extent.
    cdef int retract(self, Extent *into, size_t n, uint64_t first_seq, uint32_t count) except -1
    # Reads the whole chain; see docs/DISKFORMAT.md for what damaged records look like.
    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1
    # Reads records one by one, in this order: those that lie in one segment should be neighbours.
    # No failure and no damage is told of.
    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1
    # Nobody needs these runs any more.
    cdef int release(self, Extent *extent) except -1
    # Frees an extent's further pieces and zeroes it; the runs stay.
    cdef int forget(self, Extent *extent) except -1
    cdef int sync(self, log_done done, void *arg) except -1
    # The same for what recover() has found, which a process that was killed need not have synced.
    cdef int sync_found(self, log_done done, void *arg) except -1
    # The monotonic time of the next sync, or 0 when nothing waits for one.
    cdef int64_t tick(self, int64_t now) except -1
    # Whether a journal write is under way.
    cdef bint is_telling(self) noexcept
    # leads: what is appended from now on is not done before it is in place.
    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1
    # The same over a longer time: begin, any number of pieces, end. Deltas that are appended
    # meanwhile go to the journal there was: the end is given those that are to stay. Or: given up.
    cdef int begin_snapshot(self) except -1
    cdef int add_to_snapshot(self, bytes piece) except -1
    cdef int end_snapshot(self, deltas, bint leads, log_done done, void *arg) except -1
    cdef int give_up_snapshot(self) except -1
    # 1 when appended; 0 when there is no sound journal to append to: write a snapshot first. done
    # is called when it is written.
    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1
    cdef int close(self, log_done done, void *arg) except -1
    cdef int delete(self, log_done done, void *arg) except -1

    cdef Task *_task(self, TaskKind kind, Segment *segment, Task *whole) except NULL
    cdef Task *_follower(self, TaskKind kind, Segment *segment, Task *whole) except NULL
    cdef int _task_end(self, Task *task) except -1
    cdef int _ended(self, Task *task, int error) except -1
    cdef bint _is_told(self, const Task *task) noexcept
    cdef int _wait(self, Task *task, int error) except -1
    cdef int _release_written(self) except -1
    cdef bint _first_is_settled(self) noexcept
    cdef int _commit_done(self, int error) except -1
    cdef int _finish(self, Task *task, int error) except -1
    cdef int _part_end(self, Task *whole, int error) except -1
    cdef int _run_done(self, Task *task, int error) except -1
    cdef int _read_done(self, Task *task, int error) except -1
    cdef int _index(self, Task *task) except -1
    cdef int _sync_done(self, Task *task, int error) except -1
    cdef int _place(self, Segment *segment, Task *task, Extent *into) except -1
    cdef Segment *_segment_new(self, uint64_t number, int flags) except NULL
    cdef int _segment_free(self, Segment *segment) except -1
    cdef int _segment_open(self, uint64_t first_seq) except -1
    cdef int _segment_retire(self, Segment *segment) except -1
    cdef int _segment_fail(self, Segment *segment) except -1
    cdef int _settle(self, Segment *segment) except -1
    cdef int _cut(self, Segment *segment) except -1
    cdef int _write_footer(self, Segment *segment) except -1
    cdef int _doom(self, Segment *segment) except -1
    cdef int _unlink(self, Segment *segment, Task *task, IoLane lane) except -1
    cdef int _unlink_doomed(self) except -1
    cdef int _sync_files(self, Task *whole) except -1
    cdef int _sync_file(self, Segment *segment, Task *whole) except -1
    cdef int _sync_directory(self, Task *whole) except -1
    cdef void _names_synced(self, uint32_t which) noexcept
    cdef Task *_journal_task(self, TaskKind kind, Task *whole) except NULL
    cdef int _journal_written(self, int error) except -1
    cdef int _journal_failed(self, Task *task, int error) except -1
    cdef int _lose_journal(self, File *file) except -1
    cdef int _path_task(self, IoKind kind, bytes path) except -1
    cdef int _end_check(self) except -1
    cdef int _note_error(self, str path, int call, int error) except -1
    cdef int _write_failed(self, str path, int call, int error) except -1
    cdef int _write_succeeded(self) except -1
    cdef int _report(self, str path, const Damages *damages) except -1
    cdef int _recover_segment(self, str name, Recovered into) except -1
    cdef int _recover_runs(self, int fd, uint64_t size, Segment *segment,
                           Recovered into) except -1
    cdef bytes _recover_header(self, int fd, Segment *segment, Recovered into)
    cdef bint _recover_footer(self, int fd, uint64_t size, Segment *segment,
                              Recovered into) except -1
    cdef int _recover_scan(self, int fd, uint64_t size, Segment *segment,
                           Recovered into) except -1
    cdef int _recover_journal(self, Recovered into) except -1
    cdef int _open_now(self, bytes path) except -1
    cdef bytes _read_now(self, int fd, uint64_t offset, uint64_t n)
