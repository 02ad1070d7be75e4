"""`nsqcy doctor`: finds problems on a host and in a cluster, and gives advice.

`look_*` modules collect facts; `host`, `disk`, `cluster` and `topics` judge them. A check is a pure
function of facts.
"""
