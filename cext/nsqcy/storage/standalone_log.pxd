# Python objects around an extent and a log.
from nsqcy.storage.log cimport Log
from nsqcy.storage.segment cimport Extent


cdef class RunHandle:
    cdef readonly Log log
    cdef Extent extent


cdef class LogProbe:
    cdef readonly Log log
