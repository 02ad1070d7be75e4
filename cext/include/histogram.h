/* Histogram of durations, counted by powers of four.
 *
 *   counts[0]    up to 2^first ns
 *   counts[i]    up to 2^(first + 2i) ns, and more than the previous bound
 *   counts[HISTOGRAM_BOUNDS]   more than that
 */
#ifndef NSQCY_HISTOGRAM_H
#define NSQCY_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 12

typedef struct Histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1];
    double sum;              /* ns; an integer could overflow: many messages, each days old */
} Histogram;

/* Adds `count` durations of `ns` each; a negative duration counts as zero. */
static inline void histogram_add(Histogram *h, int first, int64_t ns, uint64_t count) {
    int bits = ns > 1 ? 64 - __builtin_clzll((uint64_t)ns - 1) : 0;
    int i = bits <= first ? 0 : (bits - first + 1) / 2;
    h->counts[i < HISTOGRAM_BOUNDS ? i : HISTOGRAM_BOUNDS] += count;
    h->sum += ns > 0 ? (double)ns * (double)count : 0;
}

static inline void histogram_merge(Histogram *into, const Histogram *other) {
    for (int i = 0; i <= HISTOGRAM_BOUNDS; i++)
        into->counts[i] += other->counts[i];
    into->sum += other->sum;
}

#endif
