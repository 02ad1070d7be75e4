"""Small helpers that know nothing of NSQ."""
