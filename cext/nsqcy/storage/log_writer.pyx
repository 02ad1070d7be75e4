"""Writer of a log: its runs and its journal.

Completes each run once it is as durable as requested. Owns the runs that are written but not done,
in order: they wait for a sync (group commit), or for an earlier journal write.

Owns the journal: snapshots that replace the file, deltas appended to it, and the results of these
writes. A run that was appended to the log after a leading snapshot or a delta is not done until the
snapshot or delta is done. Independent of the content of a snapshot (nsqcy/storage/journal.py).
Accesses the segments' files only through segment_files.
"""

# The writer of a log: appending runs, group commit, and the journal: a snapshot and the deltas
# after it, in one file.


cdef enum:
    FOLLOWING_SYNCS = 8          # maximum runs that wait for one sync; more have no benefit


cdef int run_written(void *arg, int error) except -1:
    cdef Task *task = <Task *>arg
    return (<LogWriter>task.log)._run_written(task, error)


cdef int run_ended(Task *task, int error) except -1:
    (<LogWriter>task.log)._run_done(task, error)
    return error


cdef int journal_ended(Task *task, int error) except -1:
    """Handle the end of a write to the journal, or to its replacement."""
    cdef LogWriter log = <LogWriter>task.log
    if error:
        log._journal_failed(task, error)
    if task.tells:
        log._journal_written(error)
    return error


cdef int ids_ended(Task *task, int error) except -1:
    if error:
        (<LogWriter>task.log)._ids_failed(task, error)
    return error


cdef int snapshot_ended(Task *whole, int error) except -1:
    (<LogWriter>whole.log)._snapshot_done(whole, error)
    return error


cdef int commit_done(void *arg, int error) except -1:
    cdef LogWriter log = <LogWriter>arg
    Py_DECREF(log)
    return log._commit_done(error)


@cython.no_gc_clear      # as its Log
cdef class LogWriter(SegmentFiles):
    """The writer of one log."""

    # -- appending --

    cdef bint rolls(self, size_t n) noexcept:
        cdef Segment *segment = self._current
        if segment is NULL:
            return True
        return (not self._goes_on and segment.end > SEGMENT_HEADER
                and segment.end + n > self.max_bytes_per_file)

    cdef uint64_t room(self) noexcept:
        cdef uint64_t end = SEGMENT_HEADER
        if self._goes_on and self._current is not NULL:
            end = self._current.end
        return self.max_bytes_per_file - end if end < self.max_bytes_per_file else 0

    cdef int append(self, const uint8_t *run, size_t n, uint64_t first_seq, uint64_t last_seq,
                    uint32_t count, int flags, bint durable, bint goes_on, Extent *into,
                    log_done done, void *arg) except -1:
        cdef Segment *segment = self._current
        cdef Task *task
        if self.closed:
            raise ValueError("the log is closed")
        if n == 0 or n & 7 or n > 0xFFFFFFF8u or count == 0 or first_seq > last_seq:
            raise ValueError("not a run")
        if self.rolls(n):
            if segment is not NULL:
                self._segment_retire(segment)
            self._segment_open(first_seq)
            segment = self._current
        task = self._task(run_ended, segment, NULL)
        task.offset = segment.end
        task.bytes = n
        task.first_seq = first_seq
        task.last_seq = last_seq
        task.count = count
        task.flags = flags
        task.durable = durable
        task.goes_on = self._goes_on = goes_on
        task.commit = self._commits + 1 if durable else 0
        task.journal_writes = self._required
        task.done = done
        task.arg = arg
        self._place(segment, task, into)
        self.io.write_records(segment.file, run, n, task.offset, run_written, task, &task.result)
        self._awaited = durable
        if durable:
            self._durable += 1
            return 0
        self._unsynced += count
        if self.sync_every and self._unsynced >= self.sync_every \
                and self._following < FOLLOWING_SYNCS:
            self.sync(NULL, NULL)
        return 0

    cdef int _run_done(self, Task *task, int error) except -1:
        cdef Segment *segment = task.segment
        if error:
            segment.error = error
            if task.error:
                self._write_failed(os.fsdecode(segment.path), task.result.call, error)
            segment.good = min(segment.good, task.offset)
            return self._segment_fail(segment)
        segment.good = task.offset + task.bytes
        if not self._error_is_sync:
            self.last_error_text = ""
            self._write_succeeded()
        return self._index(task)

    # -- waiting runs --

    cdef int _run_written(self, Task *task, int error) except -1:
        """Handle the end of a write. The run may have to wait before it is complete."""
        task.error = error
        if self.journal_lost and task.journal_writes <= self._journal_done:
            task.refused = EIO    # recovery could not detect the lost part of the journal
        if task.durable or task.goes_on or self._written_last is not NULL \
                or not self._is_journaled(task):
            return self._wait(task, error)
        return self._finish_run(task)

    cdef int _finish_run(self, Task *task) except -1:
        return self._finish(task, task.error or task.refused or task.segment.error)

    cdef bint _is_journaled(self, const Task *task) noexcept:
        """Return whether the journal writes that this run is waiting for are done, or have failed
        permanently."""
        return (task.journal_writes <= self._required_done
                or self.journal_lost and task.journal_writes <= self._journal_done)

    cdef int _wait(self, Task *task, int error) except -1:
        """Handle a failed run, which must also wait: runs are completed in order."""
        if error:
            self._segment_fail(task.segment)
        if self._written_last is NULL:
            self._written_first = task
        else:
            self._written_last.next = task
        self._written_last = task
        self.commit()
        return self._release_written()

    cdef int _release_written(self) except -1:
        """Complete the runs that no longer need to wait."""
        cdef LogWriter keep = self      # ending the last task may drop the last reference
        cdef Task *task
        while keep._first_is_settled():
            task = keep._written_first
            keep._written_first = task.next
            if task.next is NULL:
                keep._written_last = NULL
            keep._finish_run(task)
        return 0

    cdef bint _first_is_settled(self) noexcept:
        """Return whether the first waiting run can be completed. A continued run also waits for the
        next one; both are then accepted or rejected together."""
        cdef Task *last = self._written_first
        cdef Task *failed = NULL
        cdef Task *task
        while last is not NULL and self._is_journaled(last) and last.commit <= self._commits_done:
            if last.journal_writes > self._required_done and not last.refused:
                last.refused = EIO
            if failed is NULL and (last.error or last.refused):
                failed = last
            if not last.goes_on:
                break
            last = last.next
        else:
            return False
        task = self._written_first
        while task is not last.next:
            task.goes_on = False
            if failed is not NULL and not (task.error or task.refused):
                task.error = failed.error
                task.refused = failed.refused
                task.result.call = failed.result.call
            task = task.next
        return True

    # -- syncs and commits --

    cdef int sync(self, log_done done, void *arg) except -1:
        """Sync all data appended so far, so that it survives a power loss; done receives the
        result. The result includes runs that were written to a file whose sync has failed since the
        last result."""
        cdef Task *whole = self._task(NULL, NULL, NULL)
        cdef Task *task
        whole.done = done
        whole.arg = arg
        whole.parts = 1           # held until all parts are submitted
        if self._sync_error and done is not NULL:
            whole.error = self._sync_error
            self._sync_error = 0
        self._sync_files(whole)
        if self._journal is not NULL and self._journal_dirty:
            self._journal_dirty = False
            task = self._journal_task(whole)
            self.io.on_file(self._lane, IO_SYNC, self._journal, 0, task_finished, task,
                            &task.result)
        if self._directory_dirty or whole.parts == 1:
            self._sync_directory(whole)
        whole.parts -= 1
        return 0

    cdef bint is_synced(self) noexcept:
        """Return whether a sync would have nothing to do."""
        cdef Segment *segment = self._last
        if self._journal_dirty or self._directory_dirty or self._following or self._sync_error:
            return False
        while segment is not NULL:
            if segment.synced < segment.end and segment.state in (SEGMENT_OPEN, SEGMENT_CLOSING):
                return False
            segment = segment.previous
        return True

    cdef int commit(self) except -1:
        if self._commits > self._commits_done or self._durable == 0:
            return 0
        self._commits += 1
        self._durable = 0
        Py_INCREF(self)
        return self.sync(commit_done, <void *>self)

    cdef int _commit_done(self, int error) except -1:
        """Handle the end of a sync: it covers every durable run appended before it began, because
        those were already written. After a failed sync, these runs do not count as written."""
        cdef Task *task = self._written_first
        self._commits_done = self._commits
        while task is not NULL and task.commit <= self._commits_done:
            if task.durable and not task.refused:
                task.refused = error
                if not error and task.segment.synced < task.offset + task.bytes:
                    task.refused = EIO    # the file failed between the write and the sync
            task = task.next
        self._release_written()
        return self.commit()

    cdef int64_t tick(self, int64_t now) except -1:
        if not self._unsynced and not self._journal_dirty:
            self._synced_at = now
            return 0
        if now - self._synced_at >= self.sync_timeout and not self._following:
            self._synced_at = now
            self.sync(NULL, NULL)
            return 0
        return max(now, self._synced_at + self.sync_timeout)

    cdef bint is_telling(self) noexcept:
        return self._journal_done < self._journal_writes

    # -- snapshots of the journal --

    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1:
        self.begin_snapshot()
        self.add_to_snapshot(snapshot)
        return self.end_snapshot((), leads, done, arg)

    cdef int begin_snapshot(self) except -1:
        """Start replacing the journal. Until the replacement is complete, the existing journal is
        kept, and so is every file that it may name."""
        if self.closed:
            raise ValueError("the log is closed")
        self._snapshot = self.io.file(os.path.join(self._directory, b"journal.tmp"),
                                      FILE_REPLACE | FILE_PARENT)
        self._snapshot_bytes = 0
        self._snapshot_crc = 0
        self._journal_pending += 1
        return 0

    cdef int add_to_snapshot(self, bytes piece) except -1:
        cdef size_t n = len(piece)
        cdef uint64_t offset = sizeof(JournalHeader) + sizeof(JournalEntry) + self._snapshot_bytes
        cdef Task *task = self._follower(journal_ended, NULL, NULL)
        task.file = self._snapshot
        task.owned = <uint8_t *>malloc(n)
        if task.owned is NULL:
            self._task_end(task)
            raise MemoryError
        memcpy(task.owned, PyBytes_AS_STRING(piece), n)
        self._snapshot_crc = crc32c_of(self._snapshot_crc, task.owned, n)
        self._snapshot_bytes += n
        return self.io.write(self._lane, self._snapshot, task.owned, n, offset, task_finished, task,
                             &task.result)

    cdef int end_snapshot(self, deltas, bint leads, log_done done, void *arg) except -1:
        """Complete journal.tmp: write its head and these deltas, sync it, rename it, and sync the
        directory."""
        cdef Task *whole
        cdef Task *task
        if self._journal is not NULL:
            self.io.drop(self._journal)
        self._journal = self._snapshot
        self._snapshot = NULL
        self.journal_bytes = sizeof(JournalHeader) + sizeof(JournalEntry) + self._snapshot_bytes
        self._journal_writes += 1
        if leads or self.journal_lost:
            self._required = self._journal_writes
        self._directory_dirty = True
        whole = self._task(snapshot_ended, NULL, NULL)
        whole.file = self._journal
        whole.done = done
        whole.arg = arg
        whole.parts = 1
        # The snapshot must not become the journal until the data that it refers to is on disk.
        self._sync_files(whole)
        self._sync_ids(whole)
        task = self._journal_task(whole)
        task.owned = journal_head(self.log_id, self._snapshot_bytes, self._snapshot_crc)
        self.io.write(self._lane, self._journal, task.owned,
                      sizeof(JournalHeader) + sizeof(JournalEntry), 0, task_finished, task,
                      &task.result)
        for delta in deltas:
            self.append_delta(delta, NULL, NULL)
        self._journal_dirty = False
        task = self._journal_task(whole)
        self.io.on_file(self._lane, IO_FSYNC, self._journal, 0, task_finished, task, &task.result)
        task = self._journal_task(whole)
        self.io.rename(self._lane, self._journal, os.path.join(self._directory, b"journal"),
                       task_finished, task, &task.result)
        self._sync_directory(whole)
        whole.parts -= 1
        return 0

    cdef int give_up_snapshot(self) except -1:
        self.io.drop(self._snapshot)
        self._snapshot = NULL
        self._journal_pending -= 1
        return 0

    # -- files of deduplication ids --

    cdef int append_ids(self, uint64_t number, bytes batch) except -1:
        cdef Task *task
        if self.closed:
            raise ValueError("the log is closed")
        if self._ids is NULL or number != self._ids_number:
            self._close_ids()
            self._ids = self.io.file(self._ids_path(number), FILE_CREATE | FILE_PARENT)
            self._ids_number = number
            self._ids_bytes = 0
            self._ids_created = True
            self.ids_files.add(number)
        task = self._follower(ids_ended, NULL, NULL)
        task.file = self._ids
        task.owned = <uint8_t *>malloc(len(batch))
        if task.owned is NULL:
            self._task_end(task)
            raise MemoryError
        memcpy(task.owned, PyBytes_AS_STRING(batch), len(batch))
        self._ids_dirty = True
        self.io.write(self._lane, self._ids, task.owned, len(batch), self._ids_bytes,
                      task_finished, task, &task.result)
        self._ids_bytes += len(batch)
        return 0

    cdef int remove_ids(self, uint64_t number) except -1:
        cdef Task *task
        if self.closed:
            return 0
        if number == self._ids_number:
            self._close_ids()
        self.ids_files.discard(number)
        task = self._follower(directory_ended, NULL, NULL)
        return self.io.on_path(self._lane, IO_UNLINK, self._ids_path(number), task_finished, task,
                               &task.result)

    cdef int _close_ids(self) except -1:
        if self._ids is not NULL:
            self.io.drop(self._ids)
            self._ids = NULL
        self._ids_dirty = False
        return 0

    cdef int _sync_ids(self, Task *whole) except -1:
        """Sync the ids written since the last snapshot, and the name of their file."""
        cdef Task *task
        if self._ids is NULL or not self._ids_dirty:
            return 0
        self._ids_dirty = False
        task = self._follower(ids_ended, NULL, whole)
        task.file = self._ids
        # A journal must not list ids that are not on disk: it would release their records.
        task.result.needed = True
        self.io.on_file(self._lane, IO_SYNC, self._ids, 0, task_finished, task, &task.result)
        if self._ids_created:
            self._ids_created = False
            self._directory_dirty = True
            self._sync_directory(whole)
            self._directory_dirty = True
        return 0

    cdef int _ids_failed(self, Task *task, int error) except -1:
        self._write_failed(
            os.fsdecode(self._ids_path(self._ids_number)), task.result.call, error)
        return 0

    cdef bytes _ids_path(self, uint64_t number):
        return os.path.join(self._directory, b"%020d.ids" % number)

    # -- deltas in the journal --

    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1:
        """Write the delta after a snapshot in progress; runs wait for it."""
        cdef bint behind = self.is_telling()
        cdef size_t n = sizeof(JournalEntry) + len(delta)
        cdef Task *task
        if self.closed:
            raise ValueError("the log is closed")
        if self._journal is NULL:
            return 0
        task = (self._journal_task(NULL) if behind
                else self._task(journal_ended, NULL, NULL))
        task.file = self._journal
        task.done = done
        task.arg = arg
        task.owned = <uint8_t *>malloc(n)
        if task.owned is NULL:
            self._task_end(task)
            raise MemoryError
        journal_entry(task.owned, delta)
        if behind:
            task.tells = True
            self._journal_writes += 1
            self._required = self._journal_writes
        self.io.write(self._lane if behind else LANE_WRITES, self._journal, task.owned, n,
                      self.journal_bytes, task_finished, task, &task.result)
        self.journal_bytes += n
        self._journal_dirty = True
        return 1

    cdef Task *_journal_task(self, Task *whole) except NULL:
        cdef Task *task = self._follower(journal_ended, NULL, whole)
        task.file = self._journal
        return task

    # -- results of the journal's writes --

    cdef int _journal_written(self, int error) except -1:
        """Handle the end of the oldest write in progress. If it failed, a later write has the same
        content."""
        self._journal_done += 1
        if not error:
            self._required_done = self._journal_done
        return self._release_written()

    cdef int _snapshot_done(self, Task *whole, int error) except -1:
        self._journal_pending -= 1
        if error:
            self._lose_journal(whole.file)
        elif self._journal is not NULL:
            self.journal_lost = False
            self._write_succeeded()
        if not error and not self._journal_pending:
            self._unlink_doomed()
        return self._journal_written(error)

    cdef int _journal_failed(self, Task *task, int error) except -1:
        self._write_failed(os.path.join(self.directory, "journal"), task.result.call, error)
        self._lose_journal(task.file)
        return 0

    cdef int _lose_journal(self, File *file) except -1:
        """Append nothing more to the journal, and complete no run until the next snapshot
        exists."""
        if self._journal is not NULL and self._journal is file:
            self.io.drop(file)
            self._journal = NULL
            self._journal_dirty = False
            self.journal_lost = True
        return 0
