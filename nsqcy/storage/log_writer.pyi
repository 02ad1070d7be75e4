from nsqcy.storage.segment_files import SegmentFiles

class LogWriter(SegmentFiles):
    max_bytes_per_file: int
    sync_every: int
    sync_timeout: int
    journal_bytes: int
    closed: bool
