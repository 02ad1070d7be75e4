"""Tools for a stopped data path: import and export of NSQ's files, and checks."""
