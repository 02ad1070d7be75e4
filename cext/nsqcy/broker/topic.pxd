# Topics: channels, policy and statistics; publishing, the log and the rest are layers below.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.base.core cimport Histogram
from nsqcy.channels.channel cimport Channel
from nsqcy.channels.counters cimport Series
from nsqcy.broker.topic_log cimport TopicLog


cdef enum:
    KEPT = 128                  # block flag: survivors whose readers are unknown


cdef class Topic(TopicLog):
    cdef int64_t prune_after            # ns; 0: never
    cdef bint prune_messages            # even if it contains messages
    cdef dict unusual                   # non-default policy, shown by /stats
    cdef Histogram ages                 # ages of messages when finished, in all channels
    cdef Series series                  # the metrics series that includes this topic's counters
    cdef uint64_t *gone_ephemerals      # counters of deleted channels; NULL: none
    cdef bint prunes                    # whether the topic or one of its channels may be pruned
    cdef int64_t used_at                # last time when the topic had channels
    cdef bint cut_off                   # delivers nothing for now
    cdef bint moves                     # whether its messages move to the open topic
    cdef readonly str moved_from        # id of the closed group that it is drained from; or None

    cdef int apply_policy(self) except -1
    cdef int apply_channel_policy(self, Channel channel) except -1
    cdef int recall_policies(self, bytes note) except -1
    cdef void add_figures(self, uint64_t *figures) noexcept
    cdef int forget_channel(self, Channel channel) except -1
    cdef void forget_figures(self) noexcept
    cdef Channel new_channel(self, str name)
    cdef int consumer_left(self, Channel channel) except -1
    cdef int move(self) except -1
    cdef int end(self, bint delete, str reason, done=*) except -1
    cdef int settle_turn(self) except -1
    cdef int tick(self) except -1
    cdef bint prune(self) except -1
    cdef bint is_unused(self) noexcept
    cdef void settle_all(self) noexcept
    cdef bint needs_nothing(self) noexcept
    cdef void let_go_of_kept(self) noexcept
