# The debug build's switch: code in `if NSQCY_DEBUG:` is compiled out of a release build.
cdef extern from "debug.h" nogil:
    const bint NSQCY_DEBUG
