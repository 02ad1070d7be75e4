"""Asking nsqds and nsqlookupds over HTTP, blocking, from threads."""
