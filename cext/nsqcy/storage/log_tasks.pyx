"""Tasks: each operation that a log submits to the I/O threads, until it ends.

Owns the memory of tasks, the lane of consecutive tasks, and the text of the last error. Knows
nothing about segment files or the journal: derived classes handle the end of a task (Log._finish).
"""

import os

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from nsqcy.storage.io cimport LANE_AWAITED, LANE_BACKGROUND, damages_free, io_call_verbs


cdef enum:
    SPARE_TASKS = 256

cdef Task *spare_tasks = NULL
cdef int spare_count = 0
cdef int64_t live_tasks = 0


cdef int64_t tasks_alive() noexcept:
    """Return the number of unfinished tasks; zero once every log is gone."""
    return live_tasks


cdef int task_finished(void *arg, int error) except -1:
    cdef Task *task = <Task *>arg
    return (<LogTasks>task.log)._ended(task, error)


@cython.no_gc_clear      # as its Log
cdef class LogTasks:
    """The operations of one log, which lives while any are in progress."""

    # -- tasks --

    cdef Task *_task(self, TaskKind kind, Segment *segment, Task *whole) except NULL:
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
        task.kind = kind
        task.log = <void *>self
        task.segment = segment
        task.whole = whole
        if segment is not NULL:
            segment.pending += 1
        if whole is not NULL:
            whole.parts += 1
        if self._tasks == 0:
            Py_INCREF(self)
        self._tasks += 1
        return task

    cdef Task *_follower(self, TaskKind kind, Segment *segment, Task *whole) except NULL:
        """Return a task for an operation in self._lane: it may take a long time, and appends do not
        wait for it. A log's operations stay in one lane while any is in progress, so they run in
        order."""
        cdef Task *task = self._task(kind, segment, whole)
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

    # -- for derived classes --

    cdef int _ended(self, Task *task, int error) except -1:
        """Handle the end of an operation."""
        raise NotImplementedError

    cdef int _finish(self, Task *task, int error) except -1:
        """Handle the end of a task."""
        raise NotImplementedError

    cdef int _part_end(self, Task *whole, int error) except -1:
        """Handle the end of one of several operations with one result."""
        raise NotImplementedError
