"""Transports and brokers that run other Python frameworks on nsqd.

Each module belongs to one framework and imports it. The package itself imports nothing, so that an
integration costs nothing until it is used.
"""
