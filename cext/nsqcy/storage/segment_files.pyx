"""The segments of a log: from the creation of a file through its footer to its removal.

Owns the list of segments, their index of runs, the count of their live bytes, and the syncs of
their files and the log's directory. Also owns the tasks: each operation that the log submits to the
I/O threads, until it ends; the lane of consecutive tasks; and the text of the last error.
Independent of what waits for a sync (log_writer), and of the content of the journal: a task
contains the function that handles its end.

Rules: a run is never split; a segment that existed at startup is never written to; the number of a
new segment is larger than all earlier numbers; a file is unlinked only when no extent is in it and
no journal write that may stop referring to it is in progress.
"""

import time

# The segments of a log: files, contents and syncs. Also the log's tasks: the purpose of each
# operation, from its submission to its end.

cdef struct Task


cdef enum:
    SPARE_TASKS = 256
    INDEX_RUN_BYTES = 262144     # consecutive short runs share an index entry
    NAMES_INSIDE = 1             # flags of a task that syncs a directory: the log's directory
    NAME_ITSELF = 2              # the data path

cdef Task *spare_tasks = NULL
cdef int spare_count = 0
cdef int64_t live_tasks = 0
cdef int64_t live_segments = 0
cdef int64_t live_pieces = 0


cdef int64_t tasks_alive() noexcept:
    """Return the number of unfinished tasks; zero once every log has been freed."""
    return live_tasks


cdef int64_t segments_alive() noexcept:
    """Return the number of segments in all logs; zero once every log has been freed."""
    return live_segments


cdef int64_t pieces_alive() noexcept:
    """Return the number of extents' further pieces; zero once every extent has been released."""
    return live_pieces


# ---- ends of tasks ----

cdef int task_finished(void *arg, int error) except -1:
    cdef Task *task = <Task *>arg
    return (<SegmentFiles>task.log)._finish(task, error)


cdef int segment_ended(Task *task, int error) except -1:
    """Handle the end of a write of a header or footer."""
    cdef SegmentFiles log = <SegmentFiles>task.log
    if error:
        log._change_failed(task, error)
        log._segment_fail(task.segment)
    return error


cdef int sync_ended(Task *task, int error) except -1:
    (<SegmentFiles>task.log)._sync_done(task, error)
    return error


cdef int change_ended(Task *task, int error) except -1:
    if error:
        (<SegmentFiles>task.log)._change_failed(task, error)
    return error


cdef int unlink_ended(Task *task, int error) except -1:
    return 0 if error == ENOENT else change_ended(task, error)      # already gone


cdef int directory_ended(Task *task, int error) except -1:
    if not error and task.flags:
        (<SegmentFiles>task.log)._names_synced(task.flags)
    return 0 if error == ENOENT else change_ended(task, error)      # removed, or not created yet


@cython.no_gc_clear      # as its Log
cdef class SegmentFiles:
    """The segments of one log, which lives while any of its tasks is in progress."""

    # -- tasks --

    cdef Task *_task(self, task_end ended, Segment *segment, Task *whole) except NULL:
        global spare_tasks, spare_count, live_tasks
        cdef Task *task = spare_tasks
        if task is not NULL:
            spare_tasks = task.next
            spare_count -= 1
        else:
            task = <Task *>malloc(sizeof(Task))
            if task is NULL:
                raise MemoryError
        memset(task, 0, sizeof(Task))
        live_tasks += 1
        task.ended = ended
        task.log = <void *>self
        task.segment = segment
        task.whole = whole
        task.result.chain = &self._chain
        if segment is not NULL:
            segment.pending += 1
        if whole is not NULL:
            whole.parts += 1
        if self._tasks == 0:
            Py_INCREF(self)
        self._tasks += 1
        return task

    cdef Task *_follower(self, task_end ended, Segment *segment, Task *whole) except NULL:
        """Return a task for an operation in self._lane. The operation may take a long time, and
        appends do not wait for it. A log's operations stay in one lane while any is in progress, so
        they run in order."""
        cdef Task *task = self._task(ended, segment, whole)
        if self._following == 0:
            self._lane = LANE_AWAITED if self._awaited else LANE_BACKGROUND
        self._following += 1
        task.follows = True
        return task

    cdef int _task_end(self, Task *task) except -1:
        global spare_tasks, spare_count, live_tasks
        free(task.owned)
        damages_free(&task.result.damages)
        self._following -= task.follows
        live_tasks -= 1
        if spare_count < SPARE_TASKS:
            task.next = spare_tasks
            spare_tasks = task
            spare_count += 1
        else:
            free(task)
        self._tasks -= 1
        if self._tasks == 0:
            Py_DECREF(self)
        return 0

    cdef int _finish(self, Task *task, int error) except -1:
        """Handle a finished operation: update the state that it changed, call back, and start the
        operations that can start now."""
        cdef SegmentFiles keep = self      # ending the last task may drop the last reference
        cdef Segment *segment = task.segment
        cdef Task *whole = task.whole
        cdef log_done done = task.done
        cdef void *arg = task.arg
        try:
            error = task.ended(task, error)
            if error and task.into is NULL and not keep._end_error:
                keep._end_error = error
        finally:
            keep._task_end(task)
            try:
                if whole is not NULL:
                    keep._part_end(whole, error)
                elif done is not NULL:
                    done(arg, error)
            finally:
                if segment is not NULL:
                    # Do this last, because the callback may have released extents in the segment.
                    segment.pending -= 1
                    keep._settle(segment)
                keep._end_check()
        return 0

    cdef int _part_end(self, Task *whole, int error) except -1:
        """Handle the end of one of several operations; the last one reports the first error."""
        cdef log_done done = whole.done
        cdef void *arg = whole.arg
        if error and not whole.error:
            whole.error = error
        whole.parts -= 1
        if whole.parts:
            return 0
        error = whole.error
        if whole.ended is not NULL:
            whole.ended(whole, error)
        self._task_end(whole)
        if done is not NULL:
            done(arg, error)
        return 0

    cdef int _end_check(self) except -1:
        cdef log_done done = self._end_done
        if not self._ending or self._tasks:
            return 0
        self._ending = False
        if done is not NULL:
            done(self._end_arg, self._end_error)
        return 0

    # -- errors --

    cdef int _note_error(self, str path, int call, int error) except -1:
        verb = io_call_verbs[call].decode()
        self._error_is_sync = verb == "sync"
        self.last_error_text = f"{verb} {path}: {os.strerror(error).lower()}"
        return 0

    cdef int _write_failed(self, str path, int call, int error) except -1:
        verb = io_call_verbs[call].decode()
        if verb == "mkdir":
            path = self.directory
        self._note_error(path, call, error)
        if self.on_failure is not None and self.on_failure(self.topic, verb, path, error):
            self._recovery_due = True
        return 0

    cdef int _write_succeeded(self) except -1:
        if self._recovery_due:
            self._recovery_due = False
            self.on_recovery(self.topic)
        return 0

    cdef int _change_failed(self, Task *task, int error) except -1:
        """Handle the failure of an operation on its segment, or on the directory."""
        return self._write_failed(os.fsdecode(task.segment.path) if task.segment is not NULL
                                  else self.directory, task.result.call, error)

    # -- lifecycle of segments --

    cdef Segment *_segment_new(self, uint64_t number, int flags) except NULL:
        global live_segments
        cdef bytes path = os.path.join(self._directory, b"%020d.seg" % number)
        cdef Segment *segment = <Segment *>calloc(1, sizeof(Segment))
        if segment is NULL:
            raise MemoryError
        live_segments += 1
        segment.number = number
        segment.path = strdup(path)
        segment.file = self.io.file(path, flags)
        segment.end = segment.good = SEGMENT_HEADER
        segment.previous = self._last
        if self._last is not NULL:
            self._last.next = segment
        else:
            self._first = segment
        self._last = segment
        self.last_number = max(self.last_number, number)
        return segment

    cdef int _segment_free(self, Segment *segment) except -1:
        global live_segments
        if segment.previous is not NULL:
            segment.previous.next = segment.next
        else:
            self._first = segment.next
        if segment.next is not NULL:
            segment.next.previous = segment.previous
        else:
            self._last = segment.previous
        if self._current is segment:
            self._current = NULL
        live_segments -= 1
        self.io.drop(segment.file)
        free(segment.runs)
        free(segment.path)
        free(segment)
        return 0

    cdef int _segment_open(self, uint64_t first_seq) except -1:
        cdef uint64_t number = max(first_seq, self.last_number + 1)
        cdef Segment *segment = self._segment_new(number, FILE_CREATE | FILE_PARENT)
        cdef Task *task = self._task(segment_ended, segment, NULL)
        cdef SegmentHeader *header = <SegmentHeader *>calloc(1, sizeof(SegmentHeader))
        task.owned = <uint8_t *>header
        if header is NULL:
            segment.pending -= 1
            self._task_end(task)
            self._segment_free(segment)
            raise MemoryError
        header.magic = SEGMENT_MAGIC
        header.version = FORMAT_SEGMENT
        header.number = number
        header.first_seq = first_seq
        header.created = time.time_ns()
        memcpy(header.log_id, PyBytes_AS_STRING(self.log_id), 16)
        memcpy(segment.log_id, header.log_id, 16)
        header.crc = segment_header_crc(header)
        self._current = segment
        self._directory_dirty = True
        self.io.write(LANE_WRITES, segment.file, task.owned, sizeof(SegmentHeader), 0,
                      task_finished, task, &task.result)
        return 0

    cdef int _segment_retire(self, Segment *segment) except -1:
        """Accept no more runs for a segment. The next sync includes it, and then its footer is
        written."""
        self._current = NULL
        segment.state = SEGMENT_CLOSING
        return self._settle(segment)

    cdef int _segment_fail(self, Segment *segment) except -1:
        """Handle a file that can no longer be written. Runs still queued for it also fail; the next
        append opens a new segment."""
        if segment.state in (SEGMENT_OPEN, SEGMENT_CLOSING):
            segment.state = SEGMENT_FAILED
        if self._current is segment:
            self._current = NULL
        return 0

    cdef int _settle(self, Segment *segment) except -1:
        """Start the next operation for a segment that has no operations in progress."""
        if segment.pending:
            return 0
        if segment.state == SEGMENT_CLOSING:
            if segment.synced < segment.end and (segment.live or self._frozen):
                return 0
            segment.state = SEGMENT_CLOSED
            if segment.run_count and (segment.live or self._frozen):
                self._write_footer(segment)
        elif segment.state == SEGMENT_FAILED:
            segment.state = SEGMENT_CLOSED
            if segment.good < segment.end and segment.good > SEGMENT_HEADER:
                self._cut(segment)
        if segment.pending or segment.live:
            return 0
        if segment.state == SEGMENT_CLOSED and not self._frozen:
            self._doom(segment)
        elif segment.state == SEGMENT_GONE:
            self._segment_free(segment)
        return 0

    cdef int _cut(self, Segment *segment) except -1:
        """Truncate a torn run if the disk permits; otherwise recovery does so at the next start."""
        cdef Task *task = self._task(change_ended, segment, NULL)
        return self.io.on_file(LANE_WRITES, IO_TRUNCATE, segment.file, segment.good, task_finished,
                               task, &task.result)

    cdef int _write_footer(self, Segment *segment) except -1:
        cdef size_t index = segment.run_count * sizeof(SegmentRun)
        cdef size_t n = sizeof(SegmentFooter) + index + sizeof(SegmentTrailer)
        cdef Task *task = self._task(segment_ended, segment, NULL)
        cdef uint8_t *footer = <uint8_t *>malloc(n)
        cdef SegmentTrailer *trailer
        task.owned = footer
        if footer is NULL:
            segment.pending -= 1
            self._task_end(task)
            raise MemoryError
        segment.facts.data_end = segment.end
        segment.facts.runs = segment.run_count
        memcpy(footer, &segment.facts, sizeof(SegmentFooter))
        memcpy(footer + sizeof(SegmentFooter), segment.runs, index)
        trailer = <SegmentTrailer *>(footer + sizeof(SegmentFooter) + index)
        trailer.length = <uint32_t>n
        trailer.crc = crc32c_of(0, footer, sizeof(SegmentFooter) + index)
        trailer.magic = FOOTER_MAGIC
        self.io.write(LANE_WRITES, segment.file, footer, n, segment.end, task_finished, task,
                      &task.result)
        if not self._frozen:
            # The footer of a closed log may be lost: recovery then scans the segment.
            self._sync_file(segment, NULL, True)
            if self._directory_dirty:
                self._sync_directory(NULL)
        free(segment.runs)
        segment.runs = NULL
        segment.run_count = segment.run_capacity = 0
        return 0

    cdef int _doom(self, Segment *segment) except -1:
        segment.state = SEGMENT_DOOMED
        if self._journal_pending:
            return 0
        return self._unlink(segment, self._follower(unlink_ended, segment, NULL), self._lane)

    cdef int _unlink_doomed(self) except -1:
        cdef Segment *segment = self._first
        while segment is not NULL:
            if segment.state == SEGMENT_DOOMED and not segment.pending:
                self._unlink(segment, self._follower(unlink_ended, segment, NULL), self._lane)
            segment = segment.next
        return 0

    cdef int _unlink(self, Segment *segment, Task *task, IoLane lane) except -1:
        segment.state = SEGMENT_GONE
        return self.io.on_file(lane, IO_UNLINK_FILE, segment.file, 0, task_finished, task,
                               &task.result)

    # -- runs --

    cdef int _place(self, Segment *segment, Task *task, Extent *into) except -1:
        global live_pieces
        cdef Extent *piece = into
        while piece.next is not NULL:
            piece = piece.next
        if piece.bytes and not (piece.segment is segment
                                and piece.offset + piece.bytes == task.offset
                                and piece.bytes + task.bytes <= 0xFFFFFFF8u):
            piece.next = <Extent *>calloc(1, sizeof(Extent))
            if piece.next is NULL:
                self._task_end(task)
                segment.pending -= 1
                raise MemoryError
            live_pieces += 1
            piece = piece.next
        if piece.bytes == 0:
            piece.segment = segment
            piece.number = segment.number
            piece.offset = task.offset
            piece.first_seq = task.first_seq
            piece.count = 0
        piece.bytes += <uint32_t>task.bytes
        piece.count += task.count
        piece.last_seq = task.last_seq
        segment.end += task.bytes
        segment.live += task.bytes
        self.disk_bytes += task.bytes
        return 0

    cdef int _index(self, Task *task) except -1:
        """Add a written run to the segment's index; extend the last entry if the run continues
        it."""
        cdef Segment *segment = task.segment
        cdef SegmentFooter *facts = &segment.facts
        cdef SegmentRun *run = NULL
        cdef uint32_t flags = <uint32_t>task.flags | task.result.facts.flags
        cdef uint32_t capacity
        if facts.records == 0 or task.first_seq < facts.first_seq:
            facts.first_seq = task.first_seq
        if facts.records == 0:
            facts.first_time = task.result.facts.first_time
        facts.records += task.count
        facts.last_seq = max(facts.last_seq, task.last_seq)
        facts.max_id = max(facts.max_id, task.result.facts.max_id)
        facts.last_time = task.result.facts.last_time
        if segment.run_count:
            run = &segment.runs[segment.run_count - 1]
        if (run is not NULL and run.offset + run.bytes == task.offset
                and run.bytes + task.bytes <= INDEX_RUN_BYTES
                and run.flags & RUN_SURVIVORS == flags & RUN_SURVIVORS
                and (run.last_seq + 1 == task.first_seq
                     or flags & RUN_SURVIVORS and run.last_seq < task.first_seq)):
            run.last_seq = task.last_seq
            run.bytes += task.bytes
            run.count += task.count
            run.flags |= flags
            run.last_time = task.result.facts.last_time
            return 0
        if segment.run_count == segment.run_capacity:
            capacity = segment.run_capacity * 2 if segment.run_capacity else 2
            run = <SegmentRun *>realloc(segment.runs, capacity * sizeof(SegmentRun))
            if run is NULL:
                raise MemoryError
            segment.runs = run
            segment.run_capacity = capacity
        run = &segment.runs[segment.run_count]
        segment.run_count += 1
        run.first_seq = task.first_seq
        run.last_seq = task.last_seq
        run.offset = task.offset
        run.bytes = task.bytes
        run.count = task.count
        run.flags = flags
        run.first_time = task.result.facts.first_time
        run.last_time = task.result.facts.last_time
        return 0

    cdef int retract(self, Extent *into, size_t n, uint64_t first_seq, uint32_t count) except -1:
        global live_pieces
        cdef Extent *piece = into
        cdef Extent *before = NULL
        cdef Extent *gone
        cdef Segment *segment
        while piece is not NULL and not (piece.bytes and piece.first_seq <= first_seq
                                         and piece.segment.good < piece.offset + piece.bytes):
            before = piece
            piece = piece.next
        if piece is NULL or piece.bytes < n or piece.count < count:
            raise ValueError("the extent has no such failed run")
        segment = piece.segment
        segment.live -= n
        self.disk_bytes -= n
        piece.bytes -= <uint32_t>n
        piece.count -= count
        piece.last_seq = min(piece.last_seq, first_seq - 1)
        if piece.bytes == 0:
            gone = piece.next
            if before is not NULL:
                before.next = gone
                free(piece)
                live_pieces -= 1
            elif gone is not NULL:
                piece[0] = gone[0]
                free(gone)
                live_pieces -= 1
            else:
                memset(piece, 0, sizeof(Extent))
        return self._settle(segment)

    cdef int release(self, Extent *extent) except -1:
        cdef Extent *piece = extent
        while piece is not NULL and piece.bytes:
            piece.segment.live -= piece.bytes
            self.disk_bytes -= piece.bytes
            self._settle(piece.segment)
            piece = piece.next
        return self.forget(extent)

    cdef int forget(self, Extent *extent) except -1:
        global live_pieces
        cdef Extent *piece = extent.next
        cdef Extent *next
        while piece is not NULL:
            next = piece.next
            free(piece)
            live_pieces -= 1
            piece = next
        memset(extent, 0, sizeof(Extent))
        return 0

    cdef bint has_files(self) noexcept:
        """Return whether the log's directory may exist."""
        return self._first is not NULL or self.journal_bytes != 0 or self._directory_there

    # -- syncing --

    cdef int _sync_files(self, Task *whole) except -1:
        cdef Segment *segment = self._last
        self._unsynced = 0
        while segment is not NULL and segment.synced < segment.end:
            if segment.state == SEGMENT_OPEN or segment.state == SEGMENT_CLOSING:
                self._sync_file(segment, whole, True)
            segment = segment.previous
        return 0

    cdef int sync_found(self, log_done done, void *arg) except -1:
        cdef Task *whole = self._task(NULL, NULL, NULL)
        cdef Segment *segment = self._first
        whole.done = done
        whole.arg = arg
        whole.parts = 1           # held until all parts are submitted
        while segment is not NULL:
            if segment.state == SEGMENT_CLOSED and segment.synced < segment.end:
                self._sync_file(segment, whole, False)
            segment = segment.next
        if whole.parts > 1:
            self._sync_directory(whole)
        return self._part_end(whole, 0)

    cdef int _sync_file(self, Segment *segment, Task *whole, bint is_ours) except -1:
        """Sync a segment. If this process has not written it, the file has its own sync: the sync
        of a file system does not report earlier errors."""
        cdef Task *task = self._follower(sync_ended, segment, whole)
        if not is_ours:
            task.result.chain = NULL
        task.offset = segment.end
        return self.io.on_file(self._lane, IO_SYNC, segment.file, 0, task_finished, task,
                               &task.result)

    cdef int _sync_done(self, Task *task, int error) except -1:
        cdef Segment *segment = task.segment
        if not error:
            segment.synced = max(segment.synced, task.offset)
            if self._error_is_sync:
                self._error_is_sync = False
                self.last_error_text = ""
                self._write_succeeded()
            return 0
        if task.whole is NULL or task.whole.done is NULL or segment.end > task.offset:
            self._sync_error = error
            self._sync_error_number = segment.number
        elif self._sync_error_number == segment.number:
            self._sync_error = 0
        self._write_failed(os.fsdecode(segment.path), task.result.call, error)
        return self._segment_fail(segment)

    cdef int _sync_directory(self, Task *whole) except -1:
        """Make names durable: the files' names in the directory and, if the directory is new, its
        own name. If no file is on disk yet, sync only the data path, so that there is an operation
        to wait for."""
        cdef Task *task
        cdef bint ours = self._directory_dirty or self._directory_there
        if ours:
            task = self._follower(directory_ended, NULL, whole)
            task.flags = NAMES_INSIDE
            self.io.on_path(self._lane, IO_SYNC_DIR, self._directory, task_finished, task,
                            &task.result)
        if not self._directory_known:
            task = self._follower(directory_ended, NULL, whole)
            task.flags = NAME_ITSELF
            self.io.on_path(self._lane, IO_SYNC_DIR, self._data_path, task_finished, task,
                            &task.result)
        self._directory_dirty = False
        return 0

    cdef void name_synced(self) noexcept:
        """Handle a sync of the data path by the caller, who had waited for all earlier writes."""
        if self._first is not NULL and self._first.good > SEGMENT_HEADER:
            self._directory_known = True

    cdef void _names_synced(self, uint32_t which) noexcept:
        """Handle the sync of a directory. The name of the log's directory is durable if the data
        path was synced after the directory's creation."""
        if which == NAMES_INSIDE:
            self._directory_there = True
        else:
            self._directory_known = self._directory_there
