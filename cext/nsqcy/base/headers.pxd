# Message headers: names and values that accompany the body.
#
#   headers    (u8 name length, name, u16 value length, value)*      integers are big-endian
#   name       1 to 255 of a-z, 0-9 and -; no duplicates
#   value      any bytes; as text they are UTF-8. "ttl": milliseconds, in decimal
#
#   a body on a connection that negotiated headers      u16 length of the headers | headers | body
#
# A record keeps them in this form (RECORD_EXT_HEADERS), so they are copied without conversion.

from libc.stdint cimport int64_t, uint8_t


cdef enum:
    MAX_HEADERS = 4096         # maximum total bytes of a message's headers
    HEADERS_COUNT = 32
    HEADERS_SIZE = 2            # size of the length that precedes them
    HEADERS_ROOM = 4098         # maximum bytes that they add to a body

# Return whether n bytes are valid headers.
cdef bint headers_are_valid(const uint8_t *at, size_t n) noexcept nogil

# Return the time to live in valid headers, in ms; 0 if there is none.
cdef int64_t headers_ttl(const uint8_t *at, size_t n) noexcept nogil

# Return a readable reason why the headers are invalid.
cdef str headers_fault(const uint8_t *at, size_t n)
