"""nsqcy.protocol: sessions, each running NSQ's V2 protocol on one connection.

wire is a separate module, because clients use it. Each included file states its responsibilities.
"""

import json
from binascii import a2b_base64, b2a_base64
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove, memset

from nsqcy.base.core cimport (
    HEADERS_ROOM, HEADERS_SIZE, HEAP_NOWHERE, MAX_HEADERS, NSQCY_DEBUG, HeapNode, headers_are_valid,
    headers_fault, heap_first_due, heap_free, heap_init, heap_peek, heap_push, heap_remove,
    heap_update, hex16_parse, load_be16, load_be32,
)
from nsqcy.broker.core cimport (
    AT_ONCE, ENDED, LARGEST_ANSWER, MEMORY, ChunkBatch, Publish, SizedBatch, durability_of,
    taken_header,
)
from nsqcy.channels.core cimport (
    ANYWHERE, DONE, NOT_IN_FLIGHT, REGION_LOCAL, ZONE_LOCAL, Channel, Waiter,
)
from nsqcy.ipc.core cimport Shared
from nsqcy.protocol.wire cimport (
    BY_REFERENCE, ERROR, FIN_LINE, FRAME_HEADER, MAX_LINE, MESSAGE, RESPONSE, frame_bytes,
    name_is_valid, parse_number, split_line, word_bytes, word_is,
)
from nsqcy.storage.core cimport Block, Record, RecordWindow, record_body

from nsqcy import formats
from nsqcy.broker import dead_letter_headers
from nsqcy.broker.core import COLUMN_NAMES as _COLUMN_NAMES, UNKNOWN as _UNKNOWN
from nsqcy.broker.named_cursors import MAX_CURSORS as _MAX_CURSORS, TooManyCursors
from nsqcy.broker.producers import ChunkError, ChunkName, producer_id
from nsqcy.config.publish_limits import limits_of, publish_limits
from nsqcy.errors import ClientError
from nsqcy.logging import events
from nsqcy.names import quote
from nsqcy.net.input_pool import InputPool
from nsqcy.util.gotext import json_bytes

include "connection.pyx"
include "auth.pyx"
include "forwarding_and_migration.pyx"
include "session_manager.pyx"
include "publish_and_log_commands.pyx"
include "session.pyx"
include "hand_over.pyx"
