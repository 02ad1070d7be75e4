"""The Python client: consumers and producers of NSQ."""
