/* See memrange.h. */
#define _GNU_SOURCE
#include "memrange.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define SMALL_PAGE 4096u
#define MIN_SIZE (64ull << 20)
#define USUAL_SIZE (64ull << 30)
#define LEFT_FREE (1ull << 30)
#define MAX_SIZE (1ull << 44)

/* ---- system calls ---- */

static int real_create(struct RangeCalls *self, const char *name, unsigned flags) {
    return memfd_create(name, flags);
}
static int real_resize(struct RangeCalls *self, int fd, int64_t size) {
    return ftruncate(fd, size);
}
static int real_seal(struct RangeCalls *self, int fd, int seals) {
    return fcntl(fd, F_ADD_SEALS, seals);
}
static int real_close(struct RangeCalls *self, int fd) {
    return close(fd);
}
static void *real_map(struct RangeCalls *self, void *at, size_t n, int protection, int flags,
                      int fd) {
    return mmap(at, n, protection, flags, fd, 0);
}
static int real_unmap(struct RangeCalls *self, void *at, size_t n) {
    return munmap(at, n);
}
static int real_protect(struct RangeCalls *self, void *at, size_t n, int protection) {
    return mprotect(at, n, protection);
}
static int real_advise(struct RangeCalls *self, void *at, size_t n, int advice) {
    return madvise(at, n, advice);
}
static int real_punch(struct RangeCalls *self, int fd, int64_t offset, int64_t n) {
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, n);
}
static int64_t real_seek(struct RangeCalls *self, int fd, int64_t offset, int whence) {
    return lseek(fd, offset, whence);
}

struct RangeCalls range_calls_real = {
    real_create, real_resize, real_seal, real_close, real_map, real_unmap, real_protect,
    real_advise, real_punch, real_seek,
};

#define CALL(range, call, ...) (range)->calls->call((range)->calls, __VA_ARGS__)

/* ---- pieces in a chunk ---- */

static uint32_t piece_mask(uint32_t first, uint32_t units) {
    return (units == CHUNK_UNITS ? WHOLE_CHUNK : (1u << units) - 1) << first;
}

static uint32_t count_units(uint32_t units) {
    return units == WHOLE_CHUNK ? CHUNK_UNITS : (uint32_t)__builtin_popcount(units);
}

/* Returns the length of the longest run of bits that are set. */
static uint32_t longest_run(uint32_t bits) {
    uint32_t n = 0;
    for (; bits; bits &= bits << 1)
        n++;
    return n;
}

/* Returns the first of `units` consecutive bits that are set, or CHUNK_UNITS. */
static uint32_t find_piece(uint32_t bits, uint32_t units) {
    for (uint32_t have = 1; have < units; ) {
        uint32_t more = units - have < have ? units - have : have;
        bits &= bits >> more;
        have += more;
    }
    return bits ? (uint32_t)__builtin_ctz(bits) : CHUNK_UNITS;
}

/* Returns the first run of bits that are set. */
static uint32_t first_run(uint32_t bits) {
    return bits & ~(bits + (bits & -bits));
}

static uint8_t *unit_address(struct Range *range, uint32_t chunk, uint32_t unit) {
    return range->base + (uint64_t)chunk * RANGE_CHUNK + unit * RANGE_UNIT;
}

static int is_used(struct Range *range, uint32_t unit) {
    uint32_t chunk = unit / CHUNK_UNITS;
    return chunk < range->chunks && range->at[chunk].used >> unit % CHUNK_UNITS & 1;
}

/* ---- lists ---- */

static void list_chunk(struct Range *range, uint32_t *head, uint32_t chunk) {
    range->at[chunk].prev = 0;
    range->at[chunk].next = *head;
    if (*head)
        range->at[*head].prev = chunk;
    *head = chunk;
}

static void unlist_chunk(struct Range *range, uint32_t *head, uint32_t chunk) {
    struct RangeChunk *at = range->at + chunk;
    if (at->prev)
        range->at[at->prev].next = at->next;
    else
        *head = at->next;
    if (at->next)
        range->at[at->next].prev = at->prev;
    at->prev = at->next = 0;
}

static void list_split(struct Range *range, uint32_t chunk) {
    uint32_t n = longest_run(~range->at[chunk].used);
    if (!n)
        return;
    list_chunk(range, range->split + n, chunk);
    range->split_lists |= 1ull << n;
}

static void unlist_split(struct Range *range, uint32_t chunk) {
    uint32_t n = longest_run(~range->at[chunk].used);
    if (!n)
        return;
    unlist_chunk(range, range->split + n, chunk);
    if (!range->split[n])
        range->split_lists &= ~(1ull << n);
}

/* Returns the list for free runs of this length: lists 1 to 16 have one length each, and each
 * further list has the lengths up to the next power of two. */
static uint32_t run_list(uint32_t length) {
    return length <= 16 ? length : 13 + (31 - (uint32_t)__builtin_clz(length));
}

static void list_run(struct Range *range, uint32_t first, uint32_t length) {
    uint32_t n = run_list(length);
    range->at[first].run = range->at[first + length - 1].run = length;
    list_chunk(range, range->runs + n, first);
    range->run_lists |= 1ull << n;
}

static void unlist_run(struct Range *range, uint32_t first) {
    uint32_t length = range->at[first].run;
    uint32_t n = run_list(length);
    unlist_chunk(range, range->runs + n, first);
    if (!range->runs[n])
        range->run_lists &= ~(1ull << n);
    range->at[first].run = range->at[first + length - 1].run = 0;
}

/* Adds chunks without pages to the free runs, and joins them with their neighbours. */
static void free_chunks(struct Range *range, uint32_t first, uint32_t length) {
    uint32_t before = range->at[first - 1].run;
    uint32_t after = first + length < range->chunks ? range->at[first + length].run : 0;
    if (after) {
        unlist_run(range, first + length);
        length += after;
    }
    if (before) {
        first -= before;
        unlist_run(range, first);
        length += before;
    }
    list_run(range, first, length);
}

/* Takes consecutive free chunks; returns the first one, or 0 if there are none. */
static uint32_t take_chunks(struct Range *range, uint32_t length) {
    uint32_t n = run_list(length);
    uint32_t first = range->runs[n];
    while (first && range->at[first].run < length)
        first = range->at[first].next;
    if (!first) {
        uint64_t longer = range->run_lists & ~((2ull << n) - 1);
        if (!longer)
            return 0;
        first = range->runs[__builtin_ctzll(longer)];
    }
    uint32_t rest = range->at[first].run - length;
    unlist_run(range, first);
    if (rest)
        list_run(range, first + length, rest);
    return first;
}

/* ---- pages ---- */

static void set_backed(struct Range *range, struct RangeChunk *at, uint32_t backed) {
    range->backed_units += count_units(backed);
    range->backed_units -= count_units(at->backed);
    at->backed = backed;
}

static void unlist_idle(struct Range *range, uint32_t chunk) {
    struct RangeChunk *at = range->at + chunk;
    if (at->idle_prev)
        range->at[at->idle_prev].idle_next = at->idle_next;
    else
        range->idle_first = at->idle_next;
    if (at->idle_next)
        range->at[at->idle_next].idle_prev = at->idle_prev;
    else
        range->idle_last = at->idle_prev;
    at->idle_prev = at->idle_next = 0;
}

/* Sets the idle units of a chunk. If units were added, the chunk becomes the last of the list. */
static void set_idle(struct Range *range, uint32_t chunk, uint32_t idle) {
    struct RangeChunk *at = range->at + chunk;
    int added = (idle & ~at->idle) != 0;
    if (idle == at->idle)
        return;
    if (at->idle && (added || !idle))
        unlist_idle(range, chunk);
    range->idle_units += count_units(idle);
    range->idle_units -= count_units(at->idle);
    at->idle = idle;
    if (!added)
        return;
    at->idle_since = range->now;
    at->idle_prev = range->idle_last;
    if (range->idle_last)
        range->at[range->idle_last].idle_next = chunk;
    else
        range->idle_first = chunk;
    range->idle_last = chunk;
}

/* Gives back pages. MADV_DONTNEED would free nothing in a memfd. MADV_REMOVE fails if the memory is
 * locked, and punching a hole does not. */
static int discard(struct Range *range, uint8_t *at, size_t n) {
    if (range->fd < 0)
        return CALL(range, advise, at, n, MADV_DONTNEED);
    if (CALL(range, advise, at, n, MADV_REMOVE) == 0)
        return 0;
    return CALL(range, punch, range->fd, at - range->base, (int64_t)n);
}

static int discard_run(struct Range *range, uint32_t chunk, uint32_t run) {
    uint8_t *at = unit_address(range, chunk, (uint32_t)__builtin_ctz(run));
    return discard(range, at, (size_t)count_units(run) * RANGE_UNIT);
}

/* Gives back the pages of units that no piece uses. Returns those that remain after a failure. */
static uint32_t discard_units(struct Range *range, uint32_t chunk, uint32_t units) {
    uint32_t run;
    for (; units; units &= ~run) {
        run = first_run(units);
        if (discard_run(range, chunk, run) < 0)
            break;
    }
    return units;
}

/* Gives back all pages of a chunk that no piece uses. Returns the units that remain after a failure.
 * Anonymous memory is mapped again, so that it no longer counts as committed and is not a huge page. */
static uint32_t discard_chunk(struct Range *range, uint32_t chunk) {
    uint8_t *at = unit_address(range, chunk, 0);
    if (range->fd >= 0)
        return discard(range, at, RANGE_CHUNK) < 0 ? WHOLE_CHUNK : 0;
    return CALL(range, map, at, RANGE_CHUNK, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1) == MAP_FAILED
               ? WHOLE_CHUNK : 0;
}

/* Gives back the pages of the idle units in a listed chunk, and frees the chunk if it has no used
 * units. Units that remain after a failure are idle for another while. */
static void purge_chunk(struct Range *range, uint32_t chunk) {
    struct RangeChunk *at = range->at + chunk;
    uint32_t idle = at->used ? at->idle : at->backed;
    uint32_t left = at->used ? discard_units(range, chunk, idle) : discard_chunk(range, chunk);
    left &= idle;
    range->kept += left != 0;
    set_backed(range, at, (at->backed & ~idle) | left);
    set_idle(range, chunk, 0);
    set_idle(range, chunk, left);
    if (!at->backed) {
        unlist_split(range, chunk);
        free_chunks(range, chunk, 1);
    }
}

/* Allocates the pages of part of a memfd, so that a lack of memory is an error. A kernel before 5.14
 * cannot do this, and allocates them when they are used. */
static int populate(struct Range *range, uint8_t *at, size_t n) {
    if (CALL(range, advise, at, n, MADV_POPULATE_WRITE) == 0 || errno == EINVAL)
        return 0;
    errno = ENOMEM;
    return -1;
}

/* Fills a chunk with a huge page: without this, a memfd has small pages only. A hole cannot be
 * collapsed, so the first page is filled before. Returns 1 on success, 0 if there is no huge page, or
 * -1 if there is no memory at all. */
static int collapse(struct Range *range, uint32_t chunk) {
    uint8_t *at = unit_address(range, chunk, 0);
    if (populate(range, at, SMALL_PAGE) < 0)
        return -1;
    *(volatile uint8_t *)at = 0;
    return CALL(range, advise, at, RANGE_CHUNK, MADV_COLLAPSE) == 0;
}

/* Gives pages to units, except to the last `spare` bytes. huge: prefer a huge page for a chunk that has
 * no pages. Otherwise, just these units get pages, because the others may remain unused. Idle units
 * are included, because some of their pages may be missing. */
static int fill(struct Range *range, uint32_t chunk, uint32_t units, int huge, uint32_t spare) {
    struct RangeChunk *at = range->at + chunk;
    int fresh = !at->backed;
    uint32_t missing = units & (~at->backed | at->idle);
    uint32_t tried = fresh ? WHOLE_CHUNK : missing;
    uint32_t run, left;
    int found = 0;
    if (range->fd < 0) {
        if (fresh && CALL(range, protect, unit_address(range, chunk, 0), RANGE_CHUNK,
                          PROT_READ | PROT_WRITE) < 0)
            return -1;
        set_backed(range, at, at->backed | units);
        return 0;
    }
    if (!missing)
        return 0;
    if (fresh && huge)
        found = collapse(range, chunk);
    if (found > 0) {
        range->collapsed++;
        set_backed(range, at, WHOLE_CHUNK);
        return 0;
    }
    if (found < 0 || (range->tight && units & ~at->backed))
        goto failed;
    for (left = missing; left; left &= ~run) {
        size_t n;
        run = first_run(left);
        n = (size_t)count_units(run) * RANGE_UNIT - (units <= (run | (run - 1)) ? spare : 0);
        if (populate(range, unit_address(range, chunk, (uint32_t)__builtin_ctz(run)), n) < 0)
            goto failed;
    }
    range->populated += (units & ~at->backed) != 0;
    set_backed(range, at, at->backed | units);
    return 0;
failed:
    /* Pages that remain count as backed, and are given back later. */
    left = fresh ? discard_chunk(range, chunk) : discard_units(range, chunk, missing);
    range->kept += left != 0;
    set_backed(range, at, (at->backed & ~tried) | left);
    set_idle(range, chunk, (at->idle & ~tried) | left);
    return -1;
}

/* ---- pieces ---- */

/* Writes the kinds of a piece. The table gets its pages in the order of addresses. */
static int note_kinds(struct Range *range, uint32_t unit, uint32_t units, int kind) {
    uint32_t end = unit + units;
    if (range->fd >= 0 && end > range->table_bytes) {
        end = (end + SMALL_PAGE - 1) & ~(SMALL_PAGE - 1);
        if (populate(range, range->base + range->table_bytes, end - range->table_bytes) < 0)
            return -1;
        range->table_bytes = end;
    }
    memset(range->base + unit + 1, UNIT_MORE, units - 1);
    keep_store_order();
    range->base[unit] = (uint8_t)kind;
    keep_store_order();
    return 0;
}

static void clear_kinds(struct Range *range, uint32_t unit, uint32_t units) {
    keep_store_order();
    range->base[unit] = UNIT_FREE;
    keep_store_order();
    memset(range->base + unit + 1, UNIT_FREE, units - 1);
    keep_store_order();
}

static void use_units(struct Range *range, uint32_t chunk, uint32_t units) {
    struct RangeChunk *at = range->at + chunk;
    set_idle(range, chunk, at->idle & ~units);
    at->used |= units;
    range->used_units += count_units(units);
}

/* Puts a chunk that was taken from its list where it belongs now. */
static void return_chunk(struct Range *range, uint32_t chunk) {
    if (range->at[chunk].backed)
        list_split(range, chunk);
    else
        free_chunks(range, chunk, 1);
}

/* Removes a chunk that has room from its list; returns 0 if there is none. A piece goes where it leaves
 * the smallest rest. If a whole chunk has only some of its pages, they are given back, because the
 * chunk could not get a huge page otherwise. */
static uint32_t chunk_with_room(struct Range *range, uint32_t units) {
    uint64_t lists = range->split_lists & ~((1ull << units) - 1);
    uint32_t chunk = lists ? range->split[__builtin_ctzll(lists)] : 0;
    if (chunk && units == CHUNK_UNITS && range->fd >= 0 && range->at[chunk].backed != WHOLE_CHUNK) {
        purge_chunk(range, chunk);
        chunk = range->at[chunk].backed ? chunk : 0;
    }
    if (!chunk)
        return take_chunks(range, 1);
    unlist_split(range, chunk);
    return chunk;
}

static uint8_t *take_in_chunk(struct Range *range, uint32_t units, uint32_t spare, int kind,
                              int huge) {
    uint32_t chunk = chunk_with_room(range, units);
    struct RangeChunk *at = range->at + chunk;
    uint32_t first;
    if (!chunk)
        return NULL;
    first = units == CHUNK_UNITS ? 0 : find_piece(at->backed & ~at->used, units);
    if (first == CHUNK_UNITS)
        first = find_piece(~at->used, units);
    if (fill(range, chunk, piece_mask(first, units), units == 1 || units == CHUNK_UNITS, spare) < 0
            || note_kinds(range, chunk * CHUNK_UNITS + first, units, kind) < 0) {
        set_idle(range, chunk, at->used ? at->idle | (at->backed & piece_mask(first, units))
                                        : at->backed);
        return_chunk(range, chunk);
        return NULL;
    }
    if (huge && range->fd < 0)
        CALL(range, advise, unit_address(range, chunk, 0), RANGE_CHUNK, MADV_HUGEPAGE);
    use_units(range, chunk, piece_mask(first, units));
    list_split(range, chunk);
    return unit_address(range, chunk, first);
}

static void release_units(struct Range *range, uint32_t chunk, uint32_t units, int keep) {
    struct RangeChunk *at = range->at + chunk;
    unlist_split(range, chunk);
    at->used &= ~units;
    range->used_units -= count_units(units);
    list_split(range, chunk);
    set_idle(range, chunk, at->idle | units);
    if (!keep || range->idle_units > MAX_IDLE_UNITS)
        purge_chunk(range, chunk);
}

static uint8_t *take_chunk_run(struct Range *range, uint32_t units, uint32_t spare, int kind) {
    uint32_t whole = units / CHUNK_UNITS;
    uint32_t rest = units % CHUNK_UNITS;
    uint32_t length = whole + (rest != 0);
    uint32_t first = take_chunks(range, length);
    uint32_t filled;
    if (!first && range->idle_first) {
        range_purge(range, range->now, INT64_MAX);
        first = take_chunks(range, length);
    }
    if (!first)
        return NULL;
    for (filled = 0; filled < length; filled++)
        if (fill(range, first + filled, filled < whole ? WHOLE_CHUNK : piece_mask(0, rest),
                 filled < whole, filled + 1 == length ? spare : 0) < 0)
            break;
    if (filled == length && note_kinds(range, first * CHUNK_UNITS, units, kind) == 0) {
        for (uint32_t i = 0; i < whole; i++)
            use_units(range, first + i, WHOLE_CHUNK);
        if (range->fd < 0)
            CALL(range, advise, unit_address(range, first, 0), (size_t)whole * RANGE_CHUNK,
                 MADV_HUGEPAGE);
        if (rest) {
            use_units(range, first + whole, piece_mask(0, rest));
            list_split(range, first + whole);
        }
        return unit_address(range, first, 0);
    }
    for (uint32_t i = 0; i < length; i++) {
        set_idle(range, first + i, range->at[first + i].backed);
        return_chunk(range, first + i);
        if (range->at[first + i].idle)
            purge_chunk(range, first + i);
    }
    return NULL;
}

uint8_t *range_take(struct Range *range, uint64_t size, int kind, int huge) {
    uint64_t units = (size + RANGE_UNIT - 1) / RANGE_UNIT;
    uint32_t spare = (uint32_t)(units * RANGE_UNIT - size) & ~(SMALL_PAGE - 1);
    uint8_t *piece = NULL;
    if (units > CHUNK_UNITS && units <= range->chunks * CHUNK_UNITS)
        piece = take_chunk_run(range, (uint32_t)units, spare, kind);
    else if (units && units <= CHUNK_UNITS && range->base)
        piece = take_in_chunk(range, (uint32_t)units, spare, kind, huge);
    if (!piece)
        errno = ENOMEM;
    return piece;
}

void range_release(struct Range *range, void *piece, uint32_t units, int keep) {
    uint32_t unit = (uint32_t)(((uint8_t *)piece - range->base) / RANGE_UNIT);
    uint32_t chunk = unit / CHUNK_UNITS;
    clear_kinds(range, unit, units);
    if (units <= CHUNK_UNITS) {
        release_units(range, chunk, piece_mask(unit % CHUNK_UNITS, units), keep);
        return;
    }
    /* A piece of several chunks cannot reuse the pages of single chunks. */
    for (; units >= CHUNK_UNITS; units -= CHUNK_UNITS)
        release_units(range, chunk++, WHOLE_CHUNK, 0);
    if (units)
        release_units(range, chunk, piece_mask(0, units), 0);
}

int range_next(struct Range *range, uint64_t offset, struct RangePiece *piece) {
    uint32_t unit = (uint32_t)(offset / RANGE_UNIT);
    for (uint32_t chunk = unit / CHUNK_UNITS; chunk < range->chunks; unit = ++chunk * CHUNK_UNITS) {
        uint32_t used = range->at[chunk].used & (WHOLE_CHUNK << unit % CHUNK_UNITS);
        uint32_t units = 1;
        if (!used)
            continue;
        unit = chunk * CHUNK_UNITS + (uint32_t)__builtin_ctz(used);
        while (is_used(range, unit + units) && range->base[unit + units] == UNIT_MORE)
            units++;
        piece->offset = (uint64_t)unit * RANGE_UNIT;
        piece->units = units;
        piece->kind = range->base[unit];
        return 1;
    }
    return 0;
}

void range_split_huge(struct Range *range, void *chunk) {
    if (range->fd < 0)
        CALL(range, advise, chunk, RANGE_CHUNK, MADV_NOHUGEPAGE);
}

int range_thin(struct Range *range, void *at, size_t n) {
    return discard(range, at, n);
}

int range_refill(struct Range *range, void *at, size_t n) {
    uint8_t *chunk = (uint8_t *)((uintptr_t)at & ~(uintptr_t)(RANGE_CHUNK - 1));
    if (range->fd < 0) {
        CALL(range, advise, chunk, RANGE_CHUNK, MADV_HUGEPAGE);
        return 1;
    }
    /* Collapsing a chunk again would copy what is left of it. */
    return range->tight ? -1 : populate(range, at, n);
}

void range_purge(struct Range *range, int64_t now, int64_t before) {
    uint32_t last = range->idle_last;
    range->now = now;
    for (uint32_t chunk = range->idle_first; chunk && range->at[chunk].idle_since <= before; ) {
        uint32_t next = chunk == last ? 0 : range->at[chunk].idle_next;
        purge_chunk(range, chunk);
        chunk = next;
    }
}

/* ---- the range ---- */

static uint64_t whole_chunks(uint64_t size) {
    return size & ~(uint64_t)(RANGE_CHUNK - 1);
}

/* Returns the size of a range whose owner has no preference: more than can be used. If the address
 * space is limited, half of it or 1 GiB is left for everything else. */
static uint64_t usual_size(void) {
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t size = USUAL_SIZE;
    struct rlimit limit;
    while (size < 4 * memory && size < MAX_SIZE)
        size *= 2;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        uint64_t rest = limit.rlim_cur / 2 < LEFT_FREE ? limit.rlim_cur / 2 : LEFT_FREE;
        if (size > limit.rlim_cur - rest)
            size = whole_chunks(limit.rlim_cur - rest);
    }
    return size < MIN_SIZE ? MIN_SIZE : size;
}

/* Reserves addresses from a multiple of RANGE_CHUNK; returns NULL on failure. */
static uint8_t *reserve(struct Range *range, uint64_t size) {
    uint8_t *raw = CALL(range, map, NULL, size + RANGE_CHUNK, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    uint64_t skip;
    if (raw == (uint8_t *)MAP_FAILED)
        return NULL;
    skip = -(uintptr_t)raw & (RANGE_CHUNK - 1);
    if (skip)
        CALL(range, unmap, raw, skip);
    CALL(range, unmap, raw + skip + size, RANGE_CHUNK - skip);
    return raw + skip;
}

/* Reserves fewer addresses than `size`, and sets it. If there are not enough of them, others need
 * some as well, so the range gets a quarter of the largest gap. */
static uint8_t *reserve_less(struct Range *range, uint64_t *size) {
    uint8_t *found = NULL;
    while (!found && *size > MIN_SIZE) {
        *size = whole_chunks(*size / 2);
        found = reserve(range, *size);
    }
    if (found && *size >= 4 * MIN_SIZE) {
        CALL(range, unmap, found, *size);
        *size = whole_chunks(*size / 4);
        found = reserve(range, *size);
    }
    return found;
}

/* Reserves addresses of the usual size if `size` is 0, and sets it. */
static uint8_t *reserve_wanted(struct Range *range, uint64_t *size) {
    uint8_t *found;
    if (*size)
        return reserve(range, *size);
    *size = usual_size();
    found = reserve(range, *size);
    return found ? found : reserve_less(range, size);
}

static int valid_size(uint64_t size) {
    if (size >= 2 * RANGE_CHUNK && size % RANGE_CHUNK == 0 && size <= MAX_SIZE)
        return 1;
    errno = EINVAL;
    return 0;
}

int range_create(struct RangeCalls *calls, uint64_t size) {
    struct Range range = {.calls = calls};
    int fd, error;
    if (size && !valid_size(size))
        return -1;
    if (!size) {
        uint8_t *found = reserve_wanted(&range, &size);
        if (!found)
            return -1;
        CALL(&range, unmap, found, size);
    }
    fd = CALL(&range, create, "nsqd-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (CALL(&range, resize, fd, (int64_t)size) == 0
            && CALL(&range, seal, fd, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        return fd;
    error = errno;
    CALL(&range, close, fd);
    errno = error;
    return -1;
}

/* Replaces the reserved addresses by the memfd. A core dump would fill its holes, and therefore
 * excludes it. */
static int map_memfd(struct Range *range) {
    if (CALL(range, map, range->base, range->size, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_NORESERVE | MAP_FIXED, range->fd) == MAP_FAILED)
        return -1;
    return CALL(range, advise, range->base, range->size, MADV_DONTDUMP);
}

/* ---- adoption ---- */

/* Consecutive pages of a memfd. */
struct PageRun {
    int64_t start, end;
};

/* Returns the offset of the first page (SEEK_DATA) or hole (SEEK_HOLE) at or after `offset`; the size
 * of the memfd if there is none; or -1. */
static int64_t seek_pages(struct Range *range, int64_t offset, int whence) {
    int64_t found;
    if (offset >= (int64_t)range->size)
        return (int64_t)range->size;
    found = CALL(range, seek, range->fd, offset, whence);
    return found < 0 && errno == ENXIO ? (int64_t)range->size : found;
}

/* Returns the bytes of the table up to its last page, or -1. A read of a hole would allocate a page. */
static int64_t written_table(struct Range *range) {
    int64_t size = (int64_t)range->chunks * CHUNK_UNITS;
    int64_t end = 0;
    for (int64_t at = 0; at < size; ) {
        at = seek_pages(range, at, SEEK_DATA);
        if (at < 0)
            return -1;
        if (at >= size)
            break;
        at = end = seek_pages(range, at, SEEK_HOLE);
        if (at < 0)
            return -1;
    }
    return end < size ? end : size;
}

static int valid_piece(uint32_t unit, uint32_t units, int kind) {
    uint32_t first = unit % CHUNK_UNITS;
    if ((kind >= UNIT_NEW && kind <= UNIT_HEAD) || kind == UNIT_IDS)
        return units == 1;
    if (kind >= UNIT_ARENA && kind < UNIT_KINDS)
        return units == CHUNK_UNITS && first == 0;
    return (kind == UNIT_LARGE || kind == UNIT_LONG_NOTE)
        && (first == 0 || first + units <= CHUNK_UNITS);
}

/* Uses the pieces of the table. What is not a piece becomes free: damaged entries, and UNIT_MORE without
 * a first unit, which a process leaves if it dies while it takes or releases a piece. */
static void adopt_pieces(struct Range *range, uint32_t own, uint32_t end) {
    uint32_t units;
    for (uint32_t unit = 0; unit < end; unit += units) {
        int kind = range->base[unit];
        units = 1;
        if (kind == UNIT_FREE)
            continue;
        if (kind != UNIT_MORE)
            while (unit + units < end && range->base[unit + units] == UNIT_MORE)
                units++;
        if (unit == 0 && kind == UNIT_TABLE && units == own)
            continue;
        if (unit < own || !valid_piece(unit, units, kind)) {
            range->damaged += kind != UNIT_MORE;
            clear_kinds(range, unit, units);
            continue;
        }
        for (uint32_t done = 0, n; done < units; done += n) {
            uint32_t first = (unit + done) % CHUNK_UNITS;
            n = units - done < CHUNK_UNITS - first ? units - done : CHUNK_UNITS - first;
            use_units(range, (unit + done) / CHUNK_UNITS, piece_mask(first, n));
        }
    }
}

/* Returns the units that contain bytes of a part of a chunk. */
static uint32_t units_between(uint32_t from, uint32_t to) {
    uint32_t first = from / RANGE_UNIT;
    return piece_mask(first, (to - 1) / RANGE_UNIT - first + 1);
}

/* Returns 1 if a chunk may be a huge page, 0 if not, or -1; sets the units that have pages. `seen` are
 * the pages found last, so that calls for increasing chunks examine each page once. */
static int find_pages(struct Range *range, uint32_t chunk, struct PageRun *seen, uint32_t *units) {
    int64_t start = (int64_t)chunk * RANGE_CHUNK, end = start + RANGE_CHUNK;
    int whole = range->at[chunk].used == WHOLE_CHUNK;
    *units = range->at[chunk].used;
    for (int64_t at = start; at < end && !whole; at = seen->end) {
        int64_t from, to;
        if (seen->end <= at) {
            seen->start = seek_pages(range, at, SEEK_DATA);
            seen->end = seen->start < 0 ? -1 : seek_pages(range, seen->start, SEEK_HOLE);
            if (seen->end < 0)
                return -1;
        }
        if (seen->start >= end)
            break;
        from = (seen->start > start ? seen->start : start) - start;
        to = (seen->end < end ? seen->end : end) - start;
        whole = to - from == RANGE_CHUNK;
        *units |= units_between((uint32_t)from, (uint32_t)to);
    }
    return whole;
}

/* Lists the chunks from `first` on. Pages of a free chunk are given back. Pages outside of the pieces of
 * another chunk become idle, unless they are part of a huge page. */
static int adopt_pages(struct Range *range, uint32_t first, uint32_t last) {
    uint32_t run = first;
    struct PageRun seen = {0, 0};
    for (uint32_t chunk = first; chunk < range->chunks; chunk++) {
        struct RangeChunk *at = range->at + chunk;
        uint32_t units;
        int whole;
        if (chunk > last && seen.start >= (int64_t)range->size)
            break;
        whole = find_pages(range, chunk, &seen, &units);
        if (whole < 0)
            return -1;
        if (!at->used && units && discard_chunk(range, chunk) == 0)
            units = 0;
        if (!(at->used | units))
            continue;
        range->kept += !at->used;
        set_backed(range, at, at->used | units);
        set_idle(range, chunk, whole && at->used ? 0 : units & ~at->used);
        list_split(range, chunk);
        if (run < chunk)
            list_run(range, run, chunk - run);
        run = chunk + 1;
    }
    if (run < range->chunks)
        list_run(range, run, range->chunks - run);
    return 0;
}

/* Gives the table its own entries, and the range its free chunks. */
static int set_up(struct Range *range) {
    uint32_t own = (range->chunks * CHUNK_UNITS + RANGE_CHUNK - 1) / RANGE_CHUNK;
    int64_t end = 0;
    if (range->fd < 0 ? CALL(range, protect, range->base, (size_t)own * RANGE_CHUNK,
                             PROT_READ | PROT_WRITE)
                      : map_memfd(range))
        return -1;
    if (range->fd >= 0 && (end = written_table(range)) < 0)
        return -1;
    adopt_pieces(range, own * CHUNK_UNITS, (uint32_t)end);
    if (note_kinds(range, 0, own * CHUNK_UNITS, UNIT_TABLE) < 0)
        return -1;
    for (uint32_t i = 0; i < own; i++) {
        use_units(range, i, WHOLE_CHUNK);
        set_backed(range, range->at + i, WHOLE_CHUNK);
    }
    if (range->fd >= 0)
        return adopt_pages(range, own, (uint32_t)end / CHUNK_UNITS);
    list_run(range, own, range->chunks - own);
    return 0;
}

/* ---- opening and closing ---- */

int range_open(struct Range *range, uint64_t size, int fd) {
    int64_t found = fd < 0 ? (int64_t)size : CALL(range, seek, fd, 0, SEEK_END);
    uint64_t wanted = (uint64_t)found;
    void *at;
    int error;
    if (found < 0 || ((fd >= 0 || wanted) && !valid_size(wanted)))
        return -1;
    if (size && size != wanted) {
        errno = EINVAL;
        return -1;
    }
    range->base = reserve_wanted(range, &wanted);
    if (!range->base)
        return -1;
    range->fd = fd;
    range->size = wanted;
    range->chunks = (uint32_t)(wanted / RANGE_CHUNK);
    at = CALL(range, map, NULL, range->chunks * sizeof(struct RangeChunk), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (at != MAP_FAILED) {
        range->at = at;
        if (set_up(range) == 0)
            return 0;
    }
    error = errno;
    range->fd = -1;
    range_close(range);
    errno = error;
    return -1;
}

void range_close(struct Range *range) {
    struct RangeCalls *calls = range->calls;
    if (range->base)
        CALL(range, unmap, range->base, range->size);
    if (range->at)
        CALL(range, unmap, range->at, range->chunks * sizeof(struct RangeChunk));
    if (range->fd >= 0)
        CALL(range, close, range->fd);
    memset(range, 0, sizeof(*range));
    range->calls = calls;
    range->fd = -1;
}
