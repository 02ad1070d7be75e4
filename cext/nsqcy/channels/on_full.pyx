"""Actions of a full topic or channel when the next message arrives, by their names in policies."""

from nsqcy.config.policies import ON_FULL as _ON_FULL


cdef OnFull on_full_of(str name) except *:
    return <OnFull><int>_ON_FULL.index(name)
