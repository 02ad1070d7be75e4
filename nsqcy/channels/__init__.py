"""Channels: assignment of messages to consumers, and their state until they are finished."""
