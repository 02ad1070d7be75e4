"""Command-line tools, one module each."""
