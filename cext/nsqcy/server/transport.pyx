"""Transports of sessions, and the turns of the event loop.

Owns the socket calls and the watchers of a worker's hub. Independent of the protocol. Each
turn of the event loop is one batch: one receive for each readable socket, then (right before the
poll) topics, channels and one send for each socket with output.

TLS and codecs are layers (layer_stack.pyx) between a socket and its session. For a socket
without layers, this costs only one comparison. With layers, input is decoded while the session
reads, a bounded amount per turn; the socket is not read while input is left. Output is encoded once
all earlier encoded output has been sent, so the output for a slow client is stored only once, and
is counted.

The hooks run inside the hub's callbacks: they never block, switch or spawn.
"""

cdef extern from "sys/socket.h" nogil:
    ctypedef struct msghdr "struct msghdr":
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void *buffer, size_t n, int flags)
    ssize_t send(int fd, const void *buffer, size_t n, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int shutdown(int fd, int how)
    const int MSG_NOSIGNAL
    const int MSG_DONTWAIT
    const int MSG_TRUNC
    const int SHUT_WR

cdef extern from "sys/uio.h" nogil:
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len

cdef extern from "unistd.h" nogil:
    int close(int fd)
    ssize_t read(int fd, void *buffer, size_t n)

cdef extern from "time.h" nogil:
    ctypedef struct timespec "struct timespec":
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *into)
    const int CLOCK_MONOTONIC
    const int CLOCK_REALTIME
    ctypedef struct itimerspec "struct itimerspec":
        timespec it_interval
        timespec it_value

cdef extern from "sys/timerfd.h" nogil:
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *when, itimerspec *old)
    const int TFD_NONBLOCK
    const int TFD_CLOEXEC
    const int TFD_TIMER_ABSTIME


cdef enum:
    READ = 1                # libev's flags
    WRITE = 2
    PIECES = 32             # maximum pieces per send
    MAX_DRAIN = 1048576    # maximum unread bytes to discard on close, to avoid a reset
    ENCODE_PIECE = 65536    # unencoded bytes processed at once
    MAX_ENCODE = 262144    # maximum bytes per session per turn
    MAX_DECODE = 262144    # maximum decoded bytes per session per turn


cdef inline int64_t clock_ns(int clock) noexcept nogil:
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class SocketTransport(Transport):
    """A connected, non-blocking stream socket. Owns the descriptor."""

    cdef int fd
    cdef Loop loop
    cdef object reader              # io watchers
    cdef object writer
    # Used only with layers between the session and the socket:
    cdef LayerStack layers          # None: no layer
    cdef object handshake           # TLS handshake in progress
    cdef object identity            # negotiated settings until they are applied
    cdef ByteQueue encoded          # output of the layers
    cdef bint is_reading            # whether the reader is running
    cdef bint wanted                # whether the session wants input
    cdef bint drained               # whether the layers have no decodable input
    cdef bint queued                # whether the session is in manager.undecoded

    def __cinit__(self, Loop loop not None, int fd):
        self.loop = loop
        self.fd = fd

    def fileno(self):
        return self.fd

    def open(self):
        """Start receiving. The session must already be set."""
        self.reader = self.loop.ev.io(self.fd, READ)
        self.read_socket(True)

    def on_readable(self):
        cdef Session session = <Session>self.session
        cdef ssize_t n
        cdef size_t maximum = RECEIVE_SIZE
        if self.fd < 0:
            return
        self.loop.begin_turn()
        if session.unauthenticated:
            maximum = session.manager.input_left(session)
            if maximum == 0:
                return      # the next poll reports the socket again
        n = recv(self.fd, session.manager.scratch, maximum, MSG_DONTWAIT)
        try:
            if n > 0:
                session.manager.count_input(session, n)
                if self.layers is None:
                    session.feed(session.manager.scratch, n)
                else:
                    self.receive(session.manager.scratch, n)
            elif n == 0:
                if self.handshake is not None:
                    session.close()
                else:
                    session.end_of_input()
            elif errno != EAGAIN and errno != EINTR:
                session.close()
        except Exception as error:
            self.loop.manager.report(session, error)

    def on_writable(self):
        self.loop.begin_turn()
        self.watch_output(False)
        (<Session>self.session).touch_dirty()

    cdef int flush(self) except -1:
        cdef Output output = self.session.output
        cdef const uint8_t *data[PIECES]
        cdef size_t lengths[PIECES]
        cdef iovec vector[PIECES]
        cdef msghdr message
        cdef size_t total
        cdef ssize_t n
        cdef int count
        cdef int i
        if self.layers is not None:
            return self.flush_encoded()
        while output.pending():
            count = output.pieces(data, lengths, PIECES)
            if count == 1:
                total = lengths[0]
                n = send(self.fd, data[0], total, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                total = 0
                for i in range(count):
                    vector[i].iov_base = <void *>data[i]
                    vector[i].iov_len = lengths[i]
                    total += lengths[i]
                memset(&message, 0, sizeof(msghdr))
                message.msg_iov = vector
                message.msg_iovlen = count
                n = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n < 0:
                if errno != EAGAIN and errno != EINTR:
                    return (<Session>self.session).close()
                n = 0
            output.sent(n)
            if <size_t>n < total:
                self.watch_output(True)
                break
        return (<Session>self.session).after_flush()

    cdef int watch_output(self, bint on) except -1:
        if on and self.writer is None:
            self.writer = self.loop.ev.io(self.fd, WRITE)
            self.writer.start(self.on_writable)
        elif not on and self.writer is not None:
            self.writer.stop()
            self.writer.close()
            self.writer = None
        return 0

    cdef int watch_input(self, bint on) except -1:
        if self.layers is not None:
            self.wanted = on
            if on and not self.drained:
                self.read_later()
            return self.watch_encoded()
        return self.read_socket(on)

    cdef int read_socket(self, bint on) except -1:
        # Starting an already running watcher takes longer than decoding a short message.
        if self.reader is not None and on != self.is_reading:
            self.is_reading = on
            if on:
                self.reader.start(self.on_readable)
            else:
                self.reader.stop()
        return 0

    cdef int stop_watching(self) except -1:
        self.watch_output(False)
        if self.reader is not None:
            self.reader.stop()
            self.reader.close()
            self.reader = None
        return 0

    cdef int close(self) except -1:
        cdef size_t drained = 0
        cdef ssize_t n = 1
        if self.fd < 0:
            return 0
        self.stop_watching()
        if self.layers is not None:
            self.say_goodbye()
        # Closing with unread input resets the connection, so the peer may lose the last output.
        shutdown(self.fd, SHUT_WR)
        while n > 0 and drained < MAX_DRAIN:
            # TCP discards the bytes without copying them.
            n = recv(self.fd, self.loop.manager.scratch, RECEIVE_SIZE, MSG_DONTWAIT | MSG_TRUNC)
            drained += max(n, 0)
        close(self.fd)
        self.fd = -1
        return 0

    cdef int abandon(self) except -1:
        if self.fd >= 0:
            self.stop_watching()
            close(self.fd)
            self.fd = -1
        return 0

    # -- layers --

    cdef int upgrade(self, identity) except -1:
        cdef Session session = <Session>self.session
        self.layers = LayerStack()
        self.encoded = ByteQueue()
        self.drained = True
        self.wanted = session.reading
        self.identity = identity
        # Output up to this point is sent unencoded.
        self.seal()
        if not identity.tls:
            self.add_codec()
            return session.upgrade_done()
        session.manager.log.info(
            f"PROTOCOL(V2): [{session.remote_address}] upgrading connection to TLS")
        self.handshake = self.loop.handshakes.begin(self)
        return self.read_socket(True)

    def send_encoded(self, data not None):
        """Send handshake bytes."""
        cdef Py_buffer view
        self.loop.begin_turn()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.encoded.put(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        self.held = self.encoded.pending()
        (<Session>self.session).touch_dirty()

    def want_input(self):
        """Continue reading, because the handshake needs more input."""
        self.read_socket(True)

    def handshake_done(self, error):
        """Continue with the next codec after a TLS handshake; after a failed one, send the error in
        plain text."""
        cdef Session session = <Session>self.session
        layer = self.handshake.layer
        self.handshake = None
        self.loop.begin_turn()
        try:
            if error is not None:
                self.watch_input(False)     # further input cannot be decoded
                session.upgrading = False
                session.fatal(f"E_IDENTIFY_FAILED IDENTIFY failed {error}".encode())
                return
            self.layers.add_tls(layer)
            session.tls = layer.facts()
            session.certificate_names = layer.certificate_names()
            session.put_ok()
            self.add_codec()
            # Input received after the end of the handshake is in the layer.
            self.drained = False
            session.upgrade_done()
        except Exception as unexpected:
            self.loop.manager.report(session, unexpected)

    cdef int add_codec(self) except -1:
        """Add the negotiated codec, if any, and send the codec's OK."""
        cdef Session session = <Session>self.session
        identity = self.identity
        self.identity = None
        if not (identity.snappy or identity.deflate):
            return 0
        if identity.snappy:
            codec = SnappyLayer()
            name = "snappy"
        else:
            codec = DeflateLayer(identity.deflate_level)
            name = f"deflate (level {identity.deflate_level})"
        session.manager.log.info(
            f"PROTOCOL(V2): [{session.remote_address}] upgrading connection to {name}")
        # Earlier output is sent without the codec.
        self.seal()
        self.layers.add_codec(codec)
        return session.put_ok()

    cdef int seal(self) except -1:
        """Encode all of the session's output so far."""
        while self.session.output.pending():
            self.encode()
        return 0

    cdef int encode(self) except -1:
        """Pass a piece of the session's output through the layers."""
        cdef Output output = self.session.output
        cdef const uint8_t *data[PIECES]
        cdef size_t lengths[PIECES]
        cdef uint8_t *scratch = self.loop.manager.scratch
        cdef size_t total = 0
        cdef size_t step
        cdef int count = output.pieces(data, lengths, PIECES)
        cdef int i
        if count == 1:
            total = min(lengths[0], <size_t>ENCODE_PIECE)
            self.encode_piece(data[0], total)
        else:
            # One large TLS record or codec block is cheaper than many small ones.
            for i in range(count):
                step = min(lengths[i], ENCODE_PIECE - total)
                memcpy(scratch + total, data[i], step)
                total += step
            self.encode_piece(scratch, total)
        output.sent(total)
        return 0

    cdef int encode_piece(self, const uint8_t *data, size_t n) except -1:
        self.layers.encode(data, n, self.encoded)
        self.held = self.encoded.pending()
        return 0

    cdef bint send_held(self) except -1:
        """Send encoded output, as far as possible; return whether all of it was sent."""
        cdef ssize_t n
        if self.held:
            n = send(self.fd, self.encoded.first(), self.held, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n < 0:
                if errno != EAGAIN and errno != EINTR:
                    (<Session>self.session).close()
                    return False
                n = 0
            self.encoded.remove(n)
            self.held -= n
            self.moved += n
            if self.held:
                self.watch_output(True)
                return False
        return True

    cdef int flush_encoded(self) except -1:
        cdef Session session = <Session>self.session
        cdef size_t maximum = MAX_ENCODE
        while self.send_held():
            if self.handshake is not None or not session.output.pending():
                break
            if maximum == 0:
                session.touch_dirty()
                break
            maximum -= ENCODE_PIECE
            self.encode()
        if session.closed:
            return 0
        return session.after_flush()

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        """Process encoded bytes from the peer."""
        if self.handshake is not None:
            self.read_socket(False)
            self.handshake.feed(data[:n])
            return 0
        self.layers.receive(data, n)
        self.drained = False
        return self.read_on()

    cdef int read_on(self) except -1:
        cdef Session session = <Session>self.session
        cdef const uint8_t *piece = NULL
        cdef ssize_t n
        cdef size_t done = 0
        self.queued = False
        while (self.wanted and not self.drained and done < MAX_DECODE and self.fd >= 0
                and session.manager.input_left(session)):
            try:
                n = self.layers.decode(&piece)
            except LayerEnd:
                self.drained = True
                session.end_of_input()
            except LayerError as error:
                self.drained = True
                events.client_error(session.manager.log, client=session.remote_address,
                                    error=str(error))
                session.stop()
            else:
                self.drained = n == 0
                if n:
                    done += n
                    session.manager.count_input(session, n)
                    session.feed(piece, n)
        if self.wanted and not self.drained:
            self.read_later()
        return self.watch_encoded()

    cdef int read_later(self) except -1:
        """Schedule a call to read_on in the next turn."""
        if not self.queued and self.fd >= 0:
            self.queued = True
            self.loop.manager.undecoded.append(self)
        return 0

    cdef int watch_encoded(self) except -1:
        """Receive if the session wants more input than the layers have."""
        if self.handshake is None:
            self.read_socket(self.wanted and self.drained)
        return 0

    cdef int say_goodbye(self) except -1:
        """If possible, notify the peer of a TLS connection that no more data follows."""
        cdef bytes last
        if self.handshake is not None:
            self.handshake.cancel()
            self.handshake = None
        elif not self.held:
            self.layers.close()
            last = self.layers.take()
            if last:
                send(self.fd, <const char *>last, len(last), MSG_NOSIGNAL | MSG_DONTWAIT)
        self.layers = LayerStack()
        self.encoded.remove(self.encoded.pending())
        self.held = 0
        return 0

    cdef int rest(self) except -1:
        if self.layers is not None:
            self.layers.rest_now()
        return 0

    # -- the hand-over to another process --

    cdef object pack(self):
        cdef bytes encoded
        if self.handshake is not None:
            raise ValueError("a TLS handshake cannot be packed")
        if self.layers is None or not self.layers.is_packable():
            return None                 # a pump keeps the layers
        encoded = self.encoded.first()[:self.encoded.pending()] if self.encoded.pending() else b""
        layer, scanned = self.layers.pack()
        return {"layer": layer, "encoded": encoded.decode("latin-1"), "scanned": scanned}

    cdef bint needs_pump(self) except -1:
        return (self.layers is not None and self.handshake is None
                and not self.layers.is_packable())

    cdef tuple surrender(self):
        cdef LayerStack layers = self.layers
        self.stop_watching()
        self.layers = LayerStack()
        self.held = 0
        fd, self.fd = self.fd, -1
        return fd, layers, self.encoded.take()

    def unpack(self, state):
        """Continue with the state of the transport of another process."""
        cdef bytes encoded
        if state is None:
            return
        encoded = state["encoded"].encode("latin-1")
        self.layers = LayerStack()
        self.layers.unpack(state["layer"], state["scanned"])
        self.encoded = ByteQueue()
        self.encoded.put(encoded, len(encoded))
        self.held = self.encoded.pending()
        self.drained = False
        self.wanted = True
        self.read_later()

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)


cdef class StreamTransport(Transport):
    """The far end of a session: exchanges bytes with the client's session."""

    cdef Stream stream
    cdef size_t unconsumed          # bytes fed while parsing is waiting; credit is returned later

    cdef int flush(self) except -1:
        cdef Output output = self.session.output
        cdef const uint8_t *data[PIECES]
        cdef size_t lengths[PIECES]
        cdef int count
        cdef int i
        cdef int n
        cdef bint room = True
        while room and output.pending():
            count = output.pieces(data, lengths, PIECES)
            for i in range(count):
                n = self.stream.send(data[i], lengths[i])
                output.sent(n)
                if <size_t>n < lengths[i]:
                    room = False
                    break
        (<Session>self.session).after_flush()
        if not self.session.closed and not self.session.blocked:
            self.give_credit()
        return 0

    cdef int give_credit(self) except -1:
        if self.unconsumed:
            self.stream.consumed(self.unconsumed)
            self.unconsumed = 0
        return 0

    cdef int watch_input(self, bint on) except -1:
        if on:
            self.give_credit()
        return 0

    cdef int close(self) except -1:
        if self.stream is not None:
            self.stream.close()
        return 0

    cdef object pack(self):
        return [self.stream.peer, self.stream.number, self.unconsumed]


cdef class FarEnd(StreamEnd):
    """The owner's end of a stream: feeds a session."""
    cdef Session session
    cdef StreamTransport transport

    cdef int on_data(self, const unsigned char *data, size_t n) except -1:
        cdef Session session = <Session>self.session
        if session.closed or session.stopping:
            self.transport.stream.consumed(n)
            return 0
        session.feed(data, n)
        self.transport.unconsumed += n
        if session.reading and not session.closed:
            self.transport.give_credit()
        return 0

    cdef int on_writable(self) except -1:
        (<Session>self.session).touch_dirty()
        return 0

    cdef int on_closed(self, bint aborted) except -1:
        self.transport.stream = None
        if not self.session.closed:
            self.session.close()
        return 0


def accept_stream(SessionManager manager not None, Stream stream not None, bytes hello not None):
    """Return the end for a stream that a client's session opened to this worker. Raises
    FormatError."""
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    cdef FarEnd end = FarEnd.__new__(FarEnd)
    cdef Session session
    identity = json.loads(hello)
    formats.MESH.check_fields(identity, "a stream from another worker")
    transport.stream = stream
    session = Session(manager, transport, identity["remote_address"])
    session.adopt_hello(identity)
    end.session = session
    end.transport = transport
    return end


def accept_socket(Loop loop not None, int fd, str remote_address not None):
    """Serve a connected socket; take ownership of its descriptor."""
    cdef SocketTransport transport = SocketTransport(loop, fd)
    cdef Session session = Session(loop.manager, transport, remote_address)
    session.migratable = loop.manager.migrate is not None
    transport.open()
    session.check_appetite()
    return session


def accept_migration(
        Loop loop not None, int fd, state, bytes unread not None, bytes unsent not None):
    """Continue to serve a client that another worker packed; take ownership of its descriptor."""
    cdef SocketTransport transport = SocketTransport(loop, fd)
    cdef Session session = Session(loop.manager, transport, state["remote_address"])
    transport.open()
    session.unpack(state, unread, unsent)
    return session


def accept_handover(
        Loop loop not None, int fd, dict state not None, bytes unread not None,
        bytes unsent not None):
    """Continue to serve a client of the process that this one takes over from; take ownership of
    its descriptor. The far end of a stream has no descriptor: -1.

    All sessions must be accepted before the first turn, after the topics have been loaded and the
    mesh has been unpacked.
    """
    cdef SocketTransport transport
    cdef Session session
    if state["remote"]:
        return adopt_far_end(loop.manager, state, unread, unsent)
    transport = SocketTransport(loop, fd)
    session = Session(loop.manager, transport, state["remote_address"])
    transport.open()
    try:
        transport.unpack(state["transport"])
        session.unpack_whole(state, unread, unsent)
    except Exception as error:
        # For example, the client's user no longer exists. Other sessions continue.
        loop.manager.report(session, error)
    return session


def adopt_far_end(SessionManager manager not None, dict state not None, bytes unread not None,
                  bytes unsent not None):
    """Continue the far end of a stream. Return None if the stream no longer exists."""
    cdef StreamTransport transport = StreamTransport.__new__(StreamTransport)
    cdef FarEnd end = FarEnd.__new__(FarEnd)
    cdef Session session
    cdef int peer
    peer, number, transport.unconsumed = state["transport"]
    transport.stream = manager.mesh.claim(peer, number, end)
    if transport.stream is None:
        return None
    session = Session(manager, transport, state["remote_address"])
    end.session = session
    end.transport = transport
    try:
        session.unpack_whole(state, unread, unsent)
    except Exception as error:
        manager.report(session, error)
    return session


cdef class BytesTransport(Transport):
    """Bytes in memory: the transport for tests and tools that drive a session manager without an
    event loop (see SessionManager.run_turn). Creates its own session."""

    cdef bytearray taken            # bytes sent, but not yet collected by sent()
    cdef int64_t left               # bytes still accepted; negative: no limit
    cdef readonly bint closed
    cdef readonly bint wants_input

    def __init__(self, SessionManager manager not None, str remote_address="127.0.0.1:1"):
        self.taken = bytearray()
        self.left = -1
        self.wants_input = True
        self.session = Session(manager, self, remote_address)
        (<Session>self.session).migratable = manager.migrate is not None

    @property
    def client(self):
        """The session of this transport."""
        return self.session

    @property
    def full(self):
        """Number of bytes that the transport still accepts before it blocks, like a socket whose
        peer does not read; None: no limit."""
        return None if self.left < 0 else self.left

    @full.setter
    def full(self, value):
        self.left = -1 if value is None else value
        (<Session>self.session).touch_dirty()

    def feed(self, data not None):
        """Feed bytes, as if the peer had sent them."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len:
                (<Session>self.session).feed(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def end(self):
        """End the input, as if the peer had closed its end."""
        (<Session>self.session).end_of_input()

    def sent(self):
        """Return the bytes that the peer has received since the last call."""
        taken = bytes(self.taken)
        self.taken = bytearray()
        return taken

    def unsent(self):
        """Return the output that is waiting for the peer."""
        return self.session.output.unsent()

    cdef int flush(self) except -1:
        cdef Output output = self.session.output
        cdef const uint8_t *data[PIECES]
        cdef size_t lengths[PIECES]
        cdef size_t step = 1
        while step and output.pending() and output.pieces(data, lengths, PIECES):
            step = lengths[0]
            if self.left >= 0:
                step = min(step, <size_t>self.left)
                self.left -= step
            self.taken += data[0][:step]
            output.sent(step)
        return (<Session>self.session).after_flush()

    cdef int watch_input(self, bint on) except -1:
        self.wants_input = on
        return 0

    cdef int close(self) except -1:
        self.closed = True
        return 0

    cdef int abandon(self) except -1:
        return self.close()


cdef class Loop:
    """Driver of a session manager on a gevent hub."""

    cdef readonly SessionManager manager
    cdef object handshakes          # TLS (nsqcy.nsqd.tls.Handshakes); None: no TLS
    cdef object ev                  # the hub's loop
    cdef object prepare
    cdef int timer_fd
    cdef object timer
    cdef object idle
    cdef list watchers
    cdef list calls                 # functions to call before the next poll
    cdef bint idling
    cdef int64_t alarm              # time when the timer fires; 0: it is not running
    cdef bint in_turn
    cdef Histogram turns            # durations of turns, from the first event to the next poll

    def __init__(self, SessionManager manager not None, hub, handshakes=None):
        """handshakes: the queue of TLS handshakes; None without TLS"""
        self.manager = manager
        self.handshakes = handshakes
        self.ev = hub.loop
        # With this priority, it runs after the callbacks of other greenlets and immediately before
        # the poll.
        self.prepare = self.ev.prepare(priority=-2)
        self.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.timer_fd < 0:
            raise OSError(errno, "timerfd_create")
        self.timer = self.ev.io(self.timer_fd, READ)
        self.idle = self.ev.idle()
        self.watchers = []
        self.calls = []
        self.begin_turn()
        self.in_turn = False

    def start(self):
        self.prepare.start(self.end_turn)
        self.timer.start(self.on_alarm)
        if self.manager.shard.io is not None:
            self.watch(self.manager.shard.io.fileno(), self.on_written)

    def turn_times(self):
        """Return the durations of turns: counts by length, and the sum in seconds."""
        return histogram_facts(&self.turns)

    def watch(self, fd, callback):
        """Call back whenever `fd` is readable."""
        watcher = self.ev.io(fd, READ)
        watcher.start(callback)
        self.watchers.append(watcher)

    def before_poll(self, call):
        """Call a function once, at the end of the turn. It must not create work for a turn."""
        if self.prepare.active:
            self.calls.append(call)
        else:
            self.ev.run_callback(call)

    cdef int make_calls(self) except -1:
        cdef list calls = self.calls
        self.calls = []
        for call in calls:
            call()
        return 0

    def stop(self):
        """Stop running turns."""
        self.make_calls()
        for watcher in (self.prepare, self.timer, self.idle, *self.watchers):
            watcher.stop()
            watcher.close()

    def on_written(self):
        self.begin_turn()
        self.manager.shard.io.poll()

    def on_woken(self):
        """Handle a wake-up: another worker has written to one of this worker's rings."""
        self.begin_turn()
        self.manager.mesh.woken()

    def __dealloc__(self):
        if self.timer_fd >= 0:
            close(self.timer_fd)

    def on_alarm(self):
        cdef uint64_t times
        read(self.timer_fd, &times, sizeof(times))
        self.alarm = 0
        self.begin_turn()

    cdef void begin_turn(self) noexcept:
        """Read the clocks, once per turn; called by the first event of the turn."""
        if not self.in_turn:
            self.in_turn = True
            self.manager.scheduler.now = clock_ns(CLOCK_MONOTONIC)
            self.manager.scheduler.wall = clock_ns(CLOCK_REALTIME)
            if self.manager.mesh is not None:
                self.manager.mesh.awake()

    def enter(self):
        """Update the clocks, because Python code is about to use topics or sessions."""
        self.begin_turn()

    def end_turn(self):
        cdef int64_t due
        cdef Mesh mesh = self.manager.mesh
        self.begin_turn()
        due = self.manager.turn()
        if self.calls:
            self.make_calls()
        if due > self.manager.scheduler.now and mesh is not None and not mesh.prepare_sleep():
            due = self.manager.scheduler.now
        histogram_add(&self.turns, FIRST_OF_TURNS,
                      clock_ns(CLOCK_MONOTONIC) - self.manager.scheduler.now, 1)
        self.in_turn = False
        if due <= self.manager.scheduler.now:
            if not self.idling:
                # An active idle watcher keeps the poll from blocking.
                self.idling = True
                self.idle.start(nothing)
            return
        if self.idling:
            self.idling = False
            self.idle.stop()
        # Set the alarm only if it is not running or must fire earlier: a premature alarm costs only
        # an empty turn, but setting an alarm costs a system call.
        if self.alarm == 0 or due < self.alarm:
            self.set_alarm(due)

    cdef int set_alarm(self, int64_t due) except -1:
        cdef itimerspec when
        memset(&when, 0, sizeof(when))
        when.it_value.tv_sec = due // 1000000000
        when.it_value.tv_nsec = due % 1000000000
        if timerfd_settime(self.timer_fd, TFD_TIMER_ABSTIME, &when, NULL) < 0:
            raise OSError(errno, "timerfd_settime")
        self.alarm = due
        return 0


def nothing():
    """Do nothing: the event only ends the poll."""
