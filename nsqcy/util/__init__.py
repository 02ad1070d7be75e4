"""Small helpers, independent of NSQ."""
