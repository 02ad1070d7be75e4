"""nsqcy.broker: topics: publishing, the log, its readers, checkpoints, compaction, recovery.

Each included file states its responsibilities.
"""

import errno as _errno
import json
import os
from dataclasses import replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from struct import Struct

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO, ESTALE
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX, INT64_MIN
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from nsqcy.base.core cimport (
    HEADERS_SIZE, TAKEN_HEAD, TAKEN_ID, TAKEN_KEY, TAKEN_PRIORITY, HeapNode, HeapSlot, KeyHash,
    header_find, header_key, headers_ttl, heap_first_due, heap_peek, histogram_merge, key_hash,
    load_be16, load_be32, load_le64, priority_of,
)
from nsqcy.channels.core cimport (
    CHANNEL_COUNTERS, CHANNEL_FIGURES, DROP_NEWEST, DROP_OLDEST, EPHEMERALS, IN_FLIGHT_TIMER,
    NO_FLOW, OWN, REDRIVEN, REJECT, REJECTED, TOPIC_BYTES, TOPIC_COUNTERS, TOPIC_DEPTH,
    TOPIC_DISK_BYTES, TOPIC_DROPPED, TOPIC_DUPLICATES, TOPIC_FIGURES, TOPIC_IDS, TOPIC_IDS_EARLY,
    TOPIC_MESSAGES, TOPIC_PAUSED, UNRESOLVED, Consumer, Discarded, InFlightList, Listing,
    PackedEntry, Packing, Timer, Transfer, TransferReason, add_counters, cursor_add_finished,
    cursor_passes, on_full_of,
)
from nsqcy.formats cimport FORMAT_IDS, FORMAT_LOG_BLOCK
from nsqcy.storage.core cimport (
    ARENA_SIZE, BLOCK_CLASSES, CHUNK_UNITS, DEFERRED, IN_FLIGHT, IN_WINDOW, LARGEST_BLOCK, LOADING,
    MIN_BLOCK, MIN_RECORD, NEVER, QUEUED, RANGE_UNIT, RECORD_ADDRESSED, RECORD_COPY, RECORD_DAMAGED,
    RECORD_DELAYED, RECORD_EXPIRES, RECORD_EXT_CHANNEL, RECORD_EXT_DELAY, RECORD_EXT_EXPIRES,
    RECORD_EXT_EXPIRES_SIZE, RECORD_EXT_HEADERS, RECORD_EXT_PRODUCED, RECORD_EXT_PRODUCED_SIZE,
    RECORD_EXT_TAKEN, RECORD_HEADERS, RECORD_ONCE, RECORD_PRODUCED, RECORD_TAKEN, RUN_HAS_DELAYED,
    RUN_HAS_ONCE, RUN_HAS_PRODUCED, RUN_SURVIVORS, SEALED, SURVIVORS, TRANSFERRING, UNIT_ARENA,
    UNIT_LARGE, Extent, Hole, LeftChannel, Owner, Owners, Position, Recovered, RecoveredRun,
    Segment, append_record, is_spoiled, next_position, note_bytes, offset_of, page_of,
    record_address, record_address_of, record_body, record_dedup_id, record_delay, record_extend,
    record_extension_size, record_headers, record_key, record_priority, record_produced,
    record_size, recover_ids, recover_log, size_tag, transfer_number, turn_position,
)

from nsqcy import formats
from nsqcy.base.core import DEFAULT_SOURCES, crc32c
from nsqcy.broker import dead_letter_headers as dead_letters
from nsqcy.broker.dead_letter_headers import BACKLOG as _BACKLOG
from nsqcy.broker.named_cursors import NamedCursors
from nsqcy.broker.producers import ChunkError, ChunkName, Producers, messages_in, producer_id
from nsqcy.channels.core import event_names
from nsqcy.config.durations import short_duration
from nsqcy.config.policies import DURABILITIES as _DURABILITIES
from nsqcy.logging import events
from nsqcy.names import EVENTS_TOPIC as _EVENTS_TOPIC, is_ephemeral
from nsqcy.storage import journal
from nsqcy.storage.core import Unreadable
from nsqcy.storage.journal import TransferRun
from nsqcy.storage.read_failures import ReadFailures
from nsqcy.storage.write_failures import WriteFailures

include "compaction.pyx"
include "dead_letter_transfer.pyx"
include "topic_host.pyx"
include "log_fetch.pyx"
include "peek.pyx"
include "once.pyx"
include "topic_publishing.pyx"
include "checkpoint.pyx"
include "topic_log.pyx"
include "topic.pyx"
include "recovery.pyx"
include "memory_recovery.pyx"
include "shard.pyx"
include "counters.pyx"
include "memory_check.pyx"
