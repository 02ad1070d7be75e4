"""nsqd's HTTP API."""
