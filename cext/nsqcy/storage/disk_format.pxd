# The layout of segments and journals (cext/include/segment.h, normative in docs/DISKFORMAT.md), and
# functions over their bytes. Does no file I/O.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport Damage, Damages
from nsqcy.storage.record cimport Record
from nsqcy.storage.segment cimport SegmentFooter, SegmentRun


cdef extern from "segment.h" nogil:
    enum:
        FORMAT_VERSION
        SEGMENT_HEADER
        SEGMENT_MAGIC
        FOOTER_MAGIC
        JOURNAL_MAGIC
        DAMAGE_RECORD
        DAMAGE_FRAMING
        DAMAGE_TAIL

    struct SegmentHeader:
        uint64_t magic
        uint32_t version
        uint32_t crc
        uint8_t log_id[16]
        uint64_t number
        uint64_t first_seq
        int64_t created

    struct SegmentTrailer:
        uint32_t length
        uint32_t crc
        uint64_t magic

    struct JournalHeader:
        uint64_t magic
        uint32_t version
        uint32_t crc
        uint8_t log_id[16]

    struct JournalEntry:
        uint32_t length
        uint32_t crc

    struct Scan:
        SegmentRun *runs
        uint64_t count
        uint64_t records
        uint64_t max_id
        uint64_t end
        int failed

    uint32_t crc32c_of "crc32c"(uint32_t crc, const void *data, size_t n)
    uint32_t crc32c_join(uint32_t a, uint32_t b, uint64_t n)
    uint32_t crc32c_software(uint32_t crc, const uint8_t *data, size_t n)
    uint32_t segment_header_crc(const SegmentHeader *h)
    uint32_t journal_header_crc(const JournalHeader *h)
    uint32_t journal_entry_crc(uint32_t length, const uint8_t *payload)
    const Record *record_at(const uint8_t *bytes, uint64_t offset)
    void run_verify(uint8_t *bytes, uint64_t n, uint64_t first_seq, uint32_t count, int dense,
                    uint64_t base, Damages *damages)
    void segment_scan(const uint8_t *bytes, uint64_t n, Scan *scan, Damages *damages)
    int record_good(const uint8_t *bytes, uint64_t n, uint64_t at)
    uint64_t record_search(const uint8_t *bytes, uint64_t n, uint64_t from_, uint64_t min_seq,
                           uint64_t *budget)
    const SegmentFooter *segment_footer(const uint8_t *tail, uint64_t n, uint64_t size,
                                        const SegmentRun **runs)


cpdef uint32_t footer_length(bytes tail) noexcept
cdef object footer_facts(const SegmentFooter *footer)
cdef str damage_text(const Damage *damage)
cdef int check_version(str path, uint32_t version) except -1
cdef int journal_entry(uint8_t *at, bytes payload) except -1
cdef uint8_t *journal_head(bytes log_id, uint64_t n, uint32_t crc) except NULL
