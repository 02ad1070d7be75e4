"""The journal of a log: snapshots that replace the file, and deltas appended to it.

Owns the file and knows whether its writes succeed: a run that was appended to the log after a
leading snapshot or a delta is not done until the snapshot or delta is done. Does not know the
content of a snapshot (nsqcy/storage/journal.py).
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from nsqcy.storage.disk_format cimport (
    JournalEntry, JournalHeader, crc32c_of, journal_entry, journal_head,
)
from nsqcy.storage.io cimport FILE_PARENT, FILE_REPLACE, IO_FSYNC, LANE_WRITES
from nsqcy.storage.log_tasks cimport TASK_DELTA, TASK_JOURNAL, task_finished


@cython.no_gc_clear      # as its Log
cdef class JournalFile(SegmentFiles):
    """The journal of one log."""

    cdef bint is_telling(self) noexcept:
        return self._journal_done < self._journal_writes

    # -- snapshots --

    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1:
        self.begin_snapshot()
        self.add_to_snapshot(snapshot)
        return self.end_snapshot((), leads, done, arg)

    cdef int begin_snapshot(self) except -1:
        """Begin to replace the journal; until that is complete, the existing journal is kept, and
        so is every file that it may name."""
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
        cdef Task *task = self._follower(TASK_JOURNAL, NULL, NULL)
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
        """Complete journal.tmp: its head, these deltas, sync, rename, sync the directory."""
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
        whole = self._task(TASK_JOURNAL, NULL, NULL)
        whole.file = self._journal
        whole.done = done
        whole.arg = arg
        whole.parts = 1
        # It must not become the journal until the data that it refers to is on disk.
        self._sync_files(whole)
        task = self._journal_task(TASK_JOURNAL, whole)
        task.owned = journal_head(self.log_id, self._snapshot_bytes, self._snapshot_crc)
        self.io.write(self._lane, self._journal, task.owned,
                      sizeof(JournalHeader) + sizeof(JournalEntry), 0, task_finished, task,
                      &task.result)
        for delta in deltas:
            self.append_delta(delta, NULL, NULL)
        self._journal_dirty = False
        task = self._journal_task(TASK_JOURNAL, whole)
        self.io.on_file(self._lane, IO_FSYNC, self._journal, 0, task_finished, task, &task.result)
        task = self._journal_task(TASK_JOURNAL, whole)
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

    # -- deltas --

    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1:
        """Write the delta after a snapshot in progress; runs wait for it."""
        cdef bint behind = self.is_telling()
        cdef size_t n = sizeof(JournalEntry) + len(delta)
        cdef Task *task
        if self.closed:
            raise ValueError("the log is closed")
        if self._journal is NULL:
            return 0
        task = (self._journal_task(TASK_DELTA, NULL) if behind
                else self._task(TASK_DELTA, NULL, NULL))
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

    cdef Task *_journal_task(self, TaskKind kind, Task *whole) except NULL:
        cdef Task *task = self._follower(kind, NULL, whole)
        task.file = self._journal
        return task

    # -- results of writes --

    cdef int _journal_written(self, int error) except -1:
        """Handle the end of the oldest write in progress. If it failed, a later one has the same
        content."""
        self._journal_done += 1
        if not error:
            self._required_done = self._journal_done
        return self._release_written()

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

    cdef int _release_written(self) except -1:
        """Handle the end of a write: the runs that waited for it may be done. See LogWriter."""
        raise NotImplementedError
