"""The command-line tools, a file each."""
