"""nsqadmin's HTTP API."""
