"""Handlers of pages and their forms."""
