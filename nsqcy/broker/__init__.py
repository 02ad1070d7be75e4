"""Topics: publishing, fan-out, retention, checkpoints, recovery and log reads; the scheduler."""
