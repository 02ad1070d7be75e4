"""In-memory history of sampled statistics."""
