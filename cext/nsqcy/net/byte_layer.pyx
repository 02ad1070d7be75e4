"""The interface of the layers between a protocol and its socket: TLS and codecs.

Defines the interface in two forms: for Cython (pointers) and for Python (bytes). Independent of
encodings and sockets: bytes go in and come out.

A layer decodes one piece at a time and only on request, so a small input that decodes to a huge
output costs only the memory of one piece. A ByteQueue holds the bytes between two layers.
"""

cdef enum:
    MIN_CAPACITY = 512          # bytes of a queue's buffer

PIECE = PIECE_SIZE


cdef class ByteQueue:
    """Queue of pending bytes. The buffer exists only while bytes are pending."""

    def __dealloc__(self):
        free(self.buffer)

    cdef uint8_t *room(self, size_t n) except NULL:
        """Reserve `n` bytes at the end, which the caller must fill; return a pointer to them."""
        cdef size_t capacity
        cdef uint8_t *buffer
        if self.end + n > self.capacity and self.start:
            memmove(self.buffer, self.buffer + self.start, self.pending())
            self.end -= self.start
            self.start = 0
        if self.end + n > self.capacity:
            capacity = max(self.end + n, 2 * self.capacity, <size_t>MIN_CAPACITY)
            buffer = <uint8_t *>realloc(self.buffer, capacity)
            if buffer == NULL:
                raise MemoryError
            self.buffer = buffer
            self.capacity = capacity
        self.end += n
        return self.buffer + self.end - n

    cdef int put(self, const uint8_t *data, size_t n) except -1:
        """Add a copy of these bytes."""
        if n:
            memcpy(self.room(n), data, n)
        return 0

    cdef void remove(self, size_t n) noexcept:
        """Remove the first `n` bytes."""
        self.start += n
        if self.start == self.end:
            free(self.buffer)
            self.buffer = NULL
            self.start = self.end = self.capacity = 0

    cdef bytes take(self):
        """Remove and return all bytes."""
        cdef bytes taken = self.first()[:self.pending()] if self.pending() else b""
        self.remove(self.pending())
        return taken


cdef class ByteLayer:
    """One step of a connection's encoding, in both directions.

    A Cython layer overrides the methods in the first part, a Python layer those in the second.
    """

    def __cinit__(self, *args, **named):
        self.output = ByteQueue()

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        """Process bytes received from the peer."""
        raise NotImplementedError

    cdef ssize_t decode(self, const uint8_t **piece) except -1:
        """Return the length of the next decoded piece, at most PIECE; 0 if more input is needed.

        `piece` is valid until the next call to any layer of this type. Raises LayerError if the
        input is corrupt and LayerEnd after its last byte.
        """
        raise NotImplementedError

    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1:
        """Encode bytes; the peer can then decode all of them from the bytes in `into`."""
        raise NotImplementedError

    cdef int rest_now(self) except -1:
        """Free memory that has not been used since the last call."""
        return 0

    # -- for Python --

    def feed(self, data not None):
        """Process bytes received from the peer."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len:
                self.receive(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def read(self):
        """Return the next decoded piece, at most PIECE bytes; b"" if more input is needed.

        Raises LayerError if the input is corrupt and LayerEnd after its last byte.
        """
        cdef const uint8_t *piece = NULL
        cdef ssize_t n = self.decode(&piece)
        return piece[:n] if n else b""

    def write(self, data not None):
        """Encode bytes; the peer can then decode all of them from the result of take()."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len:
                self.encode(<const uint8_t *>view.buf, view.len, self.output)
        finally:
            PyBuffer_Release(&view)

    def take(self):
        """Return the encoded bytes that are ready for the peer."""
        return self.output.take()

    def rest(self):
        """Free memory that has not been used since the last call."""
        self.rest_now()
