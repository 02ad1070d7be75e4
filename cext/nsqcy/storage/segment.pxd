# A segment of a log, and where runs lie in it. A Segment lives from its creation (or recovery)
# until its file is unlinked or its Log is freed.
# States: OPEN -> CLOSING -> CLOSED -> DOOMED -> GONE; OPEN -> FAILED -> CLOSED (without a footer).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.io cimport File


cdef extern from "segment.h" nogil:
    enum:
        RUN_SURVIVORS
        RUN_HAS_DELAYED
        RUN_HAS_PRODUCED

    struct SegmentRun:
        uint64_t first_seq
        uint64_t last_seq
        uint64_t offset
        uint64_t bytes
        uint32_t count
        uint32_t flags
        int64_t first_time
        int64_t last_time

    struct SegmentFooter:
        uint64_t records
        uint64_t first_seq
        uint64_t last_seq
        int64_t first_time
        int64_t last_time
        uint64_t max_id
        uint64_t data_end
        uint64_t runs


cdef enum SegmentState:
    SEGMENT_OPEN
    SEGMENT_CLOSING      # no more runs; its footer is written after the last write
    SEGMENT_FAILED       # a write or a sync failed; truncated after the last write
    SEGMENT_CLOSED
    SEGMENT_DOOMED       # not needed; its file is deleted once no journal write is pending
    SEGMENT_GONE         # the unlink is in progress or done


cdef struct Segment:
    Segment *previous
    Segment *next
    File *file
    char *path
    uint64_t number      # number in its file name: greater than all earlier ones
    uint64_t end         # space is assigned up to here
    uint64_t good        # runs are known to be written up to here
    uint64_t synced      # runs are known to survive a power loss up to here
    uint64_t live        # bytes of extents not released
    uint32_t pending     # operations that refer to it
    uint8_t log_id[16]   # log_id from its header; zeros: unknown
    SegmentState state
    bint is_aside        # its bytes are kept when it is deleted, because some are damaged
    int error            # seq of the first failed run: later runs fail as well
    SegmentRun *runs     # the future index, while open
    uint32_t run_count
    uint32_t run_capacity
    SegmentFooter facts


# The location of a run; all zeros if empty. The log owns further pieces, which release() frees.
cdef struct Extent:
    Segment *segment
    uint64_t offset
    uint64_t first_seq
    uint64_t last_seq
    uint32_t bytes
    uint32_t count
    Extent *next
