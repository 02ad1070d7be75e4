"""nsqcy.net: the encodings of a connection: deflate, snappy, and the interface that TLS also
implements; and a socket that carries frames between nsqds.

tls_stream is a separate module, because it loads OpenSSL. Each included file states its
responsibilities.
"""

import os
import zlib

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from nsqcy.base.core cimport load_be16, load_be32

from nsqcy.errors import LayerEnd, LayerError

include "byte_layer.pyx"
include "deflate.pyx"
include "frame_socket.pyx"
include "snappy.pyx"
