# The layout of a record, in memory and on disk (cext/include/record.h; normative in
# docs/DISKFORMAT.md). Knows nothing about blocks or files.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "record.h" nogil:
    ctypedef struct Record:
        uint32_t length
        uint32_t crc
        uint64_t seq
        uint64_t id
        int64_t timestamp
        uint32_t body_length
        uint16_t ext_length
        uint16_t attributes
    const uint32_t RECORD_HEADER
    const uint32_t MIN_RECORD
    const uint16_t RECORD_DELAYED
    const uint16_t RECORD_COPY
    ctypedef struct Produced:
        uint64_t producer
        uint64_t epoch
        uint64_t chunk
        uint32_t part
        uint32_t index
        uint32_t count
        uint32_t reserved
    const uint16_t RECORD_HEADERS
    const uint16_t RECORD_PRODUCED
    const uint16_t RECORD_EXPIRES
    const uint16_t RECORD_ADDRESSED
    const uint16_t RECORD_EXT_CHANNEL
    const uint16_t RECORD_DAMAGED
    const uint16_t RECORD_EXT_DELAY
    const uint16_t RECORD_EXT_DELAY_SIZE
    const uint16_t RECORD_EXT_HEADERS
    const uint16_t RECORD_EXT_PRODUCED
    const uint16_t RECORD_EXT_PRODUCED_SIZE
    const uint16_t RECORD_EXT_EXPIRES
    const uint16_t RECORD_EXT_EXPIRES_SIZE
    uint64_t record_size(uint64_t body, uint32_t ext)
    uint8_t *record_body(const Record *r)
    uint32_t record_extension_size(uint32_t length)
    uint8_t *record_extend(uint8_t *at, uint16_t type, const void *value, uint16_t length)
    int64_t record_delay(const Record *r)
    bint record_produced(const Record *r, Produced *into)
    int64_t record_expiry(const Record *r)
    uint64_t record_address_of(const uint8_t *name, size_t length)
    uint64_t record_address(const Record *r)
    const uint8_t *record_headers(const Record *r, uint16_t *length)


cdef inline bint is_spoiled(const Record *record, uint64_t seq) noexcept:
    """Return whether a message's record, in its loaded block, is damaged. If record lengths were
    lost as well, the record no longer begins at its old offset."""
    return record.seq != seq or record.attributes & RECORD_DAMAGED
