"""The snappy framing format: chunks of at most 64 KiB, each with a checksum.

Owns the frames and their checksums. snappy_block.h compresses the blocks in them, so a chunk needs
no Python object. Independent of sockets.
"""

cdef extern from "crc32c.h" nogil:
    uint32_t crc32c(uint32_t crc, const void *data, size_t n)

cdef extern from "snappy_block.h" nogil:
    enum:
        SNAPPY_SLOP
        SNAPPY_TABLE
    int64_t snappy_length(const uint8_t *block, size_t n, size_t *used)
    int snappy_decompress(const uint8_t *at, size_t n, uint8_t *out, size_t length)
    size_t snappy_compress(const uint8_t *data, size_t n, uint8_t *out, uint16_t *table)

cdef extern from "bytes.h" nogil:
    uint32_t load_le32(const void *at)
    void store_le32(void *at, uint32_t value)

cdef enum:
    COMPRESSED = 0x00           # chunk types
    UNCOMPRESSED = 0x01
    FIRST_SKIPPABLE = 0x80
    IDENTIFIER = 0xff
    HEADER = 4                  # bytes: kind and length
    CHECKSUM = 4
    IDENTIFIER_LENGTH = 6
    BLOCK = 65536               # maximum uncompressed bytes per chunk
    MAX_BLOCK = 76490           # maximum size of an incompressible block: 32 + 7/6 of its bytes
    MIN_COMPRESSIBLE = 32       # shorter blocks, such as responses, are sent uncompressed

cdef const uint8_t *STREAM_IDENTIFIER = <const uint8_t *>b"\xff\x06\x00\x00sNaPpY"

# Shared by all connections: a piece is read before the next one is decoded.
cdef uint8_t decoded[BLOCK + SNAPPY_SLOP]
cdef uint8_t compressed[MAX_BLOCK]
cdef uint16_t table[SNAPPY_TABLE]


cdef class SnappyLayer(ByteLayer):
    """One end of a snappy stream."""

    cdef ByteQueue input
    cdef size_t skipping        # bytes of a skippable chunk that have not arrived
    cdef bint begun             # the peer's identifier has arrived
    cdef bint identified        # our identifier has been sent

    def __cinit__(self, *args, **named):
        self.input = ByteQueue()

    @property
    def buffered(self):
        """Number of bytes waiting for the rest of their chunk."""
        return self.input.pending()

    def pack(self):
        """Return the state as JSON can contain it: chunks do not depend on each other."""
        return [
            self.skipping, bool(self.begun), bool(self.identified),
            self.input.first()[:self.input.pending()].decode("latin-1")
            if self.input.pending() else ""]

    def unpack(self, state not None):
        """Continue with the state of another layer."""
        cdef bytes received
        self.skipping, self.begun, self.identified, text = state
        received = text.encode("latin-1")
        self.input.put(received, len(received))

    cdef int receive(self, const uint8_t *data, size_t n) except -1:
        cdef size_t skipped = min(self.skipping, n)
        self.skipping -= skipped
        return self.input.put(data + skipped, n - skipped)

    cdef ssize_t decode(self, const uint8_t **piece) except -1:
        cdef const uint8_t *chunk
        cdef uint8_t kind
        cdef size_t length
        cdef size_t n
        while self.input.pending() >= HEADER:
            chunk = self.input.first()
            kind = chunk[0]
            length = load_le32(chunk) >> 8
            self.check(kind, length)
            if FIRST_SKIPPABLE <= kind < IDENTIFIER:
                self.skip(length)
                continue
            if self.input.pending() < HEADER + length:
                return 0
            chunk += HEADER
            if kind == IDENTIFIER:
                if memcmp(chunk, STREAM_IDENTIFIER + HEADER, IDENTIFIER_LENGTH) != 0:
                    raise LayerError("snappy: wrong identifier")
                self.begun = True
                self.input.remove(HEADER + length)
                continue
            n = block(kind, chunk, length)
            self.input.remove(HEADER + length)
            if n:
                piece[0] = decoded
                return n
        return 0

    cdef int check(self, uint8_t kind, size_t length) except -1:
        """Reject a chunk based on its header alone, before waiting for its data."""
        if not self.begun and kind != IDENTIFIER:
            raise LayerError("snappy: the stream does not begin with its identifier")
        if UNCOMPRESSED < kind < FIRST_SKIPPABLE:
            raise LayerError(f"snappy: chunk of unknown kind {kind}")
        if kind <= UNCOMPRESSED and not CHECKSUM <= length <= CHECKSUM + MAX_BLOCK:
            raise LayerError(f"snappy: chunk of {length} bytes")
        if kind == IDENTIFIER and length != IDENTIFIER_LENGTH:
            raise LayerError("snappy: wrong identifier")
        return 0

    cdef int skip(self, size_t length) except -1:
        cdef size_t present = min(length, self.input.pending() - HEADER)
        self.skipping = length - present
        self.input.remove(HEADER + present)
        return 0

    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1:
        cdef size_t step
        if not self.identified:
            self.identified = True
            into.put(STREAM_IDENTIFIER, HEADER + IDENTIFIER_LENGTH)
        while n:
            step = min(n, <size_t>BLOCK)
            put_chunk(data, step, into)
            data += step
            n -= step
        return 0


cdef size_t block(uint8_t kind, const uint8_t *chunk, size_t length) except? 0:
    """Write the bytes of a data chunk to `decoded` and return their number."""
    cdef const uint8_t *data = chunk + CHECKSUM
    cdef size_t n = length - CHECKSUM
    if kind == COMPRESSED:
        n = decompress(data, n)
    elif n > BLOCK:
        raise LayerError(f"snappy: {n} bytes in a chunk")
    else:
        memcpy(decoded, data, n)
    if load_le32(chunk) != masked_checksum(decoded, n):
        raise LayerError("snappy: wrong checksum")
    return n


cdef size_t decompress(const uint8_t *data, size_t n) except? 0:
    cdef size_t used = 0
    cdef int64_t length = snappy_length(data, n, &used)
    # Check the size first, because decompression writes as many bytes as the chunk claims to
    # contain.
    if length > BLOCK:
        raise LayerError(f"snappy: {length} bytes in a chunk")
    if length < 0 or snappy_decompress(data + used, n - used, decoded, <size_t>length) != 0:
        raise LayerError("snappy: the compressed data is not valid")
    return <size_t>length


cdef int put_chunk(const uint8_t *data, size_t n, ByteQueue into) except -1:
    cdef uint8_t kind = UNCOMPRESSED
    cdef const uint8_t *stored = data
    cdef size_t length = n
    cdef uint8_t *chunk
    if n >= MIN_COMPRESSIBLE:
        length = snappy_compress(data, n, compressed, table)
        if length < n - n // 8:
            kind = COMPRESSED
            stored = compressed
        else:
            length = n
    chunk = into.room(HEADER + CHECKSUM + length)
    store_le32(chunk, <uint32_t>(CHECKSUM + length) << 8 | kind)
    store_le32(chunk + HEADER, masked_checksum(data, n))
    memcpy(chunk + HEADER + CHECKSUM, stored, length)
    return 0


cdef uint32_t masked_checksum(const uint8_t *data, size_t n) noexcept:
    cdef uint32_t crc = crc32c(0, data, n)
    return (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8
