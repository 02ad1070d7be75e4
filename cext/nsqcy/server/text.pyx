"""Growing buffers of text, in which /metrics and /stats are written."""

cdef enum:
    DIGITS = 20                 # number of digits of the largest number


ctypedef struct Text:
    char *data
    size_t used
    size_t room


cdef char *room_for(Text *text, size_t n) except NULL:
    """Return a pointer to space for `n` more bytes."""
    cdef size_t room = text.room
    cdef char *grown
    if text.used + n > room:
        while text.used + n > room:
            room = room * 2 if room else 4096
        grown = <char *>realloc(text.data, room)
        if grown == NULL:
            raise MemoryError()
        text.data = grown
        text.room = room
    return text.data + text.used


cdef inline char *copied(char *at, const char *data, size_t n) noexcept:
    """Copy `n` bytes; return the position after the copy."""
    memcpy(at, data, n)
    return at + n


cdef object taken(Text *text, write):
    """Pass the text to `write` as a memoryview, valid until it returns; then drop the text."""
    cdef char nothing
    # A memoryview needs an address, even if it is empty.
    view = PyMemoryView_FromMemory(text.data if text.used else &nothing, text.used, PyBUF_READ)
    try:
        return write(view)
    finally:
        view.release()
        text.used = 0


cdef inline char *literal(char *at, bytes text) noexcept:
    return copied(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline char *digits_of(char *at, uint64_t number) noexcept:
    cdef char digits[DIGITS]
    cdef int first = DIGITS
    while True:
        first -= 1
        digits[first] = <char>(c"0" + number % 10)
        number //= 10
        if number == 0:
            break
    return copied(at, digits + first, DIGITS - first)
