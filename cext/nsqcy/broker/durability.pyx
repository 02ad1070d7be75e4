"""Classes of durability: what a record must have gone through before its publisher is answered."""

from nsqcy.config.policies import DURABILITIES as _DURABILITIES


cdef Durability durability_of(str name) except *:
    if name == "memory":        # as nearly everybody's
        return MEMORY
    return <Durability><int>_DURABILITIES.index(name)
