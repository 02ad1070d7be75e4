"""Options: their table, command lines, files and environment."""
