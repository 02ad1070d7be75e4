/* One range of addresses, which holds the memory of a worker's blocks and entries: a sealed memfd, or
 * anonymous memory. Another process that maps the memfd finds the same bytes at the same offsets.
 *
 * The range is divided into chunks of 2 MiB, and each chunk into 32 units of 64 KiB. Callers take pieces
 * of contiguous units. In a memfd, a piece has its pages before it is used, so a lack of memory is an
 * error instead of a SIGBUS. A chunk that is one piece, or that has pieces of one unit, gets a huge
 * page if possible. A table at the start of the range has one byte for each unit: what it holds.
 *
 *   used    a unit belongs to a piece                          used   is a subset of backed
 *   backed  a unit may have pages                              idle   is a subset of backed
 *   idle    a unit was released, but its pages were kept       idle   and used are disjoint
 *
 * A chunk is in exactly one place:
 *   full     no free units                                     in no list
 *   split    free units, or kept pages                         in `split`, by its longest free piece
 *   free     no used unit and no pages                         in a run of free chunks, in `runs`
 *
 * Not thread-safe: only the hub's thread uses a range.
 */
#ifndef NSQCY_MEMRANGE_H
#define NSQCY_MEMRANGE_H

#include <stddef.h>
#include <stdint.h>

#define RANGE_UNIT 65536u
#define RANGE_CHUNK 2097152u
#define CHUNK_UNITS 32u
#define WHOLE_CHUNK 0xffffffffu      /* a bit for each unit of a chunk */
#define RUN_LISTS 48
#define MAX_IDLE_UNITS 1024u         /* 64 MiB; beyond that, pages are given back at once */

/* The system calls of a range, so that tests can make them fail. They return -1 and set errno. */
struct RangeCalls {
    int (*create)(struct RangeCalls *self, const char *name, unsigned flags);
    int (*resize)(struct RangeCalls *self, int fd, int64_t size);
    int (*seal)(struct RangeCalls *self, int fd, int seals);
    int (*close)(struct RangeCalls *self, int fd);
    void *(*map)(struct RangeCalls *self, void *at, size_t n, int protection, int flags, int fd);
    int (*unmap)(struct RangeCalls *self, void *at, size_t n);
    int (*protect)(struct RangeCalls *self, void *at, size_t n, int protection);
    int (*advise)(struct RangeCalls *self, void *at, size_t n, int advice);
    int (*punch)(struct RangeCalls *self, int fd, int64_t offset, int64_t n);
    int64_t (*seek)(struct RangeCalls *self, int fd, int64_t offset, int whence);
};

extern struct RangeCalls range_calls_real;

/* What the table stores for the first unit of a piece; UNIT_MORE for its other units. The first unit
 * is written last and cleared first, so a process that dies at any instruction leaves whole pieces. */
enum UnitKind {
    UNIT_FREE = 0,
    UNIT_TABLE = 1,
    UNIT_MORE = 2,
    UNIT_NEW = 3,                    /* a slab in the making; these pieces have one unit: from here ... */
    UNIT_ENTRIES = 4,
    UNIT_PAGES = 5,
    UNIT_BLOCKS = 6,
    UNIT_OWNERS = 7,
    UNIT_NOTES = 8,                  /* + class of notes */
    UNIT_HEAD = 11,                  /* ... to here */
    UNIT_LARGE = 12,
    UNIT_LONG_NOTE = 13,
    UNIT_IDS = 14,                   /* one unit as well */
    UNIT_ARENA = 16,                 /* + block class */
    UNIT_KINDS = UNIT_ARENA + 7,
};

struct RangePiece {
    uint64_t offset;
    uint32_t units;
    int kind;
};

/* Bookkeeping of a chunk, outside of the range. List links are chunk numbers; 0, which always
 * contains the table, ends a list. */
struct RangeChunk {
    uint32_t used, backed, idle;     /* a bit for each unit */
    uint32_t run;                    /* first and last chunk of a free run: its length in chunks */
    uint32_t prev, next;
    uint32_t idle_prev, idle_next;   /* chunks with idle units; the latest release is last */
    int64_t idle_since;
};

struct Range {
    struct RangeCalls *calls;
    uint8_t *base;                   /* NULL: not open; a multiple of RANGE_CHUNK */
    uint64_t size;
    int fd;                          /* -1: anonymous memory */
    int tight;                       /* memory is short: take no small pages (see range_take) */
    uint32_t chunks;
    uint32_t table_bytes;            /* bytes of the table that have pages */
    struct RangeChunk *at;
    uint32_t split[CHUNK_UNITS + 1]; /* chunks by the units of their longest free piece */
    uint64_t split_lists;            /* bit n: split[n] is not empty */
    uint32_t runs[RUN_LISTS];        /* first chunks of free runs, by length (run_list) */
    uint64_t run_lists;
    uint32_t idle_first, idle_last;
    int64_t now;
    uint64_t used_units, backed_units, idle_units;
    uint64_t collapsed;              /* chunks filled with a huge page ... */
    uint64_t populated;              /* ... and pieces or parts of them with small pages */
    uint64_t kept;                   /* failed attempts to give back pages */
    uint64_t damaged;                /* entries of the table that range_open could not adopt */
};

/* Stores before this precede those after it. A dead process's stores are all visible, so this need not
 * restrain the processor. */
static inline void keep_store_order(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/* Creates a sealed sparse memfd, which any process can open as a range. size: bytes, a multiple of
 * RANGE_CHUNK; 0: four times the machine's memory, or what the address space permits. Returns the
 * descriptor, or -1 and sets errno. */
int range_create(struct RangeCalls *calls, uint64_t size);
/* Reserves addresses. fd: -1 for anonymous memory, or a memfd, which then belongs to the range; its
 * previous owner must be dead. Its pieces are used from then on; pages outside of them are given back or
 * become idle, and damaged entries of the table become free. size: as for range_create; 0: the memfd's
 * size. Returns 0, or -1 and sets errno; the memfd then still belongs to the caller. */
int range_open(struct Range *range, uint64_t size, int fd);
void range_close(struct Range *range);
/* Takes contiguous units for a number of bytes, whose values are arbitrary. A piece of CHUNK_UNITS or
 * more begins with a chunk. Beyond the bytes, the last unit need not have pages. huge: a piece of one
 * chunk gets a huge page in anonymous memory, too, as the whole chunks of longer pieces do. Returns NULL
 * and sets errno to ENOMEM if there is no memory.
 *
 * At the limit of its cgroup, a process that takes a small page may be killed, but a huge page is only
 * refused. Therefore, the owner of a memfd sets `tight` near the limit. */
uint8_t *range_take(struct Range *range, uint64_t size, int kind, int huge);
/* Releases a whole piece. keep: its pages may be kept for a while, because a similar piece will soon
 * be taken. */
void range_release(struct Range *range, void *piece, uint32_t units, int keep);
/* Finds the next piece: offset is 0, or the end of a piece. Returns 0 if there is none. Reads nothing
 * but the table. */
int range_next(struct Range *range, uint64_t offset, struct RangePiece *piece);
/* Gives back the pages of part of a piece, at multiples of 4 KiB. Returns -1 on failure. If the chunk
 * is a huge page of anonymous memory, it must first be split: the kernel would fill it again. */
void range_split_huge(struct Range *range, void *chunk);
int range_thin(struct Range *range, void *at, size_t n);
/* Prepares for writes part of a chunk that has been thinned. Returns 1 if nothing remains to be done
 * for the rest of the chunk, 0 if only this part is ready, or -1 if there is no memory. */
int range_refill(struct Range *range, void *at, size_t n);
/* Sets the time, and gives back the pages that have been idle since `before` or longer. */
void range_purge(struct Range *range, int64_t now, int64_t before);

#endif
