"""Copies of topics on other machines: which node owns a group of logs, and which nodes have the
complete group.

A state machine without I/O: it uses no sockets, files, clock or etcd. Its callers pass it messages,
registry values and the time, and carry out its decisions through `Host` and `Copy`.
"""
