from nsqcy.storage.segment_files import SegmentFiles

class JournalFile(SegmentFiles):
    journal_bytes: int
    closed: bool
