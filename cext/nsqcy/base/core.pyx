"""nsqcy.base: numbers, bytes and data structures that know nothing about messages.

Each included file says what it owns.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport ceil
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memmove, memset

include "crc.pyx"
include "headers.pyx"
include "heap.pyx"
include "ids.pyx"
include "quantile.pyx"
