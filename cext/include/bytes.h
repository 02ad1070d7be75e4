/* Integers to and from bytes at any address: big-endian for the wire, little-endian for our own
 * records, and the 16 hex digits of a message id. */
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

/* memcpy is how C spells an unaligned access; it compiles to one instruction. */
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

/* Eight nibbles, one a byte, as eight lower-case hex digits. */
static inline uint64_t hex8_digits(uint64_t nibbles)
{
    uint64_t letters = ((nibbles + 0x0606060606060606u) >> 4) & 0x0101010101010101u;
    return nibbles + 0x3030303030303030u + letters * ('a' - '0' - 10);
}

static inline void hex8_format(void *out, uint32_t v)
{
    uint64_t x = v;
    x = (x | x << 16) & 0x0000FFFF0000FFFFu;
    x = (x | x << 8) & 0x00FF00FF00FF00FFu;
    x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
    store_be64(out, hex8_digits(x));
}

/* -1 when these are not eight lower-case hex digits: they read back as something else. */
static inline int hex8_parse(const void *text, uint32_t *v)
{
    uint64_t digits = load_be64(text);
    uint64_t letters = (digits >> 6) & 0x0101010101010101u;
    uint64_t x = ((digits & 0x0F0F0F0F0F0F0F0Fu) + letters * 9) & 0x0F0F0F0F0F0F0F0Fu;
    if (hex8_digits(x) != digits)
        return -1;
    x = (x | x >> 4) & 0x00FF00FF00FF00FFu;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
    *v = (uint32_t)(x | x >> 16);
    return 0;
}

static inline void hex16_format(void *out, uint64_t v)
{
    hex8_format(out, (uint32_t)(v >> 32));
    hex8_format((unsigned char *)out + 8, (uint32_t)v);
}

/* 0, or -1 (and `*v` untouched) unless `text` is 16 lower-case hex digits. */
static inline int hex16_parse(const void *text, uint64_t *v)
{
    uint32_t high, low;
    if (hex8_parse(text, &high) || hex8_parse((const unsigned char *)text + 8, &low))
        return -1;
    *v = (uint64_t)high << 32 | low;
    return 0;
}

#endif
