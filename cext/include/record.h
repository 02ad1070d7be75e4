/* The record: one message, with the same bytes in memory blocks and in segments.
 *
 *   0  u32 length        entire record: header, extensions, body, padding; multiple of 8; >= 48
 *   4  u32 crc           CRC-32C of bytes 8 .. length; 0 in memory until the I/O threads write it
 *   8  u64 seq           dense per topic
 *  16  u64 id            message id (63 bits)
 *  24  i64 timestamp     wall clock, ns
 *  32  u32 body_length
 *  36  u16 ext_length    bytes of extensions, multiple of 8
 *  38  u16 attributes    RECORD_DELAYED, RECORD_COPY, RECORD_HEADERS, RECORD_PRODUCED, RECORD_EXPIRES,
 *                        RECORD_ADDRESSED, RECORD_TAKEN, RECORD_ONCE, RECORD_DAMAGED
 *  40  extensions        each: u16 type, u16 length, u32 0, value padded to 8
 *      body
 *      zero padding to 8
 *
 * Everything is little-endian, as are the supported machines. docs/DISKFORMAT.md is normative.
 */
#ifndef NSQCY_RECORD_H
#define NSQCY_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are written as they lie in memory: a little-endian machine is needed"
#endif

#define RECORD_HEADER 40
#define MIN_RECORD 48
#define RECORD_DELAYED 1
#define RECORD_COPY 2            /* copy of a record from an old run: it is in a survivor run */
#define RECORD_HEADERS 4
#define RECORD_PRODUCED 8        /* it belongs to a producer's chunk */
#define RECORD_EXPIRES 16
#define RECORD_ADDRESSED 32      /* it is for one channel only; it has a delay, which may be 0 */
#define RECORD_TAKEN 64          /* it has an extension "taken" */
#define RECORD_ONCE 128          /* its deduplication id is remembered */
#define RECORD_DAMAGED 0x8000   /* only in memory: set by a read that could not verify the record */

#define RECORD_EXT_DELAY 1      /* value: i64 nanoseconds */
#define RECORD_EXT_DELAY_SIZE 16
#define RECORD_EXT_HEADERS 2    /* value: headers as on the wire, see base/headers.pyx */
#define RECORD_EXT_PRODUCED 3   /* value: struct Produced */
#define RECORD_EXT_PRODUCED_SIZE 48
#define RECORD_EXT_EXPIRES 4    /* value: i64, wall clock, ns: it is not delivered from then on */
#define RECORD_EXT_EXPIRES_SIZE 16
#define RECORD_EXT_CHANNEL 5    /* value: the name of a channel */
#define RECORD_EXT_TAKEN 6      /* value: struct TakenHead, key, deduplication id */

struct __attribute__((packed, aligned(8))) Record {
    uint32_t length;
    uint32_t crc;
    uint64_t seq;
    uint64_t id;
    int64_t timestamp;
    uint32_t body_length;
    uint16_t ext_length;
    uint16_t attributes;
};
typedef struct Record Record;

_Static_assert(sizeof(struct Record) == RECORD_HEADER, "record header");
_Static_assert(offsetof(struct Record, crc) == 4, "crc");
_Static_assert(offsetof(struct Record, seq) == 8, "seq");
_Static_assert(offsetof(struct Record, id) == 16, "id");
_Static_assert(offsetof(struct Record, timestamp) == 24, "timestamp");
_Static_assert(offsetof(struct Record, body_length) == 32, "body_length");
_Static_assert(offsetof(struct Record, ext_length) == 36, "ext_length");
_Static_assert(offsetof(struct Record, attributes) == 38, "attributes");

/* Size of a record with `body` bytes of body and `ext` bytes of extensions. */
static inline uint64_t record_size(uint64_t body, uint32_t ext) {
    uint64_t size = (RECORD_HEADER + (uint64_t)ext + body + 7) & ~(uint64_t)7;
    return size < MIN_RECORD ? MIN_RECORD : size;
}

static inline uint8_t *record_body(const struct Record *r) {
    return (uint8_t *)r + RECORD_HEADER + r->ext_length;
}

/* Identifies a record as a message of a producer's chunk. */
struct __attribute__((packed, aligned(8))) Produced {
    uint64_t producer;       /* first 8 bytes of the BLAKE2b digest of its name */
    uint64_t epoch;
    uint64_t chunk;
    uint32_t part;
    uint32_t index;          /* index of the message in the chunk */
    uint32_t count;          /* number of messages in the chunk */
    uint32_t reserved;
};
typedef struct Produced Produced;

_Static_assert(8 + sizeof(struct Produced) == RECORD_EXT_PRODUCED_SIZE, "produced");

/* Size of an extension whose value has `length` bytes. */
static inline uint32_t record_extension_size(uint32_t length) {
    return (8 + length + 7) & ~7u;
}

/* Writes an extension; returns the address of the next one. */
static inline uint8_t *record_extend(uint8_t *at, uint16_t type, const void *value,
                                     uint16_t length) {
    uint32_t size = record_extension_size(length);
    uint64_t zero = 0;
    memcpy(at + size - 8, &zero, 8);
    memcpy(at, &type, 2);
    memcpy(at + 2, &length, 2);
    memset(at + 4, 0, 4);
    memcpy(at + 8, value, length);
    return at + size;
}

/* The value of the first extension of a type, and its length; NULL if the record has none. */
static inline const uint8_t *record_extension(const struct Record *r, uint16_t wanted,
                                              uint16_t *length) {
    const uint8_t *at = (const uint8_t *)r + RECORD_HEADER;
    uint32_t left = r->ext_length;
    while (left >= 8) {
        uint16_t type;
        uint32_t size;
        memcpy(&type, at, 2);
        memcpy(length, at + 2, 2);
        size = record_extension_size(*length);
        if (size > left)
            break;
        if (type == wanted)
            return at + 8;
        at += size;
        left -= size;
    }
    *length = 0;
    return NULL;
}

/* The delay in nanoseconds; 0 if the record has none. */
static inline int64_t record_delay(const struct Record *r) {
    const uint8_t *value;
    uint16_t length;
    int64_t delay;
    if (!(r->attributes & RECORD_DELAYED))
        return 0;
    value = record_extension(r, RECORD_EXT_DELAY, &length);
    if (value == NULL || length != 8)
        return 0;
    memcpy(&delay, value, 8);
    return delay;
}

/* The message's headers, as on the wire; NULL with a length of 0 if there are none. */
static inline const uint8_t *record_headers(const struct Record *r, uint16_t *length) {
    *length = 0;
    if (!(r->attributes & RECORD_HEADERS))
        return NULL;
    return record_extension(r, RECORD_EXT_HEADERS, length);
}

/* Whether the record belongs to a chunk; if so, which one. */
static inline int record_produced(const struct Record *r, struct Produced *into) {
    const uint8_t *value;
    uint16_t length;
    if (!(r->attributes & RECORD_PRODUCED))
        return 0;
    value = record_extension(r, RECORD_EXT_PRODUCED, &length);
    if (value == NULL || length != sizeof *into)
        return 0;
    memcpy(into, value, sizeof *into);
    return into->index < into->count;
}

/* Hash that represents a channel's name in addresses: FNV-1a; never 0. */
static inline uint64_t record_address_of(const uint8_t *name, size_t length) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ name[i]) * 0x100000001b3u;
    return hash ? hash : 1;
}

/* The channel that the record is for; 0: all channels. */
static inline uint64_t record_address(const struct Record *r) {
    uint16_t length;
    const uint8_t *name;
    if (!(r->attributes & RECORD_ADDRESSED))
        return 0;
    name = record_extension(r, RECORD_EXT_CHANNEL, &length);
    return name ? record_address_of(name, length) : 0;
}

/* The wall clock time from which the message is not delivered; INT64_MAX if there is none. */
static inline int64_t record_expiry(const struct Record *r) {
    uint16_t length;
    const uint8_t *value;
    int64_t expiry = INT64_MAX;
    if (r->attributes & RECORD_EXPIRES) {
        value = record_extension(r, RECORD_EXT_EXPIRES, &length);
        if (value && length == 8)
            memcpy(&expiry, value, 8);
    }
    return expiry;
}

/* Whether `ptr` can be the start of a record that ends within `available` bytes: checks only the
 * header, not the crc. A record that passes can be walked and its body read within these bytes. */
static inline int record_sane(const void *ptr, uint64_t available) {
    struct Record r;
    if (available < MIN_RECORD)
        return 0;
    memcpy(&r, ptr, RECORD_HEADER);
    return r.length <= available && r.length >= MIN_RECORD && (r.length & 7) == 0
        && (r.ext_length & 7) == 0 && record_size(r.body_length, r.ext_length) == r.length
        && !(r.id >> 63);
}

#include "crc32c.h"

/* The checksum that the record should have. The record must be sane. */
static inline uint32_t record_crc(const struct Record *r) {
    return crc32c(0, (const uint8_t *)r + 8, r->length - 8);
}

#endif
