"""The layout of segments and journals: names, versions, checksums, and kinds of damage.

Pure functions over bytes (normative: docs/DISKFORMAT.md). Independent of files and logs;
nsqcy/storage/journal.py owns the content of the journal.
"""

# The layout of segments and journals (cext/include/segment.h, normative in docs/DISKFORMAT.md), and
# functions over their bytes. Does no file I/O.


cdef extern from "segment.h" nogil:
    enum:
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
    uint32_t run_flags_of(const Record *record)
    void run_verify(uint8_t *bytes, uint64_t n, uint64_t first_seq, uint32_t count, int dense,
                    uint64_t base, Damages *damages)
    void segment_scan(const uint8_t *bytes, uint64_t n, Scan *scan, Damages *damages)
    int record_good(const uint8_t *bytes, uint64_t n, uint64_t at)
    uint64_t record_search(const uint8_t *bytes, uint64_t n, uint64_t from_, uint64_t min_seq,
                           uint64_t *budget)
    const SegmentFooter *segment_footer(const uint8_t *tail, uint64_t n, uint64_t size,
                                        const SegmentRun **runs)


_TOPIC = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")

Footer = namedtuple(
    "Footer", "records first_seq last_seq first_time last_time max_id data_end")

DAMAGE_TEXTS = {
    DAMAGE_RECORD: "damaged record of {} bytes",
    DAMAGE_FRAMING: "{} damaged bytes before the next good record",
    DAMAGE_TAIL: "no good record in the last {} bytes",
}


def topic_directory(topic):
    """Return the name of a topic's directory. With the suffix, each topic name is a legal file
    name, even `..`."""
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"not a topic name: {topic!r}")
    return f"{topic}.topic"


cdef object footer_facts(const SegmentFooter *footer):
    return Footer(footer.records, footer.first_seq, footer.last_seq, footer.first_time,
                  footer.last_time, footer.max_id, footer.data_end)


cdef str damage_text(const Damage *damage):
    return DAMAGE_TEXTS[damage.kind].format(damage.bytes)


cdef int journal_entry(uint8_t *at, bytes payload) except -1:
    cdef JournalEntry *entry = <JournalEntry *>at
    entry.length = <uint32_t>len(payload)
    entry.crc = journal_entry_crc(entry.length, <const uint8_t *>PyBytes_AS_STRING(payload))
    memcpy(at + sizeof(JournalEntry), PyBytes_AS_STRING(payload), entry.length)
    return 0


cdef uint8_t *journal_head(bytes log_id, uint64_t n, uint32_t crc) except NULL:
    """Return the header of a snapshot of n bytes with this checksum."""
    cdef uint8_t *head = <uint8_t *>malloc(sizeof(JournalHeader) + sizeof(JournalEntry))
    cdef JournalHeader *header = <JournalHeader *>head
    cdef JournalEntry *entry = <JournalEntry *>(head + sizeof(JournalHeader))
    if head is NULL:
        raise MemoryError
    memset(header, 0, sizeof(JournalHeader))
    header.magic = JOURNAL_MAGIC
    header.version = FORMAT_JOURNAL
    memcpy(header.log_id, PyBytes_AS_STRING(log_id), 16)
    header.crc = journal_header_crc(header)
    entry.length = <uint32_t>n
    entry.crc = crc32c_join(crc32c_of(0, &entry.length, sizeof(entry.length)), crc, n)
    return head


def parse_journal(bytes data, str path="journal"):
    """Return (entries, log_id or None, offset of the first damage or None)."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef uint64_t n = len(data)
    cdef uint64_t offset = sizeof(JournalHeader)
    cdef const JournalHeader *header = <const JournalHeader *>at
    cdef JournalEntry entry
    entries = []
    number = journal_number(data[:sizeof(JournalHeader)])
    if number is None:
        return entries, None, 0
    formats.JOURNAL.check(number, path)
    log_id = header.log_id[:16]
    while offset < n:
        if n - offset < sizeof(JournalEntry):
            return entries, log_id, offset
        memcpy(&entry, at + offset, sizeof(JournalEntry))
        if (entry.length > n - offset - sizeof(JournalEntry)
                or entry.crc != journal_entry_crc(entry.length,
                                                  at + offset + sizeof(JournalEntry))):
            return entries, log_id, offset
        offset += sizeof(JournalEntry)
        entries.append(data[offset:offset + entry.length])
        offset += entry.length
    return entries, log_id, None


def segment_number(bytes data not None):
    """Return the number of the format in the header of a segment; None if the header is damaged."""
    if not is_segment_header(data):
        return None
    return (<const SegmentHeader *>PyBytes_AS_STRING(data)).version


def journal_number(bytes data not None):
    """Return the number of the format in the header of a journal; None if the header is damaged."""
    cdef const JournalHeader *header = <const JournalHeader *>PyBytes_AS_STRING(data)
    if (len(data) != sizeof(JournalHeader) or header.magic != JOURNAL_MAGIC
            or header.crc != journal_header_crc(header)):
        return None
    return header.version


def is_segment_header(bytes data):
    """Return whether data is the header of a segment and matches the header's checksum."""
    cdef const SegmentHeader *header = <const SegmentHeader *>PyBytes_AS_STRING(data)
    return (len(data) == SEGMENT_HEADER and header.magic == SEGMENT_MAGIC
            and header.crc == segment_header_crc(header))


def records_end(bytes data):
    """Return the end of the intact records at the beginning."""
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef uint64_t n = len(data)
    cdef uint64_t at = 0
    while n - at >= 48 and record_good(begin, n, at):      # the minimum size of a record
        at += record_at(begin, at).length
    return at


def find_record(bytes data, uint64_t at):
    """Return the offset of the first intact record at or after an offset, which is a multiple of 8;
    the length of the data if there is none."""
    cdef uint64_t n = len(data)
    cdef uint64_t budget = n * 4
    return record_search(<const uint8_t *>PyBytes_AS_STRING(data), n, at, 0, &budget)


cpdef uint32_t footer_length(bytes tail) noexcept:
    """Return the length of the footer, with its trailer, according to the end of a segment; 0 if
    there is no footer. The footer may be damaged."""
    cdef const SegmentTrailer *trailer
    if len(tail) < <Py_ssize_t>sizeof(SegmentTrailer):
        return 0
    trailer = <const SegmentTrailer *>(
        PyBytes_AS_STRING(tail) + len(tail) - sizeof(SegmentTrailer))
    return trailer.length if trailer.magic == FOOTER_MAGIC else 0


def footer_begin(bytes tail, uint64_t size):
    """Return the offset of a segment's footer, given the end of the segment and its size; None if
    the end does not contain an intact footer."""
    cdef const SegmentRun *runs = NULL
    cdef const SegmentFooter *footer = segment_footer(
        <const uint8_t *>PyBytes_AS_STRING(tail), len(tail), size, &runs)
    return None if footer is NULL else footer.data_end


def crc32c(bytes data, uint32_t crc=0, *, bint software=False):
    """Return the CRC-32C of data, continuing from crc."""
    if software:
        return crc32c_software(crc, <const uint8_t *>PyBytes_AS_STRING(data), len(data))
    return crc32c_of(crc, PyBytes_AS_STRING(data), len(data))
