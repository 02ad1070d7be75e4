"""The file of users and their permissions, shared by all daemons."""
