"""Copies of topics on other machines: who owns a group of logs, and who has all of it.

A state machine without input and output: it knows no sockets, files, clocks or etcd. Its callers
pass it messages, values of the registry and the time, and carry out what it decides through
`Host` and `Copy`.
"""
