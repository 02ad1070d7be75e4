# Metrics of topics and channels, as lines in Prometheus' text format.
#
#   nsqd_topic_messages_total{topic="orders"} 17\n
#   ^ name                   ^ labels         ^ figure
#
# There is one Text per metric family, because the format requires all lines of a family to be
# together, while a walk visits topic by topic.

cimport cython
from libc.stdint cimport uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.counters cimport CHANNEL_FIGURES, SERIES, Series, Sums
from nsqcy.base.histogram cimport Histogram
from nsqcy.broker.shard cimport Shard
from nsqcy.broker.topic cimport Topic


ctypedef struct Text:
    char *data
    size_t used
    size_t room


cdef enum:
    LABELS = 320                # two names of 64 escaped characters each, and their labels
    CLOSING = 2


# `{topic="...",channel="..."} `; the last two characters do not count as used.
ctypedef struct Labels:
    char text[LABELS]
    size_t used


@cython.final
cdef class Exposition:
    cdef Shard shard
    cdef uint64_t limit         # maximum topics and channels with their own lines
    cdef tuple topic_names      # names of samples as bytes, in the order of the values
    cdef tuple channel_names
    cdef tuple ages_names       # names of buckets, sum and count
    cdef Text *texts            # one text per family: topics, ages, channels
    cdef int text_count
    cdef list bounds            # the upper end of each bucket, as text
    cdef list topics            # topics of the walk, and channels of the current topic
    cdef list channels
    cdef Py_ssize_t next_topic
    cdef Py_ssize_t next_channel
    cdef Sums sums[<int>SERIES]
    cdef uint64_t summed_topics[<int>SERIES]
    cdef uint64_t summed_channels[<int>SERIES]
    cdef Topic current          # the topic whose channels come next; None: none
    cdef Labels labels          # of it
    cdef uint64_t ephemerals[CHANNEL_FIGURES]   # the current topic's ephemeral channels
    cdef bint has_ephemerals

    cdef Series decide(self, Series series) noexcept
    cdef int put_topic(self, Topic topic) except -1
    cdef int put_channel(self, Channel channel) except -1
    cdef int end_topic(self) except -1
    cdef int put_all(self, int first, tuple names, const uint64_t *figures, int count,
                     const Labels *labels) except -1
    cdef int put_ages(self, const Histogram *ages) except -1
    cdef Text *text_of(self, int family) except NULL
