"""nsqcy.channels: the messages that a topic's channels still have to deliver, and their consumers.

Each included file states its responsibilities.
"""

import json

cimport cython
from libc.math cimport ceil
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memmove, memset

from nsqcy.base.core cimport (
    MADV_DONTNEED, NSQCY_DEBUG, heap_first_due, heap_free, heap_init, heap_peek, hex16_format,
    key_hash, madvise, map_memory, munmap,
)
from nsqcy.storage.core cimport (
    DEFERRED, NEVER, QUEUED, RECORD_ADDRESSED, RECORD_DAMAGED, RECORD_DELAYED, RECORD_EXPIRES,
    TRANSFERRING, Extent, Page, deferred_of, is_spoiled, record_address, record_address_of,
    next_position, note_bytes, offset_of, record_expiry, record_key, record_key_hash,
    record_priority, size_tag, transfer_number, turn_position,
)

from nsqcy.config.policies import ON_FULL as _ON_FULL

include "channel_cursor.pyx"
include "checkpoint_entries.pyx"
include "earliest_messages.pyx"
include "events.pyx"
include "inflight_table.pyx"
include "ready_ring.pyx"
include "consumer.pyx"
include "scheduler_state.pyx"
include "key_nodes.pyx"
include "key_room.pyx"
include "key_index.pyx"
include "deferred_and_in_flight.pyx"
include "undeliverable.pyx"
include "key_pauses.pyx"
include "keyed_messages.pyx"
include "key_listing.pyx"
include "dispatch.pyx"
include "channel.pyx"
