# Python objects around an extent and a log.
from nsqcy.storage.log cimport Extent, Log


cdef class RunHandle:
    cdef readonly Log log
    cdef Extent extent


cdef class LogProbe:
    cdef readonly Log log
