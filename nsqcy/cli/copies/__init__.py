"""`nsqcy copies`: shows and repairs the groups of topics with copies."""
