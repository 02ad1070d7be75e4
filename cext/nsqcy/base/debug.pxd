# The switch of the debug build: `if NSQCY_DEBUG:` vanishes from a release build.
cdef extern from "debug.h" nogil:
    const bint NSQCY_DEBUG
