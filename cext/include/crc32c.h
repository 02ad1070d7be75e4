/* CRC-32C (Castagnoli): the processor's instruction if available, otherwise slicing-by-8.
 *
 * crc32c(0, "123456789", 9) == 0xE3069283; crc32c(crc32c(0, a), b) is the checksum of a followed by
 * b.
 */
#ifndef NSQCY_CRC32C_H
#define NSQCY_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#define CRC32C_HARDWARE 1
#ifdef __clang__ /* has the instruction separately from the rest of SSE 4.2 */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_STEP1(crc, byte) _mm_crc32_u8((crc), (byte))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_HARDWARE 1
#define CRC32C_TARGET
#define CRC32C_STEP8(crc, word) __crc32cd((crc), (word))
#define CRC32C_STEP1(crc, byte) __crc32cb((crc), (byte))
#endif

struct crc32c_tables {
    uint32_t at[8][256];
};

/* Built on the first call, which the modules make at import time (in a single thread). */
static inline const struct crc32c_tables *crc32c_tables(void) {
    static struct crc32c_tables tables;
    static int ready = 0;
    if (__builtin_expect(!__atomic_load_n(&ready, __ATOMIC_ACQUIRE), 0)) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++)
                crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            tables.at[0][n] = crc;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int k = 1; k < 8; k++)
                tables.at[k][n] = (tables.at[k - 1][n] >> 8)
                                  ^ tables.at[0][tables.at[k - 1][n] & 0xff];
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    return &tables;
}

static uint32_t crc32c_software(uint32_t crc, const uint8_t *at, size_t n) {
    const struct crc32c_tables *t = crc32c_tables();
    crc = ~crc;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = t->at[7][word & 0xff] ^ t->at[6][(word >> 8) & 0xff]
            ^ t->at[5][(word >> 16) & 0xff] ^ t->at[4][(word >> 24) & 0xff]
            ^ t->at[3][(word >> 32) & 0xff] ^ t->at[2][(word >> 40) & 0xff]
            ^ t->at[1][(word >> 48) & 0xff] ^ t->at[0][word >> 56];
        at += 8;
        n -= 8;
    }
    while (n--)
        crc = (crc >> 8) ^ t->at[0][(crc ^ *at++) & 0xff];
    return ~crc;
}

#ifdef CRC32C_HARDWARE
CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *at, size_t n) {
    crc = ~crc;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = CRC32C_STEP8(crc, word);
        at += 8;
        n -= 8;
    }
    while (n--)
        crc = CRC32C_STEP1(crc, *at++);
    return ~crc;
}

/* The checksums of the first n bytes (a multiple of 8) of three inputs. The instruction takes three
 * cycles, but a processor starts one each cycle: three inputs take as long as one. */
CRC32C_TARGET static void crc32c_hardware_three(const uint8_t *const at[3], size_t n,
                                                uint32_t crc[3]) {
    uint32_t a = ~0u, b = ~0u, c = ~0u;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word[3];
        memcpy(&word[0], at[0] + i, 8);
        memcpy(&word[1], at[1] + i, 8);
        memcpy(&word[2], at[2] + i, 8);
        a = CRC32C_STEP8(a, word[0]);
        b = CRC32C_STEP8(b, word[1]);
        c = CRC32C_STEP8(c, word[2]);
    }
    crc[0] = ~a;
    crc[1] = ~b;
    crc[2] = ~c;
}
#endif

#if defined(__x86_64__)
static int crc32c_sse42;

/* Do not use __builtin_cpu_supports: its variable belongs to the compiler's own library, but a
 * wheel is linked with a different one, which never sets it. */
__attribute__((constructor)) static void crc32c_detect(void) {
    unsigned int a, b, c, d;
    crc32c_sse42 = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
}
#endif

static inline int crc32c_has_hardware(void) {
#if defined(__x86_64__)
    return crc32c_sse42;
#elif defined(CRC32C_HARDWARE)
    return 1;
#else
    return 0;
#endif
}

static inline uint32_t crc32c(uint32_t crc, const void *data, size_t n) {
#ifdef CRC32C_HARDWARE
    if (crc32c_has_hardware())
        return crc32c_hardware(crc, (const uint8_t *)data, n);
#endif
    return crc32c_software(crc, (const uint8_t *)data, n);
}

/* The checksums of three inputs, whose common part of `n` bytes (a multiple of 8) is followed by
 * `more` bytes each. */
static inline void crc32c_three(const uint8_t *const at[3], size_t n, const size_t more[3],
                                uint32_t crc[3]) {
    size_t common = 0;
    crc[0] = crc[1] = crc[2] = 0;
#ifdef CRC32C_HARDWARE
    if (crc32c_has_hardware()) {
        common = n;
        crc32c_hardware_three(at, n, crc);
    }
#endif
    for (int i = 0; i < 3; i++)
        crc[i] = crc32c(crc[i], at[i] + common, n - common + more[i]);
}

/* The product of two polynomials modulo Castagnoli's, with bits reversed as in a checksum. */
static inline uint32_t crc32c_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ (0x82F63B78u & (0u - (b & 1)));
    }
    return product;
}

/* The checksum of a followed by b, computed from their checksums; b has n bytes. */
static inline uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t n) {
    uint32_t square = 0x00800000u;    /* x^8: a byte */
    for (; n; n >>= 1) {
        if (n & 1)
            a = crc32c_times(square, a);
        square = crc32c_times(square, square);
    }
    return a ^ b;
}

#endif
