/* Conversion of integers to and from bytes at any address: big-endian on the wire, little-endian in
 * our records; and the 16 hex digits of a message id. */
#ifndef NSQCY_BYTES_H
#define NSQCY_BYTES_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NSQCY_BE(bits, v) __builtin_bswap##bits(v)
#define NSQCY_LE(bits, v) (v)
#else
#define NSQCY_BE(bits, v) (v)
#define NSQCY_LE(bits, v) __builtin_bswap##bits(v)
#endif

/* In C, memcpy expresses an unaligned access; it compiles to one instruction. */
#define NSQCY_BYTES(order, ORDER, bits)                                \
    static inline uint##bits##_t load_##order##bits(const void *p)     \
    {                                                                  \
        uint##bits##_t v;                                              \
        memcpy(&v, p, sizeof v);                                       \
        return NSQCY_##ORDER(bits, v);                                 \
    }                                                                  \
    static inline void store_##order##bits(void *p, uint##bits##_t v)  \
    {                                                                  \
        v = NSQCY_##ORDER(bits, v);                                    \
        memcpy(p, &v, sizeof v);                                       \
    }

NSQCY_BYTES(be, BE, 16)
NSQCY_BYTES(be, BE, 32)
NSQCY_BYTES(be, BE, 64)
NSQCY_BYTES(le, LE, 16)
NSQCY_BYTES(le, LE, 32)
NSQCY_BYTES(le, LE, 64)

#undef NSQCY_BYTES
#undef NSQCY_BE
#undef NSQCY_LE

/* All digits of an id at once, in vectors, which GCC and Clang support on every processor. Two
 * digits form one word whose low byte is the first digit: words are little-endian, as record.h
 * requires. */
typedef int8_t hex16_digits __attribute__((vector_size(16)));
typedef uint16_t hex16_words __attribute__((vector_size(16)));
typedef uint8_t hex16_bytes __attribute__((vector_size(8)));

static inline hex16_digits hex16_from_nibbles(hex16_digits nibbles)
{
    return nibbles + '0' + ((nibbles > 9) & ('a' - '0' - 10));
}

static inline void hex16_format(void *out, uint64_t v)
{
    hex16_bytes bytes;
    hex16_words words;
    hex16_digits digits;
    store_be64(&bytes, v);
    words = __builtin_convertvector(bytes, hex16_words);
    words = (words >> 4 | words << 8) & 0x0F0F;
    digits = hex16_from_nibbles((hex16_digits)words);
    memcpy(out, &digits, sizeof digits);
}

/* Returns 0, or -1 (leaving `*v` unchanged) if `text` is not 16 lower-case hex digits: other digits
 * would be formatted differently than they were written. */
static inline int hex16_parse(const void *text, uint64_t *v)
{
    hex16_digits digits, nibbles;
    hex16_words words;
    hex16_bytes bytes;
    uint64_t wrong[2];
    memcpy(&digits, text, sizeof digits);
    nibbles = ((digits & 0x0F) + ((digits > '9') & 9)) & 0x0F;
    digits ^= hex16_from_nibbles(nibbles);
    memcpy(wrong, &digits, sizeof digits);
    if (wrong[0] | wrong[1])
        return -1;
    words = (hex16_words)nibbles;
    words = (words << 4 | words >> 8) & 0xFF;
    bytes = __builtin_convertvector(words, hex16_bytes);
    *v = load_be64(&bytes);
    return 0;
}

#endif
