/* Finds values in a JSON text (RFC 8259, UTF-8) by JSON pointers (RFC 6901), in one pass without
 * allocations.
 *
 * The walk checks the entire text. It reads each byte a bounded number of times, at most
 * JSON_DEPTH containers deep. Of members with equal names, the last one counts, as in most parsers:
 * an earlier match below such a member is forgotten.
 */
#ifndef NSQCY_JSON_WALK_H
#define NSQCY_JSON_WALK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    JSON_DEPTH = 128,
    JSON_POINTERS = 3,              /* maximum pointers of one walk */
};

enum JsonKind {
    JSON_NONE = 0,                  /* missing, null, an object or an array */
    JSON_TEXT = 1,                  /* a string without escapes, or a number or boolean as written */
    JSON_ESCAPED = 2,               /* the content of a string with escapes: see json_unescape() */
};

#define JSON_NOT_AN_INDEX UINT32_MAX

/* One reference token of a pointer, without escapes. */
typedef struct {
    const uint8_t *name;
    uint32_t length;
    uint32_t index;                 /* as an array index, or JSON_NOT_AN_INDEX */
} JsonToken;

typedef struct {
    const JsonToken *tokens;
    uint32_t count;
} JsonPointer;

typedef struct {
    const uint8_t *at;
    uint32_t length;
    uint32_t kind;
} JsonValue;

#define JSON_ONES 0x0101010101010101u
#define JSON_HIGH 0x8080808080808080u

/* Whether one of eight bytes needs attention in a string: a quote, a backslash, a control
 * character or a byte of a longer UTF-8 sequence. */
static inline uint64_t json_special(uint64_t word) {
    uint64_t quote = word ^ (JSON_ONES * '"');
    uint64_t backslash = word ^ (JSON_ONES * '\\');
    return (((quote - JSON_ONES) | (backslash - JSON_ONES) | (word - JSON_ONES * 0x20) | word)
            & JSON_HIGH);
}

/* The length of the valid UTF-8 sequence at `at`, which begins with a byte >= 0x80; 0 if it is
 * invalid. */
static inline size_t json_utf8(const uint8_t *at, const uint8_t *end) {
    uint8_t c = at[0];
    size_t left = (size_t)(end - at);
    if (c < 0xc2 || c > 0xf4)
        return 0;
    if (left < 2 || (at[1] & 0xc0) != 0x80)
        return 0;
    if (c < 0xe0)
        return 2;
    if (left < 3 || (at[2] & 0xc0) != 0x80)
        return 0;
    if (c < 0xf0) {
        if ((c == 0xe0 && at[1] < 0xa0) || (c == 0xed && at[1] > 0x9f))
            return 0;
        return 3;
    }
    if (left < 4 || (at[3] & 0xc0) != 0x80)
        return 0;
    if ((c == 0xf0 && at[1] < 0x90) || (c == 0xf4 && at[1] > 0x8f))
        return 0;
    return 4;
}

static inline int json_hex(uint8_t c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The number of four hex digits; -1 if they are not hex digits. */
static inline int json_hex4(const uint8_t *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = json_hex(at[i]);
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Scans a string whose first byte after the quote is `at`: the address of the closing quote, or
 * NULL if the string is invalid. */
static inline const uint8_t *json_string(const uint8_t *at, const uint8_t *end, int *escaped) {
    size_t used;
    *escaped = 0;
    for (;;) {
        while (end - at >= 8) {
            uint64_t word;
            uint64_t special;
            memcpy(&word, at, 8);
            special = json_special(word);
            if (special) {
                /* Bytes before the first marked one are ordinary; only later marks may be wrong. */
                at += __builtin_ctzll(special) >> 3;
                break;
            }
            at += 8;
        }
        if (at >= end)
            return NULL;
        if (*at == '"')
            return at;
        if (*at == '\\') {
            *escaped = 1;
            if (end - at < 2)
                return NULL;
            switch (at[1]) {
            case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
                at += 2;
                break;
            case 'u':
                if (end - at < 6 || json_hex4(at + 2) < 0)
                    return NULL;
                at += 6;
                break;
            default:
                return NULL;
            }
        } else if (*at >= 0x80) {
            used = json_utf8(at, end);
            if (used == 0)
                return NULL;
            at += used;
        } else if (*at < 0x20) {
            return NULL;
        } else {
            at++;
        }
    }
}

/* Unescapes the content of a valid string into at most `room` bytes of UTF-8: the number of bytes,
 * or -1 if they do not fit or the string has a lone surrogate. */
static inline int json_unescape(const uint8_t *at, const uint8_t *end, uint8_t *into, int room) {
    int size = 0;
    while (at < end) {
        uint32_t c = *at++;
        if (c != '\\') {
            if (size == room)
                return -1;
            into[size++] = (uint8_t)c;
            continue;
        }
        c = *at++;
        switch (c) {
        case 'b': c = 8; break;
        case 'f': c = 12; break;
        case 'n': c = 10; break;
        case 'r': c = 13; break;
        case 't': c = 9; break;
        case 'u':
            c = (uint32_t)json_hex4(at);
            at += 4;
            if (c >= 0xdc00 && c <= 0xdfff)
                return -1;
            if (c >= 0xd800 && c <= 0xdbff) {
                int low = end - at >= 6 && at[0] == '\\' && at[1] == 'u' ? json_hex4(at + 2) : -1;
                if (low < 0xdc00 || low > 0xdfff)
                    return -1;
                at += 6;
                c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            }
            break;
        default: break;
        }
        if (c < 0x80) {
            if (room - size < 1)
                return -1;
            into[size++] = (uint8_t)c;
        } else if (c < 0x800) {
            if (room - size < 2)
                return -1;
            into[size++] = (uint8_t)(0xc0 | c >> 6);
            into[size++] = (uint8_t)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            if (room - size < 3)
                return -1;
            into[size++] = (uint8_t)(0xe0 | c >> 12);
            into[size++] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
            into[size++] = (uint8_t)(0x80 | (c & 0x3f));
        } else {
            if (room - size < 4)
                return -1;
            into[size++] = (uint8_t)(0xf0 | c >> 18);
            into[size++] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
            into[size++] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
            into[size++] = (uint8_t)(0x80 | (c & 0x3f));
        }
    }
    return size;
}

/* Whether the content of a valid string, with or without escapes, is the name. */
static inline int json_is_name(const uint8_t *at, const uint8_t *end, int escaped,
                               const JsonToken *token) {
    const uint8_t *name = token->name;
    uint32_t left = token->length;
    if (!escaped)
        return (size_t)(end - at) == left && memcmp(at, name, left) == 0;
    while (at < end) {
        uint8_t piece[4];
        const uint8_t *next = at + 1;
        int size;
        if (*at == '\\') {
            next = at + 2;
            if (at[1] == 'u') {
                int c = json_hex4(at + 2);
                next = at + 6;
                if (c >= 0xd800 && c <= 0xdbff && end - next >= 6 && next[0] == '\\'
                    && next[1] == 'u')
                    next += 6;
            }
        }
        size = json_unescape(at, next, piece, 4);
        if (size < 0 || (uint32_t)size > left || memcmp(piece, name, (size_t)size) != 0)
            return 0;
        name += size;
        left -= (uint32_t)size;
        at = next;
    }
    return left == 0;
}

/* Scans a number: the address after it, or NULL if it is invalid. */
static inline const uint8_t *json_number(const uint8_t *at, const uint8_t *end) {
    if (at < end && *at == '-')
        at++;
    if (at == end || *at < '0' || *at > '9')
        return NULL;
    if (*at == '0')
        at++;
    else
        while (at < end && *at >= '0' && *at <= '9')
            at++;
    if (at < end && *at == '.') {
        at++;
        if (at == end || *at < '0' || *at > '9')
            return NULL;
        while (at < end && *at >= '0' && *at <= '9')
            at++;
    }
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        if (at == end || *at < '0' || *at > '9')
            return NULL;
        while (at < end && *at >= '0' && *at <= '9')
            at++;
    }
    return at;
}

static inline const uint8_t *json_space(const uint8_t *at, const uint8_t *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Finds the values of up to JSON_POINTERS pointers: 1 if the text is valid, otherwise 0, and then
 * `found` is meaningless. */
static int json_walk(const uint8_t *at, size_t n, const JsonPointer *pointers, int count,
                     JsonValue *found) {
    const uint8_t *end = at + n;
    const uint8_t *start;
    /* For each pointer: how many of the open containers, from the outermost, are on its path. */
    uint32_t matched[JSON_POINTERS];
    uint32_t index[JSON_DEPTH + 1];     /* of the current element, by depth */
    uint8_t is_object[JSON_DEPTH + 1];
    uint32_t depth = 0;                 /* open containers */
    uint32_t on_path = 0;               /* pointers whose path leads to the next value or below */
    uint32_t wanted = 0;                /* pointers to the next value itself */
    int escaped;
    int i;
    for (i = 0; i < count; i++) {
        found[i].kind = JSON_NONE;
        matched[i] = 0;
        if (pointers[i].count == 0)
            wanted |= 1u << i;
        else
            on_path |= 1u << i;
    }

value:
    at = json_space(at, end);
    if (at == end)
        return 0;
    start = at;
    switch (*at) {
    case '{':
    case '[':
        if (depth == JSON_DEPTH)
            return 0;
        depth++;
        is_object[depth] = *at == '{';
        index[depth] = 0;
        if (on_path)
            for (i = 0; i < count; i++)
                if (on_path >> i & 1)
                    matched[i] = depth;
        at = json_space(at + 1, end);
        if (at == end)
            return 0;
        if (*at == (is_object[depth] ? '}' : ']'))
            goto close;
        goto next;
    case '"':
        at = json_string(at + 1, end, &escaped);
        if (at == NULL)
            return 0;
        start++;
        if (wanted)
            for (i = 0; i < count; i++)
                if (wanted >> i & 1) {
                    found[i].at = start;
                    found[i].length = (uint32_t)(at - start);
                    found[i].kind = escaped ? JSON_ESCAPED : JSON_TEXT;
                }
        at++;
        goto after;
    case 't':
        if (end - at < 4 || memcmp(at, "true", 4) != 0)
            return 0;
        at += 4;
        break;
    case 'f':
        if (end - at < 5 || memcmp(at, "false", 5) != 0)
            return 0;
        at += 5;
        break;
    case 'n':
        if (end - at < 4 || memcmp(at, "null", 4) != 0)
            return 0;
        at += 4;
        goto after;
    default:
        at = json_number(at, end);
        if (at == NULL)
            return 0;
    }
    if (wanted)
        for (i = 0; i < count; i++)
            if (wanted >> i & 1) {
                found[i].at = start;
                found[i].length = (uint32_t)(at - start);
                found[i].kind = JSON_TEXT;
            }

after:
    at = json_space(at, end);
    if (depth == 0)
        return at == end;
    if (at == end)
        return 0;
    if (*at == ',') {
        at = json_space(at + 1, end);
        index[depth]++;
        goto next;
    }
    if (*at != (is_object[depth] ? '}' : ']'))
        return 0;

close:
    at++;
    for (i = 0; i < count; i++)
        if (matched[i] == depth)
            matched[i] = depth - 1;
    depth--;
    goto after;

next:
    /* The next member or element of the innermost container. */
    wanted = on_path = 0;
    if (is_object[depth]) {
        if (at == end || *at != '"')
            return 0;
        start = at + 1;
        at = json_string(start, end, &escaped);
        if (at == NULL)
            return 0;
    }
    for (i = 0; i < count; i++) {
        const JsonToken *token;
        if (matched[i] != depth)
            continue;
        token = &pointers[i].tokens[depth - 1];
        if (is_object[depth] ? json_is_name(start, at, escaped, token)
                             : token->index == index[depth]) {
            found[i].kind = JSON_NONE;      /* the last of equal names counts */
            if (pointers[i].count == depth)
                wanted |= 1u << i;
            else
                on_path |= 1u << i;
        }
    }
    if (is_object[depth]) {
        at = json_space(at + 1, end);
        if (at == end || *at != ':')
            return 0;
        at++;
    }
    goto value;
}

#endif
