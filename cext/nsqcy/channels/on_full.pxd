# Action of a full topic or channel when the next message arrives.


cdef enum OnFull:
    REJECT = 0                  # publishes are rejected
    DROP_OLDEST = 1             # the message that has waited longest is dropped
    DROP_NEWEST = 2             # the new message is dropped

cdef OnFull on_full_of(str name) except *
