"""Topics: publishing, fan-out, retention, checkpoints, recovery, log reads and the scheduler."""
