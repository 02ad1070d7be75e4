"""One topic's log: append, read, release, recover; segments, footers and the journal.

Owns the topic's directory and what the files in it look like (cext/include/segment.h, normative in
docs/DISKFORMAT.md). Knows nothing of channels: what the journal says is the domain's business
(nsqcy/storage/journal.py). Makes no file call itself but in recover(), which runs before serving.

Rules: a run is never split; a segment that existed before a start is never written to; the number
of a new segment is larger than any before; a file is unlinked only when no extent lies in it and no
journal write that may stop referring to it is under way.
"""

import os
import re
import time
from bisect import bisect_left
from collections import namedtuple
from operator import itemgetter

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, EIO, ENOENT, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strdup
from posix.stat cimport struct_stat

from nsqcy.storage.io cimport (
    FILE_CREATE, FILE_PARENT, FILE_REPLACE, IO_FSYNC, IO_RMDIR, IO_SYNC, IO_SYNC_DIR,
    IO_TRUNCATE, IO_UNLINK, IO_UNLINK_FILE, LANE_AWAITED, LANE_BACKGROUND, LANE_WRITES, NOT_PICKED,
    Damage, IoCalls, damages_free, io_call_verbs,
)


cdef extern from "fcntl.h" nogil:
    int AT_FDCWD
    int O_RDONLY

cdef extern from "segment.h" nogil:
    enum:
        FORMAT_VERSION
        SEGMENT_HEADER
        SEGMENT_MAGIC
        FOOTER_MAGIC
        JOURNAL_MAGIC
        DAMAGE_RECORD
        DAMAGE_FRAMING
        DAMAGE_TAIL
        SCAN_RUN_BYTES
        RECORD_HEADER

    struct Record:
        uint32_t length
        uint64_t seq
        uint64_t id
        int64_t timestamp
        uint16_t attributes

    struct SegmentHeader:
        uint64_t magic
        uint32_t version
        uint32_t crc
        uint8_t log_id[16]
        uint64_t number
        uint64_t first_seq
        int64_t created

    struct SegmentTrailer:
        uint32_t length
        uint32_t crc
        uint64_t magic

    struct JournalHeader:
        uint64_t magic
        uint32_t version
        uint32_t crc
        uint8_t log_id[16]

    struct JournalEntry:
        uint32_t length
        uint32_t crc

    struct Scan:
        SegmentRun *runs
        uint64_t count
        uint64_t records
        uint64_t max_id
        uint64_t end
        int failed

    uint32_t crc32c_of "crc32c"(uint32_t crc, const void *data, size_t n)
    uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t n)
    uint32_t crc32c_software(uint32_t crc, const uint8_t *data, size_t n)
    uint32_t segment_header_crc(const SegmentHeader *h)
    uint32_t journal_header_crc(const JournalHeader *h)
    uint32_t journal_entry_crc(uint32_t length, const uint8_t *payload)
    const Record *record_at(const uint8_t *bytes, uint64_t offset)
    int record_good(const uint8_t *bytes, uint64_t n, uint64_t at)
    void run_verify(uint8_t *bytes, uint64_t n, uint64_t first_seq, uint32_t count, int dense,
                    uint64_t base, Damages *damages)
    void segment_scan(const uint8_t *bytes, uint64_t n, Scan *scan, Damages *damages)
    const SegmentFooter *segment_footer(const uint8_t *tail, uint64_t n, uint64_t size,
                                        const SegmentRun **runs)


class FormatError(Exception):
    """A file was written by a newer nsqcy: refused, and left as it is."""


_TOPIC = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_SEGMENT = re.compile(r"\d{20}\.seg")

end_of = itemgetter(1)

Footer = namedtuple(
    "Footer", "records first_seq last_seq first_time last_time max_id data_end")

DAMAGE_TEXTS = {
    DAMAGE_RECORD: "damaged record of {} bytes",
    DAMAGE_FRAMING: "{} damaged bytes before the next good record",
    DAMAGE_TAIL: "no good record in the last {} bytes",
}

cdef enum:
    INDEX_RUN_BYTES = 262144     # short runs that follow each other share an index entry
    FOOTER_READ = 32768          # most footers fit into the first read
    SPARE_TASKS = 256
    FOLLOWING_SYNCS = 8          # by count that may wait for each other: more would not help
    NAMES_INSIDE = 1             # flags of a TASK_DIRECTORY that syncs: the log's directory
    NAME_ITSELF = 2              # the data path

cdef Task *spare_tasks = NULL
cdef int spare_count = 0
cdef int64_t live_tasks = 0
cdef int64_t live_segments = 0
cdef int64_t live_pieces = 0


def live():
    """Objects alive, all zero once every log is gone."""
    return {"tasks": live_tasks, "segments": live_segments, "pieces": live_pieces}


def topic_directory(topic):
    """The name of a topic's directory. Topic names are also legal file names, `..` included."""
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"not a topic name: {topic!r}")
    return f"{topic}.topic"


# ---- completions ----

cdef int task_finished(void *arg, int error) except -1:
    cdef Task *task = <Task *>arg
    return (<Log>task.log)._ended(task, error)


cdef int commit_done(void *arg, int error) except -1:
    cdef Log log = <Log>arg
    Py_DECREF(log)
    return log._commit_done(error)


@cython.no_gc_clear      # __dealloc__ needs the I/O threads
cdef class Log:
    """The log of one topic. Only the hub uses it; nothing here blocks but recover()."""

    def __cinit__(self, IoThread io not None, data_path, str topic, *,
                  uint64_t max_bytes_per_file=104857600, uint64_t sync_every=2500,
                  int64_t sync_timeout=2000000000, bytes log_id=None, on_damage=None,
                  on_failure=None, on_recovery=None):
        self.io = io
        self.topic = topic
        self._data_path = os.fsencode(data_path) or b"."
        self._directory = os.path.join(self._data_path, os.fsencode(topic_directory(topic)))
        self.directory = os.fsdecode(self._directory)
        self.last_error_text = ""
        self.log_id = os.urandom(16) if log_id is None else log_id
        if len(self.log_id) != 16:
            raise ValueError("a log_id has 16 bytes")
        self.on_damage = on_damage
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

    # ---- tasks: what an op is for; the log lives while it has any ----

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
        """A task for an op in self._lane: it may take long, and what is appended does not wait for
        it. Ops of one log are in one such lane as long as any is under way, and so in order."""
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

    cdef int _ended(self, Task *task, int error) except -1:
        """An op is done. That does not make every run done."""
        if task.kind != TASK_RUN:
            return self._finish(task, error)
        task.error = error
        if self.journal_lost and task.told <= self._journal_done:
            task.refused = EIO    # a start would read it as if what the journal lost had not been
        if task.durable or task.goes_on or self._written_last is not NULL \
                or not self._is_told(task):
            return self._wait(task, error)
        return self._finish(task, error or task.refused)

    cdef bint _is_told(self, const Task *task) noexcept:
        """Whether the journal has told what it had to before this run, or never will."""
        return task.told <= self._told_done or (self.journal_lost
                                                and task.told <= self._journal_done)

    cdef int _wait(self, Task *task, int error) except -1:
        """A run that failed waits as well: they are answered in their order."""
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
        """Finishes the runs that have waited for long enough."""
        cdef Log keep = self      # the last task's end may drop the last reference
        cdef Task *task
        while keep._first_is_settled():
            task = keep._written_first
            keep._written_first = task.next
            if task.next is NULL:
                keep._written_last = NULL
            keep._finish(task, task.error or task.refused)
        return 0

    cdef bint _first_is_settled(self) noexcept:
        """Whether the first of the runs that wait has waited for long enough. One that goes on
        waits for the next one as well, and then either both are refused or none is."""
        cdef Task *last = self._written_first
        cdef Task *failed = NULL
        cdef Task *task
        while last is not NULL and self._is_told(last) and last.commit <= self._commits_done:
            if last.told > self._told_done and not last.refused:
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

    cdef int _finish(self, Task *task, int error) except -1:
        """An op is done: tell the segment, then whoever asked, then see what that allows."""
        cdef Log keep = self      # the last task's end may drop the last reference
        cdef Segment *segment = task.segment
        cdef Task *whole = task.whole
        cdef TaskKind kind = task.kind
        cdef log_done done = task.done
        cdef void *arg = task.arg
        if kind == TASK_RUN and not error:
            error = segment.error
        try:
            if kind == TASK_RUN:
                keep._run_done(task, error)
            elif kind == TASK_READ:
                keep._read_done(task, error)
            elif kind == TASK_PICK:
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
                error = 0         # gone already, or not made yet
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
                    # Not before: whoever was told may have released what lay in it.
                    segment.pending -= 1
                    keep._settle(segment)
                keep._end_check()
        return 0

    cdef int _part_end(self, Task *whole, int error) except -1:
        """One of several ops is done; the last one answers with the first error."""
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

    # ---- appending ----

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
        task = self._task(TASK_RUN, segment, NULL)
        task.offset = segment.end
        task.bytes = n
        task.first_seq = first_seq
        task.last_seq = last_seq
        task.count = count
        task.flags = flags
        task.durable = durable
        task.goes_on = self._goes_on = goes_on
        task.commit = self._commits + 1 if durable else 0
        task.told = self._told
        task.done = done
        task.arg = arg
        self._place(segment, task, into)
        self.io.write_records(segment.file, run, n, task.offset, task_finished, task, &task.result)
        self._awaited = durable
        if durable:
            self._durable += 1
            return 0
        self._unsynced += count
        if self.sync_every and self._unsynced >= self.sync_every \
                and self._following < FOLLOWING_SYNCS:
            self.sync(NULL, NULL)
        return 0

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

    cdef int _index(self, Task *task) except -1:
        """Enters a written run into the segment's index: into the last entry if it continues it."""
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

    # ---- segments ----

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
        cdef Task *task = self._task(TASK_SEGMENT, segment, NULL)
        cdef SegmentHeader *header = <SegmentHeader *>calloc(1, sizeof(SegmentHeader))
        task.owned = <uint8_t *>header
        if header is NULL:
            segment.pending -= 1
            self._task_end(task)
            self._segment_free(segment)
            raise MemoryError
        header.magic = SEGMENT_MAGIC
        header.version = FORMAT_VERSION
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
        """No more runs for it. The next sync is for it as well, and then comes the footer."""
        self._current = NULL
        segment.state = SEGMENT_CLOSING
        return self._settle(segment)

    cdef int _segment_fail(self, Segment *segment) except -1:
        """The file is lost for writing. Runs still queued for it fail as well; the next append
        opens a new segment."""
        if segment.state in (SEGMENT_OPEN, SEGMENT_CLOSING):
            segment.state = SEGMENT_FAILED
        if self._current is segment:
            self._current = NULL
        return 0

    cdef int _settle(self, Segment *segment) except -1:
        """Takes the next step of a segment nothing is under way for."""
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
        """Takes a torn run off the end, as far as the disk lets us; a start cuts it otherwise."""
        cdef Task *task = self._task(TASK_CUT, segment, NULL)
        return self.io.on_file(LANE_WRITES, IO_TRUNCATE, segment.file, segment.good, task_finished,
                               task, &task.result)

    cdef int _write_footer(self, Segment *segment) except -1:
        cdef size_t index = segment.run_count * sizeof(SegmentRun)
        cdef size_t n = sizeof(SegmentFooter) + index + sizeof(SegmentTrailer)
        cdef Task *task = self._task(TASK_SEGMENT, segment, NULL)
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
        self._sync_file(segment, NULL)
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
        return self._unlink(segment, self._follower(TASK_UNLINK, segment, NULL), self._lane)

    cdef int _unlink_doomed(self) except -1:
        cdef Segment *segment = self._first
        while segment is not NULL:
            if segment.state == SEGMENT_DOOMED and not segment.pending:
                self._unlink(segment, self._follower(TASK_UNLINK, segment, NULL), self._lane)
            segment = segment.next
        return 0

    cdef int _unlink(self, Segment *segment, Task *task, IoLane lane) except -1:
        segment.state = SEGMENT_GONE
        return self.io.on_file(lane, IO_UNLINK_FILE, segment.file, 0, task_finished, task,
                               &task.result)

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

    # ---- reading ----

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
            self.io.read_records(
                extent.segment.file, into, extent.bytes, extent.offset, extent.first_seq,
                extent.count, extent.last_seq - extent.first_seq + 1 == extent.count,
                task_finished, task, &task.result)
            into += extent.bytes
            extent = extent.next
        return 0

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

    cdef int _read_done(self, Task *task, int error) except -1:
        path = os.fsdecode(task.segment.path)
        if error:
            self._note_error(path, task.result.call, error)
            if self.on_damage is not None:
                self.on_damage(path, task.offset, f"{task.bytes} bytes cannot be read: "
                                                  f"{os.strerror(error).lower()}")
            return 0
        return self._report(path, &task.result.damages)

    cdef int _report(self, str path, const Damages *damages) except -1:
        cdef uint32_t i
        if self.on_damage is None:
            return 0
        for i in range(damages.kept):
            self.on_damage(path, damages.at[i].offset, damage_text(&damages.at[i]))
        if damages.found > damages.kept:
            self.on_damage(path, damages.at[damages.kept - 1].offset,
                           f"and {damages.found - damages.kept} damages more")
        return 0

    # ---- syncing ----

    cdef int sync(self, log_done done, void *arg) except -1:
        """Makes everything appended until now survive a power loss; done says when and whether.
        Runs that were written to a file whose sync failed since the last answer count as well."""
        cdef Task *whole = self._task(TASK_WHOLE, NULL, NULL)
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
            task = self._journal_task(TASK_DELTA, whole)
            self.io.on_file(self._lane, IO_SYNC, self._journal, 0, task_finished, task,
                            &task.result)
        if self._directory_dirty or whole.parts == 1:
            self._sync_directory(whole)
        whole.parts -= 1
        return 0

    cdef int _sync_files(self, Task *whole) except -1:
        cdef Segment *segment = self._last
        self._unsynced = 0
        while segment is not NULL and segment.synced < segment.end:
            if segment.state == SEGMENT_OPEN or segment.state == SEGMENT_CLOSING:
                self._sync_file(segment, whole)
            segment = segment.previous
        return 0

    cdef int sync_found(self, log_done done, void *arg) except -1:
        cdef Task *whole = self._task(TASK_WHOLE, NULL, NULL)
        cdef Segment *segment = self._first
        whole.done = done
        whole.arg = arg
        whole.parts = 1           # held until all parts are submitted
        while segment is not NULL:
            if segment.state == SEGMENT_CLOSED and segment.synced < segment.end:
                self._sync_file(segment, whole)
            segment = segment.next
        self._sync_directory(whole)
        return self._part_end(whole, 0)

    cdef int commit(self) except -1:
        if self._commits > self._commits_done or self._durable == 0:
            return 0
        self._commits += 1
        self._durable = 0
        Py_INCREF(self)
        return self.sync(commit_done, <void *>self)

    cdef int _commit_done(self, int error) except -1:
        """A sync has ended, and with it every durable run that was appended before it: these were
        written before it was begun. Without a good sync a run counts as not written."""
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

    cdef int _sync_file(self, Segment *segment, Task *whole) except -1:
        cdef Task *task = self._follower(TASK_SYNC, segment, whole)
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
        """Makes names durable: of the files in the directory, and of the directory if it is new.
        Without anything on disk yet it is the data path alone, as something to wait for."""
        cdef Task *task
        cdef bint ours = self._directory_dirty or self._directory_there
        if ours:
            task = self._follower(TASK_DIRECTORY, NULL, whole)
            task.flags = NAMES_INSIDE
            self.io.on_path(self._lane, IO_SYNC_DIR, self._directory, task_finished, task,
                            &task.result)
        if not self._directory_known:
            task = self._follower(TASK_DIRECTORY, NULL, whole)
            task.flags = NAME_ITSELF
            self.io.on_path(self._lane, IO_SYNC_DIR, self._data_path, task_finished, task,
                            &task.result)
        self._directory_dirty = False
        return 0

    cdef void _names_synced(self, uint32_t which) noexcept:
        """A directory was synced. That of the log has a durable name when the data path was synced
        after it was seen to be there."""
        if which == NAMES_INSIDE:
            self._directory_there = True
        else:
            self._directory_known = self._directory_there

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

    # ---- journal ----

    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1:
        self.begin_snapshot()
        self.add_to_snapshot(snapshot)
        return self.end_snapshot((), leads, done, arg)

    cdef int begin_snapshot(self) except -1:
        """Begin to replace the journal; what there is goes on until the end of that, and so does
        every file that it may name."""
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
        """journal.tmp is complete: its head, these deltas, sync, rename, sync the directory."""
        cdef Task *whole
        cdef Task *task
        if self._journal is not NULL:
            self.io.drop(self._journal)
        self._journal = self._snapshot
        self._snapshot = NULL
        self.journal_bytes = sizeof(JournalHeader) + sizeof(JournalEntry) + self._snapshot_bytes
        self._journal_writes += 1
        if leads or self.journal_lost:
            self._told = self._journal_writes
        self._directory_dirty = True
        whole = self._task(TASK_JOURNAL, NULL, NULL)
        whole.file = self._journal
        whole.done = done
        whole.arg = arg
        whole.parts = 1
        # It must not be the journal before what it tells of is on disk.
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

    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1:
        """Behind a snapshot that is under way, it follows that one, and runs wait for it."""
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
            self._told = self._journal_writes
        self.io.write(self._lane if behind else LANE_WRITES, self._journal, task.owned, n,
                      self.journal_bytes, task_finished, task, &task.result)
        self.journal_bytes += n
        self._journal_dirty = True
        return 1

    cdef Task *_journal_task(self, TaskKind kind, Task *whole) except NULL:
        cdef Task *task = self._follower(kind, NULL, whole)
        task.file = self._journal
        return task

    cdef int _journal_written(self, int error) except -1:
        """The oldest one under way is done. Where it failed, a later one tells of the same."""
        self._journal_done += 1
        if not error:
            self._told_done = self._journal_done
        return self._release_written()

    cdef int _journal_failed(self, Task *task, int error) except -1:
        self._write_failed(os.path.join(self.directory, "journal"), task.result.call, error)
        self._lose_journal(task.file)
        return 0

    cdef int _lose_journal(self, File *file) except -1:
        """Nothing more is appended to it, and no run counts until the next snapshot is there."""
        if self._journal is not NULL and self._journal is file:
            self.io.drop(file)
            self._journal = NULL
            self._journal_dirty = False
            self.journal_lost = True
        return 0

    # ---- the end ----

    cdef int close(self, log_done done, void *arg) except -1:
        """Footer, sync, sync of the directory; done comes when all of it is on disk. Extents may
        be released afterwards: no file goes any more."""
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
        """Removes everything of the log. Extents may be released before or afterwards."""
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
            # Or a log of the same name could come upon what is still to be renamed or removed.
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

    # ---- starting ----

    def recover(self):
        """What is on disk: call it once, before the first append. Reads footers and the journal,
        and scans the segments that have no footer.

        A seq may lie in more than one run after a crash between a copy and the journal's word of
        it; the copies are the same message. Dense runs are given without such overlaps.
        """
        cdef Recovered into = Recovered.__new__(Recovered, self)
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return into
        self._directory_there = True
        # The newest first: what was written again, after a failure, is right where it was written
        # last.
        for name in sorted((n for n in names if _SEGMENT.fullmatch(n)), reverse=True):
            self._recover_segment(name, into)
            if int(name[:20]) == self.last_number:
                into.open_end = not into.clean
        into.damages.sort()
        if "journal" in names:
            self._recover_journal(into)
        if into.log_id is not None:
            self.log_id = into.log_id
        return into

    cdef int _open_now(self, bytes path) except -1:
        cdef IoCalls *calls = self.io.calls
        cdef int fd = calls.open(calls, AT_FDCWD, path, O_RDONLY, 0)
        if fd < 0:
            raise OSError(errno, os.strerror(errno), os.fsdecode(path))
        return fd

    cdef bytes _read_now(self, int fd, uint64_t offset, uint64_t n):
        """Up to n bytes; fewer at the end of the file."""
        cdef IoCalls *calls = self.io.calls
        cdef bytes data = PyBytes_FromStringAndSize(NULL, n)
        cdef uint64_t got = 0
        cdef ssize_t had
        while got < n:
            had = calls.pread(calls, fd, PyBytes_AS_STRING(data) + got, n - got, offset + got)
            if had < 0 and errno == EINTR:
                continue
            if had < 0:
                raise OSError(errno, os.strerror(errno))
            if had == 0:
                break
            got += had
        return data if got == n else data[:got]

    cdef int _recover_segment(self, str name, Recovered into) except -1:
        cdef Segment *segment
        cdef IoCalls *calls = self.io.calls
        cdef struct_stat status
        cdef int fd
        segment = self._segment_new(int(name[:20]), 0)
        segment.state = SEGMENT_CLOSED
        path = os.fsdecode(segment.path)
        try:
            fd = self._open_now(segment.path)
        except OSError as error:
            into.damages.append((path, 0, f"open: {error.strerror.lower()}"))
            return self._segment_free(segment)
        try:
            if calls.fstat(calls, fd, &status) < 0:
                raise OSError(errno, os.strerror(errno))
            self._recover_runs(fd, status.st_size, segment, into)
        except OSError as error:
            into.damages.append((path, 0, f"read: {error.strerror.lower()}"))
        finally:
            calls.close(calls, fd)
        if segment.live == 0 and segment.state == SEGMENT_CLOSED:
            self._segment_free(segment)
        return 0

    cdef int _recover_runs(self, int fd, uint64_t size, Segment *segment,
                           Recovered into) except -1:
        """A segment that turns out to hold nothing that is not elsewhere is doomed: it goes with
        the next snapshot. One that holds something unreadable stays."""
        cdef Py_ssize_t damages = len(into.damages)
        cdef bytes log_id = self._recover_header(fd, segment, into)
        cdef bint closed = self._recover_footer(fd, size, segment, into)
        if not closed:
            into.clean = False
            self._recover_scan(fd, size, segment, into)
        into.segments.append((segment.number, size, log_id,
                              footer_facts(&segment.facts) if closed else None))
        if segment.live == 0 and len(into.damages) == damages:
            segment.state = SEGMENT_DOOMED
        return 0

    cdef bytes _recover_header(self, int fd, Segment *segment, Recovered into):
        """The log_id that it names; None if it names none."""
        cdef bytes data = self._read_now(fd, 0, sizeof(SegmentHeader))
        cdef const SegmentHeader *header = <const SegmentHeader *>PyBytes_AS_STRING(data)
        path = os.fsdecode(segment.path)
        if len(data) == 0:
            return None           # made, and then the machine stopped
        if (len(data) < <Py_ssize_t>sizeof(SegmentHeader) or header.magic != SEGMENT_MAGIC
                or header.crc != segment_header_crc(header)):
            into.damages.append((path, 0, "damaged segment header"))
            return None
        check_version(path, header.version)
        log_id = <bytes>header.log_id[:16]
        memcpy(segment.log_id, header.log_id, 16)
        if into.log_id is None:
            into.log_id = log_id
        return log_id

    cdef bint _recover_footer(self, int fd, uint64_t size, Segment *segment,
                              Recovered into) except -1:
        cdef uint64_t n = min(size, <uint64_t>FOOTER_READ)
        cdef bytes tail
        cdef const SegmentTrailer *trailer
        cdef const SegmentFooter *footer
        cdef const SegmentRun *runs = NULL
        cdef uint64_t i
        if size & 7 or size < sizeof(SegmentTrailer):
            return False
        tail = self._read_now(fd, size - n, n)
        if <uint64_t>len(tail) != n:
            return False
        trailer = <const SegmentTrailer *>(PyBytes_AS_STRING(tail) + n - sizeof(SegmentTrailer))
        if trailer.magic != FOOTER_MAGIC or trailer.length > size or trailer.length & 7:
            return False
        if trailer.length > n:
            n = trailer.length
            tail = self._read_now(fd, size - n, n)
            if <uint64_t>len(tail) != n:
                return False
        footer = segment_footer(<const uint8_t *>PyBytes_AS_STRING(tail), n, size, &runs)
        if footer is NULL:
            return False
        into.max_id = max(into.max_id, footer.max_id)
        segment.end = segment.good = segment.synced = footer.data_end
        segment.facts = footer[0]
        for i in range(footer.runs):
            into.add(&runs[i], segment, fd)
        return True

    cdef int _recover_scan(self, int fd, uint64_t size, Segment *segment,
                           Recovered into) except -1:
        cdef bytes data = self._read_now(fd, 0, size)
        cdef Scan scan
        cdef Damages damages
        cdef uint64_t i
        path = os.fsdecode(segment.path)
        memset(&damages, 0, sizeof(Damages))
        segment_scan(<const uint8_t *>PyBytes_AS_STRING(data), len(data), &scan, &damages)
        try:
            if scan.failed:
                raise MemoryError
            for i in range(damages.kept):
                into.damages.append((path, damages.at[i].offset, damage_text(&damages.at[i])))
            into.max_id = max(into.max_id, scan.max_id)
            segment.end = segment.good = scan.end
            for i in range(scan.count):
                into.add(&scan.runs[i], segment, fd)
        finally:
            free(scan.runs)
            damages_free(&damages)
        return 0

    cdef int _recover_journal(self, Recovered into) except -1:
        cdef bytes path = os.path.join(self._directory, b"journal")
        cdef IoCalls *calls = self.io.calls
        cdef struct_stat status
        cdef int fd
        name = os.fsdecode(path)
        try:
            fd = self._open_now(path)
        except OSError as error:
            into.damages.append((name, 0, f"open: {error.strerror.lower()}"))
            return 0
        try:
            if calls.fstat(calls, fd, &status) < 0:
                raise OSError(errno, os.strerror(errno))
            data = self._read_now(fd, 0, status.st_size)
        except OSError as error:
            into.damages.append((name, 0, f"read: {error.strerror.lower()}"))
            return 0
        finally:
            calls.close(calls, fd)
        into.journal, log_id, bad = parse_journal(data, name)
        if log_id is not None:
            into.log_id = log_id
        if bad is not None:
            into.damages.append((name, bad, "damaged journal entry: the rest is not used"))
        return 0


# ---- pure helpers ----

cdef object footer_facts(const SegmentFooter *footer):
    return Footer(footer.records, footer.first_seq, footer.last_seq, footer.first_time,
                  footer.last_time, footer.max_id, footer.data_end)


cdef str damage_text(const Damage *damage):
    return DAMAGE_TEXTS[damage.kind].format(damage.bytes)


cdef int check_version(str path, uint32_t version) except -1:
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{path}: format version {version} is newer than this nsqcy reads "
            f"({FORMAT_VERSION}): run the version that wrote it, or a later one"
        )
    return 0


cdef int journal_entry(uint8_t *at, bytes payload) except -1:
    cdef JournalEntry *entry = <JournalEntry *>at
    entry.length = <uint32_t>len(payload)
    entry.crc = journal_entry_crc(entry.length, <const uint8_t *>PyBytes_AS_STRING(payload))
    memcpy(at + sizeof(JournalEntry), PyBytes_AS_STRING(payload), entry.length)
    return 0


cdef uint8_t *journal_head(bytes log_id, uint64_t n, uint32_t crc) except NULL:
    """What stands before a snapshot of n bytes with this checksum."""
    cdef uint8_t *head = <uint8_t *>malloc(sizeof(JournalHeader) + sizeof(JournalEntry))
    cdef JournalHeader *header = <JournalHeader *>head
    cdef JournalEntry *entry = <JournalEntry *>(head + sizeof(JournalHeader))
    if head is NULL:
        raise MemoryError
    memset(header, 0, sizeof(JournalHeader))
    header.magic = JOURNAL_MAGIC
    header.version = FORMAT_VERSION
    memcpy(header.log_id, PyBytes_AS_STRING(log_id), 16)
    header.crc = journal_header_crc(header)
    entry.length = <uint32_t>n
    entry.crc = crc32c_join(crc32c_of(0, &entry.length, sizeof(entry.length)), crc, n)
    return head


def parse_journal(bytes data, str path="journal"):
    """(entries, log_id or None, offset of the first damage or None)."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef uint64_t n = len(data)
    cdef uint64_t offset = sizeof(JournalHeader)
    cdef JournalHeader header
    cdef JournalEntry entry
    entries = []
    if n < sizeof(JournalHeader):
        return entries, None, 0
    memcpy(&header, at, sizeof(JournalHeader))
    if header.magic != JOURNAL_MAGIC or header.crc != journal_header_crc(&header):
        return entries, None, 0
    check_version(path, header.version)
    log_id = header.log_id[:16]
    while offset < n:
        if n - offset < sizeof(JournalEntry):
            return entries, log_id, offset
        memcpy(&entry, at + offset, sizeof(JournalEntry))
        if (entry.length > n - offset - sizeof(JournalEntry)
                or entry.crc != journal_entry_crc(entry.length,
                                                  at + offset + sizeof(JournalEntry))):
            return entries, log_id, offset
        offset += sizeof(JournalEntry)
        entries.append(data[offset:offset + entry.length])
        offset += entry.length
    return entries, log_id, None


def crc32c(bytes data, uint32_t crc=0, *, bint software=False):
    """CRC-32C of data, continuing from crc."""
    if software:
        return crc32c_software(crc, <const uint8_t *>PyBytes_AS_STRING(data), len(data))
    return crc32c_of(crc, PyBytes_AS_STRING(data), len(data))


# ---- what recovery found ----

cdef class Recovered:
    """What recover() found. The extents in `run_array` are to be copied, and released once each."""

    def __cinit__(self, Log log not None):
        self.log = log
        self.journal = []
        self.damages = []
        self.segments = []
        self.overlaps = []
        self._covered = []
        self.next_seq = 1
        self.clean = True

    def __dealloc__(self):
        free(self.run_array)

    cdef int add(self, const SegmentRun *run, Segment *segment, int fd) except -1:
        self.next_seq = max(self.next_seq, run.last_seq + 1)
        if run.flags & RUN_SURVIVORS or run.last_seq - run.first_seq + 1 != run.count:
            return self._add_whole(run, segment)
        wanted = self._uncovered(run.first_seq, run.last_seq)
        if wanted == [(run.first_seq, run.last_seq)]:
            self._add_whole(run, segment)
        else:
            self.overlaps.append((segment.number, run.offset, run.bytes, run.first_seq,
                                  run.last_seq))
            if wanted:
                self._add_rest(run, segment, fd, wanted)
        return self._cover(run.first_seq, run.last_seq)

    cdef list _uncovered(self, uint64_t first, uint64_t last):
        """The parts of [first, last] that no dense run before it has."""
        cdef Py_ssize_t i = bisect_left(self._covered, first, key=end_of)
        cdef uint64_t at = first
        wanted = []
        while i < len(self._covered) and self._covered[i][0] <= last:
            begin, end = self._covered[i]
            if begin > at:
                wanted.append((at, begin - 1))
            if end >= last:
                return wanted
            at = end + 1
            i += 1
        wanted.append((at, last))
        return wanted

    cdef int _cover(self, uint64_t first, uint64_t last) except -1:
        """Enter [first, last], in one with what it touches."""
        cdef Py_ssize_t low = bisect_left(self._covered, first - (first > 0), key=end_of)
        cdef Py_ssize_t high = low
        while high < len(self._covered) and self._covered[high][0] <= last + 1:
            first = min(first, <uint64_t>self._covered[high][0])
            last = max(last, <uint64_t>self._covered[high][1])
            high += 1
        self._covered[low:high] = [(first, last)]
        return 0

    cdef int _grow(self) except -1:
        cdef size_t capacity
        cdef RecoveredRun *more
        if self.run_count < self.run_capacity:
            return 0
        capacity = self.run_capacity * 2 if self.run_capacity else 16
        more = <RecoveredRun *>realloc(self.run_array, capacity * sizeof(RecoveredRun))
        if more is NULL:
            raise MemoryError
        self.run_array = more
        self.run_capacity = capacity
        return 0

    cdef int _add_whole(self, const SegmentRun *run, Segment *segment) except -1:
        cdef RecoveredRun *into
        self._grow()
        into = &self.run_array[self.run_count]
        self.run_count += 1
        memset(into, 0, sizeof(RecoveredRun))
        into.first_seq = into.extent.first_seq = run.first_seq
        into.last_seq = into.extent.last_seq = run.last_seq
        into.count = into.extent.count = run.count
        into.flags = run.flags
        into.first_time = run.first_time
        into.last_time = run.last_time
        into.extent.segment = segment
        into.extent.offset = run.offset
        into.extent.bytes = <uint32_t>run.bytes
        segment.live += run.bytes
        self.log.disk_bytes += run.bytes
        return 0

    cdef int _add_rest(self, const SegmentRun *run, Segment *segment, int fd,
                       list wanted) except -1:
        """Adds the wanted seqs of a dense run: walks its records for where they lie."""
        cdef bytearray data = bytearray(self.log._read_now(fd, run.offset, run.bytes))
        cdef uint8_t *bytes_at = <uint8_t *>data
        cdef const Record *record
        cdef uint64_t at = 0
        cdef SegmentRun piece
        cdef Damages damages
        if <uint64_t>len(data) != run.bytes:
            return 0
        memset(&damages, 0, sizeof(Damages))
        run_verify(bytes_at, run.bytes, run.first_seq, run.count, True, run.offset, &damages)
        damages_free(&damages)
        for first, last in wanted:
            memset(&piece, 0, sizeof(SegmentRun))
            while at < run.bytes:
                record = record_at(bytes_at, at)
                if record.seq > last:
                    break
                if record.seq >= first:
                    if piece.count == 0:
                        piece.first_seq = record.seq
                        piece.offset = run.offset + at
                        piece.first_time = record.timestamp
                        piece.flags = run.flags
                    piece.last_seq = record.seq
                    piece.last_time = record.timestamp
                    piece.bytes += record.length
                    piece.count += 1
                at += record.length
            if piece.count:
                self._add_whole(&piece, segment)
        return 0
