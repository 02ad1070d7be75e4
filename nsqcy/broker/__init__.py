"""Topics and channels: publishing, fan-out, delivery, retention, checkpoints, log reads."""
