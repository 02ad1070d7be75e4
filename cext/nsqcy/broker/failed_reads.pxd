# Failed reads: the topics of a worker that wait until their logs can be read.

from libc.stdint cimport int64_t

from nsqcy.broker.topic_host cimport TopicHost


cdef class FailedReads(TopicHost):
    cdef list waiting                       # topics whose log could not be read
    cdef dict unloaded                      # key -> _Unloaded: topics that could not be restored
    cdef int64_t next_read                  # when the first of them is due; INT64_MAX: none waits
    cdef int64_t next_periodic              # when the scheduler must do this and similar work
    cdef object read_failures               # nsqcy.storage.read_failures.ReadFailures, or None
    cdef public object on_loaded            # called with the key of a topic that was restored late
    cdef readonly int64_t damages           # damaged places found in logs

    cdef int read_again(self) except -1
    cdef int read_at(self, int64_t due) except -1
    cdef int wait_to_read(self, object topic) except -1
    cdef int load_again(self, bytes key) except -1
    cdef int note_unreadable(self, str topic, str path, int error) except -1
    cdef int note_readable(self, str topic) except -1
