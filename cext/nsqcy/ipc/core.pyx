"""nsqcy.ipc: resources shared by the processes of one daemon: rings, streams over the rings,
quotas.

Each included file states its responsibilities.
"""

import hashlib
import mmap
from binascii import a2b_base64, b2a_base64
from collections import namedtuple

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_WriteUnraisable
from libc.errno cimport EAGAIN, errno
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport read, write

from nsqcy.base.core cimport (
    atomic_fence, compare_exchange_u64, exchange_u32, exchange_u64, fetch_add_u32, fetch_add_u64,
    fetch_and_u64, fetch_or_u64, load_acquire_u32, load_acquire_u64, load_relaxed_u32,
    load_relaxed_u64, store_relaxed_u32, store_relaxed_u64, store_release_u32, store_release_u64,
)
from nsqcy.base.core cimport load_le32, store_le32
from nsqcy.base.core cimport NSQCY_DEBUG
from nsqcy.formats cimport FORMAT_SHARED_MEMORY

from nsqcy import formats

include "quota.pyx"
include "ring.pyx"
include "mesh.pyx"
