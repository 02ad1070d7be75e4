"""nsqcy.base: numbers, bytes and data structures that are independent of messages.

Each included file states its responsibilities.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport ceil
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

include "crc.pyx"
include "headers.pyx"
include "heap.pyx"
include "ids.pyx"
include "keys.pyx"
include "quantile.pyx"
