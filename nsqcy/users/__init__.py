"""The users file, with users and their permissions, which all daemons share."""
