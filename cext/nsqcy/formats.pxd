# The numbers of the formats that compiled code writes: see nsqcy/formats.py, which
# tests/unit/test_formats.py compares with this file. Readers call `check` of the Python module.

cdef extern from *:
    """
    #define FORMAT_SEGMENT 1
    #define FORMAT_JOURNAL 1
    #define FORMAT_IDS 1
    #define FORMAT_SHARED_MEMORY 1
    #define FORMAT_WORKER_MEMORY 1
    #define FORMAT_LOG_BLOCK 1
    """
    enum:
        FORMAT_SEGMENT
        FORMAT_JOURNAL
        FORMAT_IDS
        FORMAT_SHARED_MEMORY
        FORMAT_WORKER_MEMORY
        FORMAT_LOG_BLOCK
