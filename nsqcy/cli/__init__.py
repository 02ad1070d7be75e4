"""The `nsqcy` command."""
