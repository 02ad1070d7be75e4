"""The request for /stats that HTTP sends to the master and the workers."""

from typing import NamedTuple


class Query(NamedTuple):
    """A request for /stats. `topic` and `channel` select the objects with those names; "" selects
    all. `ledger`: whether to include counts for every outcome of a channel's messages, and for
    messages dropped by its topic; JSON only. `sparse`: whether to omit zeros, false, null, empty
    latencies and unknown rates from topics and channels; JSON only."""

    json: bool = False
    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_mem: bool = True
    ledger: bool = False
    sparse: bool = False
