"""nsqcy.net: the encodings of a connection: deflate, snappy, and the interface that TLS also
implements.

tls_stream is a separate module, because it loads OpenSSL. Each included file states its
responsibilities.
"""

import zlib

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memmove

from nsqcy.errors import LayerEnd, LayerError

include "byte_layer.pyx"
include "deflate.pyx"
include "snappy.pyx"
