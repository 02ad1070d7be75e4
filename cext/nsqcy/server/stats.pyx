"""A worker's share of /stats, as JSON and as text: topics, their channels and clients, producers.

Owns the formats of these objects: their keys, the key order, and when a key is omitted. The start
and the end of the page are written elsewhere. Names of topics and channels contain no character
that JSON escapes.

A share is a sequence of pieces: one for each topic, in the order of the names, then one for each
producer. A separator follows each piece, so that the pieces of several workers can be put in any
order; the page omits the last separator. The index lists the topics' pieces: u32 length of the
piece, u16 length of the name, and the name.
"""

cdef enum:
    NAME_ROOM = 128             # bytes reserved for a name, which is shorter
    TOPIC_ROOM = 512 + NAME_ROOM
    CHANNEL_ROOM = 1024 + NAME_ROOM
    CLIENT_ROOM = 1024          # without texts
    SLOW = 16                   # an object that needs Python takes as long as this number of others

cdef int64_t NS_PER_SECOND = 1000000000


cdef bytes NO_LATENCY = b'{"count":0,"percentiles":null}'
cdef tuple LOCALITY_KEYS = (
    b',"zone_local_msg_count":', b',"region_local_msg_count":', b',"global_msg_count":',
)


def separators(bint json):
    """Return what follows each topic, and what follows each producer."""
    return (b",", b",") if json else (b"\n\n", b"\n")


# -- writing --


cdef inline char *counted(char *at, bytes key, uint64_t number) noexcept:
    """Write a key with its number."""
    return digits_of(literal(at, key), number)


cdef inline char *unless_zero(char *at, bytes key, uint64_t number, bint sparse) noexcept:
    """Write a key with its number; omit a 0 from a sparse page."""
    return at if sparse and number == 0 else counted(at, key, number)


cdef inline char *boolean(char *at, bytes key, bint value) noexcept:
    return literal(literal(at, key), b"true" if value else b"false")


cdef inline char *padded(char *at, char *start, int width) noexcept:
    """Fill up to a width with blanks."""
    while at < start + width:
        at[0] = c" "
        at += 1
    return at


cdef inline char *column(char *at, bytes title, uint64_t number, int width) noexcept:
    at = literal(at, title)
    return padded(digits_of(at, number), at, width)


cdef char *named(char *at, bytes before, str name) except NULL:
    cdef Py_ssize_t n
    cdef const char *text = PyUnicode_AsUTF8AndSize(name, &n)
    if n > NAME_ROOM:
        raise ValueError("a name that is too long")
    return copied(literal(at, before), text, n)


cdef char *rate(char *at, bytes key, double value, bint known, bint sparse) except NULL:
    """Write a key with a rate. Most rates are zero."""
    cdef char *text
    if not known:
        return at if sparse else literal(literal(at, key), b"null")
    at = literal(at, key)
    if value == 0:
        return literal(at, b"0")
    text = PyOS_double_to_string(value, c"g", 6, 0, NULL)
    if text == NULL:
        raise MemoryError()
    at = copied(at, text, strlen(text))
    PyMem_Free(text)
    return at


cdef int put(Text *text, bytes data) except -1:
    copied(room_for(text, PyBytes_GET_SIZE(data)), PyBytes_AS_STRING(data),
           PyBytes_GET_SIZE(data))
    text.used += PyBytes_GET_SIZE(data)
    return 0


cdef int put_string(Text *text, bytes key, str value) except -1:
    """Write a key with a string. Most strings are printable ASCII without anything to escape."""
    cdef Py_ssize_t n
    cdef Py_ssize_t i
    cdef const char *data
    put(text, key)
    if not value.isascii():
        return put(text, json_bytes(value))
    data = PyUnicode_AsUTF8AndSize(value, &n)
    for i in range(n):
        if (data[i] < 0x20 or data[i] == c'"' or data[i] == c"\\" or data[i] == c"<"
                or data[i] == c">" or data[i] == c"&" or data[i] == 0x7f):
            return put(text, json_bytes(value))
    put(text, b'"')
    copied(room_for(text, n), data, n)
    text.used += n
    return put(text, b'"')


cdef int put_others(Text *text, dict others) except -1:
    """Write keys that NSQ does not have, at the end of an object."""
    cdef bytes data = json_bytes(others)
    put(text, b",")
    copied(room_for(text, len(data)), PyBytes_AS_STRING(data) + 1, len(data) - 2)
    text.used += len(data) - 2
    return 0


def humanize(double ns):
    """Format nanoseconds with one decimal place, in the largest unit that gives a value over 1:
    `26.9ms`, `0.0ns`."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns > size:
            return f"{ns / size:.1f}{unit}"
    return f"{ns:.1f}ns"


cdef bytes json_latency(summary):
    percentiles = summary["percentiles"]
    if percentiles is None:
        return NO_LATENCY
    return json_bytes({"count": summary["count"], "percentiles": percentiles})


cdef bytes text_latency(summary):
    return ", ".join([
        humanize(each["value"]) for each in summary["percentiles"] or ()]).encode()


cdef inline uint64_t on_disk(uint64_t depth, uint64_t memory, bint ephemeral) noexcept:
    return 0 if ephemeral or depth < memory else depth - memory


# -- the walk --


@cython.final
cdef class StatsShare:
    """One share in progress. Until the end, alternate a call to `go_on` with a call to `take`.

    Objects that are deleted in the meantime are omitted.
    """

    cdef Shard shard
    cdef SessionManager manager
    cdef object keys            # iterator over the topics' keys, in order
    cdef bint json
    cdef bytes topic_separator
    cdef bytes producer_separator
    cdef str topic_filter       # the only topic to show, or ""
    cdef str channel_filter     # the only channel to show, or ""
    cdef bint include_clients
    cdef bint ledger
    cdef bint sparse            # omit what a program assumes if the key is missing
    cdef int64_t wall           # ns
    cdef Text text              # pieces that have not been taken yet
    cdef Text index
    cdef uint64_t taken         # bytes
    cdef uint64_t topics_end    # size of the topics' pieces
    cdef Topic topic            # the current topic; None: the next key follows
    cdef uint64_t topic_start
    cdef list names             # names of its channels
    cdef Py_ssize_t next_name
    cdef Channel channel        # the current channel, or None
    cdef uint64_t depth         # its depth
    cdef list clients           # clients of the current channel; None: it is complete
    cdef Py_ssize_t next_client
    cdef bint has_channel       # whether a channel of the topic has been written
    cdef bint has_client
    cdef list producers         # None: topics are not complete

    def __cinit__(self, SessionManager manager not None, keys, query, int64_t wall):
        """keys: the topics to show, in order; wall: current time, ns"""
        self.manager = manager
        self.shard = manager.shard
        self.keys = iter(keys)
        self.json = query.json
        self.topic_separator, self.producer_separator = separators(query.json)
        self.topic_filter = query.topic
        self.channel_filter = query.channel
        self.include_clients = query.include_clients
        self.ledger = query.ledger and query.json
        self.sparse = query.sparse and query.json
        self.wall = wall

    def __dealloc__(self):
        free(self.text.data)
        free(self.index.data)

    def go_on(self, int maximum):
        """Write up to `maximum` more topics, channels and clients; return whether there may be
        more."""
        while maximum > 0:
            maximum -= 1
            if self.producers is not None:
                if self.next_client == len(self.producers):
                    return False
                self.put_producer(<Session?>self.producers[self.next_client])
                self.next_client += 1
            elif self.clients is not None:
                if self.next_client < len(self.clients):
                    self.put_consumer(<Session?>self.clients[self.next_client])
                    self.next_client += 1
                else:
                    maximum -= self.end_channel()
            elif self.topic is None:
                self.begin_next()
            elif self.next_name < len(self.names):
                self.begin_channel(self.topic.channels.get(self.names[self.next_name]))
                self.next_name += 1
            else:
                maximum -= self.end_topic()
        return True

    cdef uint64_t written(self) noexcept:
        return self.taken + self.text.used

    cdef int begin_next(self) except -1:
        cdef Topic topic
        key = next(self.keys, None)
        if key is None:
            self.topics_end = self.written()
            self.producers = self.manager.producers() if self.include_clients else []
            self.next_client = 0
            return 0
        topic = self.shard.topics.get(key)
        if topic is None or topic.gone:
            return 0
        if not self.channel_filter:
            self.names = sorted(topic.channels)
        elif self.channel_filter in topic.channels:
            self.names = [self.channel_filter]
        else:
            return 0
        self.topic = topic
        self.topic_start = self.written()
        self.next_name = 0
        self.has_channel = False
        if self.json:
            self.begin_json_topic()
        else:
            self.put_text_topic()
        return 0

    cdef int begin_channel(self, Channel channel) except -1:
        if channel is None:     # deleted in the meantime
            return 0
        self.channel = channel
        self.depth = channel.depth()
        self.clients = list(channel.consumers) if self.include_clients else []
        self.next_client = 0
        self.has_client = False
        if self.json:
            self.begin_json_channel(channel)
        else:
            self.put_text_channel(channel)
        self.has_channel = True
        return 0

    cdef int put_consumer(self, Session client) except -1:
        if client.closed:
            return 0
        if self.json:
            if self.has_client:
                put(&self.text, b",")
            self.put_json_client(client)
            self.put_json_client_rates(client)
        else:
            put(&self.text, b"\n        ")
            put(&self.text, self.text_client(client))
        self.has_client = True
        return 0

    cdef int end_channel(self) except -1:
        """Return the additional cost of the step, as a number of objects."""
        cdef Channel channel = self.channel
        self.clients = self.channel = None
        if self.json:
            return self.end_json_channel(channel)
        return 0

    cdef int end_topic(self) except -1:
        """Return the additional cost of the step, as a number of objects."""
        cdef Topic topic = self.topic
        cdef int slow = 0
        cdef uint32_t size
        cdef uint16_t length
        cdef char *at
        cdef Py_ssize_t n
        cdef const char *name
        self.topic = None
        if self.json:
            slow = self.end_json_topic(topic)
        put(&self.text, self.topic_separator)
        name = PyUnicode_AsUTF8AndSize(topic.name, &n)
        size = <uint32_t>(self.written() - self.topic_start)
        length = <uint16_t>n
        at = room_for(&self.index, sizeof(size) + sizeof(length) + n)
        at = copied(at, <char *>&size, sizeof(size))
        at = copied(at, <char *>&length, sizeof(length))
        at = copied(at, name, n)
        self.index.used = at - self.index.data
        return slow

    cdef int put_producer(self, Session client) except -1:
        if client.closed:
            return 0
        if self.json:
            self.put_json_client(client)
            put(&self.text, b"}")
        else:
            put(&self.text, b"   ")
            put(&self.text, self.text_client(client))
        put(&self.text, self.producer_separator)
        return 0

    # JSON: NSQ's keys come first; the keys that NSQ does not have follow.

    cdef int begin_json_topic(self) except -1:
        cdef char *at = room_for(&self.text, TOPIC_ROOM)
        at = named(at, b'{"topic_name":"', self.topic.name)
        at = literal(at, b'","channels":[')
        self.text.used = at - self.text.data
        return 0

    cdef int end_json_topic(self, Topic topic) except -1:
        cdef char *at = room_for(&self.text, TOPIC_ROOM)
        cdef uint64_t depth = topic.depth()
        cdef double published = rate_since(
            topic.samples, topic.message_count, self.shard.scheduler.now)
        cdef bint slow = self.has_percentiles() or self.ledger or topic.unusual or topic.named
        at = literal(at, b"]")
        at = unless_zero(at, b',"depth":', depth, self.sparse)
        at = unless_zero(at, b',"backend_depth":',
                         on_disk(depth, topic.mem_queue_size, topic.ephemeral), self.sparse)
        at = unless_zero(at, b',"message_count":', topic.message_count, self.sparse)
        at = unless_zero(at, b',"message_bytes":', topic.message_bytes, self.sparse)
        if topic.paused or not self.sparse:
            at = boolean(at, b',"paused":', topic.paused)
        self.text.used = at - self.text.data
        self.put_latency(self.topic_latency(topic) if self.has_percentiles() else None)
        at = room_for(&self.text, TOPIC_ROOM)
        at = rate(at, b',"publish_rate":', published, published >= 0, self.sparse)
        self.text.used = at - self.text.data
        if slow or topic.durability != "memory":
            self.put_topic_others(topic)
        put(&self.text, b"}")
        return SLOW if slow else 0

    cdef int put_latency(self, summary) except -1:
        """summary: None if no latencies are kept"""
        cdef bytes latency = NO_LATENCY if summary is None else json_latency(summary)
        if not self.sparse or latency is not NO_LATENCY:
            put(&self.text, b',"e2e_processing_latency":')
            put(&self.text, latency)
        return 0

    cdef int put_topic_others(self, Topic topic) except -1:
        others = {}
        if topic.durability != "memory":
            others["durability"] = topic.durability
        if topic.takes or topic.duplicate_count:
            others |= topic.once_facts()
            if topic.keyless_count:
                others["without_key"] = topic.keyless_count
        if topic.named:
            others["cursors"] = topic.cursor_facts()
        if topic.unusual:
            others["policy"] = topic.unusual
        if self.ledger:
            others["ledger"] = topic.ledger()
        if others:
            put_others(&self.text, others)
        return 0

    cdef int begin_json_channel(self, Channel channel) except -1:
        cdef char *at = room_for(&self.text, CHANNEL_ROOM)
        cdef int i
        if self.has_channel:
            at = literal(at, b",")
        at = named(at, b'{"channel_name":"', channel.name)
        at = literal(at, b'"')
        at = unless_zero(at, b',"depth":', self.depth, self.sparse)
        at = unless_zero(at, b',"backend_depth":',
                         on_disk(self.depth, channel.mem_queue_size, channel.ephemeral),
                         self.sparse)
        at = unless_zero(at, b',"in_flight_count":', channel.in_flight_count, self.sparse)
        at = unless_zero(at, b',"deferred_count":', channel.deferred_count, self.sparse)
        at = unless_zero(at, b',"message_count":', received_by(channel), self.sparse)
        for i in range(3):
            if channel.taken[i]:
                at = counted(at, <bytes>LOCALITY_KEYS[i], channel.taken[i])
        at = unless_zero(at, b',"requeue_count":', channel.requeue_count, self.sparse)
        at = unless_zero(at, b',"timeout_count":', channel.timeout_count, self.sparse)
        at = unless_zero(at, b',"client_count":', len(channel.consumers), self.sparse)
        if self.include_clients:
            at = literal(at, b',"clients":[')
        elif not self.sparse:
            at = literal(at, b',"clients":null')
        self.text.used = at - self.text.data
        return 0

    cdef int end_json_channel(self, Channel channel) except -1:
        cdef char *at = room_for(&self.text, CHANNEL_ROOM)
        cdef Rates rates = rates_of(
            channel, self.depth + channel.in_flight_count, self.shard.scheduler.now)
        cdef bint slow = (self.has_percentiles() or self.ledger or channel.unusual
                          or channel.keys is not None)
        if self.include_clients:
            at = literal(at, b"]")
        if channel.paused or not self.sparse:
            at = boolean(at, b',"paused":', channel.paused)
        self.text.used = at - self.text.data
        self.put_latency(self.channel_latency(channel) if self.has_percentiles() else None)
        at = room_for(&self.text, CHANNEL_ROOM)
        at = rate(at, b',"receive_rate":', rates.received, rates.known, self.sparse)
        at = rate(at, b',"finish_rate":', rates.finished, rates.known, self.sparse)
        at = rate(at, b',"requeue_rate":', rates.requeued, rates.known, self.sparse)
        at = rate(at, b',"timeout_rate":', rates.timed_out, rates.known, self.sparse)
        at = rate(at, b',"falling_behind":', rates.growth, rates.known, self.sparse)
        if self.depth == 0 or rates.growth >= 0:
            at = rate(at, b',"drain_seconds":', 0, rates.known and self.depth == 0, self.sparse)
        else:
            at = rate(at, b',"drain_seconds":', self.depth / -rates.growth, True, self.sparse)
        at = unless_zero(at, b',"saturated_client_count":',
                         saturated_of(channel, self.depth), self.sparse)
        at = unless_zero(at, b',"backing_off_client_count":',
                         backing_off_of(channel, self.depth), self.sparse)
        self.text.used = at - self.text.data
        if channel.unusual or self.ledger or channel.keys is not None:
            others = {"policy": channel.unusual} if channel.unusual else {}
            if channel.keyed and channel.keys is not None:
                others["keys"] = channel.key_facts()
            if self.ledger:
                others["ledger"] = channel.ledger()
            if others:
                put_others(&self.text, others)
        put(&self.text, b"}")
        return SLOW if slow else 0

    cdef int put_json_client(self, Session client) except -1:
        """Write a client without the closing brace."""
        cdef Text *text = &self.text
        cdef char *at
        put_string(text, b'{"client_id":', client.client_id)
        put_string(text, b',"hostname":', client.hostname)
        put_string(text, b',"version":"V2","remote_address":', client.remote_address)
        at = room_for(text, CLIENT_ROOM)
        at = counted(at, b',"state":', <uint64_t>client.state)
        at = counted(at, b',"ready_count":', client.ready_count)
        at = counted(at, b',"in_flight_count":', client.in_flight)
        at = counted(at, b',"message_count":', client.message_count)
        at = counted(at, b',"finish_count":', client.finish_count)
        at = counted(at, b',"requeue_count":', client.requeue_count)
        at = counted(at, b',"connect_ts":', client.connected_at // NS_PER_SECOND)
        at = counted(at, b',"sample_rate":', client.sample_rate)
        at = boolean(at, b',"deflate":', client.deflate)
        at = boolean(at, b',"snappy":', client.snappy)
        text.used = at - text.data
        put_string(text, b',"user_agent":', client.user_agent)
        if client.authed:
            put(text, b',"authed":true')
        if client.auth_identity:
            put_string(text, b',"auth_identity":', client.auth_identity)
        if client.auth_identity_url:
            put_string(text, b',"auth_identity_url":', client.auth_identity_url)
        put_string(text, b',"topology_zone":', client.topology_zone)
        put_string(text, b',"topology_region":', client.topology_region)
        self.put_json_counts(client)
        facts = client.tls
        at = room_for(text, CLIENT_ROOM)
        at = boolean(at, b',"tls":', facts is not None)
        text.used = at - text.data
        put_string(text, b',"tls_cipher_suite":', "" if facts is None else facts["cipher_suite"])
        put_string(text, b',"tls_version":', "" if facts is None else facts["version"])
        at = room_for(text, CLIENT_ROOM)
        at = boolean(at, b',"tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":',
                     facts is not None)
        text.used = at - text.data
        return 0

    cdef int put_json_counts(self, Session client) except -1:
        cdef Text *text = &self.text
        cdef char *at
        cdef bytes before = b',"pub_counts":[{"topic":"'
        counts = self.counts_of(client)
        for topic, count in counts:
            at = room_for(text, TOPIC_ROOM)
            at = named(at, before, topic)
            at = counted(at, b'","count":', count)
            text.used = at - text.data
            before = b'},{"topic":"'
        if counts:
            put(text, b"}]")
        return 0

    cdef int put_json_client_rates(self, Session client) except -1:
        cdef double finished = rate_since(
            client.samples, client.finish_count, self.shard.scheduler.now)
        cdef char *at = room_for(&self.text, CLIENT_ROOM)
        at = rate(at, b',"finish_rate":', finished, finished >= 0, False)
        at = boolean(at, b',"saturated":', self.depth > 0 and is_saturated(client))
        at = literal(at, b"}")
        self.text.used = at - self.text.data
        return 0

    # Text

    cdef int put_text_topic(self) except -1:
        cdef Topic topic = self.topic
        cdef char *at = room_for(&self.text, TOPIC_ROOM)
        cdef uint64_t depth = topic.depth()
        cdef char *start = at + 4
        at = named(at, b"*P [" if topic.paused else b"   [", topic.name)
        at = padded(at, start, 15)
        at = column(at, b"] depth: ", depth, 5)
        at = column(at, b" be-depth: ", on_disk(depth, topic.mem_queue_size, topic.ephemeral), 5)
        at = column(at, b" msgs: ", topic.message_count, 8)
        at = literal(at, b" e2e%: ")
        self.text.used = at - self.text.data
        if self.has_percentiles():
            put(&self.text, text_latency(self.topic_latency(topic)))
        return 0

    cdef int put_text_channel(self, Channel channel) except -1:
        cdef char *at = room_for(&self.text, CHANNEL_ROOM)
        cdef uint64_t depth = self.depth
        cdef char *start = at + 8
        at = named(at, b"\n   *P [" if channel.paused else b"\n      [", channel.name)
        at = padded(at, start, 25)
        at = column(at, b"] depth: ", depth, 5)
        at = column(at, b" be-depth: ",
                    on_disk(depth, channel.mem_queue_size, channel.ephemeral), 5)
        at = column(at, b" inflt: ", channel.in_flight_count, 4)
        at = column(at, b" def: ", channel.deferred_count, 4)
        at = column(at, b" re-q: ", channel.requeue_count, 5)
        at = column(at, b" timeout: ", channel.timeout_count, 5)
        at = column(at, b" msgs: ", received_by(channel), 8)
        at = literal(at, b" e2e%: ")
        self.text.used = at - self.text.data
        if self.has_percentiles():
            put(&self.text, text_latency(self.channel_latency(channel)))
        return 0

    cdef bytes text_client(self, Session client):
        _, colon, port = client.remote_address.rpartition(":")
        # A unix socket has neither host nor port.
        name = f"{client.hostname}:{port} {client.user_agent}" if colon else ": "
        seconds = self.wall // NS_PER_SECOND - client.connected_at // NS_PER_SECOND
        connected = format_duration(seconds * NS_PER_SECOND)
        counts = self.counts_of(client)
        if counts:
            topics = ",".join([f"{topic}={count}" for topic, count in counts])
            total = sum([count for _, count in counts])
            return utf8(
                f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}")
        return utf8(
            f"[V2 {name:<21}] state: {<int>client.state} inflt: {client.in_flight:<4}"
            f" rdy: {client.ready_count:<4} fin: {client.finish_count:<8}"
            f" re-q: {client.requeue_count:<8} msgs: {client.message_count:<8}"
            f" connected: {connected}")

    # Figures

    cdef list counts_of(self, Session client):
        """Return the number of messages that a client has published to each topic, or only to the
        topic of the page."""
        client.note_counts()
        if self.topic_filter:
            if self.topic_filter in client.pub_counts:
                return [(self.topic_filter, client.pub_counts[self.topic_filter])]
            return []
        return sorted(client.pub_counts.items())

    cdef bint has_percentiles(self) noexcept:
        return len(self.shard.scheduler.percentiles.quantiles) > 0

    cdef object topic_latency(self, Topic topic):
        cdef Channel channel
        return self.shard.scheduler.percentiles.summary(
            [channel.latency for channel in topic.channels.values()], self.shard.scheduler.now)

    cdef object channel_latency(self, Channel channel):
        return self.shard.scheduler.percentiles.summary(
            [channel.latency], self.shard.scheduler.now)

    # The result

    def take(self, write not None):
        """Pass the pieces so far to `write` as a memoryview, valid until it returns; then drop
        them. `write` must not switch greenlets."""
        self.taken += self.text.used
        return taken(&self.text, write)

    def take_index(self, write not None):
        """Like `take`, for the index."""
        return taken(&self.index, write)

    def sizes(self):
        """Return the sizes of the topics' and the producers' pieces, in bytes, after the end."""
        return self.topics_end, self.written() - self.topics_end
