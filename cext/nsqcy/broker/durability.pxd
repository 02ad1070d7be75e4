# Durability classes: what must happen to a record before it is visible and acknowledged.


cdef enum Durability:
    MEMORY = 0                  # nothing
    OS = 1                      # written: it survives the end of any process
    FSYNC = 2                   # written and synced: it survives a power loss

cdef Durability durability_of(str name) except *
