# Conversion of integers to and from unaligned bytes, and of message ids to and from hex; see
# bytes.h.
from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef extern from "bytes.h" nogil:
    uint16_t load_be16(const void *p)
    uint32_t load_be32(const void *p)
    uint64_t load_be64(const void *p)
    void store_be16(void *p, uint16_t v)
    void store_be32(void *p, uint32_t v)
    void store_be64(void *p, uint64_t v)

    uint16_t load_le16(const void *p)
    uint32_t load_le32(const void *p)
    uint64_t load_le64(const void *p)
    void store_le16(void *p, uint16_t v)
    void store_le32(void *p, uint32_t v)
    void store_le64(void *p, uint64_t v)

    # Exactly 16 lower-case digits; parsing returns -1 for anything else.
    void hex16_format(void *out, uint64_t v)
    int hex16_parse(const void *text, uint64_t *v)
