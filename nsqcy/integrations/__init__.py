"""Integrations of nsqcy with other Python frameworks.

Each module belongs to one framework and imports it. The package itself imports nothing, so that an
integration costs nothing until it is used.
"""
