"""One topic's log: append, read, release; segments, footers and the journal.

Owns the topic's directory, and handles the end of each operation. Its bases own the parts:
segment_files, journal_file, log_writer, log_reads. log_recovery finds the existing files at
startup. Independent of channels; does no file I/O itself.
"""

import os

cimport cython
from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint64_t

from nsqcy.storage.io cimport (
    IO_RMDIR, IO_SYNC_DIR, IO_UNLINK, LANE_WRITES, FileCalls,
)
from nsqcy.storage.log_tasks cimport (
    TASK_ASIDE, TASK_DELTA, TASK_DIRECTORY, TASK_JOURNAL, TASK_PICK, TASK_READ, TASK_RUN,
    TASK_SEGMENT, TASK_SYNC, TASK_UNLINK, TaskKind, task_finished, tasks_alive,
)
from nsqcy.storage.segment cimport SEGMENT_GONE, Segment
from nsqcy.storage.segment_files cimport pieces_alive, segments_alive

from nsqcy.storage.disk_format import topic_directory


def live():
    """Return the number of live objects by kind; all zeros once every log is gone."""
    return {"tasks": tasks_alive(), "segments": segments_alive(), "pieces": pieces_alive()}


@cython.no_gc_clear      # __dealloc__ needs the I/O threads
cdef class Log(LogReads):
    """The log of one topic. Only the hub uses it; nothing here blocks."""

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

    # -- ends of operations --

    cdef int _finish(self, Task *task, int error) except -1:
        """Handle a finished operation: update the segment, call back, and start the operations that
        can start now."""
        cdef Log keep = self      # ending the last task may drop the last reference
        cdef Segment *segment = task.segment
        cdef Task *whole = task.whole
        cdef TaskKind kind = task.kind
        cdef log_done done = task.done
        cdef void *arg = task.arg
        if kind == TASK_RUN and not error:
            error = segment.error
        if kind == TASK_READ and keep._asks_repairer(task, error):
            return 0
        try:
            if kind == TASK_RUN:
                keep._run_done(task, error)
            elif kind == TASK_READ:
                keep._read_done(task, error)
            elif kind == TASK_PICK:
                error = 0
            elif kind == TASK_ASIDE:
                keep._aside_done(error)
                error = 0
            elif kind == TASK_SYNC:
                keep._sync_done(task, error)
            elif kind == TASK_SEGMENT:
                if error:
                    keep._write_failed(os.fsdecode(segment.path), task.result.call, error)
                    keep._segment_fail(segment)
            elif kind == TASK_JOURNAL or kind == TASK_DELTA:
                if error:
                    keep._journal_failed(task, error)
            elif kind == TASK_DIRECTORY and not error and task.flags:
                keep._names_synced(task.flags)
            elif error == ENOENT and (kind == TASK_UNLINK or kind == TASK_DIRECTORY):
                error = 0         # already gone, or not created yet
            elif error:
                keep._write_failed(os.fsdecode(segment.path) if segment is not NULL
                                   else keep.directory, task.result.call, error)
            if kind == TASK_DELTA and task.tells:
                keep._journal_written(error)
            if error and kind != TASK_READ and not keep._end_error:
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
        cdef bint snapshot = whole.kind == TASK_JOURNAL
        if error and not whole.error:
            whole.error = error
        whole.parts -= 1
        if whole.parts:
            return 0
        error = whole.error
        if snapshot:
            self._journal_pending -= 1
            if error:
                self._lose_journal(whole.file)
            elif self._journal is not NULL:
                self.journal_lost = False
                self._write_succeeded()
            if not error and not self._journal_pending:
                self._unlink_doomed()
            self._journal_written(error)
        self._task_end(whole)
        if done is not NULL:
            done(arg, error)
        return 0

    # -- the end --

    cdef int close(self, log_done done, void *arg) except -1:
        """Write the footer, sync, sync the directory; done is called when all of this is on disk.
        Extents may be released afterwards, but no more files are removed."""
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
        return self.sync(NULL, NULL)

    cdef int delete(self, log_done done, void *arg) except -1:
        """Remove all of the log's files. Extents may be released before or afterwards."""
        cdef Segment *segment = self._first
        if self.closed:
            raise ValueError("the log is closed")
        self.closed = True
        self._ending = True
        self._end_done = done
        self._end_arg = arg
        self._end_error = 0
        self._current = NULL
        if self._following:
            # Otherwise a log of the same name could find files that are still to be renamed or
            # removed.
            self.io.wait_for(self._lane)
        while segment is not NULL:
            if segment.state != SEGMENT_GONE:
                self._unlink(segment, self._task(TASK_UNLINK, segment, NULL), LANE_WRITES)
            segment = segment.next
        self._path_task(IO_UNLINK, os.path.join(self._directory, b"journal"))
        self._path_task(IO_UNLINK, os.path.join(self._directory, b"journal.tmp"))
        self._path_task(IO_RMDIR, self._directory)
        return self._path_task(IO_SYNC_DIR, self._data_path)

    cdef int _path_task(self, IoKind kind, bytes path) except -1:
        cdef Task *task = self._task(TASK_DIRECTORY, NULL, NULL)
        return self.io.on_path(LANE_WRITES, kind, path, task_finished, task, &task.result)

    cdef int _end_check(self) except -1:
        cdef log_done done = self._end_done
        if not self._ending or self._tasks:
            return 0
        self._ending = False
        if done is not NULL:
            done(self._end_arg, self._end_error)
        return 0
