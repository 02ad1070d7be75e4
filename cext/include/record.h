/* The record: one message, byte for byte the same in memory blocks and in segments.
 *
 *   0  u32 length        whole record: header, extensions, body, padding; multiple of 8; >= 48
 *   4  u32 crc           CRC-32C of bytes 8 .. length; 0 in memory until the I/O thread writes it
 *   8  u64 seq           dense per topic
 *  16  u64 id            message id (63 bits)
 *  24  i64 timestamp     wall clock, ns
 *  32  u32 body_length
 *  36  u16 ext_length    bytes of extensions, multiple of 8
 *  38  u16 attributes    RECORD_DELAYED, RECORD_COPY, RECORD_PRODUCED, RECORD_DAMAGED
 *  40  extensions        each: u16 type, u16 length, u32 0, value padded to 8
 *      body
 *      zero padding to 8
 *
 * Everything is little-endian; so are the machines this runs on.  docs/DISKFORMAT.md is normative.
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
#define RECORD_SMALLEST 48
#define RECORD_DELAYED 1
#define RECORD_COPY 2            /* of a record of an old run: it is in a survivor run */
#define RECORD_PRODUCED 8       /* it belongs to a chunk of a producer */
#define RECORD_DAMAGED 0x8000   /* only ever in memory: set by a read that could not verify it */

#define RECORD_EXT_DELAY 1      /* value: i64 nanoseconds */
#define RECORD_EXT_DELAY_SIZE 16
#define RECORD_EXT_PRODUCED 3   /* value: struct Produced */
#define RECORD_EXT_PRODUCED_SIZE 48

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

/* Bytes a record takes with `body` bytes of body and `ext` bytes of extensions. */
static inline uint64_t record_size(uint64_t body, uint32_t ext) {
    uint64_t size = (RECORD_HEADER + (uint64_t)ext + body + 7) & ~(uint64_t)7;
    return size < RECORD_SMALLEST ? RECORD_SMALLEST : size;
}

static inline uint8_t *record_body(const struct Record *r) {
    return (uint8_t *)r + RECORD_HEADER + r->ext_length;
}

/* Which message of which chunk of which producer a record is. */
struct __attribute__((packed, aligned(8))) Produced {
    uint64_t producer;       /* of its name: the first 8 bytes of the BLAKE2b digest */
    uint64_t epoch;
    uint64_t chunk;
    uint32_t part;
    uint32_t index;          /* of the message in the chunk */
    uint32_t count;          /* messages of the chunk */
    uint32_t reserved;
};
typedef struct Produced Produced;

_Static_assert(8 + sizeof(struct Produced) == RECORD_EXT_PRODUCED_SIZE, "produced");

/* The value of the extension of that type, if its length is `length`; NULL if there is none. */
static inline const uint8_t *record_extension(const struct Record *r, uint16_t wanted,
                                              uint16_t length) {
    const uint8_t *at = (const uint8_t *)r + RECORD_HEADER;
    uint32_t left = r->ext_length;
    while (left >= 8) {
        uint16_t type, has;
        uint32_t size;
        memcpy(&type, at, 2);
        memcpy(&has, at + 2, 2);
        size = (8 + (uint32_t)has + 7) & ~7u;
        if (size > left)
            return NULL;
        if (type == wanted && has == length)
            return at + 8;
        at += size;
        left -= size;
    }
    return NULL;
}

/* The delay in nanoseconds; 0 if the record carries none. */
static inline int64_t record_delay(const struct Record *r) {
    const uint8_t *at;
    int64_t delay;
    if (!(r->attributes & RECORD_DELAYED)
            || !(at = record_extension(r, RECORD_EXT_DELAY, sizeof delay)))
        return 0;
    memcpy(&delay, at, sizeof delay);
    return delay;
}

/* Whether the record belongs to a chunk, and to which. */
static inline int record_produced(const struct Record *r, struct Produced *into) {
    const uint8_t *at;
    if (!(r->attributes & RECORD_PRODUCED)
            || !(at = record_extension(r, RECORD_EXT_PRODUCED, sizeof *into)))
        return 0;
    memcpy(into, at, sizeof *into);
    return into->index < into->count;
}

/* Whether `ptr` can be the start of a record that ends within `available` bytes: the header only,
 * no crc.  What passes can be walked and its body read without leaving those bytes. */
static inline int record_sane(const void *ptr, uint64_t available) {
    struct Record r;
    if (available < RECORD_SMALLEST)
        return 0;
    memcpy(&r, ptr, RECORD_HEADER);
    return r.length <= available && r.length >= RECORD_SMALLEST && (r.length & 7) == 0
        && (r.ext_length & 7) == 0 && record_size(r.body_length, r.ext_length) == r.length
        && !(r.id >> 63);
}

#include "crc32c.h"

/* The checksum the record ought to carry. The record must be sane. */
static inline uint32_t record_crc(const struct Record *r) {
    return crc32c(0, (const uint8_t *)r + 8, r->length - 8);
}

#endif
