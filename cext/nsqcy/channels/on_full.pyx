"""What a full topic or channel does with the next message, as its policy names it."""

from nsqcy.config.policies import ON_FULL as _ON_FULL


cdef OnFull on_full_of(str name) except *:
    return <OnFull><int>_ON_FULL.index(name)
