"""Publisher: publishes from within a worker, for example for HTTP, to topics on any worker.

Publishes directly to topics on this worker. For topics on other workers, there is one lenient
session per owner and durability, whose client is this module: it sends commands, and the answers
trigger the callbacks.
"""

cdef enum:
    MPUB_BYTES = 1048576        # maximum batch sent to another worker in one command

cdef int64_t MILLISECOND = 1000000

NO_ROOM = "E_BAD_TOPIC"             # start of the error text for too many topics


cdef class Callback(Waiter):
    cdef object done

    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        self.done(error)
        return 0


cdef class AnswerTransport(Transport):
    cdef object waiting         # deque of callbacks, in publish order

    def __cinit__(self):
        self.waiting = deque()

    cdef int flush(self) except -1:
        cdef Session session = <Session>self.session
        cdef Output output = session.output
        cdef size_t at = 0
        cdef size_t size
        answers = []
        while output.end - output.start - at >= FRAME_HEADER:
            size = load_be32(output.buffer + output.start + at) - 4
            frame_type = load_be32(output.buffer + output.start + at + 4)
            data = output.buffer[output.start + at + FRAME_HEADER:
                                 output.start + at + FRAME_HEADER + size]
            at += FRAME_HEADER + size
            answers.append(None if frame_type == RESPONSE
                           else (<bytes>data).decode("utf-8", "surrogateescape"))
        output.sent(at)
        for answer in answers:
            if self.waiting:
                self.waiting.popleft()(answer and (answer.partition(" failed ")[2] or answer))
        return session.after_flush()

    cdef int watch_input(self, bint on) except -1:
        return 0

    cdef int close(self) except -1:
        """Handle the loss of the owner. The result of sent publishes is unknown; unsent publishes
        have failed."""
        cdef Session session = <Session>self.session
        waiting = self.waiting
        self.waiting = deque()
        for i, done in enumerate(waiting):
            done(UNKNOWN if i < session.unanswered else "exiting")
        return 0


cdef class TopicSink(Sink):
    """Publishes to one topic, while this worker owns the topic and the topic accepts messages
    immediately."""
    cdef SessionManager manager
    cdef bytes key
    cdef bytes headers          # headers of every message; None: no headers
    cdef object enter           # called before any use of topics

    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1:
        cdef SessionManager manager = self.manager
        cdef Topic topic
        cdef Record *record
        if not 0 < length <= manager.max_msg_size or manager.owner_of(self.key) != manager.index:
            return False
        self.enter()
        topic = manager.shard.find_or_create(self.key)
        if topic is None or topic.limited or not topic.takes_at_once():
            return False
        if self.headers is None:
            record = topic.new_record(<unsigned int>length, 0)
        else:
            record = topic.new_headered(
                <unsigned int>length, 0, self.headers, <uint16_t>len(self.headers))
        if record != NULL:
            memcpy(record_body(record), body, length)
        topic.published(1, length)
        return True


cdef class _Batch:
    """Calls `done` when all parts of a publish have been answered. The publish has failed if no
    part was accepted. If only some parts were accepted, the result is unknown."""
    cdef object done
    cdef int parts
    cdef int accepted
    cdef int answered
    cdef str error

    def __call__(self, error):
        self.answered += 1
        if error is None:
            self.accepted += 1
        elif self.error is not UNKNOWN:
            self.error = error
        if self.answered == self.parts:
            self.done(UNKNOWN if 0 < self.accepted < self.parts else self.error)


cdef class _Parts:
    """A batch on its way to another worker, in several commands: each command follows the answer to
    the previous one.

    The batch has failed if the first command was not accepted. If only a later command was not
    accepted, the result is unknown.
    """
    cdef Publisher publisher
    cdef int owner
    cdef bytes key
    cdef BodyBatch batch
    cdef object done
    cdef bint accepted

    def __init__(self, Publisher publisher, int owner, bytes key, BodyBatch batch, done):
        self.publisher = publisher
        self.owner = owner
        self.key = key
        self.batch = batch
        self.done = done

    cdef int send(self) except -1:
        cdef bytes command = self.batch.next_command(
            self.key, min(MPUB_BYTES, self.publisher.manager.max_body_size))
        cdef Session session = self.publisher.session_to(
            self.owner, self.batch.minimum, bool(self.batch.headers), False)
        return self.publisher.feed(session, self, command)

    def __call__(self, error):
        if error is not None:
            self.done(UNKNOWN if self.accepted else error)
        elif self.batch.left:
            self.accepted = True
            self.send()
        else:
            self.done(None)


cdef int answer(Topic topic, bint waits, done) except -1:
    """Call done(None) when the messages just published are accepted: immediately, unless they
    wait."""
    cdef Callback callback
    if not waits:
        done(None)
        return 0
    callback = Callback.__new__(Callback)
    callback.done = done
    return topic.acknowledge_later(callback, 0)


cdef int answer_at(Topic topic, uint64_t seq, done) except -1:
    """Call done(None) when record `seq` is visible; immediately if it is 0."""
    cdef Callback callback
    if not seq:
        done(None)
        return 0
    callback = Callback.__new__(Callback)
    callback.done = done
    return topic.acknowledge_at(seq, callback, 0)


cdef class Publisher:
    cdef readonly SessionManager manager
    # (owner, Durability, with headers, of transfers) -> forwarding Session
    cdef dict sessions
    cdef dict unplaced          # topic -> callbacks for its placement

    def __init__(self, SessionManager manager not None):
        self.manager = manager
        self.sessions = {}
        self.unplaced = {}

    def publish(self, bytes key not None, bodies, delay_ms, str durability not None, done,
                bytes headers not None=b""):
        """Publish all `bodies`, each with these headers, to a topic, which is created if necessary.

        Calls done(None), done(reason) or done(UNKNOWN) once, now or later. done(None) follows only
        when the messages have both the requested durability and the topic's. The reason is the text
        of E_PUB_FAILED, or a different error including its code. In both cases, no message was
        published. The name and the headers must be valid, each body 1 to max-msg-size bytes, the
        delay within max-defer-timeout. `bodies` is a sequence of few bodies, or a BodyBatch without
        a delay.
        """
        cdef int owner = self.manager.owner_of(key)
        cdef Durability minimum = durability_of(durability)
        if owner < 0:
            self.wait_for_placement(
                key, lambda: self.publish(key, bodies, delay_ms, durability, done, headers))
        elif isinstance(bodies, BodyBatch):
            self.publish_batch(owner, key, bodies, headers, minimum, done)
        elif owner == self.manager.index:
            self.publish_here(key, bodies, headers, delay_ms * MILLISECOND, minimum, done)
        else:
            self.publish_there(owner, key, bodies, headers, delay_ms, minimum, done)

    def sink(self, bytes key not None, enter not None, bytes headers not None=b""):
        """Return a fast path to a topic, used body by body, for publishes that need not wait.

        enter: called before each use of topics
        headers: headers of every message
        """
        cdef TopicSink sink = TopicSink.__new__(TopicSink)
        sink.manager = self.manager
        sink.key = key
        sink.headers = headers or None
        sink.enter = enter
        return sink

    def placed(self, bytes key not None):
        """Handle the placement of a topic."""
        for publish in self.unplaced.pop(key, ()):
            publish()

    cdef int wait_for_placement(self, bytes key, publish) except -1:
        waiting = self.unplaced.get(key)
        if waiting is not None:
            waiting.append(publish)
            return 0
        self.unplaced[key] = [publish]
        self.manager.ask_placement(key)
        return 0

    cdef int publish_here(self, bytes key, bodies, bytes headers, int64_t delay,
                          Durability minimum, done) except -1:
        cdef Topic topic = self.manager.shard.find_or_create(key)
        cdef Record *record
        cdef Py_buffer body
        cdef uint64_t total = sum(map(len, bodies))
        if topic is None:
            done(NO_ROOM)
            return 0
        refusal = None if topic.takes else topic.refusal(minimum, len(bodies), total)
        if refusal is not None:
            done(refusal)
            return 0
        if topic.limited:
            for each in bodies:
                if not topic.fits(len(each)):
                    done(topic.size_error(b"PUB", len(each)).decode())
                    return 0
            if topic.takes:
                return self.publish_taking(topic, bodies, headers, delay, minimum, done)
        if minimum != MEMORY and bodies:
            topic.demand(minimum)
        for each in bodies:
            PyObject_GetBuffer(each, &body, PyBUF_SIMPLE)
            try:
                record = topic.new_headered(
                    <unsigned int>body.len, delay, headers, <uint16_t>len(headers))
                if record != NULL:
                    memcpy(record_body(record), body.buf, body.len)
            finally:
                PyBuffer_Release(&body)
        return answer(topic, bodies and topic.published(<unsigned int>len(bodies), total), done)

    cdef int publish_taking(self, Topic topic, bodies, bytes headers, int64_t delay,
                            Durability minimum, done) except -1:
        """Publish to a topic that takes keys or ids from messages."""
        cdef Publish publish
        cdef Py_buffer body
        cdef uint64_t total = 0
        cdef uint32_t fresh = 0
        if topic.may_refuse():
            for each in bodies:
                PyObject_GetBuffer(each, &body, PyBUF_SIMPLE)
                try:
                    fresh += topic.add_fresh(headers, <uint16_t>len(headers),
                                             <const uint8_t *>body.buf, <uint32_t>body.len, &total)
                finally:
                    PyBuffer_Release(&body)
            refusal = topic.refusal(minimum, fresh, total) if fresh or topic.gone else None
            if refusal is not None:
                done(refusal)
                return 0
        memset(&publish, 0, sizeof(publish))
        publish.minimum = minimum
        for each in bodies:
            PyObject_GetBuffer(each, &body, PyBUF_SIMPLE)
            try:
                topic.add_message(headers, <uint16_t>len(headers), <const uint8_t *>body.buf,
                                  <uint32_t>body.len, delay, &publish)
            finally:
                PyBuffer_Release(&body)
        return answer_at(topic, topic.end_publish(&publish), done)

    cdef int publish_batch(self, int owner, bytes key, BodyBatch batch, bytes headers,
                           Durability minimum, done) except -1:
        batch.headers = headers
        batch.minimum = minimum
        if owner == self.manager.index:
            return self.publish_batch_here(key, batch, done)
        return _Parts(self, owner, key, batch, done).send()

    cdef int publish_batch_here(self, bytes key, BodyBatch batch, done) except -1:
        cdef Topic topic = self.manager.shard.find_or_create(key)
        cdef Callback callback
        cdef Publish publish
        cdef uint32_t count = batch.left
        if topic is None:
            done(NO_ROOM)
            return 0
        if topic.key_bounded and count <= AT_ONCE:
            batch.add_fresh_to(topic)
        refusal = topic.refusal(batch.minimum, count, batch.left_bytes)
        if refusal is not None and topic.takes and count <= AT_ONCE and not topic.gone \
                and not batch.add_fresh_to(topic):
            refusal = None          # a publish that only repeats others needs no room
        topic.forget_coming_keys()
        if refusal is not None:
            done(refusal)
            return 0
        if topic.limited and not (topic.fits(batch.shortest) and topic.fits(batch.longest)):
            done(topic.size_error(b"PUB", batch.first_misfit(topic)).decode())
            return 0
        if count > AT_ONCE:
            callback = Callback.__new__(Callback)
            callback.done = done
            batch.waiter = callback
            return topic.add_batch(batch)
        batch.begin(topic)
        if topic.takes:
            memset(&publish, 0, sizeof(publish))
            batch.add_to(topic, count, &publish)
            return answer_at(topic, topic.end_publish(&publish), done)
        return answer(topic, count and topic.published(count, batch.append(topic, count)), done)

    def publish_once(self, bytes key not None, chunk not None, messages not None,
                     str durability not None, done not None):
        """Publish messages transferred from another topic exactly once, even if the call is
        repeated.

        chunk: (producer, epoch, number), as for LOG_PUB
        messages: (headers, body) of each message; all messages have the same address, or none
        done: as for publish

        All messages are published, or none of them.
        Neither size limits nor draining cause a rejection.
        """
        cdef int owner = self.manager.owner_of(key)
        cdef Durability minimum = durability_of(durability)
        parts = [pack(">I", len(messages))]
        for headers, body in messages:
            parts.append(pack(">IH", 2 + len(headers) + len(body), len(headers)))
            parts.append(headers)
            parts.append(body)
        batch = b"".join(parts)
        if owner < 0:
            self.wait_for_placement(
                key, lambda: self.publish_once(key, chunk, messages, durability, done))
        elif owner == self.manager.index:
            self.transfer_here(key, chunk, batch, <uint32_t>len(messages), minimum, done)
        else:
            self.feed(self.session_to(owner, minimum, True, True), done, b"".join((
                b"LOG_PUB %b %b %d 0 %d\n" % (key, *chunk), pack(">I", len(batch)), batch)))

    cdef int transfer_here(self, bytes key, tuple chunk, bytes messages, uint32_t count,
                           Durability minimum, done) except -1:
        cdef Topic topic = self.manager.shard.find_or_create(key)
        cdef ChunkBatch chunk_batch = ChunkBatch.__new__(ChunkBatch)
        cdef uint32_t added
        cdef uint64_t bodies
        if topic is None:
            done(NO_ROOM)
            return 0
        producer, epoch, number = chunk
        chunk_batch.name = ChunkName(producer_id(producer), epoch, 0, number)
        chunk_batch.at = <const uint8_t *>messages + 4
        chunk_batch.size = len(messages)
        chunk_batch.count = count
        chunk_batch.headers = chunk_batch.moved = True
        chunk_batch.minimum = minimum
        try:
            topic.add_chunk(chunk_batch, &added, &bodies)
        except ChunkError as error:
            done(str(error))
            return 0
        return answer(topic, topic.published(added, bodies), done)

    cdef int publish_there(self, int owner, bytes key, bodies, bytes headers, int64_t delay_ms,
                           Durability minimum, done) except -1:
        cdef Session session = self.session_to(owner, minimum, bool(headers), False)
        cdef _Batch batch
        cdef bytes command
        if headers:
            before = pack(">H", len(headers)) + headers
            bodies = [b"".join((before, body)) for body in bodies]
        # The owner does not accept an MPUB above max-body-size, although HTTP messages may be
        # larger.
        maximum = min(MPUB_BYTES, self.manager.max_body_size)
        commands = [
            _pub(key, part[0], delay_ms) if len(part) == 1 else _mpub(key, part)
            for part in _parts(bodies, maximum)]
        batch = _Batch.__new__(_Batch)
        batch.done = done
        batch.parts = len(commands)
        for command in commands:
            self.feed(session, batch, command)
        return 0

    cdef int feed(self, Session session, done, bytes command) except -1:
        (<AnswerTransport>session.transport).waiting.append(done)
        session.feed(command, len(command))
        return 0

    cdef Session session_to(self, int owner, Durability minimum, bint headers, bint transfers):
        key = (owner, <int>minimum, headers, transfers)
        cdef Session session = self.sessions.get(key)
        if session is None or session.stopping:
            session = Session(self.manager, AnswerTransport.__new__(AnswerTransport), "")
            session.be_lenient(headers=headers, transfers=transfers)
            session.durability = minimum
            self.sessions[key] = session
        return session


cdef bytes _pub(bytes key, body, int64_t delay_ms):
    name = b"DPUB %s %d\n" % (key, delay_ms) if delay_ms else b"PUB %s\n" % key
    return b"".join((name, pack(">i", len(body)), body))


cdef bytes _mpub(bytes key, list bodies):
    parts = [pack(">i", len(bodies))]
    for body in bodies:
        parts.append(pack(">i", len(body)))
        parts.append(body)
    whole = b"".join(parts)
    return b"MPUB %s\n%s%s" % (key, pack(">i", len(whole)), whole)


def _parts(bodies, maximum):
    """Split bodies into lists for MPUBs of at most `maximum` bytes; a larger body gets its own
    list."""
    part = []
    size = 4
    for body in bodies:
        if part and size + len(body) + 4 > maximum:
            yield part
            part = []
            size = 4
        part.append(body)
        size += len(body) + 4
    if part:
        yield part
