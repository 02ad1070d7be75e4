"""Topics: publishing, fan-out, retention, checkpoints, recovery, log reads; the scheduler."""
