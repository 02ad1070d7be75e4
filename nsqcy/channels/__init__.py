"""Channels: which consumer gets which message, and what happens to it until it is finished."""
