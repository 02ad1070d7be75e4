"""Blocking HTTP clients for nsqd and nsqlookupd, for use in threads."""
