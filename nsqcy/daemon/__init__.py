"""What the daemons have in common: their start, and a daemon of one process."""
