"""/stats, statsd and /metrics, gathered from all workers."""
