"""Failed reads: the topics of a worker that wait until their logs can be read.

Owns the pauses between tries, and the reports to operators. Each topic waits by itself: others
continue. A topic whose log cannot be read at startup does not exist until it has been restored:
nothing is written over its files, and no new topic gets its name.
"""

import errno as _errno

from libc.stdint cimport INT64_MAX

from nsqcy.broker.topic cimport Topic

from nsqcy.storage.log_recovery import Unreadable


cdef int64_t SECOND = 1000000000
cdef int64_t FIRST_PAUSE = SECOND // 10
cdef int64_t MAX_PAUSE = 5 * SECOND


cdef class _Unloaded:
    """A topic that waits to be restored."""
    cdef bint paused
    cdef object channels
    cdef object error           # Unreadable
    cdef int64_t since          # wall clock
    cdef int64_t pause
    cdef int64_t due
    cdef bint is_probing


cdef class FailedReads(TopicHost):
    def __cinit__(self):
        self.waiting = []
        self.unloaded = {}
        self.next_read = INT64_MAX

    # -- topics whose reads fail --

    cdef int wait_to_read(self, object topic) except -1:
        """Try the reads of a topic again after a pause."""
        cdef Topic failed = topic
        if failed.read_pause or failed.gone:
            return 0
        bad = failed.log.unreadable
        if bad is None:
            return 0        # it has been read in the meantime
        self.waiting.append(failed)
        failed.unreadable_since = self.scheduler.wall
        failed.read_pause = FIRST_PAUSE
        failed.read_due = self.scheduler.now + FIRST_PAUSE
        self.read_at(failed.read_due)
        return self.note_unreadable(failed.name, bad.path, bad.error)

    cdef int read_at(self, int64_t due) except -1:
        self.next_read = min(self.next_read, due)
        self.next_periodic = min(self.next_periodic, due)
        return 0

    def logs_readable(self):
        """Handle a log whose failed range has been read."""
        cdef Topic topic
        for topic in list(self.waiting):
            if topic.gone or topic.log.unreadable is None:
                self.waiting.remove(topic)
                topic.read_pause = 0
                if not topic.gone:
                    self.note_readable(topic.name)
                    topic.try_reads()

    cdef int read_again(self) except -1:
        """Try what is due again."""
        cdef Topic topic
        cdef _Unloaded waiting
        for topic in list(self.waiting):
            if topic.gone:
                self.waiting.remove(topic)
            elif topic.read_due <= self.scheduler.now:
                topic.read_pause = min(2 * topic.read_pause, MAX_PAUSE)
                topic.read_due = self.scheduler.now + topic.read_pause
                try:
                    topic.try_reads()
                    topic.log.probe()
                except Exception as error:
                    self.report(topic.name, error)
        for key, waiting in list(self.unloaded.items()):
            if waiting.due <= self.scheduler.now and not self.closing:
                waiting.pause = min(2 * waiting.pause, MAX_PAUSE)
                waiting.due = self.scheduler.now + waiting.pause
                self._probe(key)
        self.next_read = INT64_MAX
        for topic in self.waiting:
            self.next_read = min(self.next_read, topic.read_due)
        for waiting in self.unloaded.values():
            self.next_read = min(self.next_read, waiting.due)
        return 0

    # -- topics that could not be restored --

    def load_topic(self, bytes key not None, bint paused, channels):
        """Load a topic at startup. Raises Unreadable."""
        raise NotImplementedError

    def load_or_wait(self, bytes key not None, bint paused, channels):
        """Load a topic at startup; return None if its log cannot be read now.

        It is then loaded as soon as that is possible, and `on_loaded` is called with its key.
        """
        cdef _Unloaded waiting
        try:
            return self.load_topic(key, paused, channels)
        except Unreadable as error:
            waiting = _Unloaded.__new__(_Unloaded)
            waiting.paused = paused
            waiting.channels = channels
            waiting.error = error
            waiting.since = self.scheduler.wall
            waiting.pause = FIRST_PAUSE
            waiting.due = self.scheduler.now + FIRST_PAUSE
            self.unloaded[key] = waiting
            self.read_at(waiting.due)
            self.note_unreadable(key.decode(), error.filename, error.errno)
            return None

    def _probe(self, bytes key not None):
        """Read what could not be read, without waiting for it; then load the topic."""
        cdef _Unloaded waiting = self.unloaded[key]
        error = waiting.error

        def done(failed):
            waiting.is_probing = False
            if failed != error.errno and self.unloaded.get(key) is waiting:
                self.load_again(key)

        if not waiting.is_probing:
            waiting.is_probing = True
            self.io.open(error.filename).read(bytearray(error.bytes or 1), error.offset, done)

    cdef int load_again(self, bytes key) except -1:
        cdef _Unloaded waiting = self.unloaded[key]
        if self.closing:
            return 0
        try:
            self.load_topic(key, waiting.paused, waiting.channels)
        except Unreadable as error:
            waiting.error = error
            return 0
        except Exception as error:
            self.report(key.decode(), error)
            return 0
        del self.unloaded[key]
        self.note_readable(key.decode())
        if self.on_loaded is not None:
            self.on_loaded(key)
        return 0

    def is_unloaded(self, bytes key not None):
        """Return whether a topic exists, but waits for its log to be readable."""
        return key in self.unloaded

    # -- reports --

    def report_damage(self, path, offset, text):
        self.damages += 1
        TopicHost.report_damage(self, path, offset, text)

    cdef int note_unreadable(self, str topic, str path, int error) except -1:
        if self.read_failures is not None:
            self.read_failures.failed(self.scheduler.now, topic, "read", path, error)
        return 0

    cdef int note_readable(self, str topic) except -1:
        if self.read_failures is not None:
            self.read_failures.recovered(topic)
        return 0

    def unreadable(self):
        """Return the topics whose logs cannot be read: topic, path, error (a name like EIO), text,
        and since (wall clock, ns); the first one first."""
        cdef Topic topic
        cdef _Unloaded waiting
        found = []
        for topic in self.waiting:
            bad = topic.log.unreadable
            if bad is not None and not topic.gone:
                found.append((topic.unreadable_since, topic.name, bad.path, bad.error, bad.text))
        for key, waiting in self.unloaded.items():
            error = waiting.error
            found.append((waiting.since, key.decode(), error.filename, error.errno,
                          f"read {error.filename}: {error.strerror.lower()}"))
        return [{"topic": name, "path": path, "error": _errno.errorcode.get(error, str(error)),
                 "text": text, "since": since}
                for since, name, path, error, text in sorted(found)]
