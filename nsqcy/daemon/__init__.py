"""Parts shared by the daemons: the start, and a daemon with a single process."""
