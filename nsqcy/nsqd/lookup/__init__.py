"""Registration with nsqlookupds, and discovery of the channels that they list."""
