from nsqcy.storage.journal_file import JournalFile

class LogWriter(JournalFile):
    max_bytes_per_file: int
    sync_every: int
    sync_timeout: int
