# The topics of one worker.

from libc.stdint cimport int64_t

from nsqcy.broker.scheduler cimport Scheduler
from nsqcy.broker.topic cimport Topic
from nsqcy.storage.io cimport FileCalls
from nsqcy.storage.log cimport Log


cdef class Shard(Scheduler):
    cdef readonly str data_path
    cdef dict log_options
    cdef readonly object policies           # nsqcy.config.policies.Policies, or None
    cdef object has_room                    # callable: whether a topic may be created; or None
    cdef object on_event                    # called as on_event(kind, topic name, channel name)
    cdef object failures                    # nsqcy.storage.write_failures.WriteFailures, or None
    cdef public object copies               # nsqcy.nsqd.copies.topics.CopiedTopics, or None
    cdef public int64_t hold_new            # ns; maximum hold of a new topic; 0: none
    cdef public bint announce_new           # a held topic's publishes wait for announced()

    cdef Topic find(self, bytes key)
    cdef Topic find_or_create(self, bytes key)
    cdef Topic make_topic(self, bytes key)
    cdef Log make_log(self, str name, FileCalls files, str directory)
    cdef int give_policy(self, Topic topic) except -1
