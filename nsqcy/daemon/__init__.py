"""Parts that daemons share: startup, and the single-process daemon."""
