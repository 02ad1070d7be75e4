"""nsqcy.server: sessions of a worker on sockets and streams, its publisher, its share of /stats and
/metrics.

http_fastpath is a separate module, because other daemons use it. Each included file states its
responsibilities.
"""

import json
from collections import deque
from heapq import heappop, heappush, heapreplace
from struct import pack

cimport cython
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

from nsqcy.base.core cimport (
    FIRST_OF_AGES, FIRST_OF_SYNCS, FIRST_OF_TURNS, HISTOGRAM_BOUNDS, Histogram, histogram_add,
    histogram_facts, histogram_merge, load_be32, store_be16, store_be32,
)
from nsqcy.broker.core cimport (
    AT_ONCE, MEMORY, Batch, ChunkBatch, Durability, Publish, Shard, Topic, TopicQueue,
    durability_of,
)
from nsqcy.channels.core cimport (
    CHANNEL_COUNTERS, CHANNEL_FIGURES, CHANNEL_KEYS_BLOCKED, CHANNEL_KEYS_BLOCKED_LONG,
    CHANNEL_KEYS_PAUSED, CHANNEL_KEYS_WAITING, CHANNEL_PAUSED, EPHEMERALS, OTHERS, OWN, SERIES,
    TOPIC_DUPLICATES, TOPIC_FIGURES, TOPIC_IDS, TOPIC_IDS_EARLY, TOPIC_PAUSED, UNDECIDED, Channel,
    ChannelSample, Consumer, Sample, Series, Sums, Waiter, add_counters,
)
from nsqcy.ipc.core cimport Mesh, Stream, StreamEnd
from nsqcy.net.core cimport ByteLayer, ByteQueue
from nsqcy.protocol.core cimport RECEIVE_SIZE, Session, SessionManager, Transport
from nsqcy.protocol.wire cimport FRAME_HEADER, RESPONSE, FrameScanner, Output
from nsqcy.server.http_fastpath cimport Sink
from nsqcy.storage.core cimport Record, record_body

from nsqcy import formats
from nsqcy.broker.core import UNKNOWN
from nsqcy.broker.producers import ChunkError, ChunkName, producer_id
from nsqcy.config.durations import format_duration
from nsqcy.errors import LayerEnd, LayerError
from nsqcy.logging import events
from nsqcy.net.core import DeflateLayer, SnappyLayer
from nsqcy.util.gotext import json_bytes, utf8

include "http_mpub_body.pyx"
cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char format_code, int precision, int flags, int *kind)

cdef extern from "unistd.h":
    ssize_t pread(int fd, void *data, size_t n, int64_t offset) nogil

include "text.pyx"
include "metrics.pyx"
include "page_pieces.pyx"
include "publisher.pyx"
include "recent_rates.pyx"
include "stats.pyx"
include "stats_summary.pyx"
include "layer_stack.pyx"
include "transport.pyx"
