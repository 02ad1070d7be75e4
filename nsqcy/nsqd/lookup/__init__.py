"""Registration with nsqlookupds, and their known channels."""
