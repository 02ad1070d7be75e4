"""The layers between the socket of a session and its bytes: TLS, a codec, or a codec inside TLS.

Owns their order, and where a codec's blocks end. Independent of sockets and sessions, so that
another owner can continue with the layers of a session (nsqcy/nsqd/worker/pump.py).
"""


cdef class LayerStack(ByteLayer):
    """All layers of a connection as one layer. Without a layer, bytes are sent unchanged."""

    cdef list layers            # the one next to the socket first
    cdef object tls             # the first layer, if it is TLS
    cdef ByteQueue between      # output between two layers
    cdef FrameScanner scanner   # finds where the codec's blocks end; None: no codec

    def __cinit__(self, *args, **named):
        self.layers = []

    cdef int add_tls(self, layer) except -1:
        self.tls = layer
        self.layers.append(layer)
        return 0

    cdef int add_codec(self, ByteLayer codec) except -1:
        self.layers.append(codec)
        self.scanner = FrameScanner()
        return 0

    cdef bint is_packable(self) except -1:
        """Return whether another process can continue with the state of the layers."""
        return len(self.layers) == 1 and isinstance(self.layers[0], SnappyLayer)

    cdef list pack(self):
        return [self.layers[0].pack(), self.scanner.pack()]

    cdef int unpack(self, layer, scanned) except -1:
        self.add_codec(SnappyLayer())
        self.layers[0].unpack(layer)
        self.scanner.unpack(scanned)
        return 0

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        if not self.layers:
            raise RuntimeError("there is no layer")
        return (<ByteLayer>self.layers[0]).receive(data, n)

    cdef ssize_t decode(self, const uint8_t **piece) except -1:
        cdef ByteLayer outer
        cdef ByteLayer inner
        cdef ssize_t n
        if not self.layers:
            return 0
        outer = <ByteLayer>self.layers[0]
        if len(self.layers) == 1:
            return outer.decode(piece)
        inner = <ByteLayer>self.layers[1]
        n = inner.decode(piece)
        while n == 0:
            n = outer.decode(piece)
            if n == 0:
                break
            inner.receive(piece[0], n)
            n = inner.decode(piece)
        return n

    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1:
        cdef Py_ssize_t count = len(self.layers)
        if count == 0:
            into.put(data, n)
        elif self.scanner is None:
            (<ByteLayer>self.layers[0]).encode(data, n, into)
        elif count == 1:
            self.compress(<ByteLayer>self.layers[0], data, n, into)
        else:
            if self.between is None:
                self.between = ByteQueue()
            self.compress(<ByteLayer>self.layers[1], data, n, self.between)
            (<ByteLayer>self.layers[0]).encode(self.between.first(), self.between.pending(), into)
            self.between.remove(self.between.pending())
        return 0

    cdef int compress(self, ByteLayer codec, const uint8_t *data, size_t n,
                      ByteQueue into) except -1:
        """Encode bytes; each response or error ends a block.

        NSQ flushes its codec after each of them, and JavaNSQClient reads only the first frame of a
        block.
        """
        cdef size_t step
        while n:
            step = self.scanner.through_answer(data, n)
            codec.encode(data, step, into)
            data += step
            n -= step
        return 0

    cdef int rest_now(self) except -1:
        for layer in self.layers:
            (<ByteLayer>layer).rest_now()
        return 0

    def take(self):
        """Return the encoded bytes that are ready for the peer, including those that TLS itself
        sends."""
        taken = self.output.take()
        return taken if self.tls is None else taken + self.tls.take()

    def close(self):
        """Notify the peer of a TLS connection that no more data follows; take() returns the
        bytes."""
        if self.tls is not None:
            self.tls.close()

    def release(self):
        """Free the state of an ended connection, as far as it is large."""
        if self.tls is not None:
            self.tls.release()
