"""Handlers for pages and their forms."""
