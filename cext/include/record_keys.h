/* The key, the priority and the deduplication id of a record.
 *
 * They were taken from the message when it was published. If the value of a default header (`key`,
 * `priority`, `dedup-id`) is what was taken, nothing else is stored. Otherwise, the extension
 * "taken" has the value:
 *
 *   0  u8 given        TAKEN_KEY, TAKEN_PRIORITY, TAKEN_ID: the values that replace a header
 *   1  u8 priority     0 to 9
 *   2  u8 key_length   0: no key
 *   3  u8 id_length    0: no id
 *   4  the key, then the id
 */
#ifndef NSQCY_RECORD_KEYS_H
#define NSQCY_RECORD_KEYS_H

#include "bytes.h"
#include "record.h"
#include "siphash.h"

#define TAKEN_KEY 1
#define TAKEN_PRIORITY 2
#define TAKEN_ID 4
#define TAKEN_HEAD 4             /* bytes before the key */
#define MAX_KEY 255              /* bytes of a key or an id */

/* Stands for a key or an id: its SipHash with the topic's secret. Both words 0: there is none. */
typedef struct {
    uint64_t low;
    uint64_t high;
} KeyHash;

/* The value of a header in valid headers; NULL with a length of 0 if there is none. `name` begins
 * with its length, as in the headers. */
static inline const uint8_t *header_find(const uint8_t *at, size_t n, const char *name,
                                         uint16_t *length) {
    const uint8_t *end = at + n;
    size_t size = 1 + (size_t)(uint8_t)name[0];
    while (at < end) {
        uint16_t value = load_be16(at + 1 + at[0]);
        if (at[0] == (uint8_t)name[0] && memcmp(at, name, size) == 0) {
            *length = value;
            return at + size + 2;
        }
        at += 3 + at[0] + value;
    }
    *length = 0;
    return NULL;
}

/* A header's value as a key or an id: NULL with a length of 0 if it is empty or too long. */
static inline const uint8_t *header_key(const uint8_t *at, size_t n, const char *name,
                                        uint16_t *length) {
    const uint8_t *value = header_find(at, n, name, length);
    if (*length == 0 || *length > MAX_KEY) {
        *length = 0;
        return NULL;
    }
    return value;
}

/* The priority that a text gives: one digit; anything else is 0. */
static inline uint8_t priority_of(const uint8_t *text, size_t n) {
    return n == 1 && text[0] >= '0' && text[0] <= '9' ? (uint8_t)(text[0] - '0') : 0;
}

/* The extension "taken"; NULL if the record has none. */
static inline const uint8_t *record_taken(const struct Record *r) {
    uint16_t length;
    const uint8_t *taken;
    if (!(r->attributes & RECORD_TAKEN))
        return NULL;
    taken = record_extension(r, RECORD_EXT_TAKEN, &length);
    if (taken == NULL || length < TAKEN_HEAD || length != TAKEN_HEAD + taken[2] + taken[3])
        return NULL;
    return taken;
}

/* The key of a record; NULL with a length of 0 if it has none. */
static inline const uint8_t *record_key(const struct Record *r, uint16_t *length) {
    const uint8_t *taken = record_taken(r);
    const uint8_t *headers;
    uint16_t size;
    if (taken && taken[0] & TAKEN_KEY) {
        *length = taken[2];
        return taken[2] ? taken + TAKEN_HEAD : NULL;
    }
    headers = record_headers(r, &size);
    return header_key(headers, size, "\3key", length);
}

/* The deduplication id of a record; NULL with a length of 0 if it has none. */
static inline const uint8_t *record_dedup_id(const struct Record *r, uint16_t *length) {
    const uint8_t *taken = record_taken(r);
    const uint8_t *headers;
    uint16_t size;
    if (taken && taken[0] & TAKEN_ID) {
        *length = taken[3];
        return taken[3] ? taken + TAKEN_HEAD + taken[2] : NULL;
    }
    headers = record_headers(r, &size);
    return header_key(headers, size, "\10dedup-id", length);
}

/* The priority of a record, 0 to 9. */
static inline uint8_t record_priority(const struct Record *r) {
    const uint8_t *taken = record_taken(r);
    const uint8_t *headers;
    const uint8_t *value;
    uint16_t size;
    if (taken && taken[0] & TAKEN_PRIORITY)
        return taken[1] <= 9 ? taken[1] : 0;
    headers = record_headers(r, &size);
    value = header_find(headers, size, "\10priority", &size);
    return priority_of(value, size);
}

/* The hash of a text of n bytes; {0, 0} if n is 0. */
static inline KeyHash key_hash(const uint64_t secret[2], const uint8_t *text, size_t n) {
    uint64_t words[2] = {0, 0};
    KeyHash hash;
    if (n) {
        siphash128(secret, text, n, words);
        if (words[0] == 0 && words[1] == 0)
            words[0] = 1;
    }
    hash.low = words[0];
    hash.high = words[1];
    return hash;
}

/* The hash of a record's key; {0, 0} if it has none. */
static inline KeyHash record_key_hash(const struct Record *r, const uint64_t secret[2]) {
    uint16_t length;
    const uint8_t *key = record_key(r, &length);
    return key_hash(secret, key, length);
}

#endif
