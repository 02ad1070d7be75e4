"""The users file, shared by all daemons: users and their permissions."""
