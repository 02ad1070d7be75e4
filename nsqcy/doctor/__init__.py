"""`nsqcy doctor`: finds problems of a host and a cluster, with advice.

`look_*` modules collect facts; `host`, `disk`, `cluster` and `topics` judge them. A check is a pure
function of facts.
"""
