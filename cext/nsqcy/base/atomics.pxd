# Atomic integers in shared memory; see atomics.h for the memory orders.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "atomics.h" nogil:
    uint32_t load_relaxed_u32(const uint32_t *p)
    uint32_t load_acquire_u32(const uint32_t *p)
    void store_relaxed_u32(uint32_t *p, uint32_t v)
    void store_release_u32(uint32_t *p, uint32_t v)
    uint32_t exchange_u32(uint32_t *p, uint32_t v)
    uint32_t fetch_add_u32(uint32_t *p, uint32_t v)
    uint32_t fetch_or_u32(uint32_t *p, uint32_t v)
    uint32_t fetch_and_u32(uint32_t *p, uint32_t v)
    bint compare_exchange_u32(uint32_t *p, uint32_t *seen, uint32_t v)

    uint64_t load_relaxed_u64(const uint64_t *p)
    uint64_t load_acquire_u64(const uint64_t *p)
    void store_relaxed_u64(uint64_t *p, uint64_t v)
    void store_release_u64(uint64_t *p, uint64_t v)
    uint64_t exchange_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_add_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_or_u64(uint64_t *p, uint64_t v)
    uint64_t fetch_and_u64(uint64_t *p, uint64_t v)
    bint compare_exchange_u64(uint64_t *p, uint64_t *seen, uint64_t v)

    void atomic_fence()
