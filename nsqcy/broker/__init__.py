"""Topics: publishing, fan-out, retention, checkpoints, recovery and log reads. Also the
scheduler."""
