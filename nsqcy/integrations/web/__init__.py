"""Shared by the integrations with web frameworks: settings, handlers, producers, workers."""
