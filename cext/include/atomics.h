/* Atomic operations on plain integers in memory shared between processes.
 *
 * The names state the memory order. `_acquire` and `_release` pair up: writes before a release
 * store are visible after an acquire load of that value. Read-modify-write operations are
 * sequentially consistent, and so is `atomic_fence`, which a Dekker handshake ("I set mine, then
 * look at yours") needs on both sides. */
#ifndef NSQCY_ATOMICS_H
#define NSQCY_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#define NSQCY_ATOMICS(T, S)                                                                  \
    static inline T load_relaxed_##S(const T *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); } \
    static inline T load_acquire_##S(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); } \
    static inline void store_relaxed_##S(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); } \
    static inline void store_release_##S(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); } \
    static inline T exchange_##S(T *p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
    static inline T fetch_add_##S(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
    static inline T fetch_or_##S(T *p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); } \
    static inline T fetch_and_##S(T *p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
    /* True if `*p` was `*seen` and is `v` now; otherwise `*seen` is the actual value. */     \
    static inline bool compare_exchange_##S(T *p, T *seen, T v)                              \
    {                                                                                        \
        return __atomic_compare_exchange_n(p, seen, v, false, __ATOMIC_SEQ_CST,              \
                                           __ATOMIC_RELAXED);                                \
    }

NSQCY_ATOMICS(uint32_t, u32)
NSQCY_ATOMICS(uint64_t, u64)

#undef NSQCY_ATOMICS

static inline void atomic_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Processes share the mapped memory, but would not share a lock inside libatomic. */
_Static_assert(__atomic_always_lock_free(sizeof(uint64_t), 0), "64-bit atomics must be lock-free");

#endif
