"""Raw deflate, flushed after every write and never finished.

Decides when a compressor exists, because each uses about 256 KiB. Every write ends with a flush, so
the compressor can be freed at any time and later replaced with a new one; for the peer, the stream
continues. Independent of sockets.
"""

cdef extern from "bytes.h" nogil:
    void store_le16(void *at, uint16_t value)

cdef enum:
    INPUT_STEP = 16384          # encoded bytes passed to the inflater, which copies the unused part
    MAX_STORED = 32             # bytes
    STORED_HEADER = 5

cdef bytes SYNC_FLUSH = b"\x00\x00\x00\xff\xff"


cdef class DeflateLayer(ByteLayer):
    """One end of a deflate stream."""

    cdef int level
    cdef object inflater
    cdef object deflater        # None while no compressor is needed
    cdef bint used              # used since the last call to rest()
    cdef ByteQueue input
    cdef bytes piece            # the last decoded piece

    def __init__(self, int level=6):
        """level: zlib's compression level"""
        self.level = level
        self.inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self.piece = b""
        self.input = ByteQueue()

    @property
    def has_compressor(self):
        """Return whether a compressor exists."""
        return self.deflater is not None

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        return self.input.put(data, n)

    cdef ssize_t decode(self, const uint8_t **piece) except -1:
        cdef bytes given
        cdef size_t n
        while True:
            if self.inflater.eof:
                raise LayerEnd("deflate: the stream has ended")
            n = min(self.input.pending(), <size_t>INPUT_STEP)
            if n == 0 and len(self.piece) < PIECE_SIZE:
                return 0                        # the inflater has no more output
            given = self.input.first()[:n] if n else b""
            try:
                self.piece = self.inflater.decompress(given, PIECE_SIZE)
            except zlib.error as error:
                raise LayerError(f"deflate: {error}") from None
            self.input.remove(n - len(self.inflater.unconsumed_tail))
            if self.piece:
                piece[0] = self.piece
                return len(self.piece)

    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1:
        cdef bytes encoded
        if self.deflater is None:
            if n <= MAX_STORED:
                # An occasional response or heartbeat does not justify a compressor.
                return put_stored(data, n, into)
            self.deflater = zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self.used = self.used or n > MAX_STORED
        encoded = self.deflater.compress(data[:n]) + self.deflater.flush(zlib.Z_SYNC_FLUSH)
        return into.put(encoded, len(encoded))

    cdef int rest_now(self) except -1:
        if not self.used:
            self.deflater = None
        self.used = False
        return 0


cdef int put_stored(const uint8_t *data, size_t n, ByteQueue into) except -1:
    """Add a block that stores the bytes uncompressed."""
    cdef uint8_t *block = into.room(STORED_HEADER)
    block[0] = 0
    store_le16(block + 1, <uint16_t>n)
    store_le16(block + 3, <uint16_t>~n)
    into.put(data, n)
    return into.put(SYNC_FLUSH, len(SYNC_FLUSH))
