/* The layout of segments and journals, and how their records are checked and recovered.
 *
 * Pure functions over bytes: no file I/O, and no allocation except for the list of damages. Never
 * reads outside the given bytes, regardless of their content. docs/DISKFORMAT.md is normative.
 */
#ifndef NSQCY_SEGMENT_H
#define NSQCY_SEGMENT_H

#include <stdlib.h>

#include "record.h"

#define SEGMENT_HEADER 64
#define SEGMENT_MAGIC 0x0047455359435153ull    /* "SQCYSEG\0" */
#define FOOTER_MAGIC 0x00444E4559435153ull     /* "SQCYEND\0" */
#define JOURNAL_MAGIC 0x004C4E4A59435153ull    /* "SQCYJNL\0" */

#define RUN_SURVIVORS 1      /* copies of older records: ascending, with gaps */
#define RUN_HAS_DELAYED 2    /* at least one record has a delay */
#define RUN_HAS_PRODUCED 4   /* at least one record belongs to a producer's chunk */
#define RUN_HAS_ONCE 8       /* the deduplication id of at least one record is remembered */

struct __attribute__((packed, aligned(8))) SegmentHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t crc;            /* CRC-32C of the 64 bytes with this field 0 */
    uint8_t log_id[16];
    uint64_t number;         /* as in the file name */
    uint64_t first_seq;
    int64_t created;         /* wall clock, ns */
    uint64_t reserved;
};

struct __attribute__((packed, aligned(8))) SegmentRun {
    uint64_t first_seq;
    uint64_t last_seq;
    uint64_t offset;
    uint64_t bytes;
    uint32_t count;
    uint32_t flags;
    int64_t first_time;
    int64_t last_time;
};

struct __attribute__((packed, aligned(8))) SegmentFooter {
    uint64_t records;
    uint64_t first_seq;
    uint64_t last_seq;
    int64_t first_time;
    int64_t last_time;
    uint64_t max_id;
    uint64_t data_end;       /* start of the footer */
    uint64_t runs;           /* number of SegmentRun entries that follow */
};

struct __attribute__((packed, aligned(8))) SegmentTrailer {
    uint32_t length;         /* length of footer, runs and trailer */
    uint32_t crc;            /* CRC-32C of footer and runs */
    uint64_t magic;
};

struct __attribute__((packed, aligned(8))) JournalHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t crc;            /* CRC-32C of the 32 bytes with this field 0 */
    uint8_t log_id[16];
};

struct __attribute__((packed, aligned(4))) JournalEntry {
    uint32_t length;         /* length of the payload that follows */
    uint32_t crc;            /* CRC-32C of `length` and the payload */
};

typedef struct SegmentHeader SegmentHeader;
typedef struct SegmentRun SegmentRun;
typedef struct SegmentFooter SegmentFooter;
typedef struct SegmentTrailer SegmentTrailer;
typedef struct JournalHeader JournalHeader;
typedef struct JournalEntry JournalEntry;

_Static_assert(sizeof(SegmentHeader) == SEGMENT_HEADER, "segment header");
_Static_assert(sizeof(SegmentRun) == 56, "run");
_Static_assert(sizeof(SegmentFooter) == 64, "footer");
_Static_assert(sizeof(SegmentTrailer) == 16, "trailer");
_Static_assert(sizeof(JournalHeader) == 32, "journal header");
_Static_assert(sizeof(JournalEntry) == 8, "journal entry");

static inline uint32_t segment_header_crc(const SegmentHeader *h) {
    SegmentHeader copy = *h;
    copy.crc = 0;
    return crc32c(0, &copy, sizeof(copy));
}

static inline uint32_t journal_header_crc(const JournalHeader *h) {
    JournalHeader copy = *h;
    copy.crc = 0;
    return crc32c(0, &copy, sizeof(copy));
}

static inline uint32_t journal_entry_crc(uint32_t length, const uint8_t *payload) {
    return crc32c(crc32c(0, &length, 4), payload, length);
}

/* ---- damages ---- */

#define DAMAGE_RECORD 1      /* framing intact: the content of one record is wrong */
#define DAMAGE_FRAMING 2     /* lengths lost: everything up to the next good record is lost */
#define DAMAGE_TAIL 3        /* lengths lost, and no good record follows */
#define DAMAGES_KEPT 256     /* further damages are only counted */

typedef struct Damage {
    uint64_t offset;
    uint64_t bytes;
    uint32_t kind;
    uint32_t reserved;
} Damage;

typedef struct Damages {
    Damage *at;
    uint32_t kept;
    uint32_t found;
} Damages;

static void damages_add(Damages *d, uint64_t offset, uint64_t bytes, uint32_t kind) {
    Damage one = {offset, bytes, kind, 0};
    d->found++;
    if (d->kept == DAMAGES_KEPT)
        return;
    if ((d->kept & (d->kept - 1)) == 0) {       /* 0 or a power of two: full */
        Damage *more = realloc(d->at, sizeof(Damage) * (d->kept ? d->kept * 2 : 1));
        if (!more)
            return;
        d->at = more;
    }
    d->at[d->kept++] = one;
}

static void damages_free(Damages *d) {
    free(d->at);
    d->at = NULL;
    d->kept = d->found = 0;
}

static int damages_equal(const Damages *a, const Damages *b) {
    return a->found == b->found && a->kept == b->kept
        && (!a->kept || !memcmp(a->at, b->at, a->kept * sizeof(Damage)));
}

/* ---- records ---- */

/* Flags of a run that contains this record. */
static inline uint32_t run_flags_of(const Record *r) {
    return (r->attributes & RECORD_DELAYED ? RUN_HAS_DELAYED : 0)
        | (r->attributes & RECORD_PRODUCED ? RUN_HAS_PRODUCED : 0)
        | (r->attributes & RECORD_ONCE ? RUN_HAS_ONCE : 0);
}

static inline const Record *record_at(const uint8_t *bytes, uint64_t offset) {
    return (const Record *)(bytes + offset);
}

/* Facts collected by a walk over a run. */
typedef struct RunFacts {
    uint64_t max_id;
    int64_t first_time;
    int64_t last_time;
    uint32_t count;
    uint32_t flags;
} RunFacts;

/* Adds a record to the facts about its run. */
static inline void facts_add(RunFacts *facts, const Record *r) {
    if (facts->count == 0)
        facts->first_time = r->timestamp;
    facts->last_time = r->timestamp;
    if (r->id > facts->max_id)
        facts->max_id = r->id;
    facts->flags |= run_flags_of(r);
    facts->count++;
}

/* Fills in the crc of three records; `common` is the length of the shortest. */
static inline void seal_three(Record *const records[3], uint32_t common) {
    const uint8_t *at[3];
    size_t more[3];
    uint32_t crc[3];
    for (int i = 0; i < 3; i++) {
        at[i] = (const uint8_t *)records[i] + 8;
        more[i] = records[i]->length - common;
    }
    crc32c_three(at, common - 8, more, crc);
    for (int i = 0; i < 3; i++)
        records[i]->crc = crc[i];
}

/* Fills in the crc of each record in a run and collects facts; returns -1 if the bytes are not
 * records. */
static int run_seal(uint8_t *run, uint64_t n, RunFacts *facts) {
    Record *waiting[3];
    uint64_t at = 0;
    uint32_t shortest = UINT32_MAX;
    int count = 0;
    memset(facts, 0, sizeof(*facts));
    while (at < n) {
        Record *r = (Record *)(run + at);
        if (!record_sane(r, n - at))
            return -1;
        facts_add(facts, r);
        waiting[count++] = r;
        if (r->length < shortest)
            shortest = r->length;
        if (count == 3) {
            seal_three(waiting, shortest);
            shortest = UINT32_MAX;
            count = 0;
        }
        at += r->length;
    }
    while (count--)
        waiting[count]->crc = record_crc(waiting[count]);
    return 0;
}

static inline int record_good(const uint8_t *bytes, uint64_t n, uint64_t at) {
    const Record *r = record_at(bytes, at);
    return record_sane(r, n - at) && r->crc == record_crc(r)
        && !(r->attributes & RECORD_DAMAGED);
}

/* A search for a good record may checksum the same bytes many times if bodies look like headers. It
 * is bounded, so that crafted bodies cannot stall startup. */
#define RESYNC_BUDGET 64

/* Returns the first good record at or after `from` (in 8-byte steps) with a seq >= min_seq, or n.
 * */
static uint64_t record_search(const uint8_t *bytes, uint64_t n, uint64_t from, uint64_t min_seq,
                              uint64_t *budget) {
    for (uint64_t at = from; at + MIN_RECORD <= n; at += 8) {
        const Record *r = record_at(bytes, at);
        if (r->length > n - at || !record_sane(r, n - at) || r->seq < min_seq)
            continue;
        if (r->length > *budget)
            return n;
        *budget -= r->length;
        if (record_good(bytes, n, at))
            return at;
    }
    return n;
}

/* Returns where the record after the bad one at `at` starts; n if no good record follows and the
 * bad one does not end at n according to its own length. *kind is the kind of damage. */
static uint64_t record_resync(const uint8_t *bytes, uint64_t n, uint64_t at, uint64_t min_seq,
                              uint64_t *budget, uint32_t *kind) {
    const Record *r = record_at(bytes, at);
    uint64_t left = n - at, next;
    int framed = left >= MIN_RECORD && r->length >= MIN_RECORD && !(r->length & 7)
        && r->length <= left;
    *kind = DAMAGE_RECORD;
    if (framed) {
        int agrees = record_size(r->body_length, r->ext_length) == r->length;
        next = at + r->length;
        /* a length is trusted if three fields agree or if the next record has the next seq */
        if (agrees && (next == n || record_good(bytes, n, next)))
            return next;
        if (next < n && min_seq && record_good(bytes, n, next)
                && record_at(bytes, next)->seq == min_seq + 1)
            return next;
    }
    next = record_search(bytes, n, at + MIN_RECORD, min_seq ? min_seq + 1 : 0, budget);
    if (next == n && framed && at + r->length == n)
        return n;
    *kind = next == n ? DAMAGE_TAIL : DAMAGE_FRAMING;
    return next;
}

/* Turns bytes[at .. at+length) into one damaged record. */
static void record_make_damaged(uint8_t *bytes, uint64_t at, uint64_t length, uint64_t seq) {
    Record r;
    memset(&r, 0, sizeof(r));
    r.length = (uint32_t)length;
    r.seq = seq;
    r.attributes = RECORD_DAMAGED;
    memset(bytes + at, 0, length);
    memcpy(bytes + at, &r, sizeof(r));
}

/* Turns a lost stretch into `wanted` damaged records (as many as fit, at least one), all of minimum
 * size except the last, with ascending seqs from `seq`. Returns their number. */
static uint64_t stretch_make_damaged(uint8_t *bytes, uint64_t at, uint64_t end, uint64_t wanted,
                                     uint64_t seq) {
    uint64_t fits = (end - at) / MIN_RECORD, made = 0;
    if (wanted > fits)
        wanted = fits;
    if (wanted == 0)
        wanted = 1;
    for (; made + 1 < wanted; made++, at += MIN_RECORD)
        record_make_damaged(bytes, at, MIN_RECORD, seq + made);
    record_make_damaged(bytes, at, end - at, seq + made);
    return made + 1;
}

/* Checks a run of `count` records, just read, that starts with first_seq; `dense`: its seqs have no
 * gaps. Records that fail become damaged records, so that the entire run can be walked afterwards:
 * a damaged record keeps its length if the length can be trusted; if lengths are lost, the stretch
 * up to the next good record becomes as many damaged records as are missing. Reported offsets are
 * `base` + position. n must be a multiple of 8 and, unless 0, >= 48. */
static void run_verify(uint8_t *bytes, uint64_t n, uint64_t first_seq, uint32_t count, int dense,
                       uint64_t base, Damages *damages) {
    uint64_t at = 0, last = 0, min_seq = first_seq, seen = 0, budget = n * RESYNC_BUDGET;
    while (at < n) {
        uint64_t next, wanted, own, ceiling;
        uint32_t kind;
        const Record *r = record_at(bytes, at);
        if (n - at < MIN_RECORD) {     /* cannot be a record: padding of the previous one */
            damages_add(damages, base + at, n - at, DAMAGE_TAIL);
            ((Record *)(bytes + last))->length += (uint32_t)(n - at);
            return;
        }
        last = at;
        if (record_good(bytes, n, at) && r->seq >= min_seq && (!dense || r->seq == min_seq)) {
            min_seq = r->seq + 1;
            at += r->length;
            seen++;
            continue;
        }
        next = record_resync(bytes, n, at, min_seq, &budget, &kind);
        own = r->seq;
        ceiling = next < n && record_at(bytes, next)->seq > min_seq
            ? record_at(bytes, next)->seq : UINT64_MAX;
        damages_add(damages, base + at, next - at, kind);
        if (kind == DAMAGE_RECORD) {
            if (dense || own < min_seq || own >= ceiling || own - min_seq > UINT32_MAX)
                own = min_seq;
            record_make_damaged(bytes, at, next - at, own);
            min_seq = own + 1;
            seen++;
        } else {
            wanted = count > seen ? count - seen : 1;
            if (ceiling != UINT64_MAX && ceiling - min_seq < wanted)
                wanted = ceiling - min_seq;
            wanted = stretch_make_damaged(bytes, at, next, wanted, min_seq);
            last = at + (wanted - 1) * MIN_RECORD;
            min_seq += wanted;
            seen += wanted;
        }
        if (next < n && record_at(bytes, next)->seq > min_seq)
            min_seq = record_at(bytes, next)->seq;
        at = next;
    }
}

/* ---- a segment without a footer ---- */

#define SCAN_RUN_BYTES 262144

typedef struct Scan {
    SegmentRun *runs;
    uint64_t count;
    uint64_t capacity;
    uint64_t records;
    uint64_t max_id;
    uint64_t end;            /* end of the last good record */
    int failed;              /* out of memory */
} Scan;

static void scan_open_run(Scan *scan, const Record *r, uint64_t at) {
    SegmentRun run = {r->seq, r->seq, at, r->length, 1, 0, r->timestamp, r->timestamp};
    if (scan->count == scan->capacity) {
        uint64_t capacity = scan->capacity ? scan->capacity * 2 : 16;
        SegmentRun *more = realloc(scan->runs, capacity * sizeof(SegmentRun));
        if (!more) {
            scan->failed = 1;
            return;
        }
        scan->runs = more;
        scan->capacity = capacity;
    }
    run.flags |= run_flags_of(r);
    if (r->attributes & RECORD_COPY)
        run.flags |= RUN_SURVIVORS;
    scan->runs[scan->count++] = run;
}

/* Whether a run may continue with this record: copies ascend, other records leave no gap. */
static int scan_continues(const SegmentRun *run, const Record *r) {
    if (run->flags & RUN_SURVIVORS)
        return (r->attributes & RECORD_COPY) && r->seq > run->last_seq;
    return !(r->attributes & RECORD_COPY) && r->seq == run->last_seq + 1;
}

/* Adds a good record, to the last run if the record continues it. */
static void scan_add(Scan *scan, const Record *r, uint64_t at) {
    SegmentRun *run = scan->count ? &scan->runs[scan->count - 1] : NULL;
    scan->records++;
    if (r->id > scan->max_id)
        scan->max_id = r->id;
    scan->end = at + r->length;
    if (!run || run->offset + run->bytes != at || !scan_continues(run, r)
            || run->bytes + r->length > SCAN_RUN_BYTES) {
        scan_open_run(scan, r, at);
        return;
    }
    run->last_seq = r->seq;
    run->bytes += r->length;
    run->count++;
    run->last_time = r->timestamp;
    run->flags |= run_flags_of(r);
}

/* Finds every good record in a segment's bytes from SEGMENT_HEADER on. */
static void segment_scan(const uint8_t *bytes, uint64_t n, Scan *scan, Damages *damages) {
    uint64_t at = SEGMENT_HEADER, budget = n * RESYNC_BUDGET;
    memset(scan, 0, sizeof(*scan));
    scan->end = at;
    while (at < n && !scan->failed) {
        uint64_t next;
        uint32_t kind;
        if (n - at >= MIN_RECORD && record_good(bytes, n, at)) {
            const Record *r = record_at(bytes, at);
            scan_add(scan, r, at);
            at += r->length;
            continue;
        }
        if (n - at < MIN_RECORD) {
            next = n;
            kind = DAMAGE_TAIL;
        } else {
            next = record_resync(bytes, n, at, 0, &budget, &kind);
        }
        damages_add(damages, at, next - at, kind);
        at = next;
    }
}

/* The footer in the last `n` bytes of a complete segment, given the file size; NULL if there is no
 * valid footer. On success, *runs points to its index. */
static const SegmentFooter *segment_footer(const uint8_t *tail, uint64_t n, uint64_t size,
                                           const SegmentRun **runs) {
    const SegmentTrailer *trailer;
    const SegmentFooter *footer;
    uint64_t length, at;
    if (n < sizeof(SegmentFooter) + sizeof(SegmentTrailer) || n > size)
        return NULL;
    trailer = (const SegmentTrailer *)(tail + n - sizeof(SegmentTrailer));
    length = trailer->length;
    if (trailer->magic != FOOTER_MAGIC || length > n || (length & 7)
            || length < sizeof(SegmentFooter) + sizeof(SegmentTrailer))
        return NULL;
    footer = (const SegmentFooter *)(tail + n - length);
    if (crc32c(0, footer, length - sizeof(SegmentTrailer)) != trailer->crc)
        return NULL;
    if (footer->runs != (length - sizeof(SegmentFooter) - sizeof(SegmentTrailer))
            / sizeof(SegmentRun) || footer->data_end != size - length)
        return NULL;
    *runs = (const SegmentRun *)(footer + 1);
    at = SEGMENT_HEADER;
    for (uint64_t i = 0; i < footer->runs; i++) {
        const SegmentRun *run = *runs + i;
        if (run->offset < at || (run->offset & 7) || (run->bytes & 7) || !run->bytes
                || run->bytes > footer->data_end
                || run->offset > footer->data_end - run->bytes || run->bytes > UINT32_MAX
                || !run->count || run->bytes / MIN_RECORD < run->count)
            return NULL;
        at = run->offset + run->bytes;
    }
    return footer;
}

#endif
