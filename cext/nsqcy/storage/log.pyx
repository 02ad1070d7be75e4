"""One topic's log: append, read, release; segments, footers and the journal.

Owns the topic's directory, the reads, and the end of the log. Its base classes own the rest: the
segments and the operations in progress (segment_files), and the writes (log_writer). log_recovery
finds the existing files at startup. Independent of channels; does no file I/O itself.

A failed read proves nothing about the data: the caller gets the errno and retries. A record counts
as damaged only if two reads from the disk agree (see iothread.h). Before the caller gets either
result, the repairer of the log's file calls may repair the range. The log keeps the range that
could not be read, until it can be read again, and the second name of a damaged file, which keeps
its bytes when the segment is deleted. The log reads no clock: the caller decides when to retry.
"""

# One topic's log: segments of runs, and a journal.
#
#   <data-path>/<topic>.topic/
#       00000000000000000001.seg    header, records ..., footer
#       00000000000000004711.seg    header, records ...          (being written, or crashed)
#       journal                     header, snapshot, delta, delta ...
#
#   SegmentFiles <- LogWriter <- Log


cdef enum:
    TRIES_BEFORE_REPAIR = 4       # consecutive failed reads until the log queries its repairer
    MAX_DAMAGED = 10000           # maximum damaged ranges to remember; each is reported once

UnreadableRange = namedtuple(
    "UnreadableRange", "path segment offset bytes first_seq last_seq records error text")


cdef class _RepairAnswer:
    """Called once by the repairer. True: the range is repaired; False: it cannot be repaired; None:
    not now, so the reader retries later."""
    cdef Log log
    cdef Task *task

    def __call__(self, repaired):
        cdef Task *task = self.task
        if task is NULL:
            raise ValueError("the repairer has already answered")
        self.task = NULL
        if not repaired:
            task.asked = True
            if repaired is None:
                task.error = task.error or EIO
            self.log._finish(task, task.error)
            return
        damages_free(&task.result.damages)
        task.error = 0
        task.failed = False
        self.log._submit_read(task)


cdef int read_finished(void *arg, int error) except -1:
    """Handle the end of a read, unless the repairer must answer first."""
    cdef Task *task = <Task *>arg
    cdef Log log = <Log>task.log
    if log._asks_repairer(task, error):
        return 0
    return log._finish(task, error)


cdef int read_ended(Task *task, int error) except -1:
    (<Log>task.log)._read_done(task, error)
    return error


cdef int files_removed(Task *task, int error) except -1:
    cdef Log log = <Log>task.log
    log.io.end_hold(log._removal)
    return error


cdef int pick_ended(Task *task, int error) except -1:
    """Report no error: a reader without its record loads the run, and then gets the error."""
    return 0


cdef int aside_ended(Task *task, int error) except -1:
    return (<Log>task.log)._aside_done(error)


def live():
    """Return the number of live objects by kind; all zeros once every log has been freed."""
    return {"tasks": tasks_alive(), "segments": segments_alive(), "pieces": pieces_alive()}


@cython.no_gc_clear      # __dealloc__ needs the I/O threads
cdef class Log(LogWriter):
    """The log of one topic. Only the hub uses it, and no method blocks."""

    def __cinit__(self, FileCalls io not None, data_path, str topic, *,
                  uint64_t max_bytes_per_file=104857600, uint64_t sync_every=2500,
                  int64_t sync_timeout=2000000000, bytes log_id=None, aside=None, on_damage=None,
                  on_readable=None, on_failure=None, on_recovery=None):
        """aside: directory for damaged segments; None: they are not kept"""
        self.io = io
        self.topic = topic
        self._data_path = os.fsencode(data_path) or b"."
        self._directory = os.path.join(self._data_path, os.fsencode(topic_directory(topic)))
        self.directory = os.fsdecode(self._directory)
        self._hold = io.find_hold(self._directory)
        if self._hold is not None:
            self._chain.hold = &self._hold.operations
        self.last_error_text = self.read_error_text = ""
        self.log_id = os.urandom(16) if log_id is None else log_id
        if len(self.log_id) != 16:
            raise ValueError("a log_id has 16 bytes")
        self._aside = None if aside is None else os.fsencode(aside)
        self.on_damage = on_damage
        self.on_readable = on_readable
        self.on_failure = on_failure
        self.on_recovery = on_recovery
        self.max_bytes_per_file = max_bytes_per_file
        self.sync_every = sync_every
        self.sync_timeout = sync_timeout
        self.ids_files = set()

    def __dealloc__(self):
        cdef Segment *segment = self._first
        cdef Segment *next
        while segment is not NULL:
            next = segment.next
            self._segment_free(segment)
            segment = next
        if self._journal is not NULL:
            self.io.drop(self._journal)
            self._journal = NULL
        if self._snapshot is not NULL:
            self.io.drop(self._snapshot)
            self._snapshot = NULL
        self._close_ids()

    # -- reads --

    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1:
        cdef Task *whole
        cdef Task *task
        if extent.bytes == 0:
            raise ValueError("an empty extent")
        whole = self._task(NULL, NULL, NULL)
        whole.done = done
        whole.arg = arg
        while extent is not NULL:
            task = self._task(read_ended, extent.segment, whole)
            task.offset = extent.offset
            task.bytes = extent.bytes
            task.first_seq = extent.first_seq
            task.last_seq = extent.last_seq
            task.count = extent.count
            task.into = into
            self._submit_read(task)
            into += extent.bytes
            extent = extent.next
        return 0

    cdef int _submit_read(self, Task *task) except -1:
        return self.io.read_records(
            task.segment.file, task.into, task.bytes, task.offset, task.first_seq, task.count,
            task.last_seq - task.first_seq + 1 == task.count, read_finished, task, &task.result)

    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1:
        cdef Task *whole = self._task(NULL, NULL, NULL)
        cdef Task *task
        cdef Segment *segment
        cdef uint32_t begin = 0
        cdef uint32_t end
        whole.done = done
        whole.arg = arg
        while begin < count:
            segment = <Segment *>picks[begin].segment
            end = begin
            while end < count and picks[end].segment is segment:
                picks[end].at = NOT_PICKED
                end += 1
            task = self._task(pick_ended, segment, whole)
            self.io.pick(segment.file, &picks[begin], end - begin, into, task_finished, task,
                         &task.result)
            begin = end
        return 0

    # -- ranges that cannot be read --

    cdef int probe(self) except -1:
        cdef Segment *segment
        cdef Task *task
        cdef uint8_t *into
        bad = self.unreadable
        if bad is None or self._is_probing or self.closed:
            return 0
        segment = self._find_segment(bad.segment)
        if segment is NULL or segment.state == SEGMENT_DOOMED or segment.state == SEGMENT_GONE:
            return self._became_readable()       # no reader needs the range any more
        into = <uint8_t *>malloc(bad.bytes)
        if into is NULL:
            return 0
        self._is_probing = True
        task = self._task(read_ended, segment, NULL)
        task.owned = task.into = into
        task.offset = bad.offset
        task.bytes = bad.bytes
        task.first_seq = bad.first_seq
        task.last_seq = bad.last_seq
        task.count = bad.records
        return self._submit_read(task)

    cdef Segment *_find_segment(self, number) except? NULL:
        cdef uint64_t wanted = number
        cdef Segment *segment = self._first
        while segment is not NULL and segment.number != wanted:
            segment = segment.next
        return segment

    cdef bint _asks_repairer(self, Task *task, int error) except -1:
        """Handle a read that did not return all records: pass it to the repairer, if there is
        one."""
        cdef _RepairAnswer answer
        if task.asked or task.owned is not NULL or self.io.repairer is None:
            return False
        if error:
            self._read_failed(task, error)
            if self._failed_reads < TRIES_BEFORE_REPAIR:
                return False
        elif not task.result.damages.found:
            return False
        task.error = error
        answer = _RepairAnswer.__new__(_RepairAnswer)
        answer.log = self
        answer.task = task
        try:
            self.io.repairer(
                os.fsdecode(task.segment.path), task.offset, task.bytes, error, answer)
        except BaseException:
            if answer.task is not NULL:
                answer(False)
            raise
        return True

    cdef int _read_done(self, Task *task, int error) except -1:
        if task.owned is not NULL:
            self._is_probing = False
        if error:
            return self._read_failed(task, error)
        self._read_worked(task)
        if task.owned is not NULL:
            return 0          # the readers read the range again
        return self._report(os.fsdecode(task.segment.path), task.segment, &task.result.damages)

    cdef int _read_failed(self, Task *task, int error) except -1:
        if task.failed:
            return 0
        task.failed = True    # count the failure once, with or without a repairer
        self._failed_reads += 1
        path = os.fsdecode(task.segment.path)
        verb = io_call_verbs[task.result.call].decode()
        self.read_error_text = f"{verb} {path}: {os.strerror(error).lower()}"
        if self.unreadable is None:
            self.unreadable = UnreadableRange(
                path, task.segment.number, task.offset, task.bytes, task.first_seq, task.last_seq,
                task.count, error, self.read_error_text)
        return 0

    cdef int _read_worked(self, const Task *task) except -1:
        bad = self.unreadable
        self._failed_reads = 0
        if bad is None or bad.segment != task.segment.number or bad.offset < task.offset \
                or bad.offset >= task.offset + task.bytes:
            return 0
        return self._became_readable()

    cdef int _became_readable(self) except -1:
        self.unreadable = None
        self._failed_reads = 0
        if self.on_readable is not None:
            self.on_readable()
        return 0

    # -- damage --

    cdef int _report(self, str path, Segment *segment, const Damages *damages) except -1:
        cdef uint32_t i
        if self.on_damage is None or damages.found == 0 or self._is_known(segment, damages):
            return 0
        for i in range(damages.kept):
            self.on_damage(path, damages.at[i].offset, damage_text(&damages.at[i]))
        if damages.found > damages.kept:
            self.on_damage(path, damages.at[damages.kept - 1].offset,
                           f"and {damages.found - damages.kept} more damaged places")
        return self.set_aside(segment)

    cdef bint _is_known(self, const Segment *segment, const Damages *damages) except -1:
        """Return whether the damage in this range has already been reported."""
        if self._damaged is None:
            self._damaged = set()
        place = (segment.number, damages.at[0].offset if damages.kept else 0)
        if place in self._damaged:
            return True
        if len(self._damaged) < MAX_DAMAGED:
            self._damaged.add(place)
        return False

    cdef int set_aside(self, Segment *segment) except -1:
        """Keep the bytes of a damaged segment, by giving its file a second name."""
        if segment.is_aside:
            return 0
        segment.is_aside = True
        log_id = (<bytes>segment.log_id[:4]).hex()
        return self._link_aside(segment.file, segment, f"{segment.number:020d}.{log_id}.seg")

    cdef int set_journal_aside(self, bytes data) except -1:
        """Keep a damaged journal with this content, because the next snapshot replaces it."""
        cdef File *file = self.io.file(os.path.join(self._directory, b"journal"), 0)
        self._link_aside(file, NULL, f"journal.{crc32(data):08x}")
        return self.io.drop(file)

    cdef int _link_aside(self, File *file, Segment *segment, str name) except -1:
        cdef Task *task
        if self._aside is None:
            return 0
        task = self._task(aside_ended, segment, NULL)
        return self.io.link(
            LANE_WRITES, file, os.path.join(self._aside, f"{self.topic}.{name}".encode()),
            task_finished, task, &task.result)

    cdef int _aside_done(self, int error) except -1:
        if error and error != ENOENT and self.on_damage is not None:
            self.on_damage(self.directory, 0, f"damaged data cannot be kept in "
                           f"{os.fsdecode(self._aside)}: {os.strerror(error).lower()}")
        return 0

    # -- the end --

    cdef int close(self, log_done done, void *arg) except -1:
        """Sync what is not synced yet, and write the footer; done is called when the records are on
        disk. Extents may be released afterwards, but no more files are removed."""
        if self.closed:
            raise ValueError("the log is closed")
        self.closed = True
        self._ending = True
        self._end_done = done
        self._end_arg = arg
        self._end_error = 0
        self._frozen = True
        if self._current is not NULL:
            self._segment_retire(self._current)
        if self.is_synced():
            return self._end_check()
        return self.sync(NULL, NULL)

    cdef int delete(self, bint syncs_name, log_done done, void *arg) except -1:
        """Remove all of the log's files. Extents may be released before or afterwards."""
        cdef Segment *segment = self._first
        cdef Task *task
        if self.closed:
            raise ValueError("the log is closed")
        self.closed = True
        self._ending = True
        self._end_done = done
        self._end_arg = arg
        self._end_error = 0
        self._current = NULL
        # The files are removed behind the log's syncs and journal writes. These syncs need not
        # run any more, unless other machines make the same changes.
        self._chain.doomed = not self.io.mirrors
        self._awaited = self._awaited or done is not NULL
        self._removal = self.io.begin_hold(self._directory)
        while segment is not NULL:
            if segment.state != SEGMENT_GONE:
                self._unlink(segment, self._follower(unlink_ended, segment, NULL), self._lane)
            segment = segment.next
        for number in self.ids_files:
            self._remove_path(IO_UNLINK, self._ids_path(number))
        self._remove_path(IO_UNLINK, os.path.join(self._directory, b"journal"))
        self._remove_path(IO_UNLINK, os.path.join(self._directory, b"journal.tmp"))
        self._remove_path(IO_RMDIR, self._directory)
        task = self._follower(files_removed, NULL, NULL)
        self.io.mark(self._lane, task_finished, task, &task.result)
        return self._remove_path(IO_SYNC_DIR, self._data_path) if syncs_name else 0

    cdef int _remove_path(self, IoKind kind, bytes path) except -1:
        cdef Task *task = self._follower(directory_ended, NULL, NULL)
        task.result.removes = True
        return self.io.on_path(self._lane, kind, path, task_finished, task, &task.result)
