"""The master process of nsqd: placement, metadata, workers, draining."""
