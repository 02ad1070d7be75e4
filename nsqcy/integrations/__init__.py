"""Integrations of nsqcy with frameworks."""
