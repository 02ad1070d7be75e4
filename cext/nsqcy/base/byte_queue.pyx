"""A queue of bytes in a single growing buffer.

Owns the buffer. Knows nothing about sockets or encodings.
"""

from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove


cdef enum:
    MIN_CAPACITY = 512          # bytes


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
