"""Parts that daemons share: startup, and a daemon with a single process."""
