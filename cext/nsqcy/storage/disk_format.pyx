"""The layout of segments and journals: names, versions, checksums, and kinds of damage.

Pure functions over bytes (normative: docs/DISKFORMAT.md). Knows nothing about files or logs;
nsqcy/storage/journal.py owns the content of the journal.
"""

import re
from collections import namedtuple

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset


class FormatError(Exception):
    """A file was written by a newer nsqcy; it is rejected and left unchanged."""


_TOPIC = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")

Footer = namedtuple(
    "Footer", "records first_seq last_seq first_time last_time max_id data_end")

DAMAGE_TEXTS = {
    DAMAGE_RECORD: "damaged record of {} bytes",
    DAMAGE_FRAMING: "{} damaged bytes before the next good record",
    DAMAGE_TAIL: "no good record in the last {} bytes",
}


def topic_directory(topic):
    """Return the name of a topic's directory. Topic names are also legal file names, `..`
    included."""
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"not a topic name: {topic!r}")
    return f"{topic}.topic"


cdef object footer_facts(const SegmentFooter *footer):
    return Footer(footer.records, footer.first_seq, footer.last_seq, footer.first_time,
                  footer.last_time, footer.max_id, footer.data_end)


cdef str damage_text(const Damage *damage):
    return DAMAGE_TEXTS[damage.kind].format(damage.bytes)


cdef int check_version(str path, uint32_t version) except -1:
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{path}: format version {version} is newer than this nsqcy reads "
            f"({FORMAT_VERSION}): run the version that wrote it, or a later one"
        )
    return 0


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
    header.version = FORMAT_VERSION
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
    cdef JournalHeader header
    cdef JournalEntry entry
    entries = []
    if n < sizeof(JournalHeader):
        return entries, None, 0
    memcpy(&header, at, sizeof(JournalHeader))
    if header.magic != JOURNAL_MAGIC or header.crc != journal_header_crc(&header):
        return entries, None, 0
    check_version(path, header.version)
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


def crc32c(bytes data, uint32_t crc=0, *, bint software=False):
    """Return the CRC-32C of data, continuing from crc."""
    if software:
        return crc32c_software(crc, <const uint8_t *>PyBytes_AS_STRING(data), len(data))
    return crc32c_of(crc, PyBytes_AS_STRING(data), len(data))
