"""Options: tables, command lines, files and environment."""
