"""The users file with users and their permissions, shared by all daemons."""
