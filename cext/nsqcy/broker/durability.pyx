"""Durability classes: what must happen to a record before its publish is acknowledged."""

from nsqcy.config.policies import DURABILITIES as _DURABILITIES


cdef Durability durability_of(str name) except *:
    if name == "memory":        # the common case
        return MEMORY
    return <Durability><int>_DURABILITIES.index(name)
