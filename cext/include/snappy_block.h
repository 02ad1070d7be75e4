/* Snappy blocks: the uncompressed length, then literals and copies of earlier bytes.
 *
 * Source: https://github.com/google/snappy/blob/main/format_description.txt
 */
#ifndef NSQCY_SNAPPY_BLOCK_H
#define NSQCY_SNAPPY_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bytes.h"

enum {
    SNAPPY_LITERAL = 0,             /* element types: the low bits of the first byte */
    SNAPPY_NEAR_COPY = 1,
    SNAPPY_COPY = 2,
    SNAPPY_MAX = 65536,             /* uncompressed bytes per block: positions have 16 bits */
    SNAPPY_SLOP = 16,               /* bytes after the result that decompression overwrites */
    SNAPPY_TABLE = 1 << 14,         /* positions of earlier bytes, by hash */
    SNAPPY_MIN_TABLE = 1 << 8,
    SNAPPY_MARGIN = 15,             /* bytes at the end in which no copy begins */
};

static inline void snappy_copy8(uint8_t *to, const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    memcpy(to, &word, 8);
}

/* -- decompression -- */

/* The uncompressed length of a block, or -1 if it is invalid. `*used`: the bytes that the length
 * uses. */
static inline int64_t snappy_length(const uint8_t *block, size_t n, size_t *used) {
    uint64_t length = 0;
    for (size_t i = 0; i < n && i < 5; i++) {
        length |= (uint64_t)(block[i] & 0x7f) << 7 * i;
        if (!(block[i] & 0x80)) {
            *used = i + 1;
            return length <= UINT32_MAX ? (int64_t)length : -1;
        }
    }
    return -1;
}

/* Copies the `size` bytes that are `offset` before `to`; the ranges may overlap. */
static inline void snappy_repeat(uint8_t *to, size_t offset, size_t size) {
    const uint8_t *from = to - offset;
    uint8_t *end = to + size;
    while (to - from < 8 && to < end) {     /* each step doubles the distance */
        size_t distance = (size_t)(to - from);
        snappy_copy8(to, from);
        to += distance;
    }
    while (to < end) {
        snappy_copy8(to, from);
        to += 8;
        from += 8;
    }
}

/* Decompresses the elements of a block, which follow its length. `out` has room for `length` plus
 * SNAPPY_SLOP bytes. Returns 0, or -1 if the block is not valid. */
static inline int snappy_decompress(const uint8_t *at, size_t n, uint8_t *out, size_t length) {
    const uint8_t *end = at + n;
    size_t have = 0;
    while (at < end) {
        uint8_t tag = *at++;
        size_t left = (size_t)(end - at);
        size_t size = (tag >> 2) + 1;
        size_t offset;
        if ((tag & 3) == SNAPPY_LITERAL) {
            if (size > 60) {
                size_t bytes = size - 60;
                if (bytes > left)
                    return -1;
                size = 0;
                for (size_t i = 0; i < bytes; i++)
                    size |= (size_t)at[i] << 8 * i;
                size++;
                at += bytes;
                left -= bytes;
            }
            if (size > left || size > length - have)
                return -1;
            memcpy(out + have, at, size);
            at += size;
            have += size;
            continue;
        }
        if ((tag & 3) == SNAPPY_NEAR_COPY) {
            if (left < 1)
                return -1;
            size = 4 + (tag >> 2 & 7);
            offset = (size_t)(tag >> 5) << 8 | at[0];
            at += 1;
        } else if ((tag & 3) == SNAPPY_COPY) {
            if (left < 2)
                return -1;
            offset = (size_t)at[0] | (size_t)at[1] << 8;
            at += 2;
        } else {
            if (left < 4)
                return -1;
            offset = load_le32(at);
            at += 4;
        }
        if (offset == 0 || offset > have || size > length - have)
            return -1;
        snappy_repeat(out + have, offset, size);
        have += size;
    }
    return have == length ? 0 : -1;
}

/* -- compression -- */

static inline uint32_t snappy_load(const uint8_t *at) {
    uint32_t bytes;
    memcpy(&bytes, at, 4);
    return bytes;
}

static inline uint32_t snappy_hash(const uint8_t *at, int shift) {
    return snappy_load(at) * 0x1e35a7bdu >> shift;
}

/* The number of equal bytes at `a` and `b`; `b` is the later one. */
static inline size_t snappy_match(const uint8_t *a, const uint8_t *b, const uint8_t *end) {
    const uint8_t *start = b;
    while (end - b >= 8) {
        uint64_t x, y;
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        if (x != y)
            break;
        a += 8;
        b += 8;
    }
    while (b < end && *a == *b) {
        a++;
        b++;
    }
    return (size_t)(b - start);
}

static inline uint8_t *snappy_put_literal(uint8_t *out, const uint8_t *data, size_t size) {
    size_t less = size - 1;
    if (less < 60) {
        *out++ = (uint8_t)(less << 2 | SNAPPY_LITERAL);
    } else if (less < 256) {
        *out++ = 60 << 2 | SNAPPY_LITERAL;
        *out++ = (uint8_t)less;
    } else {
        *out++ = 61 << 2 | SNAPPY_LITERAL;
        *out++ = (uint8_t)less;
        *out++ = (uint8_t)(less >> 8);
    }
    memcpy(out, data, size);
    return out + size;
}

static inline uint8_t *snappy_put_copy(uint8_t *out, size_t offset, size_t size) {
    while (size >= 12 || (size >= 4 && offset >= 2048)) {
        /* Do not take 64 of up to 67 bytes: a copy has at least 4 bytes. */
        size_t part = size >= 68 ? 64 : size > 64 ? 60 : size;
        *out++ = (uint8_t)((part - 1) << 2 | SNAPPY_COPY);
        *out++ = (uint8_t)offset;
        *out++ = (uint8_t)(offset >> 8);
        size -= part;
    }
    if (size) {
        *out++ = (uint8_t)(offset >> 8 << 5 | (size - 4) << 2 | SNAPPY_NEAR_COPY);
        *out++ = (uint8_t)offset;
    }
    return out;
}

/* Compresses up to SNAPPY_MAX bytes into `out`, which has room for 32 + n + n / 6. `table` has
 * SNAPPY_TABLE entries, with any content. Returns the length of the block. */
static inline size_t snappy_compress(const uint8_t *in, size_t n, uint8_t *out, uint16_t *table) {
    const uint8_t *end = in + n;
    const uint8_t *literal = in;            /* start of the bytes not yet in the result */
    uint8_t *block = out;
    for (size_t left = n; ; left >>= 7) {
        *out++ = (uint8_t)(left < 0x80 ? left : left | 0x80);
        if (left < 0x80)
            break;
    }
    if (n > SNAPPY_MARGIN) {
        const uint8_t *limit = end - SNAPPY_MARGIN;
        const uint8_t *at = in + 1;
        size_t entries = SNAPPY_MIN_TABLE;
        int shift = 32 - 8;
        while (entries < SNAPPY_TABLE && entries < n) {
            entries <<= 1;
            shift--;
        }
        memset(table, 0, entries * sizeof(table[0]));
        /* The longer nothing is found, the larger the steps. */
        for (uint32_t skip = 32; at < limit; at += skip++ >> 5) {
            uint32_t hash = snappy_hash(at, shift);
            const uint8_t *found = in + table[hash];
            table[hash] = (uint16_t)(at - in);
            if (snappy_load(found) != snappy_load(at))
                continue;
            if (literal < at)
                out = snappy_put_literal(out, literal, (size_t)(at - literal));
            size_t size = 4 + snappy_match(found + 4, at + 4, end);
            out = snappy_put_copy(out, (size_t)(at - found), size);
            at += size;
            literal = at;
            if (at >= limit)
                break;
            table[snappy_hash(at - 1, shift)] = (uint16_t)(at - 1 - in);
            skip = 31;                      /* the next step is 0: a copy may follow immediately */
        }
    }
    if (literal < end)
        out = snappy_put_literal(out, literal, (size_t)(end - literal));
    return (size_t)(out - block);
}

#endif
