from nsqcy.storage.log_tasks import LogTasks

class SegmentFiles(LogTasks):
    log_id: bytes
    disk_bytes: int
