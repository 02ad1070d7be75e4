"""NSQ's TCP protocol: frames, commands, and the state machine of one connection."""
