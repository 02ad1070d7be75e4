"""Metrics of topics and channels, as lines in Prometheus' text format, which OpenMetrics shares.

Owns the format of the lines, and decides which topics and channels have their own lines, up to a
maximum. All further topics and channels are summed. Ephemeral ones are also summed, because their
number is unbounded. Family names are arguments; this module does not write headings.

A summed topic or channel stays summed: a decreasing sum would look like a restart. Deleted topics
and channels also stay in the sum (`TopicHost.gone`, `Topic.gone_ephemerals`).
"""

# Metrics of topics and channels, as lines in Prometheus' text format.
#
#   nsqd_topic_messages_total{topic="orders"} 17\n
#   ^ name                   ^ labels         ^ figure
#
# There is one Text per metric family, because the format requires all lines of a family to be
# together, while a walk visits topic by topic.


cdef enum:
    LABELS = 320                # bytes for two names of 64 escaped characters, and their labels
    CLOSING = 2


# `{topic="...",channel="..."} `; the last two characters do not count as used.
ctypedef struct Labels:
    char text[LABELS]
    size_t used

TOPIC_NAMES = (
    "messages", "bytes", "dropped", "duplicates", "dedup_ids_early", "depth", "disk_bytes",
    "dedup_ids", "paused",
)
CHANNEL_NAMES = (
    "messages", "deliveries", "finishes", "requeues", "timeouts", "dead_letters", "dropped",
    "depth", "in_flight", "deferred", "consumers", "paused",
    "keys_waiting", "keys_blocked", "keys_blocked_long", "keys_paused",
)


def bounds(str what not None):
    """Return the bucket upper bounds for "ages", "syncs" or "turns", in seconds, except the last
    one."""
    cdef int first = {"ages": FIRST_OF_AGES, "syncs": FIRST_OF_SYNCS, "turns": FIRST_OF_TURNS}[what]
    return tuple((1 << (first + 2 * i)) / 1e9 for i in range(HISTOGRAM_BOUNDS))


cdef int put_line(Text *text, bytes name, const Labels *labels, uint64_t number) except -1:
    cdef char *at = room_for(text, PyBytes_GET_SIZE(name) + labels.used + CLOSING + DIGITS + 1)
    at = literal(at, name)
    at = digits_of(copied(at, labels.text, labels.used + CLOSING), number)
    at[0] = c"\n"
    text.used = at + 1 - text.data
    return 0


cdef int put_label(Labels *labels, bytes before, str name) except -1:
    """Write a label. `before` is its beginning, after the existing labels; its value is escaped as
    the format requires, although topic names contain nothing that needs escaping."""
    cdef Py_ssize_t n
    cdef const char *text = PyUnicode_AsUTF8AndSize(name, &n)
    cdef Py_ssize_t i
    if labels.used + PyBytes_GET_SIZE(before) + 2 * n + 1 + CLOSING > LABELS:
        raise ValueError("a name that is too long")
    memcpy(labels.text + labels.used, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
    labels.used += PyBytes_GET_SIZE(before)
    for i in range(n):
        if text[i] == c"\\" or text[i] == c'"' or text[i] == c"\n":
            labels.text[labels.used] = c"\\"
            labels.used += 1
        labels.text[labels.used] = c"n" if text[i] == c"\n" else text[i]
        labels.used += 1
    labels.text[labels.used] = c'"'
    labels.used += 1
    memcpy(labels.text + labels.used, b"} ", CLOSING)
    return 0


cdef enum:
    # Values that a topic without a deduplication window has only if they are not 0.
    OPTIONAL = 1 << TOPIC_DUPLICATES | 1 << TOPIC_IDS_EARLY | 1 << TOPIC_IDS | 1 << TOPIC_PAUSED
    # Values that a channel has only if they are not 0, unless it has rules for keys.
    KEYED = (1 << CHANNEL_KEYS_WAITING | 1 << CHANNEL_KEYS_BLOCKED | 1 << CHANNEL_KEYS_BLOCKED_LONG
             | 1 << CHANNEL_KEYS_PAUSED)


@cython.final
cdef class Exposition:
    """One walk over all topics in a shard. Until the end, alternate a call to `go_on` with calls to
    `take` for each family. The walk keeps so little data that it stays in the CPU cache: writes to
    new memory cost more than formatting the lines."""

    cdef Shard shard
    cdef uint64_t limit         # maximum topics and channels with their own lines
    cdef tuple topic_names      # names of samples as bytes, in the order of the values
    cdef tuple channel_names
    cdef tuple ages_names       # names of buckets, sum and count
    cdef Text *texts            # one text per family: topics, ages, channels
    cdef int text_count
    cdef list bounds            # the upper bound of each bucket, as text
    cdef list topics            # topics of the walk, and channels of the current topic
    cdef list channels
    cdef Py_ssize_t next_topic
    cdef Py_ssize_t next_channel
    cdef Sums sums[<int>SERIES]
    cdef uint64_t summed_topics[<int>SERIES]
    cdef uint64_t summed_channels[<int>SERIES]
    cdef Topic current          # the topic whose channels come next, or None
    cdef Labels labels          # the current topic's labels
    cdef uint64_t ephemerals[CHANNEL_FIGURES]   # the current topic's ephemeral channels
    cdef bint has_ephemerals

    def __cinit__(self, Shard shard not None, uint64_t limit, tuple topic_names not None,
                  str ages_name not None, tuple channel_names not None):
        """Set the names of the samples, in the order of TOPIC_NAMES and CHANNEL_NAMES."""
        cdef int i
        self.shard = shard
        self.limit = limit
        self.topics = list(shard.topics.values())
        self.channels = []
        self.topic_names = tuple([name.encode() for name in topic_names])
        self.channel_names = tuple([name.encode() for name in channel_names])
        self.ages_names = tuple([
            f"{ages_name}_{end}".encode() for end in ("bucket", "sum", "count")])
        if len(topic_names) != TOPIC_FIGURES or len(channel_names) != CHANNEL_FIGURES:
            raise ValueError("each figure needs a name")
        self.bounds = [repr(bound) for bound in bounds("ages")]
        self.bounds.append("+Inf")
        self.text_count = TOPIC_FIGURES + 1 + CHANNEL_FIGURES
        self.texts = <Text *>calloc(self.text_count, sizeof(Text))
        if self.texts == NULL:
            raise MemoryError()
        for i in range(<int>SERIES):
            self.sums[i] = shard.host.gone[i]

    def __dealloc__(self):
        cdef int i
        if self.texts != NULL:
            for i in range(self.text_count):
                free(self.texts[i].data)
        free(self.texts)

    cdef Series decide(self, Series series) noexcept:
        """Choose the series that includes a topic or channel from now on."""
        if series == UNDECIDED:
            if self.shard.host.own_series >= self.limit:
                return OTHERS
            self.shard.host.own_series += 1
            return OWN
        return series

    def go_on(self, int maximum):
        """Write up to `maximum` more topics and channels; return whether there may be more.

        Topics deleted in the meantime are omitted, except the channels of the current topic.
        """
        cdef Topic topic
        while maximum > 0:
            if self.next_channel < len(self.channels):
                self.put_channel(<Channel>self.channels[self.next_channel])
                self.next_channel += 1
            elif self.next_topic < len(self.topics):
                topic = <Topic>self.topics[self.next_topic]
                self.next_topic += 1
                if not topic.gone:
                    self.put_topic(topic)
                    self.channels = list(topic.channels.values())
                    self.next_channel = 0
            else:
                self.end_topic()
                return False
            maximum -= 1
        return True

    cdef int put_topic(self, Topic topic) except -1:
        """Write a topic; its channels come next."""
        cdef uint64_t figures[TOPIC_FIGURES]
        cdef Sums *sums
        self.end_topic()
        self.current = topic
        topic.series = self.decide(topic.series)
        memset(figures, 0, sizeof(figures))
        topic.add_figures(figures)
        if topic.series == OWN:
            self.labels.used = 0
            put_label(&self.labels, b'{topic="', topic.name)
            self.put_all(0, self.topic_names, figures, TOPIC_FIGURES, &self.labels,
                         OPTIONAL if topic.once is None else 1 << TOPIC_PAUSED)
            self.put_ages(&topic.ages)
            if topic.gone_ephemerals != NULL:
                self.has_ephemerals = True
                add_counters(self.ephemerals, topic.gone_ephemerals, CHANNEL_COUNTERS)
            return 0
        sums = &self.sums[<int>topic.series]
        add_counters(sums.topic, figures, TOPIC_FIGURES)
        histogram_merge(&sums.ages, &topic.ages)
        if topic.gone_ephemerals != NULL:
            add_counters(sums.channel, topic.gone_ephemerals, CHANNEL_COUNTERS)
        self.summed_topics[<int>topic.series] += 1
        return 0

    cdef int put_channel(self, Channel channel) except -1:
        """Write a channel of the current topic."""
        cdef uint64_t figures[CHANNEL_FIGURES]
        cdef Labels labels
        cdef Series series = self.current.series
        if series == OWN and not channel.ephemeral:
            if channel.series == UNDECIDED and channel.gone:
                return 0
            series = channel.series = self.decide(channel.series)
        elif series == OWN:
            series = EPHEMERALS
            self.has_ephemerals = True
            channel.add_figures(self.ephemerals)
            self.summed_channels[<int>series] += 1
            return 0
        if series != OWN:
            channel.add_figures(self.sums[<int>series].channel)
            self.summed_channels[<int>series] += 1
        elif not channel.gone:
            memset(figures, 0, sizeof(figures))
            channel.add_figures(figures)
            labels = self.labels
            put_label(&labels, b',channel="', channel.name)
            self.put_all(TOPIC_FIGURES + 1, self.channel_names, figures, CHANNEL_FIGURES, &labels,
                         1 << CHANNEL_PAUSED | (KEYED if channel.census is None else 0))
        return 0

    cdef int end_topic(self) except -1:
        """Write the combined line of the previous topic's ephemeral channels."""
        cdef Labels labels
        self.current = None
        if self.has_ephemerals:
            labels = self.labels
            put_label(&labels, b',channel="', "#ephemeral")
            self.put_all(TOPIC_FIGURES + 1, self.channel_names, self.ephemerals, CHANNEL_FIGURES,
                         &labels, 1 << CHANNEL_PAUSED | KEYED)
            memset(self.ephemerals, 0, sizeof(self.ephemerals))
            self.has_ephemerals = False
        return 0

    cdef int put_all(self, int first, tuple names, const uint64_t *figures, int count,
                     const Labels *labels, uint32_t optional) except -1:
        """Write a line for each value; write values whose bits are in `optional` only if they are
        not 0."""
        cdef Text *text = &self.texts[first]
        cdef int i
        for i in range(count):
            if not optional >> i & 1 or figures[i]:
                put_line(&text[i], <bytes>names[i], labels, figures[i])
        return 0

    cdef int put_ages(self, const Histogram *ages) except -1:
        """Write the buckets, the sum and the count; write nothing until a message has been
        finished."""
        cdef Text *text = &self.texts[<int>TOPIC_FIGURES]
        cdef Labels labels
        cdef uint64_t total = 0
        cdef bytes bucket, sums, count, line
        cdef int i
        for i in range(HISTOGRAM_BOUNDS + 1):
            total += ages.counts[i]
        if total == 0:
            return 0
        total = 0
        bucket, sums, count = self.ages_names
        labels = self.labels
        for i in range(HISTOGRAM_BOUNDS + 1):
            total += ages.counts[i]
            labels.used = self.labels.used
            put_label(&labels, b',le="', <str>self.bounds[i])
            put_line(text, bucket, &labels, total)
        line = b"%b%b%r\n" % (
            sums, self.labels.text[:self.labels.used + CLOSING], ages.sum / 1e9)
        copied(room_for(text, len(line)), line, len(line))
        text.used += len(line)
        return put_line(text, count, &self.labels, total)

    def size(self, int family):
        """Return the current size of a family's lines in bytes. Families are numbered: first
        topics, then ages, then channels."""
        return self.text_of(family).used

    def take(self, int family, put not None):
        """Pass the lines so far to `put` as a memoryview, valid until it returns; then drop them.
        `put` must not switch greenlets; see docs/internals/testing.md."""
        return taken(self.text_of(family), put)

    cdef Text *text_of(self, int family) except NULL:
        if not 0 <= family < self.text_count:
            raise IndexError("no such family")
        return &self.texts[family]

    def summed(self):
        """Return only the sums, by name: values of topics and of channels, ages (counts, seconds),
        and the numbers of topics and channels."""
        cdef int i
        return {
            name: {
                "topic": [self.sums[series].topic[i] for i in range(TOPIC_FIGURES)],
                "channel": [self.sums[series].channel[i] for i in range(CHANNEL_FIGURES)],
                "ages": histogram_facts(&self.sums[series].ages),
                "topics": self.summed_topics[series],
                "channels": self.summed_channels[series],
            }
            for name, series in (("(other)", <int>OTHERS), ("#ephemeral", <int>EPHEMERALS))
        }
