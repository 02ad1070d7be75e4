"""Reads of a log: ranges that cannot be read now, damaged records, and their repair.

A read that fails says nothing about the data: its caller gets the errno and tries again. A record
is damaged only if two reads from the disk agree that it is (see iothread.h). Before either becomes
the caller's, the repairer of the log's file calls may put the range right.

Owns the range that could not be read, until it can be read again, and the second name of a damaged
file, which keeps its bytes when the segment is deleted. Reads no clock: the caller decides when to
try again.
"""

import os
from collections import namedtuple
from zlib import crc32

cimport cython
from libc.errno cimport EIO, ENOENT
from libc.stdint cimport uint64_t
from libc.stdlib cimport malloc

from nsqcy.storage.disk_format cimport damage_text
from nsqcy.storage.io cimport LANE_WRITES, NOT_PICKED, damages_free, io_call_verbs
from nsqcy.storage.log_tasks cimport (
    TASK_ASIDE, TASK_PICK, TASK_READ, TASK_WHOLE, task_finished,
)
from nsqcy.storage.segment cimport SEGMENT_DOOMED, SEGMENT_GONE


cdef enum:
    TRIES_BEFORE_REPAIR = 4       # consecutive failed reads until the log queries its repairer
    MAX_DAMAGED = 10000           # places that are remembered, so that each is reported once

UnreadableRange = namedtuple(
    "UnreadableRange", "path segment offset bytes first_seq last_seq records error text")


cdef class _RepairAnswer:
    """Called once by the repairer: True: the range is repaired; False: it cannot be; None: not
    now, so the reader tries again later."""
    cdef LogReads log
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


@cython.no_gc_clear      # as its Log
cdef class LogReads(LogWriter):
    """The reads of one log."""

    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1:
        cdef Task *whole
        cdef Task *task
        if extent.bytes == 0:
            raise ValueError("an empty extent")
        whole = self._task(TASK_WHOLE, NULL, NULL)
        whole.done = done
        whole.arg = arg
        while extent is not NULL:
            task = self._task(TASK_READ, extent.segment, whole)
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
            task.last_seq - task.first_seq + 1 == task.count, task_finished, task, &task.result)

    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1:
        cdef Task *whole = self._task(TASK_WHOLE, NULL, NULL)
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
            task = self._task(TASK_PICK, segment, whole)
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
        task = self._task(TASK_READ, segment, NULL)
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
        """Handle a read that did not give all records: leave it to the repairer, if there is
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
            return 0          # its readers read it again
        return self._report(os.fsdecode(task.segment.path), task.segment, &task.result.damages)

    cdef int _read_failed(self, Task *task, int error) except -1:
        if task.failed:
            return 0
        task.failed = True    # it counts once, with or without a repairer
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
        """Keep the bytes of a damaged segment, by a second name for its file."""
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
        task = self._task(TASK_ASIDE, segment, NULL)
        return self.io.link(
            LANE_WRITES, file, os.path.join(self._aside, f"{self.topic}.{name}".encode()),
            task_finished, task, &task.result)

    cdef int _aside_done(self, int error) except -1:
        if error and error != ENOENT and self.on_damage is not None:
            self.on_damage(self.directory, 0, f"damaged data cannot be kept in "
                           f"{os.fsdecode(self._aside)}: {os.strerror(error).lower()}")
        return 0
