"""A worker's share of a summary of /stats: totals of all topics, and the choice of the busiest.

Owns the order of activity. Topics with more messages (waiting, in flight or deferred) come first,
and then topics with higher rates. Paused topics, and topics with an ephemeral channel that has no
consumer, follow. All other topics are quiet: they come last, in the order of their names. Also
collects the names of all topics, and the channels that send dead letters, because their dead-letter
topics may belong to other workers.
"""

cdef enum:
    TOPIC_SUMS = 4
    CHANNEL_SUMS = 11
    CHANNEL_RATES = 4
    DEAD_LETTER_ROOM = 128 + 3 * NAME_ROOM

cdef tuple TOPIC_SUM_KEYS = ("depth", "backend_depth", "message_count", "message_bytes")
cdef tuple CHANNEL_SUM_KEYS = (
    "depth", "backend_depth", "in_flight_count", "deferred_count", "message_count",
    "requeue_count", "timeout_count", "client_count",
    "zone_local_msg_count", "region_local_msg_count", "global_msg_count",
)
cdef tuple CHANNEL_RATE_KEYS = ("receive_rate", "finish_rate", "requeue_rate", "timeout_rate")


# How busy a topic is.
ctypedef struct Busyness:
    uint64_t held
    double rate                 # messages per second, of the topic and its channels
    bint notable


cdef inline bint is_busier(const Busyness *one, const Busyness *other) noexcept:
    if one.held != other.held:
        return one.held > other.held
    if one.rate != other.rate:
        return one.rate > other.rate
    return one.notable > other.notable


@cython.final
cdef class StatsSummary:
    """One walk over topics. Call `go_on` until it returns False."""

    cdef Shard shard
    cdef object keys            # iterator over the topics' keys, in order
    cdef str channel_filter     # the only channel to count, or ""
    cdef Py_ssize_t limit       # maximum number of busiest topics
    cdef bint with_names
    cdef Py_ssize_t position    # number of the current topic in the walk
    cdef list heap              # the busiest so far, as (held, rate, notable, -position, key)
    cdef Busyness least         # busyness of the heap's first entry
    cdef list order             # the heap's entries after the walk, busiest last
    cdef Text names
    cdef Text dead_letters
    cdef uint64_t topics
    cdef uint64_t channels
    cdef uint64_t busy          # number of topics that are not quiet
    cdef uint64_t topic_sums[<int>TOPIC_SUMS]
    cdef double publish_rate
    cdef uint64_t channel_sums[<int>CHANNEL_SUMS]
    cdef double channel_rates[<int>CHANNEL_RATES]

    def __cinit__(self, Shard shard not None, keys, query):
        """keys: the topics to count, in order"""
        self.shard = shard
        self.keys = iter(keys)
        self.channel_filter = query.channel
        self.limit = query.busiest
        self.with_names = query.names
        self.heap = []

    def __dealloc__(self):
        free(self.names.data)
        free(self.dead_letters.data)

    def go_on(self, int maximum):
        """Count up to `maximum` more topics and channels; return whether there may be more."""
        cdef Topic topic
        while maximum > 0:
            maximum -= 1
            if self.order is not None:
                if not self.heap:
                    return False
                self.order.append(heappop(self.heap))
                continue
            key = next(self.keys, None)
            if key is None:
                self.order = []
                continue
            topic = self.shard.topics.get(key)
            if topic is None or topic.gone:
                continue
            if self.channel_filter and self.channel_filter not in topic.channels:
                continue
            self.add_topic(topic, key)
            maximum -= <int>len(topic.channels)
        return True

    cdef int add_topic(self, Topic topic, key) except -1:
        cdef Busyness found
        cdef Channel channel
        cdef uint64_t depth = topic.depth()
        cdef double published = rate_since(
            topic.samples, topic.message_count, self.shard.scheduler.now)
        found.held = depth
        found.rate = max(0.0, published)
        found.notable = topic.paused or (topic.ephemeral and not topic.channels)
        self.topics += 1
        self.topic_sums[0] += depth
        self.topic_sums[1] += on_disk(depth, topic.mem_queue_size, topic.ephemeral)
        self.topic_sums[2] += topic.message_count
        self.topic_sums[3] += topic.message_bytes
        self.publish_rate += found.rate
        for channel in topic.channels.values():
            if not self.channel_filter or channel.name == self.channel_filter:
                self.add_channel(topic, channel, &found)
        if self.with_names:
            self.add_name(topic.name)
        if found.held or found.rate > 0 or found.notable:
            self.busy += 1
        self.rank(&found, key)
        self.position += 1
        return 0

    cdef int add_channel(self, Topic topic, Channel channel, Busyness *found) except -1:
        cdef uint64_t *sums = self.channel_sums
        cdef uint64_t depth = channel.depth()
        cdef Rates rates = rates_of(
            channel, depth + channel.in_flight_count, self.shard.scheduler.now)
        cdef int i
        self.channels += 1
        sums[0] += depth
        sums[1] += on_disk(depth, channel.mem_queue_size, channel.ephemeral)
        sums[2] += channel.in_flight_count
        sums[3] += channel.deferred_count
        sums[4] += received_by(channel)
        sums[5] += channel.requeue_count
        sums[6] += channel.timeout_count
        sums[7] += len(channel.consumers)
        for i in range(3):
            sums[8 + i] += channel.taken[i]
        found.held += depth + channel.in_flight_count + channel.deferred_count
        if rates.known:
            self.channel_rates[0] += rates.received
            self.channel_rates[1] += rates.finished
            self.channel_rates[2] += rates.requeued
            self.channel_rates[3] += rates.timed_out
            found.rate += rates.received + rates.finished + rates.requeued + rates.timed_out
        if channel.paused or (channel.ephemeral and not channel.consumers):
            found.notable = True
        if channel.unusual and channel.unusual.get("dead_letter_topic"):
            self.add_dead_letters(topic.name, channel)
        return 0

    cdef int add_name(self, str name) except -1:
        cdef char *at = room_for(&self.names, NAME_ROOM + 3)
        at = literal(named(at, b'"', name), b'",')
        self.names.used = at - self.names.data
        return 0

    cdef int add_dead_letters(self, str topic, Channel channel) except -1:
        cdef char *at = room_for(&self.dead_letters, DEAD_LETTER_ROOM)
        at = named(at, b'{"topic_name":"', topic)
        at = named(at, b'","channel_name":"', channel.name)
        at = named(at, b'","dead_letter_topic":"', channel.unusual["dead_letter_topic"])
        at = literal(at, b'"},')
        self.dead_letters.used = at - self.dead_letters.data
        return 0

    cdef int rank(self, Busyness *found, key) except -1:
        """Keep a topic if it is one of the busiest. Of equals, the first one counts as busier."""
        if len(self.heap) >= self.limit and (
                self.limit == 0 or not is_busier(found, &self.least)):
            return 0
        entry = (found.held, found.rate, bool(found.notable), -self.position, key)
        if len(self.heap) < self.limit:
            heappush(self.heap, entry)
        else:
            heapreplace(self.heap, entry)
        first = self.heap[0]
        self.least.held, self.least.rate, self.least.notable = first[0], first[1], first[2]
        return 0

    # The result

    def busiest(self):
        """Return the keys of the busiest topics with (held, rate, notable), busiest first."""
        return [(entry[4], entry[:3]) for entry in reversed(self.order)]

    def take_names(self, write not None):
        """Pass the names so far to `write`, as StatsShare.take does; each is followed by a
        comma."""
        return taken(&self.names, write)

    def take_dead_letters(self, write not None):
        """Like `take_names`, for the channels with a dead-letter topic."""
        return taken(&self.dead_letters, write)

    def totals(self):
        """Return the sums over all topics and channels, in the form of the page."""
        topics = dict(zip(TOPIC_SUM_KEYS, [self.topic_sums[i] for i in range(TOPIC_SUMS)]))
        channels = dict(zip(CHANNEL_SUM_KEYS, [self.channel_sums[i] for i in range(CHANNEL_SUMS)]))
        rates = dict(zip(CHANNEL_RATE_KEYS, [self.channel_rates[i] for i in range(CHANNEL_RATES)]))
        topics["publish_rate"] = self.publish_rate
        return in_form(self.topics, self.channels, self.busy, topics, channels | rates)


cdef dict in_form(topic_count, channel_count, busy, dict topics, dict channels):
    return {
        "topic_count": topic_count,
        "channel_count": channel_count,
        "busy_topic_count": busy,
        "topics": topics,
        "channels": channels,
    }


def no_totals():
    """Return the totals of no topics."""
    topics = dict.fromkeys((*TOPIC_SUM_KEYS, "publish_rate"), 0)
    channels = dict.fromkeys((*CHANNEL_SUM_KEYS, *CHANNEL_RATE_KEYS), 0)
    return in_form(0, 0, 0, topics, channels)
