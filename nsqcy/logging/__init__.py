"""Log lines, and the table of log events."""
