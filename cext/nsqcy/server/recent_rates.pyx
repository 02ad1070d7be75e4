"""Rates of topics, channels and consumers over the last few seconds.

Each object keeps two samples of its counters, which a worker takes some seconds apart. A rate is
the mean since the older sample, so it covers between one and two periods and costs nothing per
message. Also counts saturated consumers: consumers that cannot take a waiting message.
"""

cdef enum:
    MIN_AGE = 1000000000        # minimum time for a meaningful mean, ns
    SAMPLED_AT_ONCE = 16        # consumers whose samples take as long as a topic's sample


ctypedef struct Rates:
    bint known
    double received             # per second
    double finished
    double requeued
    double timed_out
    double growth               # of the backlog


cdef inline void add_sample(Sample *samples, uint64_t count, int64_t now) noexcept:
    samples[0] = samples[1]
    samples[1].at = now
    samples[1].count = count


cdef inline int old_enough(const Sample *older, const Sample *newer, int64_t now) noexcept:
    """Return the number of the sample to compare with, or -1."""
    if older.at and now - older.at >= MIN_AGE:
        return 0
    if newer.at and now - newer.at >= MIN_AGE:
        return 1
    return -1


cdef double rate_since(const Sample *samples, uint64_t count, int64_t now) noexcept:
    """Return the growth of a counter per second; -1 if it is not known yet."""
    cdef int number = old_enough(&samples[0], &samples[1], now)
    if number < 0 or count < samples[number].count:
        return -1
    return (count - samples[number].count) / ((now - samples[number].at) / 1e9)


cdef uint64_t received_by(Channel channel) noexcept:
    return channel.window.fanout.seq - channel.born_seq


cdef Rates rates_of(Channel channel, uint64_t backlog, int64_t now) noexcept:
    cdef ChannelSample *samples = channel.samples
    cdef int number = old_enough(&samples[0].received, &samples[1].received, now)
    cdef uint64_t received = received_by(channel)
    cdef ChannelSample *before
    cdef double seconds
    cdef Rates rates
    memset(&rates, 0, sizeof(Rates))
    if number < 0:
        return rates
    before = &samples[number]
    if (received < before.received.count or channel.finish_count < before.finished
            or channel.requeue_count < before.requeued
            or channel.timeout_count < before.timed_out):
        return rates
    seconds = (now - before.received.at) / 1e9
    rates.known = True
    rates.received = (received - before.received.count) / seconds
    rates.finished = (channel.finish_count - before.finished) / seconds
    rates.requeued = (channel.requeue_count - before.requeued) / seconds
    rates.timed_out = (channel.timeout_count - before.timed_out) / seconds
    rates.growth = <int64_t>(backlog - before.backlog) / seconds
    return rates


cdef inline bint is_saturated(Consumer consumer) noexcept:
    return 0 < consumer.ready_count and <int64_t>consumer.ready_count <= consumer.in_flight


cdef uint64_t saturated_of(Channel channel, uint64_t depth) noexcept:
    """Return the number of consumers that cannot take a waiting message."""
    cdef uint64_t count = 0
    cdef Py_ssize_t i
    if depth:
        for i in range(len(channel.consumers)):
            count += is_saturated(<Consumer>channel.consumers[i])
    return count


cdef uint64_t backing_off_of(Channel channel, uint64_t depth) noexcept:
    """Return the number of consumers that refuse a waiting message, usually after failures."""
    cdef uint64_t count = 0
    cdef Py_ssize_t i
    if depth:
        for i in range(len(channel.consumers)):
            count += (<Consumer>channel.consumers[i]).ready_count == 0
    return count


@cython.final
cdef class Sampling:
    """One walk that takes a sample of every object in a shard. Call `go_on` until it returns
    False."""

    cdef Shard shard
    cdef list topics            # keys of the topics of the walk
    cdef list channels          # channels of the current topic
    cdef str topic              # its name
    cdef Py_ssize_t next_topic
    cdef Py_ssize_t next_channel
    cdef readonly dict saturated    # (topic, channel) -> saturated consumers, if any

    def __cinit__(self, Shard shard not None):
        self.shard = shard
        self.topics = list(shard.topics)
        self.channels = []
        self.saturated = {}

    def go_on(self, int maximum):
        """Sample up to `maximum` more topics and channels; return whether there may be more."""
        cdef Topic topic
        while maximum > 0:
            if self.next_channel < len(self.channels):
                maximum -= self.sample(<Channel>self.channels[self.next_channel])
                self.next_channel += 1
            elif self.next_topic < len(self.topics):
                topic = self.shard.topics.get(self.topics[self.next_topic])
                self.next_topic += 1
                if topic is not None and not topic.gone:
                    add_sample(topic.samples, topic.message_count, self.shard.scheduler.now)
                    self.topic = topic.name
                    self.channels = list(topic.channels.values())
                    self.next_channel = 0
            else:
                return False
            maximum -= 1
        return True

    cdef int sample(self, Channel channel) except -1:
        """Return the additional cost of the step, as a number of objects."""
        cdef ChannelSample *samples = channel.samples
        cdef int64_t now = self.shard.scheduler.now
        cdef uint64_t depth = channel.depth()
        cdef uint64_t saturated = saturated_of(channel, depth)
        cdef Consumer consumer
        samples[0] = samples[1]
        samples[1].received.at = now
        samples[1].received.count = received_by(channel)
        samples[1].finished = channel.finish_count
        samples[1].requeued = channel.requeue_count
        samples[1].timed_out = channel.timeout_count
        samples[1].backlog = depth + channel.in_flight_count
        for consumer in channel.consumers:
            add_sample(consumer.samples, consumer.finish_count, now)
        if saturated:
            self.saturated[self.topic, channel.name] = saturated
        return <int>(len(channel.consumers) // SAMPLED_AT_ONCE)
