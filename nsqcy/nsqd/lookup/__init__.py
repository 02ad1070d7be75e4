"""Registration with nsqlookupds, and the channels that they know."""
