"""The request for /stats that HTTP sends to the master and the workers."""

from typing import NamedTuple


class Query(NamedTuple):
    """A request for /stats. `topic` and `channel` select the objects with those names; "" selects
    all. `ledger`: whether to include counts for every outcome of a channel's messages, and for
    messages dropped by its topic; JSON only. `sparse`: whether to omit zeros, false, null, empty
    latencies and unknown rates from topics and channels; JSON only. `topics`: names separated by
    commas, to show only these; "" shows all. `busiest`: maximum number of topics in a summary,
    which has totals of all topics; negative for a complete page; JSON only. `names`: whether a
    summary lists the names of all topics."""

    json: bool = False
    topic: str = ""
    channel: str = ""
    include_clients: bool = True
    include_mem: bool = True
    ledger: bool = False
    sparse: bool = False
    topics: str = ""
    busiest: int = -1
    names: bool = False

    @property
    def is_summary(self) -> bool:
        return self.json and self.busiest >= 0
