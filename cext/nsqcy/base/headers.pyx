"""Message headers: validation, and conversion between bytes and Python.

Defines their format, which is the same on the wire and in a record. Independent of messages and
connections.
"""

# Message headers: names and values that accompany the body.
#
#   headers    (u8 name length, name, u16 value length, value)*      integers are big-endian
#   name       1 to 255 of a-z, 0-9 and -; no duplicates
#   value      any bytes; as text they are UTF-8. "ttl": milliseconds, in decimal
#
#   a body on a connection that negotiated headers      u16 length of the headers | headers | body
#
# A record keeps them in this form (RECORD_EXT_HEADERS), so they are copied without conversion.


cdef enum Fault:
    FAULTLESS = 0
    TOO_LONG = 1
    TOO_MANY = 2
    CUT = 3             # the header extends beyond the end of the headers
    BAD_NAME = 4
    TWICE = 5           # a duplicate name
    BAD_TTL = 6

cdef enum:
    TTL_DIGITS = 12     # in milliseconds: 31 years

MAX_HEADER_VALUE = 65535
ALLOWED_HEADER_NAMES = "allowed: 1 to 255 of a-z, 0-9 and -"


cdef inline bint is_name(const uint8_t *name, size_t length) noexcept nogil:
    cdef size_t i
    for i in range(length):
        if not (97 <= name[i] <= 122 or 48 <= name[i] <= 57 or name[i] == 45):
            return False
    return length > 0


cdef inline bint is_ttl(const uint8_t *header) noexcept nogil:
    """Return whether a header is named `ttl`. `at` points to the length of its name."""
    return memcmp(header, b"\3ttl", 4) == 0


cdef int64_t ttl_of(const uint8_t *text, size_t n) noexcept nogil:
    """Return the time to live; -1 if it is invalid."""
    cdef int64_t ttl = 0
    cdef size_t i
    if n == 0 or n > TTL_DIGITS:
        return -1
    for i in range(n):
        if not 48 <= text[i] <= 57:
            return -1
        ttl = 10 * ttl + text[i] - 48
    return ttl or -1


cdef int64_t headers_ttl(const uint8_t *at, size_t n) noexcept nogil:
    cdef const uint8_t *end = at + n
    while at < end:
        if is_ttl(at):
            return ttl_of(at + 6, load_be16(at + 4))
        at += 3 + at[0] + load_be16(at + 1 + at[0])
    return 0


cdef Fault find_fault(const uint8_t *at, size_t n, size_t *place, size_t *number) noexcept nogil:
    """Return the first fault, and its header's offset (`place`) and index (`number`)."""
    cdef size_t starts[HEADERS_COUNT]
    cdef size_t count = 0
    cdef size_t name_end
    cdef size_t i
    place[0] = number[0] = 0
    if n > MAX_HEADERS:
        return TOO_LONG
    while place[0] < n:
        number[0] = count
        if count == HEADERS_COUNT:
            return TOO_MANY
        name_end = place[0] + 1 + at[place[0]]
        if name_end + 2 > n or name_end + 2 + load_be16(at + name_end) > n:
            return CUT
        if not is_name(at + place[0] + 1, at[place[0]]):
            return BAD_NAME
        for i in range(count):
            # Compares the length byte together with the name.
            if memcmp(at + starts[i], at + place[0], name_end - place[0]) == 0:
                return TWICE
        if is_ttl(at + place[0]) and ttl_of(at + name_end + 2, load_be16(at + name_end)) < 0:
            return BAD_TTL
        starts[count] = place[0]
        count += 1
        place[0] = name_end + 2 + load_be16(at + name_end)
    return FAULTLESS


cdef bint headers_are_valid(const uint8_t *at, size_t n) noexcept nogil:
    cdef size_t place
    cdef size_t number
    return find_fault(at, n, &place, &number) == FAULTLESS


cdef str headers_fault(const uint8_t *at, size_t n):
    cdef size_t place
    cdef size_t number
    cdef Fault fault = find_fault(at, n, &place, &number)
    if fault == FAULTLESS:
        return None
    if fault == TOO_LONG:
        return f"headers of {n} bytes (at most {MAX_HEADERS})"
    if fault == TOO_MANY:
        return f"more than {HEADERS_COUNT} headers"
    if fault == CUT:
        return f"header {number + 1} extends beyond the last of {n} bytes"
    name = at[place + 1:place + 1 + at[place]].decode("ascii", "backslashreplace")
    if fault == BAD_NAME:
        return f'header name "{name}" ({ALLOWED_HEADER_NAMES})'
    if fault == BAD_TTL:
        return f'header "ttl" is not a number of milliseconds (1 to {TTL_DIGITS} digits, not 0)'
    return f'header "{name}" twice'


def encode_headers(pairs not None):
    """Encode (name, value) pairs of bytes. Raises ValueError if a pair is invalid."""
    cdef bytearray whole = bytearray()
    cdef bytes headers
    cdef uint8_t size[2]
    for name, value in pairs:
        if not 0 < len(name) < 256:
            shown = name[:64].decode("ascii", "backslashreplace")
            raise ValueError(f'header name "{shown}" ({ALLOWED_HEADER_NAMES})')
        if len(value) > MAX_HEADER_VALUE:
            raise ValueError(f"headers of {len(value)} bytes (at most {MAX_HEADERS})")
        store_be16(size, <uint16_t>len(value))
        whole.append(len(name))
        whole += name
        whole += size[:2]
        whole += value
    headers = bytes(whole)
    fault = headers_fault(headers, len(headers))
    if fault is not None:
        raise ValueError(fault)
    return headers


def decode_headers(bytes headers not None):
    """Decode the result of encode_headers() into a dict; bytes that are not UTF-8 become
    surrogates. Raises ValueError."""
    cdef const uint8_t *at = headers
    cdef size_t left = len(headers)
    cdef size_t name
    cdef size_t value
    fault = headers_fault(at, left)
    if fault is not None:
        raise ValueError(fault)
    found = {}
    while left:
        name = at[0]
        value = load_be16(at + 1 + name)
        found[at[1:1 + name].decode("ascii")] = PyBytes_FromStringAndSize(
            <const char *>at + 3 + name, value).decode("utf-8", "surrogateescape")
        at += 3 + name + value
        left -= 3 + name + value
    return found


def headers_from_text(headers not None):
    """Encode a mapping of str to str. Raises ValueError as encode_headers() does, and TypeError if
    a name or value is not a str."""
    pairs = []
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"a header's name and value must be str, not {name!r} and {value!r}")
        pairs.append((name.encode("utf-8", "surrogateescape"),
                      value.encode("utf-8", "surrogateescape")))
    return encode_headers(pairs)
