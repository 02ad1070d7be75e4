"""Shared memory between processes: rings, the streams over them, and quotas."""
