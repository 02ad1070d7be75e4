"""nsqd's master process: placement, metadata, workers, draining."""
