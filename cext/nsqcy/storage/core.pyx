# distutils: sources = cext/src/iothread.c cext/src/iocalls.c cext/src/memrange.c
# distutils: depends = cext/include/iothread.h cext/include/iocalls.h cext/include/segment.h
# distutils: depends = cext/include/memrange.h
"""nsqcy.storage: one topic's log on disk, its records in memory, and the threads that do file I/O.

io_faults, memory_faults and state_probe are separate modules, because only tests use them. Each
included file states its responsibilities.
"""

import os
import re
from bisect import bisect_left
from collections import namedtuple
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, EIO, ENOENT, ESTALE, errno
from libc.limits cimport INT_MAX
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, malloc, qsort, realloc
from libc.string cimport memcpy, memmove, memset, strdup
from posix.stat cimport struct_stat

from nsqcy.base.core cimport FIRST_OF_SYNCS, histogram_add, histogram_facts
from nsqcy.formats cimport FORMAT_JOURNAL, FORMAT_SEGMENT, FORMAT_WORKER_MEMORY

from nsqcy import formats
from nsqcy.errors import NsqError
from nsqcy.names import is_ephemeral, is_valid_name
from nsqcy.util import descriptors

include "io.pyx"
include "mirrored_io.pyx"
include "disk_format.pyx"
include "memory_range.pyx"
include "block_pool.pyx"
include "owners.pyx"
include "left_memory.pyx"
include "segment_files.pyx"
include "log_writer.pyx"
include "log.pyx"
include "log_recovery.pyx"
include "record_window.pyx"
include "readahead.pyx"
include "standalone_log.pyx"
