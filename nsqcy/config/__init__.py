"""Options: their tables, command lines, files and environment."""
